"""Where a search may begin: further tries where the first are unusable, in double precision if need be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import quick_options
from dmvi.targets._checks import TRIES, Search, find_start

# Gives log pi(xi) and, for each observed site, the number of events outside its support.
Density = Callable[[Array], tuple[Array, Array]]
Points = Float[np.ndarray, "points dim"]


@dataclass(frozen=True)
class Scatter:
    """Starts around a point that had to be searched for.

    Attributes:
        decades: distances are spread evenly on the log scale from 1 down to 10^-decades, as nobody knows how
            far the density stays finite.
        exact: share of these starts that are the point itself, for where it is finite next to nowhere else.
        usual: share of all starts drawn as if no point had been searched for: there may be other modes.
    """

    decades: float = 4.0
    exact: float = 0.25
    usual: float = 0.5


class Found(NamedTuple):
    """Where the search for a start ended.

    Attributes:
        search: its outcome, over all tries.
        centre: the point that was found; None where the usual starts will do, or where there is none.
        double_only: whether the density was usable in double precision, and nowhere in single.
    """

    search: Search
    centre: Float[np.ndarray, " dim"] | None = None
    double_only: bool = False


def look_for_start(density: Density, starts: Points, num_sites: int) -> Search:
    """`find_start` in one compiled program."""
    program = jax.jit(find_start, static_argnums=(0, 2), compiler_options=quick_options())
    with jax.default_matmul_precision("highest"):
        return program(density, jnp.asarray(starts, jnp.result_type(float)), num_sites)


def settle(search: Search, starts: Points, more: Callable[[int], Points], density: Density) -> Found:
    """Take the start that was found first, or look further for one.

    Stan and NumPyro try a hundred starts; and a density that overflows in single precision at all of them may
    be followed uphill in double precision to where it does not.

    Args:
        search: outcome of the first tries.
        starts: these, in order.
        more: gives a number of other starts.
        density: as for `find_start`.
    """
    if search.usable:
        found = int(search.tried)
        return Found(search, None if found <= TRIES.few else np.asarray(starts[found - 1], float))
    rest = np.asarray(more(TRIES.most - len(starts)), float)
    num_sites = len(search.outside)
    further = look_for_start(density, rest, num_sites)
    both = Search(
        search.tried + further.tried,
        further.usable,
        search.finite | further.finite,
        jnp.minimum(search.outside, further.outside),
    )
    if further.usable:
        return Found(both, rest[int(further.tried) - 1])
    if jax.config.read("jax_enable_x64"):
        return Found(both)
    try:
        centre, double_only = _from_double(density, np.concatenate([starts, rest]))
    except Exception:  # a model written for single precision need not run in double
        return Found(both)
    if centre is None:
        return Found(both, double_only=double_only)
    return Found(both._replace(usable=jnp.ones((), bool)), centre)


def uniform_points(count: int, dim: int, seed: int) -> Points:
    """Points of (-2, 2)^dim, from NumPy: compiling JAX's generator takes longer than the rest of a check."""
    return np.random.default_rng(seed).uniform(-TRIES.radius, TRIES.radius, (count, dim))


def further_points(count: int, dim: int, others: Callable[[int], Points] | None = None) -> Points:
    """Points of (-2, 2)^dim, and every fourth one of others.

    Args:
        count: of all.
        dim: number of coordinates.
        others: gives a number of points, such as draws of the prior; those that are not finite, and all if it
            raises, give way to uniform ones.
    """
    points = uniform_points(count, dim, seed=1)
    try:
        extra = np.zeros((0, dim)) if others is None else np.asarray(others(count // 4), float)
    except Exception:  # improper priors, and whatever else drawing raises in a user's own code
        return points
    extra = extra[np.isfinite(extra).all(axis=1)]
    points[1 : 4 * len(extra) : 4] = extra
    return points


def starts_around(
    usual: Callable[[PRNGKeyArray], Array],
    centre: Float[np.ndarray, " dim"] | None,
    scatter: Scatter | None = None,
) -> Callable[[PRNGKeyArray], Array]:
    """Random starts of which half lie around a point; the usual ones where there is none."""
    if centre is None:
        return usual
    scatter = Scatter() if scatter is None else scatter

    def start(key: PRNGKeyArray) -> Array:
        key_usual, key_which, key_distance, key_direction = jax.random.split(key, 4)
        point = usual(key_usual)
        which, how_far = jax.random.uniform(key_which), jax.random.uniform(key_distance, (2,))
        distance = jnp.where(how_far[0] < scatter.exact, 0.0, 10.0 ** (-scatter.decades * how_far[1]))
        near = centre + distance * jax.random.normal(key_direction, point.shape, point.dtype)
        return jnp.where(which < scatter.usual, point, near.astype(point.dtype))

    return start


def _from_double(density: Density, starts: Points) -> tuple[Float[np.ndarray, " dim"] | None, bool]:
    """A point usable in single precision, uphill in double from the best start; was there a start."""

    def log_pi(xi: Array) -> Array:
        value, outside = density(xi)
        return jnp.where(jnp.all(outside == 0), value, -jnp.inf)

    slope = jax.value_and_grad(log_pi)

    def look(xi: Float[np.ndarray, " dim"], *, double: bool) -> tuple[float, Float[np.ndarray, " dim"], bool]:
        with jax.enable_x64(double), jax.default_matmul_precision("highest"):
            value, gradient = program(jnp.asarray(xi, jnp.result_type(float)))
            value, gradient = float(value), np.asarray(gradient, float)
        return value, gradient, bool(np.isfinite(value) and np.isfinite(gradient).all())

    program = jax.jit(slope, compiler_options=quick_options())
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        every = jax.jit(lambda xi: jax.lax.map(slope, xi), compiler_options=quick_options())
        values, gradients = (np.asarray(part) for part in every(jnp.asarray(starts)))
    usable = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
    if not usable.any():
        return None, False
    best = int(np.argmax(np.where(usable, values, -np.inf)))
    point, value, gradient, step = starts[best], values[best], gradients[best], 1.0
    for _ in range(TRIES.uphill):
        if look(point, double=False)[2]:
            return point, True
        largest = np.max(np.abs(gradient))
        if not largest > 0:
            break
        direction = gradient / largest  # its squares could overflow
        trial = point + step * direction / np.linalg.norm(direction)
        higher, slope_there, fine = look(trial, double=True)
        if fine and higher > value:
            point, value, gradient, step = trial, higher, slope_there, 2.0 * step
        else:
            step *= 0.25
    return None, True
