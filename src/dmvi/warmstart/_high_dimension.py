"""The Gaussian a guide starts from where a full covariance would be too much to hold.

A mean field by natural gradients is the beginning. Where the Hessian of log pi is sparse, so is the precision
of the best Gaussian (`_sparse_precision`). Where it is not, the mean field is refined, and Laplace at a mode
gives a scale of low rank, which is kept where its ELBO is better. No array is larger than dim x RANK:

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
from dmvi.guides import Affine, AnyAffine, LowRank, anchored, low_rank_anchored
from dmvi.targets._target import Target
from dmvi.training import Progress
from dmvi.warmstart._climb import Climber, Reached
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
    # Where the Hessian is sparse a far better Gaussian goes on from there, so it need not be the best.
    field = warm_start(
        target, full=False, roughly=True, key=key, progress=progress, clock=clock, interrupt=interrupt
    )
    clock, interrupt = clock or Clock(), interrupt or Interrupt()
    if clock.over or interrupt.asked:
        return _trained_at_low_rank(field)
    refining = EffortSettings().refining
    surface = Surface(target, stop=lambda: interrupt.asked or clock.over)
    deadline = clock.within(clock.share(refining))
    sparse = sparse_gaussian(
        target,
        _numbers(field),
        key=probe_key,
        seconds_left=lambda: 0.0 if interrupt.asked else deadline.left,
        progress=progress,
    )
    if sparse is not None:
        field = field._replace(gradients=field.gradients + sparse.gradients)
        if sparse.elbo > field.elbo:
            return field._replace(affine=sparse.affine, name="sparse", elbo=sparse.elbo)
    if clock.over or interrupt.asked:
        return _trained_at_low_rank(field)
    climbing = clock.within(clock.share(refining))
    effort = effort_of(surface, clock)
    target = eqx.tree_at(lambda t: t.params, target, field.params)
    climber = Climber(target, effort, judge_key, progress, lambda: interrupt.asked or climbing.over)
    field = _finished(field, climber)
    best = _trained_at_low_rank(field)
    laplace = _laplace(target, surface, _numbers(field)[0], probe_key)
    if laplace is not None:
        reached = climber.refined(laplace)
        if reached.elbo > field.elbo:
            trained = (device(reached.loc), device(np.log(np.abs(reached.scale))))
            laplace = eqx.tree_at(lambda a: (a.loc, a.log_diagonal), laplace, trained)
            best = best._replace(affine=laplace, name="laplace", elbo=reached.elbo)
    return best._replace(gradients=best.gradients + surface.gradients + climber.gradients)


def _numbers(field: WarmStart) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]:
    """Location and sds of a mean field."""
    assert isinstance(field.affine, Affine)
    return np.asarray(field.affine.anchor.value, float), np.asarray(field.affine.anchor_scale.value, float)


def _finished(field: WarmStart, climber: Climber) -> WarmStart:
    """The mean field at its plateau."""
    reached = climber.finished(Reached(field.name, *_numbers(field), field.params, field.elbo))
    if not reached.elbo > field.elbo:
        return field
    affine = anchored(device(reached.loc), device(np.abs(reached.scale)), full=False)
    return field._replace(affine=affine, elbo=reached.elbo, params=reached.params)


def _trained_at_low_rank(field: WarmStart) -> WarmStart:
    """The mean field with a scale of low rank to be trained."""
    assert isinstance(field.affine, Affine)
    anchor = field.affine.anchor.value, field.affine.anchor_scale.value
    return field._replace(affine=low_rank_anchored(*anchor, rank=RANK))


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
