"""The low-rank affine map against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmvi.guides import LowRank, LowRankAffine, low_rank_anchored
from dmvi.guides._guide import Frozen, trainable

DIM, RANK = 6, 2


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def low_rank(seed: int) -> tuple[LowRank, np.ndarray]:
    rng = np.random.default_rng(seed)
    diagonal, left, right = np.exp(rng.normal(size=DIM)), *(0.5 * rng.normal(size=(2, DIM, RANK)))
    return LowRank(*map(jnp.asarray, (diagonal, left, right))), np.diag(diagonal) + left @ right.T


@pytest.fixture(params=["low rank", "diagonal", "triangle"])
def case(request):
    """A map with every part filled, and its dense location and matrix: xi = a + S (b + M u)."""
    rng = np.random.default_rng(0)
    loc, b = rng.normal(size=(2, DIM))
    if request.param == "low rank":
        scale, dense = low_rank(1)
    elif request.param == "diagonal":
        values = np.exp(rng.normal(size=DIM))
        scale, dense = jnp.asarray(values), np.diag(values)
    else:
        dense = np.tril(rng.normal(size=(DIM, DIM))) + 2 * np.eye(DIM)
        scale = jnp.asarray(dense)
    trained, dense_trained = low_rank(2)
    affine = LowRankAffine(
        Frozen(jnp.asarray(loc)),
        Frozen(scale),
        jnp.asarray(b),
        jnp.log(trained.diagonal),
        trained.left,
        trained.right,
    )
    return affine, loc + dense @ b, dense @ dense_trained


def test_map_and_inverse(case):
    affine, loc, matrix = case
    u = np.random.default_rng(1).normal(size=DIM)
    np.testing.assert_allclose(affine(jnp.asarray(u)), loc + matrix @ u, rtol=1e-10)
    np.testing.assert_allclose(affine.inverse(jnp.asarray(loc + matrix @ u)), u, rtol=1e-8)


def test_log_determinant(case):
    affine, _, matrix = case
    np.testing.assert_allclose(affine.log_det(), np.linalg.slogdet(matrix)[1], rtol=1e-10)


def test_whitened_score(case):
    affine = case[0]
    score = np.random.default_rng(2).normal(size=DIM)
    matrix = jax.jacobian(affine.whitened)(jnp.zeros(DIM))
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
    affine, _, _ = case
    anchor = affine.untrained()
    dense = jax.jacfwd(anchor)(jnp.zeros(DIM))
    np.testing.assert_allclose(anchor(jnp.zeros(DIM)), affine.anchor.value)
    scale = affine.anchor_scale.value
    expected = jax.jacfwd(scale)(jnp.zeros(DIM)) if isinstance(scale, LowRank) else scale
    np.testing.assert_allclose(dense, jnp.diag(expected) if expected.ndim == 1 else expected, rtol=1e-12)


def test_product_of_two_maps():
    (first, dense_first), (second, dense_second) = low_rank(4), low_rank(5)
    u = np.random.default_rng(6).normal(size=DIM)
    product = first.after(second)
    np.testing.assert_allclose(product(jnp.asarray(u)), dense_first @ dense_second @ u, rtol=1e-10)


def test_anchors_of_every_form_are_not_trained():
    affine = low_rank_anchored(jnp.zeros(DIM), low_rank(1)[0], rank=RANK)
    mask = trainable(affine)
    assert mask.anchor_scale is False
    assert mask.left is True
    np.testing.assert_array_equal(affine.left, 0)
    assert np.abs(affine.right).min() > 0
