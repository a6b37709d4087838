"""The Gaussian a guide starts from where a full covariance would be too much to learn.

Two starts are made and the better by ELBO is taken: mean-field Gaussian VI from broad Gaussians, and
Laplace at a mode. Both are improved by Gaussian VI with a scale of low rank. Up to DENSE_DIMENSION
Laplace's covariance is the inverse of the whole Hessian; above it, no array is larger than dim x RANK:

    H ~ D (I + Q (Lambda - I) Q^T) D,   S = D^-1 (I + Q (Lambda^-1/2 - I) Q^T),

D^2 the diagonal of H, estimated by products H z with random signs z, and (Q, Lambda) the eigenpairs of
D^-1 H D^-1 that lie farthest from one, by Lanczos' method.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from dmvi._compile import quick_options
from dmvi._random import children, seed_of
from dmvi.guides import AnyAffine, LowRank, anchored, low_rank_anchored
from dmvi.targets._target import Target
from dmvi.training import Progress
from dmvi.warmstart._laplace import LARGEST_SD, Surface, climb, scale_from_precision
from dmvi.warmstart._warm_start import BROAD_SCALES, WarmStart, gaussian_vi, ranked_starts

HIGH_DIMENSION = 200  # above which the base is a diagonal and a low rank
DENSE_DIMENSION = 2000  # up to which the anchor may be a triangle
RANK = 8
MAX_ITERATIONS = 500
PROBES = 64
TOLERANCE = 1e-2  # relative, of the eigenvalues
HESSIAN_BLOCK = 32  # columns of a Hessian made side by side
MEAN_FIELD_STAGES = 2


def high_dimensional_start(target: Target, *, key: PRNGKeyArray, progress: Progress) -> WarmStart:
    """The better of mean-field VI and Laplace, each with a low-rank scale trained on top.

    Args:
        target: what to approximate.
        key: random key.
        progress: told of the stage.
    """
    progress.note("warm start")
    start_key, field_key, probe_key, fit_key = children(key, 4)
    surface = Surface(target)
    starts = ranked_starts(target, surface, start_key)
    found = [
        ("mean-field", _mean_field(target, starts, field_key)),
        ("laplace", _laplace(target, surface, starts[0], probe_key)),
    ]
    best, best_elbo = None, -np.inf
    for name, affine in found:
        if affine is None:
            continue
        improved, params, elbos = gaussian_vi(_stacked([affine]), _stacked([target.params]), target, fit_key)
        elbo = float(np.nan_to_num(np.asarray(elbos)[0], nan=-np.inf))
        if best is None or elbo > best_elbo:
            best, best_elbo = WarmStart(_row(improved, 0), name, _row(params, 0)), elbo
    assert best is not None  # mean-field VI always gives one
    return best


def _mean_field(target: Target, starts: Float[np.ndarray, "starts dim"], key: PRNGKeyArray) -> AnyAffine:
    """The best diagonal Gaussian that VI finds from two broad ones."""
    dtype = jnp.result_type(float)
    ones = np.ones(target.dim, dtype)
    centres = (starts[0].astype(dtype), starts.mean(axis=0).astype(dtype))
    affine = _stacked(
        [
            anchored(jnp.asarray(centre), jnp.asarray(scale * ones), full=False)
            for centre, scale in zip(centres, BROAD_SCALES, strict=True)
        ]
    )
    params = _stacked([target.params] * len(centres))
    elbos = jnp.zeros(len(centres))
    for stage_key in children(key, MEAN_FIELD_STAGES):
        affine, params, elbos = gaussian_vi(affine, params, target, stage_key)
    best = _row(affine, int(np.argmax(np.nan_to_num(np.asarray(elbos), nan=-np.inf))))
    return low_rank_anchored(best.anchor.value, best.anchor_scale.value, rank=RANK)


def _laplace(
    target: Target, surface: Surface, start: Float[np.ndarray, " dim"], key: PRNGKeyArray
) -> AnyAffine | None:
    """Laplace's approximation at the mode that L-BFGS finds; None where it leaves the finite."""
    mode, _ = climb(surface, start, MAX_ITERATIONS)
    curvature = Curvature(target, mode)
    dense = target.dim <= DENSE_DIMENSION
    scale = scale_from_precision(curvature.dense(), full=True) if dense else curvature.low_rank(key)
    if scale is None or not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((mode, scale))):
        return None
    dtype = jnp.result_type(float)
    scale = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf).astype(dtype)), scale)
    return low_rank_anchored(jnp.asarray(mode.astype(dtype)), scale, rank=RANK)


class Curvature:
    """The negative Hessian H of log pi at a point, by its products with vectors."""

    def __init__(self, target: Target, xi: Float[np.ndarray, " dim"]):
        dtype = jnp.result_type(float)
        point = jnp.asarray(xi.astype(dtype))

        def product(v: Array) -> Array:
            return -target.hessian_product(point, v)

        options = quick_options()
        self._dim, self._dtype = target.dim, dtype
        self._product = jax.jit(product, compiler_options=options)
        self._products = jax.jit(jax.vmap(product), compiler_options=options)

    def times(self, v: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """H v."""
        return np.asarray(self._product(jnp.asarray(v.astype(self._dtype))), float)

    def dense(self) -> Float[np.ndarray, "dim dim"]:
        """H, a few columns at a time: vectorising all of them would hold dim copies of the model's terms."""
        rows = []
        for first in range(0, self._dim, HESSIAN_BLOCK):
            block = np.zeros((HESSIAN_BLOCK, self._dim), self._dtype)
            columns = np.arange(first, min(first + HESSIAN_BLOCK, self._dim))
            block[np.arange(columns.size), columns] = 1
            rows.append(np.asarray(self._products(jnp.asarray(block)), float)[: columns.size])
        h = np.nan_to_num(np.concatenate(rows))
        return 0.5 * (h + h.T)

    def low_rank(self, key: PRNGKeyArray) -> LowRank | None:
        """S with S S^T ~ H^-1: a diagonal and RANK directions; None where a product is not finite."""
        signs = np.random.default_rng(seed_of(key)).choice([-1.0, 1.0], size=(PROBES, self._dim))
        diagonal = np.mean([sign * self.times(sign) for sign in signs], axis=0)
        if not np.isfinite(diagonal).all():
            return None
        root = np.sqrt(np.clip(diagonal, LARGEST_SD**-2, None))

        def excess(v: np.ndarray) -> np.ndarray:
            return np.nan_to_num(self.times(v.ravel() / root)) / root - v.ravel()

        shape = (self._dim, self._dim)
        operator = LinearOperator(shape, matvec=excess, dtype=float)  # pyright: ignore[reportCallIssue]
        try:
            values, vectors = eigsh(operator, k=RANK, which="LM", v0=signs[0], tol=TOLERANCE)  # pyright: ignore[reportArgumentType]
        except ArpackNoConvergence as stopped:
            values, vectors = stopped.eigenvalues, stopped.eigenvectors
        shrink = np.clip(1 + values, LARGEST_SD**-2, None) ** -0.5 - 1
        return LowRank(1 / root, vectors * shrink[None, :] / root[:, None], vectors)  # pyright: ignore[reportArgumentType]


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _row(tree: Any, row: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[row]), tree)
