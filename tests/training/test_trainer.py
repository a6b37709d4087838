"""The loop: what it returns, why it stops, and that it never makes things worse."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from dmvi import Status
from dmvi._clock import Clock
from dmvi._interrupt import Interrupt
from dmvi.guides import Gaussian
from dmvi.objectives import CoveringELBO
from dmvi.targets import Target, from_log_density
from dmvi.training import (
    Budget,
    Course,
    Kept,
    Outcome,
    Progress,
    Seen,
    Settings,
    Silent,
    Trainer,
    _course,
    _loop,
    default_optimizer,
)
from dmvi.training._look import IN_MANY_DIMENSIONS, LOOK_DRAWS, LOST, Look, look_back
from tests.guides.registry import DIM, base, exact_gaussian, target, untrained

CHUNK, COOLDOWN = 20, 60
OPTIMIZER = default_optimizer(2e-2)  # one object, so that trainings share their compiled programs


NO_LIMIT = Clock()


class Recorder(Silent):
    """Notes every update; interrupts at one of them, as Ctrl-C does."""

    def __init__(self, interrupt_at: int | None = None):
        self.steps: list[int] = []
        self.elbos: list[float] = []
        self._interrupt_at = interrupt_at

    def update(self, step, total, elbo, gap):
        self.steps.append(step)
        self.elbos.append(elbo)
        if len(self.steps) == self._interrupt_at:
            raise KeyboardInterrupt


def gaussian_guide() -> Gaussian:
    return Gaussian(affine=base(), dim=DIM)


def train(
    guide=None,
    *,
    model=None,
    steps: int = 200,
    chunk: int = CHUNK,
    cooldown_steps: int = COOLDOWN,
    optimizer=None,
    clock: Clock = NO_LIMIT,
    stop: Interrupt | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> Outcome:
    """A short training of the registry's Gaussian target."""
    settings = Settings(CoveringELBO(), optimizer or OPTIMIZER, 8, chunk, cooldown_steps)
    trainer = Trainer(
        gaussian_guide() if guide is None else guide,
        target("gaussian") if model is None else model,
        settings,
        Budget(steps, clock),
        key=jr.key(seed),
        progress=progress or Silent(),
        stop=stop,
    )
    return trainer.run()


def same(left, right) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    with jax.numpy_rank_promotion("raise"):
        return train(untrained("projected"), steps=200)


def test_training_improves_and_is_recorded(outcome):
    assert outcome.status in (Status.CONVERGED, Status.STEP_LIMIT)
    assert outcome.history.shape == outcome.history_steps.shape
    assert outcome.history[-1] > outcome.history[0] + 0.3
    assert outcome.history[-1] < 1.5 + 0.05  # never above the log evidence
    np.testing.assert_array_equal(np.diff(outcome.history_steps), CHUNK)
    assert outcome.steps == outcome.history_steps[-1] <= 200
    assert outcome.skipped == 0


def test_same_seed_same_result_bit_for_bit(outcome):
    again = train(untrained("projected"), steps=200)
    assert same(again.guide, outcome.guide)
    np.testing.assert_array_equal(again.history, outcome.history)


def test_another_seed_another_result():
    assert not same(train(steps=80).guide, train(steps=80, seed=1).guide)


def test_plateau_ends_training_early():
    done = train(steps=4000)
    assert done.status is Status.CONVERGED
    assert done.steps < 2000
    np.testing.assert_allclose(done.history[-1], 1.5, atol=0.02)


@pytest.mark.parametrize(("steps", "chunk", "cooldown_steps"), [(100, 6, 60), (7, 1, 7)])
def test_steps_are_never_exceeded(steps, chunk, cooldown_steps):
    assert train(steps=steps, chunk=chunk, cooldown_steps=cooldown_steps).steps <= steps


def test_time_limit():
    """A limit that has passed leaves the start; the status says why."""
    start = gaussian_guide()
    done = train(start, steps=10_000, clock=Clock(1.0, used=2.0))
    assert (done.status, done.steps, done.gradients) == (Status.TIME_LIMIT, 0, 0)
    assert same(done.guide, start)


