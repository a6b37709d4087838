"""Laplace's approximation at the best of a few optima."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array

from dmvi.targets._target import Target

MAX_ITERATIONS = 100
LARGEST_SD = 1e4


@eqx.filter_jit
def _value_and_gradient(target: Target, xi: Array) -> tuple[Array, Array]:
    return jax.value_and_grad(target.log_density)(xi)


@eqx.filter_jit
def _hessian(target: Target, xi: Array) -> Array:
    return jax.hessian(target.log_density)(xi)


def log_density_and_gradient(target: Target, xi: np.ndarray) -> tuple[float, np.ndarray]:
    """log pi(xi) and its gradient in double precision on the host."""
    value, gradient = _value_and_gradient(target, jnp.asarray(xi, jnp.result_type(float)))
    return float(value), np.asarray(gradient, float)


class Mode(NamedTuple):
    """An optimum of log pi, the negative Hessian there, and Laplace's estimate of the evidence around it."""

    loc: np.ndarray
    precision: np.ndarray
    log_evidence: float


def laplace(target: Target, start: np.ndarray) -> Mode:
    r"""Laplace's approximation at the mode that L-BFGS finds from `start`.

    log Z ~ log pi(mode) - 1/2 log |H / 2 pi|, the curvatures of H cut at LARGEST_SD^-2. Where the search
    or the Hessian leaves the finite, the start itself with unit curvature stands in, at evidence zero.
    """

    def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = log_density_and_gradient(target, x)
        if not np.isfinite(value):
            return 1e30, np.zeros_like(x)
        return -value, -np.nan_to_num(gradient)

    options = {"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS}
    found = scipy.optimize.minimize(negative, start, jac=True, method="L-BFGS-B", options=options)
    precision = -np.asarray(_hessian(target, jnp.asarray(found.x, jnp.result_type(float))), float)
    if not (np.isfinite(found.x).all() and np.isfinite(precision).all() and found.fun < 1e30):
        return Mode(start, np.eye(start.size), -np.inf)
    precision = 0.5 * (precision + precision.T)
    curvatures = np.clip(np.linalg.eigvalsh(precision), LARGEST_SD**-2, None)
    return Mode(found.x, precision, -float(found.fun) - 0.5 * np.sum(np.log(curvatures / (2 * np.pi))))


def scale_from_precision(precision: np.ndarray, *, full: bool) -> np.ndarray:
    """S with S S^T = precision^-1, lower triangular or diagonal, over-wide directions cut.

    Directions of small or negative curvature have no sd of their own; they get at most LARGEST_SD.
    """
    if not full:
        return 1 / np.sqrt(np.clip(np.diagonal(precision), LARGEST_SD**-2, None))
    values, vectors = np.linalg.eigh(precision)
    root = vectors / np.sqrt(np.clip(values, LARGEST_SD**-2, None))
    triangle = np.asarray(np.linalg.qr(root.T, mode="r")).T
    signs = np.sign(np.diagonal(triangle))
    return triangle * np.where(signs == 0, 1.0, signs)
