"""Modes that the search visited and the guide does not hold are seen, and no others."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import dmvi
from dmvi.posterior import Posterior, Verdict
from tests.posterior.gaussians import SCALES, ScaledGaussian, a_run, gaussian_target

QUICK = {"init": jnp.zeros(2), "steps": 60, "progress": False}


def pair(x):
    """Modes at (-8, 0) and (8, 0), of 70 and 30 %."""
    centres = jnp.array([[-8.0, 0.0], [8.0, 0.0]])
    return logsumexp(norm.logpdf(x[None], centres).sum(axis=1), b=jnp.array([0.7, 0.3]))


@pytest.fixture(scope="module")
def single():
    return dmvi.fit(pair, guide="full-rank", **QUICK)


def test_a_gaussian_on_one_of_two_modes_is_not_trusted(single):
    assert single.diagnostics.ess > 0.9  # the weights alone see nothing
    share = 0.3 if single.sample(100)["x"][:, 0].mean() < 0 else 0.7
    assert single.diagnostics.missed == pytest.approx(0.9 * share / (1 - 0.1 * share), abs=0.06)
    assert single.verdict is Verdict.DO_NOT_TRUST
    assert "separate mode" in single.judgement.reasons[0]
    assert "auto" in single.judgement.advice[0]


def test_files_and_further_training_remember(single, tmp_path):
    path = single.save(tmp_path / "fit.dmvi", n=50)
    assert dmvi.load(path).verdict is Verdict.DO_NOT_TRUST
    again = dmvi.load(path, pair, init=jnp.zeros(2))
    np.testing.assert_array_equal(again.run.visited, single.run.visited)
    further = dmvi.resume(again, steps=20, progress=False)
    assert further.diagnostics.missed > 0.1


@pytest.mark.slow
def test_a_mixture_over_both_modes_is_trusted():
    both = dmvi.fit(pair, **QUICK)
    assert len(both.run.visited) == 2
    assert both.diagnostics.missed == 0
    assert both.verdict is Verdict.TRUST


def visited(place: float) -> np.ndarray:
    """A mode with the target's own scales, claimed by a search."""
    return np.vstack([[place, 0.0, 0.0], np.diag(SCALES)])[None]


@pytest.mark.parametrize("place", [0.0, 9.0])
def test_only_mass_counts(place):
    """A place that a search claims is no mode where the target has nothing, and is held where draws are."""
    run = dataclasses.replace(a_run(), visited=visited(place))
    posterior = Posterior(gaussian_target(), ScaledGaussian(), run, jax.random.key(0))
    assert posterior.diagnostics.missed == 0


def test_a_guide_elsewhere_has_missed_the_mode():
    run = dataclasses.replace(a_run(), visited=visited(0.0))
    posterior = Posterior(gaussian_target(), ScaledGaussian(shift=12.0), run, jax.random.key(0))
    assert posterior.diagnostics.missed > 0.5
