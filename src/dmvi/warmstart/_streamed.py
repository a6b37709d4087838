"""The warm start on more rows than can be gone through often: a mode on some of them, then on all."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # loads scipy.optimize when it is used
from jaxtyping import Array, PRNGKeyArray
from scipy.special import logsumexp

from dmvi._compile import quick_options
from dmvi._errors import InputError
from dmvi._random import children, seed_of
from dmvi.guides import anchored, low_rank_anchored
from dmvi.targets import Derivatives, Target, anchored_at, prior_target
from dmvi.training import Progress
from dmvi.warmstart._candidates import ranked_starts
from dmvi.warmstart._high_dimension import DENSE_DIMENSION, RANK, high_dimensional_start
from dmvi.warmstart._laplace import Surface, climb, scale_from_precision
from dmvi.warmstart._warm_start import WarmStart

MANY = 200  # coordinates up to which Newton's steps go alone
SEARCHES = 4
ITERATIONS = 200  # of a search on the rows held in memory
PASSES = 20  # over all rows, where a Hessian can be had
FIRST_ORDER_PASSES = 60  # over all rows, where it cannot
SHORTER = 4.0  # division of a step that does not climb
ROUNDING = 1e-6  # of the sum over all rows, relative; a smaller fall may be none
NEAR = 1e-3  # squared sds of the posterior within which a mode counts as found
WEIGHED = 64  # draws by which Laplace's Gaussian is judged
CLOSE = 1.0  # nats between log evidence and ELBO up to which it is taken without looking further


class StreamedStart(NamedTuple):
    """The warm start, and the target with control variates at the mode it was made at."""

    start: WarmStart
    target: Target


def streamed_start(
    target: Target, *, full: bool, key: PRNGKeyArray, progress: Progress, control_variates: bool
) -> StreamedStart:
    """Laplace at a mode of all rows.

    A search on the rows held in memory leads near; Newton's steps on all rows, each one pass, lead to the
    mode. Above MANY coordinates quasi-Newton ones come before them; and above DENSE_DIMENSION, or
    where Laplace's Gaussian is not CLOSE, the spread is learned from the rows in memory.

    Args:
        target: a target with a stream.
        full: full-rank or mean-field.
        key: random key.
        progress: told of every pass.
        control_variates: whether training keeps those of the mode.
    """
    progress.note("warm start on some rows")
    start_key, fit_key = children(key, 2)
    surface = Surface(target)
    starts = ranked_starts(target, surface, start_key)[:SEARCHES]
    mode = max((climb(surface, start, ITERATIONS) for start in starts), key=lambda found: found[1])[0]
    if target.dim > MANY:
        mode, found = _quasi_newton(target, mode, progress)
        curvature = target.stream.hessian(mode) if target.dim <= DENSE_DIMENSION else np.array(np.nan)
        scale = None
        if np.isfinite(curvature).all():
            mode, found, precision = _newton(target, mode, curvature, progress)
            scale = _close_scale(target, mode, precision, fit_key)
        if scale is None:  # far from the mode the second order leads astray
            near = anchored_at(target, mode, found._replace(curvature=None))
            start = high_dimensional_start(near, key=fit_key, progress=progress)
        else:
            near = anchored_at(target, mode, found)
            start = WarmStart(low_rank_anchored(*_as_arrays(mode, scale), rank=RANK), "laplace", {})
        return StreamedStart(start, near if control_variates else target)
    curvature = target.stream.hessian(mode)
    _check_finite(target, float(np.sum(curvature)))
    mode, found, precision = _newton(target, mode, curvature, progress)
    if found.curvature is not None and _close_scale(target, mode, precision, fit_key) is None:
        found = found._replace(curvature=None)
    near = anchored_at(target, mode, found)
    affine = anchored(*_as_arrays(mode, scale_from_precision(precision, full=full)), full=full)
    start = WarmStart(affine, "laplace", {})
    return StreamedStart(start, near if control_variates else target)


def _newton(
    target: Target, mode: np.ndarray, curvature: np.ndarray, progress: Progress
) -> tuple[np.ndarray, Derivatives, np.ndarray]:
    """The mode over all rows, what is known there, and the precision, from a point and its Hessian."""
    prior = Surface(prior_target(target))
    start = mode
    scale = scale_from_precision(-(curvature + prior.hessian(mode)), full=True)
    best: tuple[float, np.ndarray, Derivatives] | None = None
    step = np.zeros_like(mode)
    for number in range(PASSES):
        progress.note(f"warm start: pass {number + 1} over all rows")
        found = target.stream.derivatives(mode)
        value, slope = prior.value_and_gradient(mode)
        value, slope = value + found.value, slope + found.slope
        if best is None:
            _check_finite(target, value)
        if best is not None and not value > best[0] - max(NEAR, ROUNDING * abs(value)):
            step = step / SHORTER  # it went too far
            mode = best[1] + step
            continue
        best = (value, mode, found)
        step = scale @ (scale.T @ slope)
        if slope @ step < NEAR:
            break
        mode = mode + step
    assert best is not None
    _, mode, found = best
    if mode is not start:
        curvature = target.stream.hessian(mode)
    if target.stream.bends_of_all and np.isfinite(curvature).all():
        found = found._replace(curvature=curvature)
    return mode, found, -(curvature + prior.hessian(mode))


def _close_scale(
    target: Target, mode: np.ndarray, precision: np.ndarray, key: PRNGKeyArray
) -> np.ndarray | None:
    """The scale of Laplace's Gaussian; None where draws weighed on all rows say that it is not close."""
    if not np.isfinite(precision).all():
        return None
    scale = scale_from_precision(precision, full=True)
    z = np.random.default_rng(seed_of(key)).standard_normal((WEIGHED, target.dim))
    xi = jnp.asarray((mode + z @ scale.T).astype(jnp.result_type(float)))
    log_prior = jax.jit(jax.vmap(prior_target(target).log_density), compiler_options=quick_options())(xi)
    likelihood = target.stream.excess(np.asarray(xi), mode)
    log_w = likelihood + np.asarray(log_prior, float) + 0.5 * np.sum(z**2, axis=1)
    gap = logsumexp(log_w) - np.log(WEIGHED) - np.mean(log_w)
    return scale if gap < CLOSE else None


