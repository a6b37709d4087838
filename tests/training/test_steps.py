"""Single steps and chunks of them."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from dmvi._run import Status
from dmvi.diffusion import Projected
from dmvi.guides import DiffusionGuide, Gaussian
from dmvi.objectives import CoveringELBO, Paper, PathELBO
from dmvi.targets import Target, from_log_density
from dmvi.training import (
    Budget,
    Course,
    Kept,
    Look,
    Settings,
    State,
    Trained,
    default_optimizer,
    initial_state,
)
from dmvi.training import run_chunk as plain_chunk
from dmvi.training._course import ANNEALING, SHORTEST
from dmvi.training._state import RETREAT, WARM_UP, _rate
from dmvi.training._stopping import PATIENCE, TOLERANCE, Plateau
from tests.guides.registry import DIM, base, perturbed, target

run_chunk = eqx.filter_jit(plain_chunk)


def settings(*, chunk: int, optimizer=None, cooldown_steps: int = 50, particles: int = 4) -> Settings:
    return Settings(PathELBO(), optimizer or default_optimizer(1e-2), particles, chunk, cooldown_steps)


def gaussian_start() -> Trained:
    return Trained(Gaussian(affine=perturbed(base()), dim=DIM), {})


def test_chunks_do_not_change_the_result():
    """Two chunks of five steps are one of ten, bit for bit."""
    start, model = gaussian_start(), target("gaussian")
    five, ten = settings(chunk=5), settings(chunk=10)
    state = initial_state(start, five)
    for _ in range(2):
        state, _ = run_chunk(state, start, model, five, jr.key(0))
    whole, seen = run_chunk(initial_state(start, ten), start, model, ten, jr.key(0))
    assert int(state.step) == int(whole.step) == 10
    assert seen.log_weights.shape == seen.own.shape == (10, 4)
    np.testing.assert_array_equal(state.flat, whole.flat)
    assert np.abs(whole.flat - start.flat()).max() > 1e-4


def test_flat_round_trip():
    start = gaussian_start()
    moved = start.with_flat(start.flat() + 1.0)
    np.testing.assert_allclose(moved.flat(), start.flat() + 1.0)
    np.testing.assert_array_equal(moved.guide.affine.anchor.value, start.guide.affine.anchor.value)  # pyright: ignore


def broken_from(step: int) -> optax.GradientTransformation:
    """Plain gradient descent whose updates are NaN once its own count has reached `step`."""

    def update(updates, state, params=None):
        return jnp.where(state >= step, jnp.nan, -0.01 * updates), state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def test_updates_that_are_not_finite_are_skipped_and_counted():
    start, model = gaussian_start(), target("gaussian")
    broken, three = settings(chunk=8, optimizer=broken_from(3)), settings(chunk=3, optimizer=broken_from(100))
    state, _ = run_chunk(initial_state(start, broken), start, model, broken, jr.key(0))
    expected, _ = run_chunk(initial_state(start, three), start, model, three, jr.key(0))
    assert int(state.skipped) == 5
    assert int(state.optimizer) == 3  # the optimiser's own state stays as well
    np.testing.assert_array_equal(state.flat, expected.flat)
    assert int(expected.skipped) == 0


def holed(edge: float) -> Target:
    """Log-density NaN beyond an edge of the first coordinate."""
    with jax.numpy_rank_promotion("allow"):
        return from_log_density(
            lambda x: jnp.where(x[0] > edge, jnp.nan, -0.5 * jnp.sum(x**2)), jnp.full(DIM, edge - 2.0)
        )


def test_steps_with_a_density_that_is_not_finite_are_skipped():
    start, chosen = gaussian_start(), settings(chunk=40)
    state, seen = run_chunk(initial_state(start, chosen), start, holed(2.0), chosen, jr.key(0))
    bad = np.any(~np.isfinite(seen.log_weights), axis=1)
    assert 5 < bad.sum() < 35
    assert int(state.skipped) == bad.sum()
    assert np.isfinite(state.flat).all()
    never, _ = run_chunk(initial_state(start, chosen), start, holed(-50.0), chosen, jr.key(0))
    assert int(never.skipped) == 40
    np.testing.assert_array_equal(never.flat, start.flat())


def test_steps_that_are_skipped_teach_the_objective_nothing():
    """Where nothing is finite, what the covering objective remembers stays as it was."""
    start = gaussian_start()
    chosen = Settings(CoveringELBO(), settings(chunk=5).optimizer, 4, chunk=5, cooldown_steps=5)
    state, _ = run_chunk(initial_state(start, chosen), start, holed(-50.0), chosen, jr.key(0))
    for kept, before in zip(state.memory, CoveringELBO().memory(DIM), strict=True):
        np.testing.assert_array_equal(kept, before)
    moved, _ = run_chunk(initial_state(start, chosen), start, target("gaussian"), chosen, jr.key(0))
    assert np.all(np.asarray(moved.memory.draws) != np.asarray(state.memory.draws))


def test_learning_rate_warms_up_stays_and_falls_to_zero():
    def rate(step, cooldown=10**6, damping=1.0):
        counts = [jnp.asarray(n, jnp.int32) for n in (step, 0, cooldown, cooldown + 200)]
        return float(_rate(State(jnp.zeros(1), None, *counts, damping=jnp.asarray(damping), memory=None)))

    np.testing.assert_allclose(
        [rate(step) for step in (0, 49, WARM_UP - 1)], [1 / WARM_UP, 50 / WARM_UP, 1.0]
    )
    assert rate(5000) == 1.0
    assert rate(5000, damping=0.25) == 0.25
    steps = np.array([0, 50, 100, 150, 200, 300])
    found = [rate(1000 + step, cooldown=1000) for step in steps]
    np.testing.assert_allclose(found, 1 - np.minimum(steps / 200, 1), atol=1e-6)


def test_default_optimizer_clips():
    """A gradient of norm 1e10 after a small one does what one of norm 10 does: Adam itself would not."""
    optimizer, phi = default_optimizer(0.1), jnp.zeros(3)
    _, before = optimizer.update(jnp.asarray([1.0, 1.0, 0.0]), optimizer.init(phi), phi)
    huge, _ = optimizer.update(jnp.asarray([1e10, 0.0, 0.0]), before, phi)
    long, _ = optimizer.update(jnp.asarray([10.0, 0.0, 0.0]), before, phi)
    steps = np.array([huge, long])
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-5)
    assert np.all(steps[:, :2] < 0)


@pytest.mark.parametrize("objective", [PathELBO(), CoveringELBO()])
def test_a_guide_that_folds_is_straightened(objective):
    """A draw to which the guide gives no density takes back part of the shifts, and of nothing else."""
    recipe = DiffusionGuide(steps=2, network=Projected(rank=2, scale_rank=1, width=4, scale_width=4))
    guide = perturbed(recipe.build(base(), key=jr.key(0)))
    gentle, folding = (
        eqx.tree_at(lambda guide: guide.flow.shift.out, guide, size * guide.flow.shift.out)
        for size in (1e-2, 1e3)
    )
    chosen = Settings(objective, settings(chunk=1).optimizer, 16, chunk=1, cooldown_steps=5)

    def after(guide, target):
        start = Trained(guide, {})
        state, _ = run_chunk(initial_state(start, chosen), start, target, chosen, jr.key(0))
        assert int(state.skipped) == 1
        return start.with_flat(state.flat).guide.flow  # pyright: ignore

    straightened = after(folding, target("gaussian"))
    np.testing.assert_allclose(straightened.shift.out, (1 - RETREAT) * folding.flow.shift.out, rtol=1e-6)
    np.testing.assert_array_equal(straightened.scale.out, guide.flow.scale.out)
    np.testing.assert_array_equal(straightened.v, guide.flow.v)
    # Where it is the target that is not finite, nothing is wrong with the guide.
    np.testing.assert_array_equal(after(gentle, holed(-50.0)).shift.out, gentle.flow.shift.out)


def course(gap: float, *, budget: int = 10_000, objective=None) -> Course:
    """A course whose looks all show this gap, to its end; plateaus are seen at once."""
    chosen = dataclasses.replace(settings(chunk=10, cooldown_steps=200), objective=objective or PathELBO())
    found = Course(Kept(0, Look(-1.0, 0.001)), 0, chosen, Budget(budget))
    step = 0
    while not found.done:
        step += 10
        found.record(Kept(step, Look(-gap, 0.001, gap)), step, 0, 0.0)
    assert step == found.end <= budget
    return found


@pytest.mark.parametrize(("gap", "steps"), [(1.0, 200), (100 / ANNEALING, 100), (1.5e-3, 200 * SHORTEST)])
def test_annealing_is_the_shorter_the_less_there_is_to_gain(gap, steps):
    found = course(gap)
    assert found.end - found.cooldown == steps
    assert found.status is Status.CONVERGED


@pytest.mark.parametrize(("gap", "steps"), [(1.0, 200), (100 / ANNEALING, 100)])
def test_without_a_plateau_annealing_ends_with_the_budget(gap, steps, monkeypatch):
    monkeypatch.setattr(Plateau, "reached", lambda *look: False)
    found = course(gap, budget=1000)
    assert (found.cooldown, found.end) == (1000 - steps, 1000)
    assert found.status is Status.STEP_LIMIT


def test_annealing_ends_early_once_there_is_nothing_left_to_gain():
    chosen = settings(chunk=10, cooldown_steps=200)
    found, step = Course(Kept(0, Look(-1.0, 0.001)), 0, chosen, Budget(10_000)), 0
    while not found.done:
        step += 10
        gap = 1.0 if found.status is None else 45 / ANNEALING
        found.record(Kept(step, Look(-1.0, 0.001, gap)), step, 0, 0.0)
    # The first look still counts the one before it; the second asks for five more chunks.
    assert found.end - found.cooldown == 20 + 50


def test_broken_looks_and_what_is_no_bound_are_annealed_to_the_full():
    assert Look.at(np.full(10, np.nan)).gap == np.inf
    found = course(100 / ANNEALING, budget=1000, objective=Paper())
    assert found.end - found.cooldown == 200


def feed(looks, error=0.001):
    """The number of looks after which the plateau is seen; None if never."""
    plateau = Plateau()
    return next((i + 1 for i, look in enumerate(looks) if plateau.reached(look, error)), None)


def test_plateau():
    rising = -10.0 + np.arange(20)
    assert feed(rising) is None
    assert feed(rising * TOLERANCE * 2) is None
    assert feed(np.full(20, 3.0)) == 2 * PATIENCE
    assert feed(np.concatenate([rising, np.full(20, rising[-1])])) in range(21, 21 + 2 * PATIENCE + 1)
    assert feed(-rising) == 2 * PATIENCE  # falling is no progress either
    assert feed(rising * 0.05, error=1.0) == 2 * PATIENCE  # a rise within the noise is none
