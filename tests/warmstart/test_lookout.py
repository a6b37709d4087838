"""In few dimensions a look at the density finds modes whose basins are tiny."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from dmvi.targets import from_log_density, from_value_and_grad
from dmvi.warmstart._laplace import Mode, Surface, laplace
from dmvi.warmstart._lookout import AT_ONCE, DRAWS, KEPT, MOST_NUMBERS, SPREADS, lookout, places

PLACE, WIDTH = 3.0, 0.02


def spike_beside_a_hill(x):
    """Half of the mass in a mode a fiftieth as wide as the other."""
    parts = [
        -0.5 * jnp.sum((x - place) ** 2) / width**2 - x.size * jnp.log(width)
        for place, width in ((0.0, 1.0), (PLACE, WIDTH))
    ]
    return logsumexp(jnp.stack(parts))


def hill(dim: int) -> Mode:
    return Mode(np.zeros(dim), np.eye(dim), 0.0)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_spike_is_found(dim):
    target = from_log_density(spike_beside_a_hill, jnp.zeros(dim))
    surface = Surface(target)
    starts = lookout(target, surface, hill(dim), jr.key(0))
    assert starts.shape == (len(SPREADS) * KEPT, dim)
    ends = np.array([laplace(surface, start).loc for start in starts])
    assert np.any(np.all(np.abs(ends - PLACE) < WIDTH, axis=1))


def test_many_dimensions_and_loops_without_end_are_not_looked_at():
    wide = from_log_density(spike_beside_a_hill, jnp.zeros(4))
    assert lookout(wide, Surface(wide), hill(4), jr.key(0)).shape == (0, 4)

    outside = from_value_and_grad(lambda x: (-0.5 * (x**2).sum(axis=1), -x), 2)
    assert lookout(outside, Surface(outside), hill(2), jr.key(0)).shape == (0, 2)


def test_costly_densities_are_looked_at_in_fewer_places_and_fewer_at_once():
    assert places(100) == (DRAWS, DRAWS)
    count, at_once = places(2**20)
    assert count == MOST_NUMBERS // 2**20 < DRAWS
    assert at_once == AT_ONCE // 2**20 < count
    assert places(10**12) == (KEPT, 1)
    rows = jnp.ones((1000, 3))
    cheap, dear = (
        Surface(from_log_density(lambda x, n=n: -jnp.sum((rows[:n] @ x) ** 2), jnp.zeros(3)))
        for n in (1, 1000)
    )
    assert dear.numbers() > 100 * cheap.numbers() / 10
    looped = Surface(
        from_log_density(
            lambda x: -jax.lax.scan(lambda s, _: (s + x @ x, None), 0.0, length=1000)[0], jnp.zeros(3)
        )
    )
    assert looped.numbers() > 1000


def test_places_where_the_density_is_not_finite_are_left_out():
    target = from_log_density(lambda x: jnp.where(x[0] > 0, -x[0], jnp.nan), jnp.zeros(1))
    assert np.all(lookout(target, Surface(target), hill(1), jr.key(0)) > 0)