def _as_arrays(mode: np.ndarray, scale: np.ndarray) -> tuple[Array, Array]:
    dtype = jnp.result_type(float)
    return jnp.asarray(mode.astype(dtype)), jnp.asarray(scale.astype(dtype))


def _check_finite(target: Target, value: float) -> None:
    """Rows that were not among those held in memory may spoil the sum over all."""
    if np.isfinite(value):
        return
    where = target.stream.first_not_finite()
    told = (
        "though all data are; look for a division by zero, or a log or sqrt of a negative number."
        if where is None
        else f"and neither is {where}. Drop such rows, or mask them in the model."
    )
    raise InputError(f"the log-density over all rows is not finite, {told}")


def _quasi_newton(target: Target, mode: np.ndarray, progress: Progress) -> tuple[np.ndarray, Derivatives]:
    prior = Surface(prior_target(target))
    passes = 0

    def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal passes
        passes += 1
        progress.note(f"warm start: pass {passes} over all rows")
        found = target.stream.derivatives(x)
        value, slope = prior.value_and_gradient(x)
        if passes == 1:
            _check_finite(target, value + found.value)
        return -(value + found.value), -(slope + found.slope)

    options = {"maxiter": FIRST_ORDER_PASSES, "maxfun": FIRST_ORDER_PASSES}
    mode = scipy.optimize.minimize(negative, mode, jac=True, method="L-BFGS-B", options=options).x
    return mode, target.stream.derivatives(mode)
