"""A guide that its first training shows too small grows and goes on."""

import dataclasses
import shutil
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import dmvi
import dmvi._choice
import dmvi._grow
import dmvi._train
from dmvi._checkpoint import Checkpoint
from dmvi._clock import Clock
from dmvi.guides import Block, GaussianGuide, Mixture, Symmetry, anchored, mixture
from dmvi.training import progress_for
from dmvi.warmstart._weighed import Modes
from tests.guides.registry import perturbed

DIM, STEPS = 3, 48


def banana(x):
    return -0.5 * (x[0] / 2) ** 2 - 0.5 * jnp.sum((x[1:] - 0.5 * x[0] ** 2) ** 2) / 0.3**2


def fitted(**choices):
    return dmvi.fit(banana, init=jnp.zeros(DIM), steps=STEPS, particles=8, progress=False, **choices)


@pytest.fixture
def _impatient(monkeypatch):
    """A gap after a few steps counts, so that small fits grow."""
    monkeypatch.setattr(dmvi._grow, "FEWEST_STEPS", 1)


@pytest.fixture(scope="module")
def small():
    """The first of the two trainings alone."""
    return fitted(guide=dmvi._choice.CHOICE.guide(DIM))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A fit that has grown, and copies of its checkpoint's folder as it was after every save."""
    folder, copies, save = tmp_path_factory.mktemp("checkpoints"), [], Checkpoint._save

    def copying(self, trainer):
        save(self, trainer)
        copies.append(shutil.copytree(folder / "whole", folder / f"copy{len(copies)}"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dmvi._grow, "FEWEST_STEPS", 1)
        patch.setattr(Checkpoint, "_save", copying)
        return fitted(checkpoint=folder / "whole", checkpoint_every=0), copies


def test_the_guide_of_all_labellings_grows_and_draws_as_before():
    symmetry = Symmetry(3, (Block(0, (3,), 0, simplex=False),))
    recipe = dmvi.DiffusionGuide(network=dmvi.Projected(rank=2, scale_rank=1, width=8))
    affines = jax.vmap(lambda loc: anchored(loc, jnp.eye(3), full=True))(jnp.array([[-3.0, 0.0, 3.0]]))
    every = jnp.ones(1, bool)
    guide = perturbed(
        mixture(recipe, affines, jnp.zeros(1), every, symmetry=symmetry, key=jr.key(0)), size=0.1
    )
    found = dmvi._grow.larger_guide(recipe, guide, jr.key(1))
    assert found is not None
    larger_recipe, larger = found
    alone = recipe.grown(jax.tree.map(lambda leaf: leaf[0], guide.components), key=jr.key(1))
    assert alone is not None
    assert larger_recipe == alone[0]
    assert len(jax.tree.leaves(larger)) > len(jax.tree.leaves(guide))
    keys = jr.split(jr.key(2), 20)
    before, after = (jax.jit(jax.vmap(g.draw))(keys) for g in (guide, larger))
    np.testing.assert_allclose(after.xi, before.xi, rtol=1e-5)
    np.testing.assert_allclose(after.log_q, before.log_q, rtol=1e-5)
    several = mixture(
        recipe,
        jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), affines),
        jnp.log(jnp.array([0.5, 0.5])),
        jnp.ones(2, bool),
        symmetry=symmetry,
        key=jr.key(0),
    )
    assert dmvi._grow.larger_guide(recipe, several, jr.key(1)) is None


