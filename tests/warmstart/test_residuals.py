"""Residual scores: zero where the Gaussian is the posterior, and what they show of a hierarchy."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.diffusion import SparseBends, Triangular
from dmvi.guides import DiffusionGuide, anchored, low_rank_anchored
from dmvi.targets import Target, from_log_density
from dmvi.warmstart import with_drivers
from dmvi.warmstart._residuals import ResidualSettings, residual_scores

DIM = 5
RECIPE = DiffusionGuide(network=SparseBends(width=3))


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def lower(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.tril(0.4 * rng.normal(size=(DIM, DIM)), -1) + np.diag(np.exp(rng.normal(size=DIM)))


def bases() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    loc, order, scale = jnp.asarray(rng.normal(size=DIM)), rng.permutation(DIM), lower()
    ordered = np.empty_like(scale)
    ordered[order] = scale
    return {
        "triangle": anchored(loc, jnp.asarray(scale), full=True),
        "diagonal": anchored(loc, jnp.asarray(np.diagonal(scale)), full=False),
        "ordered": anchored(loc, jnp.asarray(ordered), full=False, order=jnp.asarray(order)),
        "low rank": low_rank_anchored(loc, jnp.asarray(scale), rank=2),
    }


@pytest.mark.parametrize("name", ["triangle", "diagonal", "ordered", "low rank"])
def test_an_exact_gaussian_leaves_none(name):
    affine = bases()[name]
    matrix = np.asarray(jax.jacobian(affine)(jnp.zeros(DIM)))
    loc, precision = affine(jnp.zeros(DIM)), jnp.asarray(np.linalg.inv(matrix @ matrix.T))
    target = from_log_density(lambda x: -0.5 * (x - loc) @ precision @ (x - loc), jnp.zeros(DIM))
    u, r = residual_scores(affine, target, jr.key(0), 100, 64)
    np.testing.assert_allclose(r, 0, atol=1e-9)
    np.testing.assert_array_equal(u[:50], -u[50:])


@pytest.mark.parametrize("name", ["triangle", "ordered"])
def test_they_are_the_slopes_of_log_weights(name):
    """r = J^T grad log pi + u = grad_u [log pi(F(u)) - log N(u)], J by automatic differentiation."""
    affine = bases()[name]
    target = from_log_density(lambda x: -jnp.sum(x**4) + x[0] ** 2 * x[1], jnp.zeros(DIM))
    u, r = residual_scores(affine, target, jr.key(1), 20, 8)
    jacobian = jax.jacobian(affine)(u[0])
    slopes = jax.vmap(lambda u: jax.grad(target.log_density)(affine(u)))(u)
    np.testing.assert_allclose(r, slopes @ jacobian + u, rtol=1e-9, atol=1e-9)

    def log_weight(u):
        return target.log_density(affine(u)) + 0.5 * jnp.sum(u**2)

    np.testing.assert_allclose(r[3], jax.grad(log_weight)(u[3]), rtol=1e-9, atol=1e-9)


def funnel(scale_at: int) -> Target:
    """The scale of all others, at some place among them."""

    def log_density(x):
        v = x[scale_at]
        return -0.5 * (v / 1.5) ** 2 - 0.5 * (jnp.sum(x**2) - v**2) * jnp.exp(-v) - 0.5 * (DIM - 1) * v

    return from_log_density(log_density, jnp.zeros(DIM))


@pytest.mark.parametrize("scale_at", [0, 3])
def test_the_scale_of_a_funnel_is_its_first_driver(scale_at):
    guide = RECIPE.build(anchored(jnp.zeros(DIM), jnp.ones(DIM), full=False), key=jr.key(0))
    assert guide.wants_drivers
    driven, gradients = with_drivers(guide, funnel(scale_at), jr.key(1))
    assert gradients == ResidualSettings().of(DIM)
    drivers = driven.flow.drivers  # pyright: ignore[reportAttributeAccessIssue]
    assert drivers.strongest[0] == scale_at
    # All others have it for a parent, but for what shares its level.
    parents = np.where(drivers.found, np.asarray(drivers.strongest)[drivers.places], -1)
    later = np.flatnonzero(drivers.levels() > 0)
    assert len(later) == DIM - 2
    assert all(scale_at in parents[:, other] for other in later)


def test_the_width_of_a_hierarchy_is_its_first_driver():
    """mu, log tau, and eight theta ~ N(mu, tau) with data: log tau widens all theta."""
    y = jnp.asarray(np.random.default_rng(0).normal(1.0, 1.5, 8))

    def log_density(x):
        inner = -0.5 * jnp.sum((x["theta"] - x["mu"]) ** 2) * jnp.exp(-2 * x["log_tau"]) - 8 * x["log_tau"]
        data = -0.5 * jnp.sum((y - x["theta"]) ** 2)
        return inner + data - 0.5 * x["mu"] ** 2 / 25 - 0.5 * x["log_tau"] ** 2

    target = from_log_density(log_density, {"theta": jnp.zeros(8), "mu": 0.0, "log_tau": 0.0})
    base = anchored(jnp.zeros(10), jnp.full(10, 0.5), full=False)
    driven, _ = with_drivers(RECIPE.build(base, key=jr.key(0)), target, jr.key(1))
    first = driven.flow.drivers.strongest[0]  # pyright: ignore[reportAttributeAccessIssue]
    assert list(target.names)[int(first)] == "log_tau"


def test_a_guide_without_drivers_stays_as_it_is():
    affine = anchored(jnp.zeros(DIM), jnp.ones(DIM), full=False)
    guide = DiffusionGuide(network=Triangular()).build(affine, key=jr.key(0))
    assert not guide.wants_drivers
    driven, _ = with_drivers(guide, funnel(0), jr.key(1))
    for left, right in zip(jax.tree.leaves(driven), jax.tree.leaves(guide), strict=True):
        np.testing.assert_array_equal(left, right)


def test_fewer_draws_in_more_dimensions():
    settings = ResidualSettings()
    assert settings.of(settings.many) == settings.draws > settings.of(settings.many + 1)
