"""The start in high dimension: Laplace without a dense Hessian, and never a dim x dim array above a size."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.guides import LowRank, LowRankAffine
from dmvi.targets import from_log_density
from dmvi.training import Silent
from dmvi.warmstart import _high_dimension as high
from dmvi.warmstart import high_dimensional_start
from dmvi.warmstart._laplace import Surface

DIM = 40


def spiked_gaussian() -> tuple:
    """Precision diag(p) + F F^T with scales from 0.1 to 10 and three strong directions."""
    rng = np.random.default_rng(0)
    scales = np.logspace(-1, 1, DIM)
    factor = 3 * rng.normal(size=(DIM, 3)) / np.sqrt(DIM) / scales[:, None]
    precision = np.diag(scales**-2) + factor @ factor.T
    mean = rng.normal(size=DIM)

    def log_density(x):
        centred = x - mean
        return -0.5 * jnp.sum((centred / scales) ** 2) - 0.5 * jnp.sum((factor.T @ centred) ** 2)

    return from_log_density(log_density, jnp.zeros(DIM)), mean, precision


@pytest.mark.parametrize("dense", [True, False])
def test_laplace_whitens_a_gaussian(monkeypatch, dense):
    """S^T H S is the identity, or with RANK directions and random probes not far from it."""
    target, mean, precision = spiked_gaussian()
    monkeypatch.setattr(high, "DENSE_DIMENSION", DIM if dense else 0)
    affine = high._laplace(target, Surface(target), np.zeros(DIM), jr.key(0))
    assert isinstance(affine, LowRankAffine)
    assert isinstance(affine.anchor_scale.value, LowRank) is not dense
    matrix = np.asarray(jax.jacfwd(affine)(jnp.zeros(DIM)), float)
    values = np.linalg.eigvalsh(matrix.T @ precision @ matrix)
    assert np.linalg.cond(precision) > 1e4
    assert values[-1] / values[0] < (1.01 if dense else 30)
    assert np.linalg.norm(np.linalg.solve(matrix, np.asarray(affine(jnp.zeros(DIM))) - mean)) < 0.1


def test_start_of_a_gaussian_is_near_exact(monkeypatch):
    target, _, precision = spiked_gaussian()
    monkeypatch.setattr(high, "DENSE_DIMENSION", 0)
    start = high_dimensional_start(target, key=jr.key(0), progress=Silent())
    matrix = np.asarray(jax.jacfwd(start.affine)(jnp.zeros(DIM)), float)
    whitened = matrix.T @ precision @ matrix
    divergence = 0.5 * (np.trace(whitened) - DIM - np.linalg.slogdet(whitened)[1])
    assert divergence < 0.3
