"""The start in high dimension: Laplace without a dense Hessian, and never a dim x dim array above a size."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

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


def test_laplace_whitens_a_gaussian():
    """S^T H S is, with RANK directions and random probes, not far from the identity."""
    target, mean, precision = spiked_gaussian()
    affine = high._laplace(target, Surface(target), np.zeros(DIM), jr.key(0))
    assert isinstance(affine, LowRankAffine)
    assert isinstance(affine.anchor_scale.value, LowRank)
    matrix = np.asarray(jax.jacfwd(affine)(jnp.zeros(DIM)), float)
    values = np.linalg.eigvalsh(matrix.T @ precision @ matrix)
    assert np.linalg.cond(precision) > 1e4
    assert values[-1] / values[0] < 30
    assert np.linalg.norm(np.linalg.solve(matrix, np.asarray(affine(jnp.zeros(DIM))) - mean)) < 0.1


def test_start_of_a_gaussian_is_near_exact():
    target, _, precision = spiked_gaussian()
    start = high_dimensional_start(target, key=jr.key(0), progress=Silent())
    matrix = np.asarray(jax.jacfwd(start.affine)(jnp.zeros(DIM)), float)
    whitened = matrix.T @ precision @ matrix
    divergence = 0.5 * (np.trace(whitened) - DIM - np.linalg.slogdet(whitened)[1])
    assert divergence < 0.3
