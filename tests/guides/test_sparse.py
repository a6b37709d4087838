"""The affine map of a sparse precision against dense linear algebra."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dmvi.guides import GaussianGuide, SparseAffine, SparseScale, sparse_anchored
from dmvi.guides._guide import Frozen, trainable
from dmvi.guides._low_rank import LowRank
from dmvi.guides._sparse import Level

DIM = 7
# Coordinates 6 and 2 are shared, 0 is above the blocks (1, 3) and (4) [filled up], and 5 depends on 0 alone.
OWN = [[[6, 2]], [[0]], [[1, 3], [4, 0]], [[5]]]
ABOVE = [np.zeros((1, 0), int), np.zeros((1, 0), int), np.array([[2], [2]]), np.array([[2]])]
PLACE = np.array([2, 3, 1, 4, 5, 7, 0])


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def scale() -> SparseScale:
    rng = np.random.default_rng(0)
    levels = []
    for at, (own, above) in enumerate(zip(OWN, ABOVE, strict=True)):
        blocks, width = np.shape(own)
        root = np.triu(rng.normal(size=(blocks, width, width)), 1) + 1.5 * np.eye(width)
        slope = rng.normal(size=(blocks, width, above.shape[1]))
        shared = rng.normal(size=(blocks, width, 2 if at else 0))
        if at == 2:
            root[1, :, 1], slope[1, 1], shared[1, 1] = [0, 1], 0, 0
        levels.append(Level(*map(jnp.asarray, (own, above, root, slope, shared))))
    inner = LowRank(*(jnp.asarray(x) for x in (np.exp(rng.normal(size=DIM)), *rng.normal(size=(2, DIM, 1)))))
    return SparseScale(inner, tuple(levels), jnp.asarray(PLACE))


@pytest.fixture
def case():
    """A map with every part filled, and its dense location and matrix: xi = a + S (b + e^l u)."""
    rng = np.random.default_rng(1)
    loc, b, log_diagonal = rng.normal(size=(3, DIM))
    dense = np.asarray(jax.vmap(scale())(jnp.eye(DIM))).T
    affine = SparseAffine(
        Frozen(jnp.asarray(loc)), Frozen(scale()), jnp.asarray(b), jnp.asarray(log_diagonal)
    )
    return affine, loc + dense @ b, dense * np.exp(log_diagonal)


def test_every_coordinate_is_read_and_every_block_depends_on_what_is_above_it():
    inner = LowRank(jnp.ones(DIM), jnp.zeros((DIM, 1)), jnp.zeros((DIM, 1)))
    levels = scale().levels
    dense = np.asarray(jax.vmap(SparseScale(inner, levels, jnp.asarray(PLACE)))(jnp.eye(DIM))).T
    assert np.linalg.matrix_rank(dense) == DIM
    expected = levels[3].slope[0, 0, 0] * dense[0] + levels[3].shared[0, 0] @ dense[[6, 2]]
    expected = expected.at[5].add(levels[3].scale[0, 0, 0])
    np.testing.assert_allclose(dense[5], expected, rtol=1e-12)


def test_map_and_inverse(case):
    affine, loc, matrix = case
    u = np.random.default_rng(1).normal(size=DIM)
    np.testing.assert_allclose(affine(jnp.asarray(u)), loc + matrix @ u, rtol=1e-10)
    np.testing.assert_allclose(affine.inverse(jnp.asarray(loc + matrix @ u)), u, rtol=1e-8)


def test_slope_is_the_transpose(case):
    affine, _, matrix = case
    for vectorised in (False, True):
        pull = jax.vjp(jax.vmap(affine) if vectorised else affine, jnp.ones((1, DIM) if vectorised else DIM))[
            1
        ]
        slope = np.random.default_rng(2).normal(size=DIM)
        (found,) = jax.jit(pull)(jnp.asarray(slope[None] if vectorised else slope))
        np.testing.assert_allclose(np.ravel(found), matrix.T @ slope, rtol=1e-10)


def test_log_determinant(case):
    affine, _, matrix = case
    np.testing.assert_allclose(affine.log_det(), np.linalg.slogdet(matrix)[1], rtol=1e-10)


def test_density_of_a_gaussian_guide(case):
    affine, loc, matrix = case
    guide = GaussianGuide().build(affine, key=jr.key(0))
    draw = guide.draw(jr.key(1))
    expected = multivariate_normal(loc, matrix @ matrix.T).logpdf(draw.xi)
    np.testing.assert_allclose([draw.log_q, guide.evidence(draw.xi)], expected, rtol=1e-8)


def test_whitened_score(case):
    affine = case[0]
    score = np.random.default_rng(2).normal(size=DIM)
    matrix = np.asarray(jax.jacobian(affine.whitened)(jnp.zeros(DIM)))
    np.testing.assert_allclose(
        affine.whitened_score(jnp.asarray(score)), np.linalg.solve(matrix.T, score), rtol=1e-8
    )


def test_rebased_is_the_same_map(case):
    affine, loc, matrix = case
    rebased = affine.rebased()
    u = np.random.default_rng(3).normal(size=DIM)
    np.testing.assert_allclose(rebased(jnp.asarray(u)), loc + matrix @ u, rtol=1e-10)
    np.testing.assert_allclose(rebased.log_det(), affine.log_det(), rtol=1e-10)
    np.testing.assert_array_equal(rebased.loc, 0)


def test_untrained_is_the_anchor(case):
    affine = case[0]
    u = jnp.asarray(np.random.default_rng(4).normal(size=DIM))
    np.testing.assert_allclose(
        affine.untrained()(u), affine.anchor.value + affine.anchor_scale.value(u), rtol=1e-12
    )


def test_only_location_and_diagonal_are_trained():
    mask = trainable(sparse_anchored(jnp.zeros(DIM), scale()))
    assert mask.anchor is False
    assert mask.anchor_scale is False
    assert mask.loc is True
    assert mask.log_diagonal is True
