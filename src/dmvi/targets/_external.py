"""A NumPy function that returns a log-density and its gradient as a Target."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.targets._checks import TRIES
from dmvi.targets._coordinates import Coordinates
from dmvi.targets._differences import from_gradients
from dmvi.targets._jax import bare_target
from dmvi.targets._starts import further_points, starts_around
from dmvi.targets._target import Batch, Target

ValueAndGrad = Callable[[np.ndarray], tuple[ArrayLike, ArrayLike]]
STEP = 1e-4  # of the differences that stand for second derivatives, relative to 1 + |xi|


def from_value_and_grad(
    function: ValueAndGrad, dim: int, *, init: Any = None, names: Sequence[str] | None = None
) -> Target:
    r"""Turn a function outside JAX into a Target.

    JAX calls the function on the host, once for each whole batch of points, in double precision. Training
    needs no second derivatives; the warm start takes them from differences of gradients.

    Args:
        function: takes points of shape (n, dim) and returns log-densities (n,) and gradients (n, dim).
            Where the density is zero it may return minus infinity or NaN.
        dim: number of coordinates, all of them unconstrained.
        init: a point of shape (dim,) around which the search starts; zeros when left out.
        names: a name for each coordinate; without names all draws come in one array "x".

    Raises:
        InputError: if the function does not return what it should, or no start has a finite log-density.

    Example:
        >>> def gaussian(x):
        ...     return -0.5 * (x**2).sum(axis=1), -x
        >>> posterior = dmvi.fit(dmvi.Target.from_value_and_grad(gaussian, dim=3))
    """
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
        raise InputError(f"dim must be an integer of at least 1, got {dim!r}.")
    if not callable(function):
        raise InputError(f"The value-and-gradient function is no function but a {type(function).__name__}.")
    coordinates = _coordinates(int(dim), names)
    origin = _origin(int(dim), init)
    host = Host(function, int(dim))
    centre = _usable_start(host, origin)

    def start(key: PRNGKeyArray) -> Array:
        return jnp.asarray(origin) + jax.random.uniform(key, (dim,), origin.dtype, -1.0, 1.0)

    return bare_target(coordinates, host.log_density, starts_around(start, centre), host.hessian)


class Host:
    """A value-and-gradient function on the host, as JAX sees it.

    Under `jax.vmap` the callback takes the whole batch at once, so n points make one call. Value and
    gradient come from the same call: the derivative rule uses both.
    """

    def __init__(self, function: ValueAndGrad, dim: int):
        self.function = function
        self.dim = dim
        density = jax.custom_jvp(lambda xi: self._call(xi)[0])

        @density.defjvp
        def _slope(primals, tangents):
            (xi,), (direction,) = primals, tangents
            value, gradient = self._call(xi)
            return value, jnp.sum(gradient * direction)

        self._density = density

    def log_density(self, xi: Array, params: dict[str, Array], batch: Batch) -> Array:
        """log pi(xi)."""
        return self._density(xi)

    def hessian(self, xi: Array) -> Array:
        """Second derivatives by central differences of gradients, in double precision, in one call."""
        shape = jax.ShapeDtypeStruct((self.dim, self.dim), xi.dtype)
        return jax.pure_callback(self._differences, shape, xi, vmap_method="sequential")

    def evaluate(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The function at points of shape (n, dim), checked."""
        found = self.function(points)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(
                "The value-and-gradient function has to return a pair (values, gradients), "
                f"got a {type(found).__name__}."
            )
        value, gradient = (np.asarray(part, np.float64) for part in found)
        if value.shape != (len(points),) or gradient.shape != points.shape:
            raise InputError(
                f"For points of shape {points.shape} the function has to return values of shape "
                f"({len(points)},) and gradients of shape {points.shape}; got {value.shape} and "
                f"{gradient.shape}."
            )
        return value, gradient

    def _call(self, xi: Array) -> tuple[Array, Array]:
        shapes = (jax.ShapeDtypeStruct((), xi.dtype), jax.ShapeDtypeStruct((self.dim,), xi.dtype))
        return jax.pure_callback(self._many, shapes, xi, vmap_method="broadcast_all")

    def _many(self, xi: Any) -> tuple[np.ndarray, np.ndarray]:
        points = np.asarray(xi)
        value, gradient = self.evaluate(points.reshape(-1, self.dim).astype(np.float64))
        value, gradient = value.reshape(points.shape[:-1]), gradient.reshape(points.shape)
        return value.astype(points.dtype), gradient.astype(points.dtype)

    def _differences(self, xi: Any) -> np.ndarray:
        point = np.asarray(xi, np.float64)
        hessian = from_gradients(lambda points: self.evaluate(points)[1], point, STEP)
        return hessian.astype(np.asarray(xi).dtype)


def _coordinates(dim: int, names: Sequence[str] | None) -> Coordinates:
    if names is None:
        return Coordinates({"x": (dim,)})
    if isinstance(names, str) or len(names) != dim or len(set(names)) != dim:
        raise InputError(f"names has to hold {dim} different names, one for each coordinate; got {names!r}.")
    return Coordinates({str(name): () for name in names})


def _origin(dim: int, init: Any) -> np.ndarray:
    origin = np.zeros(dim) if init is None else np.asarray(init)
    if origin.shape != (dim,) or origin.dtype.kind not in "iuf" or not np.isfinite(origin).all():
        raise InputError(f"init has to be a point of {dim} finite numbers, got {init!r}.")
    return origin.astype(jnp.result_type(float))


def _usable_start(host: Host, origin: np.ndarray) -> np.ndarray | None:
    """A usable point, where few random starts are; raises where none is found.

    The first tries lie around init, the further ones in (-2, 2)^dim, as Stan's. The host computes in double
    precision, but what it finds has to be finite in that of the fit.
    """
    noise = np.random.default_rng(0).uniform(-1, 1, (TRIES.first, host.dim))
    noise[0] = 0.0
    finite = False
    for tried, points in (
        (0, origin[None] + noise),
        (TRIES.first, further_points(TRIES.most - TRIES.first, host.dim)),
    ):
        with np.errstate(over="ignore"):
            value, gradient = (part.astype(origin.dtype) for part in host.evaluate(points.astype(float)))
        usable = np.isfinite(value) & np.isfinite(gradient).all(axis=1)
        if usable.any():
            first = int(np.argmax(usable))
            return points[first] if tried + first >= TRIES.few else None
        finite = finite or bool(np.isfinite(value).any())
    if finite:
        raise InputError(f"The log-density is finite, but its gradient is not at any of {TRIES.most} starts.")
    raise InputError(
        f"The log-density is not finite at any of {TRIES.most} starts; give an init where it is."
    )
