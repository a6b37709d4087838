"""Laplace's approximation at the best of a few optima."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # loads scipy.optimize when it is used
from jax.extend.core import Jaxpr, jaxprs_in_params
from jaxtyping import Float

from dmvi._compile import quick_options
from dmvi.targets._target import Target

MAX_ITERATIONS = 100
LARGEST_SD = 1e4  # of a Gaussian in a flat direction; in searches in the units of `units_of`
FLAT = LARGEST_SD**-2
NO_CURVATURE = 1e-24  # sds beyond 1e12
SLOPE = 1e-5  # at which a search ends
WIDE = 1e-2  # slope where searches begin, below which a coordinate is searched in another unit
LARGEST_UNIT = 1e8
NOWHERE = 1e30  # stands for -log pi where that is not finite


class Surface:
    """log pi with its derivatives, for searches on the host, in double precision.

    Thousands of calls of microseconds: plain `jax.jit` on one target, whose dispatch is the quickest. It
    counts the gradients it has made, a Hessian as `dim` of them.

    Args:
        target: whose density.
        stop: asked in searches whether they should end where they are.
    """

    def __init__(self, target: Target, stop: Callable[[], bool] = lambda: False):
        self.stop, self.gradients = stop, 0
        self.dtype, self.dim, self.tolerance = jnp.result_type(float), target.dim, SLOPE
        self.units = np.ones(target.dim)
        options = quick_options()
        self._first = jax.jit(jax.value_and_grad(target.log_density), compiler_options=options)
        self._second = jax.jit(target.hessian, compiler_options=options)

    def begin_at(self, starts: Float[np.ndarray, "n dim"]) -> None:
        """Let searches step and end in units in which the slopes where they begin are not small.

        In a coordinate of large scale slopes are small everywhere, and SLOPE may be a whole sd from a mode.
        """
        slopes = np.abs([np.nan_to_num(self.value_and_gradient(x)[1]) for x in starts]).max(axis=0)
        steepest = slopes.max()
        self.units = np.where(slopes > 0, np.clip(slopes / WIDE, 1 / LARGEST_UNIT, 1.0), 1.0)
        self.tolerance = SLOPE * (WIDE if np.any(self.units < 1) else min(float(steepest), 1.0))

    def primitives(self) -> set[str]:
        """Names of the operations that log pi and its gradient are made of."""
        return set(_names(self._program))

    def numbers(self) -> int:
        """How many numbers log pi and its gradient form on the way, a measure of what they cost."""
        return _numbers(self._program)

    @functools.cached_property
    def _program(self) -> Jaxpr:
        return self._first.trace(jax.ShapeDtypeStruct((self.dim,), self.dtype)).jaxpr.jaxpr

    def value_and_gradient(self, xi: np.ndarray) -> tuple[float, np.ndarray]:
        """log pi(xi) and its gradient."""
        self.gradients += 1
        value, gradient = self._first(xi.astype(self.dtype))
        return float(value), np.asarray(gradient, float)

    def hessian(self, xi: np.ndarray) -> np.ndarray:
        """Second derivatives of log pi at xi."""
        self.gradients += self.dim
        return np.asarray(self._second(xi.astype(self.dtype)), float)


def _names(jaxpr: Jaxpr) -> Iterator[str]:
    """Names of the primitives in a program and in all it calls."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from _names(inner)


def numbers_of(target: Target) -> int:
    """How many numbers log pi alone forms on the way, a measure of the memory that a draw takes."""
    xi = jax.ShapeDtypeStruct((target.dim,), jnp.result_type(float))
    return _numbers(jax.make_jaxpr(target.log_density)(xi).jaxpr)


def _numbers(jaxpr: Jaxpr) -> int:
    """Sizes of all results in a program, those of a loop as often as it is gone through."""
    total = 0
    for equation in jaxpr.eqns:
        total += sum(math.prod(getattr(result.aval, "shape", ())) for result in equation.outvars)
        times = equation.params.get("length", 1)
        total += times * sum(_numbers(inner) for inner in jaxprs_in_params(equation.params))
    return total


