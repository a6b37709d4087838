"""A guide that its first training shows too small grows and goes on."""

import dataclasses
import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import dmvi
import dmvi._grow
import dmvi._train
from dmvi._checkpoint import Checkpoint
from dmvi.guides import GaussianGuide, anchored
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
    shapes = [jax.tree.structure(eqx.filter(g, eqx.is_array)) for g in (larger[1], again)]
    assert shapes[0] == shapes[1]


def test_guides_that_cannot_grow(monkeypatch):
    recipe = dmvi.DiffusionGuide(network=dmvi.MLP(width=4))
    affine = anchored(jnp.zeros(2), jnp.ones(2), full=False)
    assert recipe.grown(recipe.build(affine, key=jr.key(0)), key=jr.key(1)) is None
    gaussian = GaussianGuide()
    assert gaussian.grown(gaussian.build(affine, key=jr.key(0)), key=jr.key(1)) is None
    monkeypatch.setattr("dmvi.guides._diffusion.LARGEST_GROWN", 1)
    recipe = dmvi.DiffusionGuide()
    assert recipe.grown(recipe.build(affine, key=jr.key(0)), key=jr.key(1)) is None


def test_few_steps_say_nothing_of_the_guide():
    posterior = fitted()
    assert posterior.diagnostics.steps == STEPS
    words = "a projected and triangular diffusion on a full covariance, for 3 dimensions"
    assert posterior.run.settings["chosen"] == words
    assert words in repr(posterior)


@pytest.mark.usefixtures("_impatient")
def test_a_named_guide_stays_as_it_is():
    posterior = fitted(guide="diffusion")
    assert posterior.diagnostics.steps == STEPS
    assert "chosen" not in posterior.run.settings


@pytest.mark.usefixtures("_impatient")
def test_a_small_guide_grows_and_is_better(tmp_path):
    small, grown = fitted(guide=dmvi._grow.first_choice(DIM)), fitted()
    assert STEPS < grown.diagnostics.steps <= 2 * STEPS
    assert grown.run.settings["particles"] == 8 * dmvi._grow.MORE_PARTICLES
    np.testing.assert_array_equal(grown.run.history[: len(small.run.history)], small.run.history)
    assert np.all(np.diff(grown.run.history_steps) > 0)
    assert grown.diagnostics.elbo > small.diagnostics.elbo
    assert "; grown by triangular steps and particles, as " in repr(grown)
    grown.save(tmp_path / "fit.dmvi")
    loaded = dmvi.load(tmp_path / "fit.dmvi", banana, init=jnp.zeros(DIM))
    np.testing.assert_array_equal(loaded.sample(20)["x"], grown.sample(20)["x"])
    further = dmvi.resume(loaded, steps=STEPS, progress=False)
    assert 2 * STEPS < further.diagnostics.steps <= 3 * STEPS
    assert np.all(np.diff(further.run.history_steps) > 0)


@pytest.mark.usefixtures("_impatient")
def test_an_interruption_of_either_training_is_gone_on_from_bit_for_bit(tmp_path, monkeypatch):
    """The folder is copied at every save; from each copy the same call ends in the same fit."""
    copies, save = [], Checkpoint._save

    def copying(self, trainer):
        save(self, trainer)
        copies.append(shutil.copytree(tmp_path / "whole", tmp_path / f"copy{len(copies)}"))

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "_save", copying)
        whole = fitted(checkpoint=tmp_path / "whole", checkpoint_every=0)
    assert len(copies) == len(whole.run.history)
    for copy in (copies[2], copies[len(copies) // 2 - 1], copies[-3]):
        again = fitted(checkpoint=copy)
        np.testing.assert_array_equal(again.run.history, whole.run.history)
        np.testing.assert_array_equal(again.sample(20)["x"], whole.sample(20)["x"])
        assert again.run.settings == whole.run.settings


@pytest.mark.usefixtures("_impatient")
def test_an_interruption_keeps_what_the_first_training_reached(monkeypatch):
    """Ctrl-C in the second training: nothing of the first is lost."""

    def interrupted(self):
        raise KeyboardInterrupt

    small = fitted(guide=dmvi._grow.first_choice(DIM))
    go_on = dmvi._train._go_on

    def second(*arguments):
        monkeypatch.setattr("dmvi.training._loop.Trainer._advance", interrupted)
        return go_on(*arguments)

    monkeypatch.setattr(dmvi._train, "_go_on", second)
    kept = fitted()
    assert kept.run.status is dmvi.Status.INTERRUPTED
    assert abs(kept.diagnostics.elbo - small.diagnostics.elbo) < 5 * small.diagnostics.elbo_se


def test_long_pilots_and_broken_ones_are_the_end():
    guide = dmvi.DiffusionGuide().build(anchored(jnp.zeros(2), jnp.ones(2), full=False), key=jr.key(0))
    target = dmvi.Target.from_value_and_grad(lambda x: (-(x**2).sum(1) / 2, -x), dim=2)
    start = dmvi._train.Start(guide, "laplace", target)
    history = np.array([-1.0])
    steps, status = np.array([2000]), dmvi.Status.CONVERGED
    ended = dmvi._grow.Outcome(guide, {}, status, 2000, 0, history, steps, gap=1.0, state=None)  # pyright: ignore[reportArgumentType]

    def grows(outcome=ended, seconds=1.0, start=start):
        return dmvi._grow.grown(dmvi.DiffusionGuide(), start, outcome, seconds=seconds, key=jr.key(0))

    assert grows() is not None
    assert grows(seconds=1000.0) is None
    assert grows(ended._replace(gap=0.05)) is None
    assert grows(ended._replace(gap=np.nan)) is None
    assert grows(ended._replace(status=dmvi.Status.TIME_LIMIT)) is None
    assert grows(ended._replace(steps=500)) is None
    learned = dataclasses.replace(target, params={"a": jnp.zeros(())})
    assert grows(start=start._replace(target=learned)) is None
