"""A JAX log-density over any pytree as a Target."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.targets._checks import TRIES, check_search, explain_failure
from dmvi.targets._coordinates import Coordinates
from dmvi.targets._starts import further_points, look_for_start, settle, starts_around
from dmvi.targets._target import Batch, Target

Density = Callable[[Array, dict[str, Array], Batch], Array]


def from_log_density(log_density: Callable[[Any], ArrayLike], init: Any) -> Target:
    r"""Turn an unconstrained log-density of a pytree into a Target.

    log pi(xi) = log_density(x), where x has the structure of `init` and xi are its entries in order.

    Starts scatter around `init` at every distance up to one: init + 10^-u epsilon with u uniform in
    (0, 2) and epsilon standard normal.

    Args:
        log_density: a JAX function of one argument, defined on all of R^d up to a constant.
        init: a point: a number, an array, or any nesting of dicts, lists and tuples of them.
            Integers count as floats. A leaf is named by its path ("mu", "a.b", "a[0]"); a bare
            array is named "x".

    Raises:
        InputError: if `init` holds no numbers, the function does not return one real number, or
            no start has a finite log-density.
    """
    if not callable(log_density):
        raise InputError(f"The log-density has to be a function, got a {type(log_density).__name__}.")
    point = read_point(init)
    density = point.density(log_density)

    def alone(xi: Array) -> tuple[Array, Array]:
        return density(xi, {}, None), jnp.zeros((0,), int)

    try:
        starts = np.asarray(point.trial_points())
        found = settle(look_for_start(alone, starts, 0), starts, point.further_points, alone)
    except InputError:
        raise
    except Exception as error:  # whatever the user's own code raises is told as a fault of function or init
        raise explain_failure(error, log_density, "init", point.leaves) from error
    check_search(found.search, double_only=found.double_only)
    return bare_target(point.coordinates, density, starts_around(point.start, found.centre))


@dataclass(frozen=True, eq=False)
class Point:
    """The structure of a log-density's argument.

    Attributes:
        structure: of the pytree.
        leaves: its values by name.
        coordinates: where each of them lies in xi.
        origin: xi at these values.
    """

    structure: Any
    leaves: dict[str, Array]
    coordinates: Coordinates
    origin: Array

    def density(self, log_density: Callable[[Any], ArrayLike]) -> Density:
        """log pi as a function of xi."""

        def density(xi: Array, params: dict[str, Array], batch: Batch) -> Array:
            point = jax.tree.unflatten(self.structure, self.coordinates.split(xi).values())
            return _as_scalar(log_density(point), xi.dtype)

        return density

    def start(self, key: PRNGKeyArray) -> Array:
        """A random start around `init`."""
        key_distance, key_direction = jax.random.split(key)
        distance = 10.0 ** -jax.random.uniform(key_distance, maxval=2.0)
        direction = jax.random.normal(key_direction, self.origin.shape, self.origin.dtype)
        return self.origin + distance * direction

    def trial_points(self) -> Array:
        """Starts for the check, init first; from NumPy, as compiling JAX's generator takes longer."""
        points = self._scattered(TRIES.first, seed=0)
        points[0] = self.origin
        return jnp.asarray(points.astype(self.origin.dtype))

    def further_points(self, count: int) -> np.ndarray:
        """Starts where those of the check are unusable: of (-2, 2)^dim, as Stan's, and around init."""
        return further_points(count, self.origin.size, lambda number: self._scattered(number, seed=2))

    def _scattered(self, count: int, seed: int) -> np.ndarray:
        generator = np.random.default_rng(seed)
        distance = 10.0 ** -generator.uniform(0.0, 2.0, (count, 1))
        directions = generator.standard_normal((count, self.origin.size))
        return np.asarray(self.origin)[None] + distance * directions


def read_point(init: Any) -> Point:
    """The names and shapes in `init`."""
    paths, structure = jax.tree_util.tree_flatten_with_path(init)
    leaves = {_leaf_name(path): _leaf_value(_leaf_name(path), leaf) for path, leaf in paths}
    if len(leaves) < len(paths):
        raise InputError("Two leaves of init have the same name; rename the keys of its dicts.")
    coordinates = Coordinates({name: leaf.shape for name, leaf in leaves.items()})
    if coordinates.dim == 0:
        raise InputError("init holds no numbers; give a point the log-density can be evaluated at.")
    return Point(structure, leaves, coordinates, jnp.concatenate([leaf.ravel() for leaf in leaves.values()]))


def bare_target(
    coordinates: Coordinates,
    density: Density,
    start: Callable[[PRNGKeyArray], Array],
    hessian: Callable[[Array], Array] | None = None,
) -> Target:
    """A density and nothing else: its coordinates are the variables, and there are no data to know of."""
    return Target(
        dim=coordinates.dim,
        names=coordinates.labels,
        params={},
        observed={},
        dims={},
        data_size=None,
        subsampled=False,
        _log_density=density,
        _constrain=lambda xi, params: coordinates.split(xi),
        _constrain_params=lambda params: {},
        _log_likelihood=lambda xi, params: {},
        _start=start,
        _draw_batch=lambda key: None,
        _unpack=coordinates.split,
        _hessian=hessian,
    )


def _leaf_name(path: tuple[Any, ...]) -> str:
    """The path to a leaf as one writes it: "mu", "a.b", "a[0]"; "x" stands for what has no name."""
    name = ""
    for entry in path:
        key = getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", None)))
        step = f".{key}" if isinstance(key, str) else f"[{key}]"
        name = key if isinstance(key, str) and not name else f"{name or 'x'}{step}"
    return name or "x"


def _leaf_value(name: str, leaf: Any) -> Array:
    """A leaf of init as floats of the default width."""
    is_number = isinstance(leaf, int | float | complex | np.number | np.ndarray | jax.Array)
    kind = np.asarray(leaf).dtype if is_number else type(leaf).__name__
    if not is_number or not (jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.floating)):
        raise InputError(f"init has to hold real numbers or arrays of them; {name!r} is of type {kind}.")
    value = jnp.asarray(np.asarray(leaf).astype(jnp.result_type(float)))
    if not np.all(np.isfinite(value)):
        raise InputError(f"init has to be finite; {name!r} holds NaN or infinite entries.")
    return value


def _as_scalar(value: Any, dtype: Any) -> Array:
    """The value of the log-density, if it is one real number."""
    if not isinstance(value, float | np.floating | np.ndarray | jax.Array):
        raise InputError(f"The log-density has to return one real number, got a {type(value).__name__}.")
    if jnp.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise InputError(
            f"The log-density has to return one real number, got shape {jnp.shape(value)} and type "
            f"{jnp.result_type(value)}; sum independent terms with jnp.sum."
        )
    return jnp.asarray(value, dtype)