def test_a_grown_guide_draws_as_before():
    recipe = dmvi.DiffusionGuide(network=dmvi.Projected(rank=2, scale_rank=1, width=8))
    affine = anchored(jnp.array([0.5, -1.0, 2.0]), jnp.array([1.0, 2.0, 0.5]), full=False)
    guide = perturbed(recipe.build(affine, key=jr.key(0)), size=0.1)
    larger = recipe.grown(guide, key=jr.key(1))
    assert larger is not None
    expected = dmvi.DiffusionGuide(steps=8, network=dmvi.Stacked(dmvi.Triangular(), recipe.network, 4))
    assert larger[0] == expected
    before, after = (jax.jit(lambda g: g.draw(jr.key(2)))(g) for g in (guide, larger[1]))
    np.testing.assert_allclose(after.xi, before.xi, rtol=1e-6)
    np.testing.assert_allclose(after.log_q, before.log_q, rtol=1e-6)
    again = larger[0].build(affine, key=jr.key(3))
    shapes = [eqx.filter_eval_shape(lambda g: eqx.filter(g, eqx.is_array), g) for g in (larger[1], again)]
    assert eqx.tree_equal(*shapes)


def test_guides_that_cannot_grow(monkeypatch):
    recipe = dmvi.DiffusionGuide(network=dmvi.MLP(width=4))
    affine = anchored(jnp.zeros(2), jnp.ones(2), full=False)
    assert recipe.grown(recipe.build(affine, key=jr.key(0)), key=jr.key(1)) is None
    gaussian = GaussianGuide()
    assert gaussian.grown(gaussian.build(affine, key=jr.key(0)), key=jr.key(1)) is None
    monkeypatch.setattr("dmvi.guides._diffusion.LARGEST_GROWN", 1)
    recipe = dmvi.DiffusionGuide()
    assert recipe.grown(recipe.build(affine, key=jr.key(0)), key=jr.key(1)) is None


@pytest.mark.slow
def test_few_steps_say_nothing_of_the_guide():
    posterior = fitted()
    assert posterior.diagnostics.steps == STEPS
    words = "a projected and triangular diffusion on a full covariance, for 3 dimensions"
    assert posterior.run.settings["chosen"] == words
    assert words in repr(posterior)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_a_named_guide_stays_as_it_is():
    posterior = fitted(guide="diffusion")
    assert posterior.diagnostics.steps == STEPS
    assert "chosen" not in posterior.run.settings


def test_a_small_guide_grows_and_is_better(small, whole, tmp_path):
    grown, _ = whole
    assert STEPS < grown.diagnostics.steps <= 2 * STEPS
    assert grown.run.settings["particles"] == 8 * dmvi._grow.MORE_PARTICLES
    np.testing.assert_array_equal(grown.run.history[: len(small.run.history)], small.run.history)
    assert np.all(np.diff(grown.run.history_steps) > 0)
    # By 2,000 draws each: after so few steps the mean of 20,000 is that of one draw far out.
    assert grown.run.history[-1] > small.run.history[-1] + 0.1
    assert "; grown by triangular steps and particles, as " in repr(grown)
    grown.save(tmp_path / "fit.dmvi")
    loaded = dmvi.load(tmp_path / "fit.dmvi", banana, init=jnp.zeros(DIM))
    np.testing.assert_array_equal(loaded.sample(20)["x"], grown.sample(20)["x"])


@pytest.mark.slow
def test_a_grown_guide_is_trained_further(whole, tmp_path):
    grown, _ = whole
    loaded = dmvi.load(grown.save(tmp_path / "fit.dmvi"), banana, init=jnp.zeros(DIM))
    further = dmvi.resume(loaded, steps=STEPS, progress=False)
    assert grown.diagnostics.steps < further.diagnostics.steps <= grown.diagnostics.steps + STEPS
    assert np.all(np.diff(further.run.history_steps) > 0)


@pytest.mark.usefixtures("_impatient")
def test_an_interruption_of_either_training_is_gone_on_from_bit_for_bit(whole):
    undisturbed, copies = whole
    assert len(copies) == len(undisturbed.run.history)
    for copy in (copies[2], copies[-3]):
        again = fitted(checkpoint=copy)
        np.testing.assert_array_equal(again.run.history, undisturbed.run.history)
        np.testing.assert_array_equal(again.sample(20)["x"], undisturbed.sample(20)["x"])
        assert again.run.settings == undisturbed.run.settings