@pytest.mark.parametrize("at", [1, 4])
def test_interrupt_keeps_the_best_so_far(at):
    progress = Recorder(interrupt_at=at)
    done = train(progress=progress, steps=400)
    assert done.status is Status.INTERRUPTED
    assert len(progress.steps) == at
    assert not same(done.guide, gaussian_guide())
    np.testing.assert_array_equal(done.history, progress.elbos)


DESTRUCTIVE = {"large steps": optax.sgd(1e3), "enormous steps": optax.sgd(1e30), "ascent": optax.sgd(-0.5)}


@pytest.mark.parametrize("steps", [200, COOLDOWN])
@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_never_worse_than_the_start(name, steps):
    """An optimiser that destroys the guide gives back the start, also where all steps anneal."""
    guide = gaussian_guide()
    done = train(guide, steps=steps, optimizer=DESTRUCTIVE[name])
    assert same(done.guide, guide)
    assert done.status in (Status.WARM_START, Status.DIVERGED)


def holed(radius: float) -> Target:
    """A Gaussian whose density and slope are NaN beyond a radius of a centre two sds from the mean."""
    with jax.numpy_rank_promotion("allow"):
        return from_log_density(
            lambda x: jnp.where(jnp.sum(x**2) > radius**2, jnp.nan, -0.5 * jnp.sum((x - 1.0) ** 2)),
            jnp.zeros(DIM),
        )


def mean_of_finite(guide, model) -> float:
    """The ELBO as diagnostics estimate it, on draws that no training has seen."""
    keys = jr.split(jr.key(99), 4000)
    draws = jax.vmap(guide.draw)(keys)
    log_w = np.asarray(jax.vmap(model.log_density)(draws.xi) - draws.log_q, float)
    return float(np.mean(log_w[np.isfinite(log_w)]))


@pytest.mark.parametrize("name", DESTRUCTIVE)
@pytest.mark.parametrize("radius", [2.2, 1.2])
def test_never_worse_than_a_start_of_which_many_weights_are_not_finite(name, radius):
    """Looks at the start are minus infinity then, and those at what has become of it too."""
    guide, model = gaussian_guide(), holed(radius)
    lost = np.mean(
        ~np.isfinite(jax.vmap(model.log_density)(jax.vmap(guide.draw)(jr.split(jr.key(1), 2000)).xi))
    )
    assert lost > 0.1
    done = train(guide, model=model, steps=200, optimizer=DESTRUCTIVE[name])
    assert np.isfinite(done.state.flat).all()
    assert mean_of_finite(done.guide, model) >= mean_of_finite(guide, model) - 0.05


def test_one_draw_far_out_does_not_hide_that_the_start_was_better():
    """A look whose error is as large as its ELBO is low is no reason to prefer it."""
    start = Kept("start", Look.at(np.where(np.arange(100) < 20, np.nan, -3000.0)))
    assert start.look.elbo == -np.inf
    settings = Settings(CoveringELBO(), OPTIMIZER, 8, CHUNK, COOLDOWN)
    course = Course(start, 0, settings, Budget(200))
    course.record(Kept("good", Look(-2900.0, 30.0, 5.0)), CHUNK, 0, 0.0)
    course.record(Kept("wild", Look(-711_772.0, 400_000.0, 1e6)), 2 * CHUNK, 15, 0.0)
    fresh = {"start": start.look, "good": Look(-2900.0, 30.0), "wild": Look(-711_772.0, 400_000.0)}
    assert course.chosen("wild", fresh.__getitem__) == "good"
    fresh["good"] = Look(-5000.0, 30.0)
    assert course.chosen("wild", fresh.__getitem__) == "good"  # beyond the noise of both looks
    worse = Course(start, 0, settings, Budget(200))
    worse.record(Kept("wild", Look(-711_772.0, 400_000.0, 1e6)), CHUNK, 15, 0.0)
    assert worse.best is start
    assert worse.chosen("wild", fresh.__getitem__) == "start"


