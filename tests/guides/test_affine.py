"""The affine map against dense linear algebra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dmvi.diffusion._triangle import lower_inverse
from dmvi.guides import Affine, Gaussian, anchored
from dmvi.guides._guide import Frozen, trainable
from dmvi.guides._mixture import base_log_prob

DIM = 4


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["full", "diagonal", "ordered", "ordered, a diagonal trained"])
def case(request):
    """An affine map with every part filled, and its dense location and matrix: xi = a + S (b + L u)."""
    rng = np.random.default_rng(0)
    full = request.param in ("full", "ordered")
    loc, b = rng.normal(size=(2, DIM))
    log_diagonal = rng.normal(size=DIM)
    anchor = np.tril(rng.normal(size=(DIM, DIM))) + 2 * np.eye(DIM)
    # The upper triangle holds numbers too, which must have no effect.
    lower = rng.normal(size=(DIM, DIM)) if full else None
    trained = np.diag(np.exp(log_diagonal)) + (np.tril(lower, -1) if lower is not None else 0)
    order = None
    if "ordered" in request.param:
        order = np.array([2, 0, 3, 1])
        anchor = anchor[np.argsort(order)]
    elif not full:
        anchor = np.exp(rng.normal(size=DIM))
    scale = anchor if anchor.ndim == 2 else np.diag(anchor)
    affine = Affine(
        Frozen(jnp.asarray(loc)),
        Frozen(jnp.asarray(anchor)),
        jnp.asarray(b),
        jnp.asarray(log_diagonal),
        None if lower is None else jnp.asarray(lower),
        None if order is None else jnp.asarray(order),
    )
    return affine, loc + scale @ b, scale @ trained


def test_map_and_inverse(case):
    affine, loc, matrix = case
    u = np.random.default_rng(1).normal(size=DIM)
    np.testing.assert_allclose(affine(jnp.asarray(u)), loc + matrix @ u, rtol=1e-12)
    np.testing.assert_allclose(affine.inverse(jnp.asarray(loc + matrix @ u)), u, rtol=1e-10)


def test_log_determinant(case):
    affine, _, matrix = case
    np.testing.assert_allclose(affine.log_det(), np.linalg.slogdet(matrix)[1], rtol=1e-12)


def test_density(case):
    affine, loc, matrix = case
    xi = np.random.default_rng(4).normal(size=DIM)
    guide = Gaussian(affine=affine, dim=DIM)
    expected = multivariate_normal(loc, matrix @ matrix.T).logpdf(xi)
    np.testing.assert_allclose(guide.evidence(jnp.asarray(xi)), expected, rtol=1e-9)
    draw = guide.draw(jr.key(0))
    np.testing.assert_allclose(guide.evidence(draw.xi), draw.log_q, rtol=1e-9)


def test_density_among_others(case):
    """As a component of a mixture."""
    affine, loc, matrix = case
    xi = np.random.default_rng(4).normal(size=DIM)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), affine)
    expected = multivariate_normal(loc, matrix @ matrix.T).logpdf(xi)
    np.testing.assert_allclose(base_log_prob(stacked, jnp.asarray(xi)), expected, rtol=1e-9)


def test_untrained_is_the_anchor(case):
    affine, loc, _ = case
    u = jnp.asarray(np.random.default_rng(5).normal(size=DIM))
    start = affine.untrained()
    np.testing.assert_allclose(start(u), affine.from_whitened(u), rtol=1e-12)
    np.testing.assert_allclose(start.inverse(start(u)), u, rtol=1e-10)
    matrix = jax.jacobian(start)(u)
    np.testing.assert_allclose(start.log_det(), np.linalg.slogdet(matrix)[1], rtol=1e-12)
    assert not np.allclose(start(jnp.zeros(DIM)), loc)


def test_an_order_is_not_trained(case):
    trained = trainable(Gaussian(affine=case[0], dim=DIM)).affine
    assert trained.loc is True
    assert not trained.order
    assert not any(jax.tree.leaves((trained.anchor, trained.anchor_scale)))


def test_whitened_score(case):
    """G in u is L^{-T} G in w = b + L u."""
    affine = case[0]
    score = np.random.default_rng(2).normal(size=DIM)
    matrix = jax.jacobian(affine.whitened)(jnp.zeros(DIM))
    np.testing.assert_allclose(
        affine.whitened_score(jnp.asarray(score)), np.linalg.solve(matrix.T, score), rtol=1e-10
    )


@pytest.mark.parametrize("dim", [1, 2, 8, 9, 31, 64, 102])
def test_inverse_of_a_triangle(dim):
    lower = np.tril(np.random.default_rng(dim).normal(size=(dim, dim)), -1) / np.sqrt(dim) + 0.7 * np.eye(dim)
    inverse = jax.jit(lower_inverse)(jnp.asarray(lower))
    np.testing.assert_allclose(inverse, np.linalg.inv(lower), rtol=1e-9, atol=1e-9)


def test_rebased_is_the_same_map_with_an_identity_to_train(case):
    affine, loc, matrix = case
    rebased = affine.rebased()
    u = jnp.asarray(np.random.default_rng(3).normal(size=DIM))
    np.testing.assert_allclose(rebased(u), loc + matrix @ u, rtol=1e-10)
    np.testing.assert_allclose(rebased.log_det(), affine.log_det(), rtol=1e-10)
    np.testing.assert_allclose(rebased.inverse(rebased(u)), u, rtol=1e-9)
    np.testing.assert_array_equal(rebased.loc, 0)
    np.testing.assert_array_equal(rebased.log_diagonal, 0)
    assert (rebased.lower is None) == (affine.lower is None)
    if rebased.lower is not None:
        np.testing.assert_array_equal(rebased.lower, 0)


def test_dim_and_anchored():
    affine = anchored(jnp.arange(3.0), jnp.asarray([1.0, 2.0, 4.0]), full=False)
    assert affine.dim == 3
    np.testing.assert_allclose(affine(jnp.ones(3)), [1.0, 3.0, 6.0])
    np.testing.assert_allclose(affine.log_det(), np.log(8.0))


def test_pairs_are_trained_in_units_of_64_over_the_dimension():
    """A step in every entry beside the diagonal moves a coordinate about as much in any dimension."""
    dim = 128
    lower = np.tril(np.random.default_rng(0).normal(size=(dim, dim)), -1)
    affine = anchored(jnp.zeros(dim), jnp.eye(dim), full=True)
    moved = eqx.tree_at(lambda a: a.lower, affine, jnp.asarray(lower))
    matrix = np.eye(dim) + 0.5 * lower
    u = jnp.asarray(np.random.default_rng(1).normal(size=dim))
    np.testing.assert_allclose(moved(u), matrix @ u, rtol=1e-10)
    np.testing.assert_allclose(moved.inverse(moved(u)), u, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(moved.whitened_score(u), np.linalg.solve(matrix.T, u), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(moved.rebased()(u), matrix @ u, rtol=1e-10)