def labelled(x):
    """A banana for each of two labellings."""
    across = ((x[0] - x[1]) ** 2 - 36) / 12
    return -0.5 * across**2 - 0.5 * (x[0] + x[1] - across**2) ** 2 / 0.3**2


def test_a_checkpoint_finds_the_grown_guide_of_all_labellings(tmp_path):
    symmetry = Symmetry(2, (Block(0, (2,), 0, simplex=False),))
    recipe = dmvi.DiffusionGuide(network=dmvi.Projected(rank=2, scale_rank=1, width=8))
    affines = jax.vmap(lambda loc: anchored(loc, jnp.eye(2), full=True))(jnp.array([[-3.0, 3.0]]))
    guide = mixture(recipe, affines, jnp.zeros(1), jnp.ones(1, bool), symmetry=symmetry, key=jr.key(0))
    larger = dmvi._grow.larger_guide(recipe, guide, jr.key(1))
    assert larger is not None
    target = dmvi.Target.from_value_and_grad(lambda x: (-(x**2).sum(1) / 2, -x), dim=2)
    history = dmvi._grow.Pilot(np.array([-1.0]), np.array([10]), 0, 1.0, dmvi.Status.CONVERGED)
    saved = Checkpoint(tmp_path, 0.0, target, {}, clock=Clock())
    saved.begin(dmvi._train.Start(larger[1], "laplace", target), history)
    saved._write(SimpleNamespace(snapshot=lambda: ({}, {})))  # pyright: ignore[reportArgumentType]
    found = saved.found(recipe)
    assert found is not None
    assert found.recipe == larger[0]
    shapes = [
        eqx.filter_eval_shape(lambda g: eqx.filter(g, eqx.is_array), g)
        for g in (found.start.guide, larger[1])
    ]
    assert eqx.tree_equal(*shapes)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_an_interruption_of_a_grown_guide_of_all_labellings_is_gone_on_from(tmp_path, monkeypatch):
    monkeypatch.setattr(dmvi._grow, "GAP_OF_LABELLINGS", -1.0)
    monkeypatch.setattr(dmvi._grow, "overlapping_modes", lambda *_, **__: None)
    copies, save = [], Checkpoint._save

    def copying(self, trainer):
        save(self, trainer)
        copies.append(shutil.copytree(tmp_path / "whole", tmp_path / f"copy{len(copies)}"))

    def one(folder):
        return dmvi.fit(
            labelled,
            init=jnp.zeros(2),
            steps=STEPS,
            particles=8,
            progress=False,
            checkpoint=tmp_path / folder,
            checkpoint_every=0,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "_save", copying)
        undisturbed = one("whole")
    assert isinstance(undisturbed.guide, Mixture)
    assert undisturbed.guide.symmetry is not None
    assert undisturbed.diagnostics.steps > STEPS
    again = one(copies[-2].name)
    np.testing.assert_array_equal(again.run.history, undisturbed.run.history)
    np.testing.assert_array_equal(again.sample(20)["x"], undisturbed.sample(20)["x"])


@pytest.mark.usefixtures("_impatient")
def test_a_checkpoint_of_auto_is_not_one_of_a_named_guide(whole):
    with pytest.raises(dmvi.InputError, match="grows was True, and is False"):
        fitted(checkpoint=whole[1][-1], guide=dmvi._choice.CHOICE.guide(DIM))