def tired_after(steps: int) -> optax.GradientTransformation:
    """Gradient descent that gives only NaN once its own state has counted `steps`."""

    def update(updates, state, params=None):
        return jnp.where(state >= steps, jnp.nan, -0.02 * updates), state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def test_a_chunk_of_skipped_updates_sends_training_back_with_a_fresh_optimiser():
    """Without going back all updates from the 26th on would be lost."""
    done = train(steps=200, optimizer=tired_after(CHUNK + 5))
    assert done.steps > 100
    assert CHUNK - 5 <= done.skipped < done.steps / 2
    assert done.status is not Status.DIVERGED
    assert done.history[-1] > train(steps=CHUNK, chunk=CHUNK, cooldown_steps=0).history[-1]


def test_a_destroyed_diffusion_gives_back_its_start():
    """After the first chunk no weight is finite."""
    guide = untrained("projected")
    done = train(guide, steps=COOLDOWN, optimizer=optax.sgd(1e30))
    assert same(done.guide, guide)


def test_never_worse_than_the_start_on_minibatches():
    """Looks are taken at the training draws there, and none of them is finite any more."""
    model = dataclasses.replace(
        target("gaussian"), subsampled=True, _draw_batch=lambda key: jnp.zeros(1, int)
    )
    guide = gaussian_guide()
    done = train(guide, model=model, steps=COOLDOWN, optimizer=optax.sgd(1e30))
    assert same(done.guide, guide)


def test_looks_are_taken_at_training_s_own_draws():
    """At the second half of the chunk, without what was sent elsewhere; none where that is little."""
    log_weights = np.full((40, 50), np.nan)
    log_weights[20:, :30] = np.random.default_rng(0).normal(3.0, 0.5, (20, 30))
    seen = Seen(jnp.asarray(log_weights), jnp.asarray(np.arange(50)[None, :] < 30).repeat(40, axis=0))
    look = look_back(seen)
    assert look is not None
    np.testing.assert_allclose(
        look[:2], (log_weights[20:, :30].mean(), log_weights[20:, :30].std() / 600**0.5), rtol=1e-5
    )
    assert look_back(Seen(seen.log_weights[:30], seen.own[:30])) is None


def test_draws_without_a_finite_weight_count_against_a_look():
    """A guide that loses draws is no better than one of a slightly lower ELBO that does not."""
    log_weights = np.full(1000, 2.0)
    log_weights[:20] = np.nan
    look = Look.at(log_weights)
    np.testing.assert_allclose(look.elbo, 2.0 - 0.02 * LOST)
    assert Look.at(np.full(1000, 1.5)).elbo > look.elbo
    assert Look.at(np.where(np.arange(1000) < 150, np.nan, 2.0)).elbo == -np.inf


def test_training_on_many_draws_compiles_no_other_program_for_its_looks(monkeypatch):
    """Close looks are for short chunks and for doubtful gains."""
    taken = []
    monkeypatch.setattr(_loop, "look_at", lambda *args: taken.append(args) or Look(0.0, 0.0))
    settings = Settings(CoveringELBO(), OPTIMIZER, 64, 40, 80)
    trainer = Trainer(
        gaussian_guide(), target("gaussian"), settings, Budget(200), key=jr.key(0), progress=Silent()
    )
    done = trainer.run()
    assert not taken
    assert done.history[-1] > done.history[0]


def test_training_ends_where_nothing_is_left_to_gain():
    done = train(exact_gaussian())
    assert (done.status, done.steps) == (Status.CONVERGED, CHUNK)


def test_an_exact_start_stays_exact(monkeypatch):
    """The path gradient vanishes there, draw by draw. Adam would divide what rounding leaves by itself."""
    monkeypatch.setattr(_course, "CLOSE", -1.0)  # else it would end at once
    with jax.enable_x64(True):
        done = train(exact_gaussian(), optimizer=optax.sgd(0.1))
        scale = np.asarray(jax.jacfwd(done.guide.affine)(jnp.zeros(DIM)))  # pyright: ignore
        expected = np.asarray(exact_gaussian().affine.anchor_scale.value)
    assert done.steps >= 100
    assert done.skipped == 0
    np.testing.assert_allclose(scale, expected, atol=1e-12)


def test_looks_at_wide_draws_take_fewer():
    """4 million numbers a look above 2,000 dimensions, and 250 draws at least."""
    drawn = [IN_MANY_DIMENSIONS.draws(dim) for dim in (3, 2000, 4000, 10**6)]
    assert drawn == [LOOK_DRAWS, LOOK_DRAWS, 1000, 250]