class Mode(NamedTuple):
    """An optimum of log pi, the negative Hessian there, and Laplace's estimate of the evidence around it."""

    loc: np.ndarray
    precision: np.ndarray
    log_evidence: float


def units_of(diagonal: Any) -> Any:
    """The square roots of second derivatives where these are below one; 1 where they are not or are none.

    Of NumPy or JAX arrays. Times these, a coordinate of large scale is one of sd at most 1.
    """
    xp = _library_of(diagonal)
    return xp.sqrt(xp.where(diagonal > NO_CURVATURE, xp.minimum(diagonal, 1.0), 1.0))


def curvatures_of(precision: Any) -> tuple[Any, Any, Any]:
    """Units D of the coordinates, and eigenvalues and vectors of D^-1 precision D^-1.

    Of NumPy or JAX arrays. A direction is flat where its curvature is below FLAT in these units: coordinates
    of different scales are no reason to take the widest for flat.
    """
    xp = _library_of(precision)
    units = units_of(xp.diagonal(precision))
    values, vectors = xp.linalg.eigh(precision / units[:, None] / units[None, :])
    return units, values, vectors


def _library_of(array: Any) -> Any:
    return jnp if isinstance(array, jax.Array) else np


def laplace(surface: Surface, start: np.ndarray, iterations: int = MAX_ITERATIONS) -> Mode:
    r"""Laplace's approximation at the mode that L-BFGS finds from `start` in so many iterations.

    log Z ~ log pi(mode) - 1/2 log |H / 2 pi|, the curvatures of H cut where they are flat. Where the search
    or the Hessian leaves the finite, the start itself with unit curvature stands in, at evidence zero.
    """
    loc, log_pi = climb(surface, start, iterations)
    precision = -surface.hessian(loc)
    if not (np.isfinite(loc).all() and np.isfinite(precision).all() and np.isfinite(log_pi)):
        return Mode(start, np.eye(start.size), -np.inf)
    precision = 0.5 * (precision + precision.T)
    units, curvatures, _ = curvatures_of(precision)
    log_volume = 0.5 * np.sum(np.log(np.maximum(curvatures, FLAT) / (2 * np.pi))) + np.sum(np.log(units))
    return Mode(loc, precision, log_pi - log_volume)


def climb(
    surface: Surface, start: np.ndarray, iterations: int, way: list[np.ndarray] | None = None
) -> tuple[np.ndarray, float]:
    """The point L-BFGS finds from `start`, and log pi there: minus infinity where that is not finite.

    The points it passes are added to `way`.
    """
    units = surface.units

    def negative(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = surface.value_and_gradient(z / units)
        if not np.isfinite(value):
            return NOWHERE, np.zeros_like(z)
        return -value, -np.nan_to_num(gradient) / units

    options = {"maxiter": iterations, "maxfun": 2 * iterations, "gtol": surface.tolerance}

    def passed(z: np.ndarray) -> None:
        if way is not None:
            way.append(z / units)
        if surface.stop():
            raise StopIteration

    found = scipy.optimize.minimize(
        negative, start * units, jac=True, method="L-BFGS-B", options=options, callback=passed
    )
    return found.x / units, -float(found.fun) if found.fun < NOWHERE else -np.inf


def scale_from_precision(precision: np.ndarray, *, full: bool) -> np.ndarray:
    """S with S S^T = precision^-1, lower triangular or diagonal, over-wide directions cut.

    Directions that are flat or curve upwards have no sd of their own; they get the largest that is not flat.
    """
    if not full:
        diagonal = np.diagonal(precision)
        units = units_of(diagonal)
        return 1 / np.sqrt(np.maximum(diagonal, FLAT * units**2))
    units, values, vectors = curvatures_of(precision)
    root = vectors / np.sqrt(np.maximum(values, FLAT)) / units[:, None]
    triangle = np.asarray(np.linalg.qr(root.T, mode="r")).T
    signs = np.sign(np.diagonal(triangle))
    return triangle * np.where(signs == 0, 1.0, signs)
