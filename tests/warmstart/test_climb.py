"""Climbs end at the best Gaussian of all starts, and count what they cost."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.guides import anchored
from dmvi.targets import Target, from_log_density
from dmvi.training import Silent
from dmvi.warmstart import warm_start
from dmvi.warmstart._candidates import Candidate, Candidates
from dmvi.warmstart._climb import Climber, ClimbSettings, _diagonal
from dmvi.warmstart._effort import Effort

EFFORT = Effort(draws=128, field_draws=64, at_once=32, steps=8, searches=4)


def gaussian(dim: int, seed: int = 0) -> tuple[Target, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    precision, mean = root @ root.T + 0.5 * np.eye(dim), rng.normal(size=dim)

    def log_density(x):
        centred = x - jnp.asarray(mean, x.dtype)
        return -0.5 * centred @ jnp.asarray(precision, x.dtype) @ centred

    return from_log_density(log_density, jnp.zeros(dim)), mean, precision


def broad(dim: int) -> Candidates:
    """A mean field and a full covariance, and one of each that is far off."""
    here, there = np.zeros(dim), np.full(dim, 50.0)
    fields = [Candidate("field", here, np.ones(dim)), Candidate("far", there, np.full(dim, 1e-3))]
    full = [Candidate("full", here, np.eye(dim)), Candidate("far", there, 1e-3 * np.eye(dim))]
    return Candidates(fields, full, [])


class Counted:
    """A density in NumPy that counts its points."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += len(x)
        return -0.5 * np.sum(x**2, axis=1), -x


# Where climbs end


@pytest.mark.parametrize("dim", [3, 24])
def test_the_best_gaussian_of_all_starts(dim):
    """Up to a few dimensions all climb as full covariances, in more the best goes on."""
    target, mean, precision = gaussian(dim)
    assert (dim <= ClimbSettings().few) == (dim == 3)
    reached = Climber(target, EFFORT, jr.key(0), Silent()).best_of(broad(dim), full=True)
    root = np.linalg.cholesky(precision)
    np.testing.assert_allclose(root.T @ reached.scale @ reached.scale.T @ root, np.eye(dim), atol=2e-3)
    np.testing.assert_allclose(root.T @ (reached.loc - mean), 0, atol=2e-3)
    log_z = 0.5 * dim * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    assert reached.elbo == pytest.approx(log_z, abs=0.01)


def test_where_mean_fields_disagree_all_of_them_climb():
    """The best mean field is on the island without correlations, the best Gaussian on the other.

    With 24 coordinates that correlate at 0.95 a mean field loses -log det(R) / 2, which is 34 nats, and the
    island holds e^9 times the other's mass.
    """
    dim, apart, more = 24, 30.0, 9.0
    correlation = np.full((dim, dim), 0.95) + 0.05 * np.eye(dim)
    precision, log_det = np.linalg.inv(correlation), np.linalg.slogdet(correlation)[1]
    assert -0.5 * log_det > 30

    def log_density(x):
        other = x - apart
        islands = -0.5 * x @ x, more - 0.5 * log_det - 0.5 * other @ jnp.asarray(precision, x.dtype) @ other
        return jnp.logaddexp(*islands)

    target = from_log_density(log_density, jnp.zeros(dim))
    here, there = (
        Candidate(name, np.full(dim, at), np.ones(dim)) for name, at in (("here", 0.0), ("there", apart))
    )
    climber = Climber(target, EFFORT, jr.key(0), Silent())
    log_z = 0.5 * dim * np.log(2 * np.pi)
    assert climber.best_of(Candidates([here, here], [], []), full=True).elbo == pytest.approx(log_z, abs=0.05)
    reached = climber.best_of(Candidates([here, here], [], [], (there,)), full=True)
    assert reached.name == "there"
    assert reached.elbo == pytest.approx(log_z + more, abs=0.05)


def test_the_best_mean_field():
    target, mean, precision = gaussian(4)
    reached = Climber(target, EFFORT, jr.key(0), Silent()).best_of(broad(4), full=False)
    assert reached.scale.shape == (4,)
    np.testing.assert_allclose(reached.scale, np.diagonal(precision) ** -0.5, rtol=0.05)
    np.testing.assert_allclose((reached.loc - mean) / reached.scale, 0, atol=0.05)


def test_refined_is_the_mean_field_in_the_coordinates_of_a_map():
    """In which the target is a product, its exact Gaussian."""
    target, mean, precision = gaussian(4)
    units = np.array([0.3, 1.0, 2.0, 5.0])
    lower = np.linalg.cholesky(np.linalg.inv(precision)) * units
    frame = anchored(jnp.asarray(mean + lower @ np.ones(4), float), jnp.asarray(lower, float), full=False)
    reached = Climber(target, EFFORT, jr.key(0), Silent()).refined(frame)
    np.testing.assert_allclose(np.abs(reached.scale) * units, 1, atol=5e-3)
    np.testing.assert_allclose(reached.loc, -1, atol=5e-3)
    log_z = 2 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    assert reached.elbo == pytest.approx(log_z, abs=0.01)


@pytest.mark.parametrize("dim", [3, 24])
def test_what_is_not_finite_falls_behind(dim):
    target, mean, _ = gaussian(dim)
    nowhere = Candidate("nowhere", np.full(dim, np.nan), np.eye(dim))
    starts = broad(dim)._replace(full=[nowhere])
    reached = Climber(target, EFFORT, jr.key(0), Silent()).best_of(starts, full=True)
    assert reached.name != "nowhere"
    np.testing.assert_allclose(reached.loc, mean, atol=0.05)
    assert np.isfinite(reached.elbo)


def test_around_modes():
    """Some steps take Gaussians of wrong scales towards that of the target; what is lost stays as it was."""
    target, mean, precision = gaussian(3)
    narrow = np.vstack([mean, 0.2 * np.eye(3)])
    lost = np.vstack([np.full(3, np.nan), np.eye(3)])
    found = Climber(target, EFFORT, jr.key(0), Silent()).fitted(np.stack([narrow, lost]))
    np.testing.assert_allclose(found[0, 1:] @ found[0, 1:].T @ precision, np.eye(3), atol=0.02)
    np.testing.assert_array_equal(found[1], lost)


def test_the_diagonal_of_a_scale_holds_conditional_sds():
    _, _, precision = gaussian(4)
    scale = np.linalg.cholesky(np.linalg.inv(precision))
    np.testing.assert_allclose(_diagonal(scale), np.diagonal(precision) ** -0.5, rtol=1e-9)


# What they cost


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dim", [3, 24])
def test_gradients_are_those_that_were_computed(dim, full):
    density = Counted()
    target = Target.from_value_and_grad(density, dim=dim)
    density.calls = 0
    climber = Climber(target, EFFORT, jr.key(0), Silent())
    climber.best_of(broad(dim), full=full)
    assert climber.gradients == density.calls > 0
    assert climber.gradient_seconds > 0


def test_the_gradients_of_a_warm_start():
    """But for log-densities alone, of draws that are weighed."""
    density = Counted()
    target = Target.from_value_and_grad(density, dim=2)
    density.calls = 0
    start = warm_start(target, full=True, key=jr.key(0), progress=Silent())
    assert 0.5 * density.calls < start.gradients <= density.calls