@pytest.mark.usefixtures("_impatient")
def test_an_interruption_keeps_what_the_first_training_reached(small, monkeypatch):
    """Ctrl-C in the second training: nothing of the first is lost."""

    def interrupted(self):
        raise KeyboardInterrupt

    go_on = dmvi._train._go_on

    def second(*arguments):
        monkeypatch.setattr("dmvi.training._loop.Trainer._advance", interrupted)
        return go_on(*arguments)

    monkeypatch.setattr(dmvi._train, "_go_on", second)
    kept = fitted()
    assert kept.run.status is dmvi.Status.INTERRUPTED
    assert abs(kept.diagnostics.elbo - small.diagnostics.elbo) < 5 * small.diagnostics.elbo_se


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_what_goes_wrong_in_growing_leaves_the_first_fit(error, small, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(dmvi._train, "_go_on", fail)
    if isinstance(error, MemoryError):
        with pytest.warns(UserWarning, match="the first guide is kept"):
            kept = fitted()
        assert kept.run.status is not dmvi.Status.INTERRUPTED
    else:
        kept = fitted()
        assert kept.run.status is dmvi.Status.INTERRUPTED
    assert kept.diagnostics.steps <= STEPS
    np.testing.assert_array_equal(kept.sample(5)["x"], small.sample(5)["x"])


@pytest.mark.parametrize(("particles", "more"), [(8, 32), (32, 128), (48, 96), (100, 100), (1000, 1000)])
def test_more_particles_are_a_multiple(particles, more):
    assert dmvi._grow.more_particles(particles) == more


def _grown(recipe, start, outcome, *, particles=32, seconds=1.0, clock=None):
    """What a pilot of so many particles is followed by."""
    clock, line = clock or Clock(), progress_for(False)
    return dmvi._grow.grown(
        recipe,
        start,
        outcome,
        particles=particles,
        seconds=seconds,
        clock=clock,
        key=jr.key(0),
        progress=line,
    )


def test_too_many_coordinates_to_grow_are_trained_on_with_more_particles():
    """The same guide, where it leaves a gap that more draws may close and there are more to be had."""

    def after(gap, dim=100, particles=64):
        recipe = dmvi._choice.CHOICE.guide(dim)
        guide = recipe.build(anchored(jnp.zeros(dim), jnp.ones(dim), full=False), key=jr.key(0))
        target = dmvi.Target.from_value_and_grad(lambda x: (-(x**2).sum(1) / 2, -x), dim=dim)
        history, steps = np.array([-1.0]), np.array([3600])
        found = dmvi.Status.STEP_LIMIT, 3600, 0, history, steps, gap, None
        outcome = dmvi._grow.Outcome(guide, {}, *found)  # pyright: ignore[reportArgumentType]
        start = dmvi._train.Start(guide, "laplace", target)
        return recipe, guide, _grown(recipe, start, outcome, particles=particles)

    recipe, guide, larger = after(1.0)
    assert larger is not None
    assert larger.recipe is recipe
    assert larger.start.guide is guide
    words = dmvi._grow.chosen(larger.start, larger.pilot)
    assert words.endswith("trained on with more particles, as 1 nats were left")
    assert after(0.3)[2] is None
    assert after(8.0)[2] is None
    assert after(1.0, particles=128)[2] is None
    assert after(1.0, dim=600)[2] is None


def test_long_pilots_and_broken_ones_are_the_end():
    guide = dmvi.DiffusionGuide().build(anchored(jnp.zeros(2), jnp.ones(2), full=False), key=jr.key(0))
    target = dmvi.Target.from_value_and_grad(lambda x: (-(x**2).sum(1) / 2, -x), dim=2)
    start = dmvi._train.Start(guide, "laplace", target)
    history = np.array([-1.0])
    steps, status = np.array([2000]), dmvi.Status.CONVERGED
    ended = dmvi._grow.Outcome(guide, {}, status, 2000, 0, history, steps, gap=1.0, state=None)  # pyright: ignore[reportArgumentType]

    def grows(outcome=ended, seconds=1.0, left=None, start=start):
        return _grown(dmvi.DiffusionGuide(), start, outcome, seconds=seconds, clock=Clock(left))

    assert grows() is not None
    assert grows(seconds=1000.0) is None
    assert grows(seconds=50.0, left=40.0) is None
    assert grows(ended._replace(gap=0.05)) is None
    assert grows(ended._replace(gap=np.nan)) is None
    assert grows(ended._replace(status=dmvi.Status.TIME_LIMIT)) is None
    assert grows(ended._replace(steps=500)) is None
    learned = dataclasses.replace(target, params={"a": jnp.zeros(())})
    assert grows(start=start._replace(target=learned)) is None


@pytest.mark.parametrize("chosen", [True, False])
def test_many_gaussians_are_taken_where_they_are_better(chosen, monkeypatch):
    """A guide on each of them where several modes were visited; else the guide grows as it does."""
    affine = anchored(jnp.zeros(2), jnp.eye(2), full=True)
    recipe = dmvi.DiffusionGuide()
    guide = recipe.build(affine, key=jr.key(0))
    target = dmvi.Target.from_value_and_grad(lambda x: (-(x**2).sum(1) / 2, -x), dim=2)
    start = dmvi._train.Start(guide, "laplace", target, visited=np.zeros((2, 3, 2)))
    outcome = dmvi._grow.Outcome(
        guide,
        {},
        dmvi.Status.CONVERGED,
        2000,
        0,
        np.array([-1.0]),
        np.array([2000]),
        gap=1.0,
        state=None,  # pyright: ignore[reportArgumentType]
    )
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), affine)
    modes = Modes(both, jnp.log(jnp.array([0.3, 0.7])), jnp.array([True, False]), -0.5)

    def better(_, visited, *, single, deadline, key):
        assert visited is start.visited
        assert deadline == np.inf
        return modes if chosen and single == -1.0 else None

    monkeypatch.setattr(dmvi._grow, "overlapping_modes", better)
    larger = _grown(recipe, start, outcome)
    assert larger is not None
    assert isinstance(larger.start.guide, Mixture) == chosen
    words = dmvi._grow.chosen(larger.start, larger.pilot)
    assert ("on each of 2 Gaussians, as there are several modes and 1 nats were left" in words) == chosen
    assert larger.start.name == ("2 gaussians" if chosen else "laplace")


