"""The Gaussian a guide starts from where a full covariance would be too much to hold.

A mean field by natural gradients is refined. Where the Hessian of log pi is sparse, so is the precision of
the best Gaussian (`_sparse_precision`). Where it is not, Laplace at a mode gives a scale of low rank, which
is kept where its ELBO is better. No array is larger than dim x RANK:

    H ~ D (I + Q (Lambda - I) Q^T) D,   S = D^-1 (I + Q (Lambda^-1/2 - I) Q^T),

D^2 the diagonal of H, estimated by products H z with random signs z, and (Q, Lambda) the eigenpairs of
D^-1 H D^-1 that lie farthest from one, by Lanczos' method.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from dmvi._clock import Clock
from dmvi._compile import quick_options
from dmvi._interrupt import Interrupt
from dmvi._random import children, seed_of
from dmvi.guides import Affine, AnyAffine, LowRank, low_rank_anchored
from dmvi.targets._target import Target
from dmvi.training import Progress
from dmvi.warmstart._climb import Climber
from dmvi.warmstart._effort import EffortSettings, device, effort_of
from dmvi.warmstart._laplace import LARGEST_SD, Surface, climb
from dmvi.warmstart._sparse_precision import sparse_gaussian
from dmvi.warmstart._warm_start import WarmStart, warm_start

DENSE_DIMENSION = 2000  # up to which the base is a full covariance
RANK = 8
MAX_ITERATIONS = 500
PROBES = 64
ESTIMATES = 3  # of the diagonal, each without what the one before has shown
TOLERANCE = 1e-2  # relative, of the eigenvalues


def high_dimensional_start(
    target: Target,
    *,
    key: PRNGKeyArray,
    progress: Progress,
    clock: Clock | None = None,
    interrupt: Interrupt | None = None,
) -> WarmStart:
    """The better of a mean field and Laplace, each with a low-rank scale to be trained.

    Args:
        target: what to approximate.
        key: random key.
        progress: told of the stage.
        clock: of the fit.
        interrupt: asked between programs whether to end with the best so far.
    """
    progress.note("warm start")
    probe_key, judge_key = children(jr.fold_in(key, 1), 2)
    field = warm_start(target, full=False, key=key, progress=progress, clock=clock, interrupt=interrupt)
    assert isinstance(field.affine, Affine)
    base = low_rank_anchored(field.affine.anchor.value, field.affine.anchor_scale.value, rank=RANK)
    best = field._replace(affine=base)
    if (clock is not None and clock.over) or (interrupt is not None and interrupt.asked):
        return best
    clock, interrupt = clock or Clock(), interrupt or Interrupt()
    sparse = clock.within(clock.share(EffortSettings().refining))
    loc, sd = field.affine.anchor.value, field.affine.anchor_scale.value
    found: AnyAffine | None = sparse_gaussian(
        target,
        (np.asarray(loc, float), np.asarray(sd, float)),
        key=probe_key,
        seconds_left=lambda: 0.0 if interrupt.asked else sparse.left,
        progress=progress,
    )
    surface, name = Surface(target), "sparse"
    if found is None:
        found, name = _laplace(target, surface, np.asarray(loc, float), probe_key), "laplace"
    if found is None:
        return best
    climbing = clock.within(clock.share(EffortSettings().refining))
    effort = effort_of(surface, clock)
    climber = Climber(target, effort, judge_key, progress, lambda: interrupt.asked or climbing.over)
    reached = climber.refined(found)
    if reached.elbo > field.elbo:
        trained = (device(reached.loc), device(np.log(np.abs(reached.scale))))
        found = eqx.tree_at(lambda a: (a.loc, a.log_diagonal), found, trained)
        best = best._replace(affine=found, name=name, elbo=reached.elbo)
    return best._replace(gradients=best.gradients + surface.gradients + climber.gradients)


def _laplace(
    target: Target, surface: Surface, start: Float[np.ndarray, " dim"], key: PRNGKeyArray
) -> AnyAffine | None:
    """Laplace's approximation at the mode that L-BFGS finds; None where it leaves the finite."""
    mode, _ = climb(surface, start, MAX_ITERATIONS)
    curvature = Curvature(target, mode)
    scale = curvature.low_rank(key)
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

    def low_rank(self, key: PRNGKeyArray) -> LowRank | None:
        """S with S S^T ~ H^-1: a diagonal and RANK directions; None where a product is not finite.

        Random signs see the diagonal through all that stands beside it. So it is estimated twice, the second
        time without the directions that the first has shown: what is left beside it is small.
        """
        signs = np.random.default_rng(seed_of(key)).choice([-1.0, 1.0], size=(PROBES, self._dim))
        seen = np.array([self.times(sign) for sign in signs])
        if not np.isfinite(seen).all():
            return None
        known = np.zeros((self._dim, 0))
        weights = np.zeros(0)
        for _ in range(ESTIMATES):
            left = seen - ((signs @ known) * weights) @ known.T
            diagonal = np.mean(signs * left, axis=0) + np.sum(known**2 * weights, axis=1)
            root = np.sqrt(np.clip(diagonal, LARGEST_SD**-2, None))
            values, vectors = self._farthest(root, signs[0])
            known, weights = root[:, None] * vectors, values
        shrink = np.clip(1 + values, LARGEST_SD**-2, None) ** -0.5 - 1
        return LowRank(1 / root, vectors * shrink[None, :] / root[:, None], vectors)  # pyright: ignore[reportArgumentType]

    def _farthest(self, root: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The eigenvalues of D^-1 H D^-1 - I that lie farthest from zero, and their vectors."""

        def excess(v: np.ndarray) -> np.ndarray:
            return np.nan_to_num(self.times(v.ravel() / root)) / root - v.ravel()

        shape = (self._dim, self._dim)
        operator = LinearOperator(shape, matvec=excess, dtype=float)  # pyright: ignore[reportCallIssue]
        try:
            values, vectors = eigsh(operator, k=min(RANK, self._dim - 1), which="LM", v0=first, tol=TOLERANCE)  # pyright: ignore[reportArgumentType]
        except ArpackNoConvergence as stopped:
            values, vectors = stopped.eigenvalues, stopped.eigenvectors
        return np.asarray(values), np.asarray(vectors)
