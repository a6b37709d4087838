"""Laplace's approximation at the best of a few optima."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from dmvi.targets._target import Target

MAX_ITERATIONS = 300
LARGEST_SD = 1e4


@eqx.filter_jit
def _value_and_gradient(target: Target, xi: Array) -> tuple[Array, Array]:
    return jax.value_and_grad(target.log_density)(xi)


@eqx.filter_jit
def _hessian(target: Target, xi: Array) -> Array:
    return jax.hessian(target.log_density)(xi)


def maximum(target: Target, start: Float[Array, " dim"]) -> tuple[np.ndarray, float]:
    """An optimum of log pi by L-BFGS from `start`, and its value."""

    def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _value_and_gradient(target, jnp.asarray(x, start.dtype))
        if not np.isfinite(value):
            return 1e30, np.zeros_like(x)
        return -float(value), -np.nan_to_num(np.asarray(gradient, float))

    result = scipy.optimize.minimize(
        negative,
        np.asarray(start, float),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS},
    )
    return result.x, -float(result.fun)


def precision_at(target: Target, xi: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """-Hessian of log pi at xi in double precision; None where it is not finite."""
    precision = -np.asarray(_hessian(target, jnp.asarray(xi, dtype)), float)
    return 0.5 * (precision + precision.T) if np.isfinite(precision).all() else None


def scale_from_precision(precision: np.ndarray, *, full: bool) -> np.ndarray:
    """S with S S^T = precision^-1, lower triangular or diagonal, over-wide directions cut.

    Directions of small or negative curvature have no sd of their own; they get at most LARGEST_SD.
    """
    if not full:
        return 1 / np.sqrt(np.clip(np.diagonal(precision), LARGEST_SD**-2, None))
    values, vectors = np.linalg.eigh(precision)
    root = vectors / np.sqrt(np.clip(values, LARGEST_SD**-2, None))
    triangle = np.linalg.qr(root.T, mode="r").T
    signs = np.sign(np.diagonal(triangle))
    return triangle * np.where(signs == 0, 1.0, signs)
