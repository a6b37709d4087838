"""How much a warm start does: by what a density costs, counted, and by the clock where there is a limit."""

import jax
import jax.numpy as jnp
import pytest

import dmvi.warmstart._effort as effort_module
from dmvi._clock import Clock
from dmvi.targets import from_log_density
from dmvi.warmstart._effort import EffortSettings, effort_of
from dmvi.warmstart._laplace import Surface
from tests.test_clock import Hands


def bent(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4


def wasteful(x):
    """A density of many numbers."""
    table = jnp.outer(jnp.ones(4000), x).reshape(-1)
    return -0.5 * jnp.sum(x**2) + 0.0 * jnp.sum(jnp.sin(table[:, None] + jnp.arange(100.0)[None]))


def looping(x):
    """One that nobody knows the cost of."""
    count, _ = jax.lax.while_loop(
        lambda state: state[0] < 3, lambda state: (state[0] + 1, state[1]), (0, jnp.zeros(()))
    )
    return -0.5 * jnp.sum(x**2) + 0.0 * count


def surface_of(log_density, dim: int) -> Surface:
    return Surface(from_log_density(log_density, jnp.zeros(dim)))


def test_effort_is_counted_and_not_timed(monkeypatch):
    """Nothing is evaluated for it, so the same model has the same effort on any machine."""

    def refused(surface):
        raise AssertionError

    monkeypatch.setattr(effort_module, "seconds_of_gradient", refused)
    efforts = {effort_of(surface_of(bent, 5), Clock()) for _ in range(2)}
    assert len(efforts) == 1


def test_a_costly_density_is_searched_less_in_shorter_programs():
    bounds = EffortSettings()
    plain, dear = (effort_of(surface_of(density, 5), Clock()) for density in (bent, wasteful))
    assert plain.searches == bounds.searches
    assert plain.steps == bounds.steps
    assert bounds.fewest_searches <= dear.searches < plain.searches
    assert 1 <= dear.steps < plain.steps
    assert 1 <= dear.at_once < plain.at_once
    # Noise is not what is saved at.
    assert (dear.draws, dear.field_draws) == (plain.draws, plain.field_draws)
    unknown = effort_of(surface_of(looping, 5), Clock(), EffortSettings(at_once=2**12))
    assert unknown.at_once < effort_of(surface_of(bent, 5), Clock(), EffortSettings(at_once=2**12)).at_once


@pytest.mark.parametrize(("dim", "draws"), [(1, 128), (5, 128), (40, 256), (300, 512), (1200, 2048)])
def test_draws_grow_with_the_dimension(dim, draws):
    """By powers of two, so that programs are shared: eight of each up to some, then two, with bounds."""
    found = effort_of(surface_of(lambda x: -jnp.sum(x**2), dim), Clock())
    assert (found.draws, found.field_draws) == (draws, 128)


@pytest.mark.parametrize(("seconds", "draws", "searches"), [(1e-5, 128, 32), (1e-2, 64, 3), (10.0, 16, 1)])
def test_with_a_limit_slow_gradients_are_fewer(monkeypatch, seconds, draws, searches):
    """A step has a hundredth of the time left, and some draws whatever they cost."""
    monkeypatch.setattr(effort_module, "seconds_of_gradient", lambda surface: seconds)
    found = effort_of(surface_of(bent, 5), Clock(100.0, Hands()))
    assert (found.draws, found.field_draws, found.searches) == (draws, draws, searches)