@pytest.fixture
def two_gaussians(monkeypatch):
    """Lets every guide that is too small give way to two Gaussians."""
    monkeypatch.setattr(dmvi._grow, "GAP", -1.0)
    affine = anchored(jnp.zeros(DIM), jnp.eye(DIM), full=True)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), affine)
    modes = Modes(both, jnp.log(jnp.array([0.3, 0.7])), jnp.array([True, True]), 0.0)
    monkeypatch.setattr(dmvi._grow, "overlapping_modes", lambda *_, **__: modes)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient", "two_gaussians")
def test_a_mixture_that_ends_no_better_is_left(small):
    """Two standard Gaussians on a banana, after a few steps: the first guide stays as it was."""
    kept = fitted()
    np.testing.assert_array_equal(kept.sample(5)["x"], small.sample(5)["x"])
    assert "pace" not in kept.run.settings


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient", "two_gaussians")
def test_a_mixture_that_ends_better_is_saved_loaded_and_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(dmvi._train, "_better", lambda _, second: second)
    mixed = fitted()
    assert isinstance(mixed.guide, Mixture)
    assert mixed.run.settings["pace"] == dmvi._grow.SHARED
    assert mixed.diagnostics.round_trip_error < 0.1  # of the component that made each draw
    mixed.save(tmp_path / "fit.dmvi")
    loaded = dmvi.load(tmp_path / "fit.dmvi", banana, init=jnp.zeros(DIM))
    np.testing.assert_array_equal(loaded.sample(20)["x"], mixed.sample(20)["x"])
    further = dmvi.resume(loaded, steps=STEPS, progress=False)
    assert further.diagnostics.steps > mixed.diagnostics.steps
    assert further.diagnostics.elbo > mixed.diagnostics.elbo - 0.1
