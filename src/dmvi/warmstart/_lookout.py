"""Points from which to search for modes whose basins are too small for a search to begin in by chance.

In few dimensions the density can be looked at nearly everywhere. Of draws from wide Gaussians g around the
best mode, those with the largest pi / g stand for the most mass: a narrow mode shows as soon as one of tens
of thousands of draws falls into its basin.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi.targets import Target
from dmvi.warmstart._laplace import Mode, Surface, scale_from_precision
from dmvi.warmstart._threads import CALLBACKS

LARGEST_DIM = 3  # beyond it, draws are too far apart
SPREADS = (2.0, 4.0, 8.0)  # sds of the wide Gaussians, in those of the mode
DRAWS = 2**15  # of each
KEPT = 4  # of each
MOST_NUMBERS = 2**28  # formed in all evaluations for each: costly densities are looked at in fewer places
AT_ONCE = 2**22  # of these, which bounds the memory
UNBOUNDED = frozenset({"while"}) | CALLBACKS  # of these nobody knows what they cost


def lookout(target: Target, surface: Surface, best: Mode, key: PRNGKeyArray) -> Float[np.ndarray, "n dim"]:
    """Where to search, none in more than a few dimensions.

    Args:
        target: what to look at.
        surface: its derivatives on the host.
        best: the best mode that is known.
        key: random key.
    """
    if target.dim > LARGEST_DIM or target.subsampled or surface.primitives() & UNBOUNDED:
        return np.zeros((0, target.dim))
    scale = scale_from_precision(best.precision, full=True)
    count, at_once = places(surface.numbers())
    dtype = jnp.result_type(float)
    loc, scale = jnp.asarray(best.loc, dtype), jnp.asarray(scale, dtype)
    return np.asarray(_heaviest(target, loc, scale, count, at_once, key), float).reshape(-1, target.dim)


def places(numbers: int) -> tuple[int, int]:
    """At how many points to look, and at how many of them at once, where each takes so many numbers."""
    count = int(np.clip(MOST_NUMBERS // max(numbers, 1), KEPT, DRAWS))
    return count, int(np.clip(AT_ONCE // max(numbers, 1), 1, count))


@compiled
def _heaviest(
    target: Target,
    loc: Float[Array, " dim"],
    scale: Float[Array, "dim dim"],
    count: int,
    at_once: int,
    key: PRNGKeyArray,
) -> Float[Array, "spreads kept dim"]:
    """The draws of largest pi / g, for each spread."""

    def of_spread(spread: Float[Array, ""], key: PRNGKeyArray) -> Float[Array, "kept dim"]:
        noise = jr.normal(key, (count, target.dim), loc.dtype)
        xi = loc[None] + spread * noise @ scale.T
        log_pi = jax.lax.map(target.log_density, xi, batch_size=at_once)
        log_ratio = log_pi + 0.5 * jnp.sum(noise**2, axis=1)
        order = jax.lax.top_k(jnp.where(jnp.isfinite(log_ratio), log_ratio, -jnp.inf), KEPT)[1]
        return xi[order]

    return jax.lax.map(
        lambda each: of_spread(*each), (jnp.asarray(SPREADS, loc.dtype), jr.split(key, len(SPREADS)))
    )
