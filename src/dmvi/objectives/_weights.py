"""Weighed draws on the full data: what fits are compared, corrected and judged by."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._random import children
from dmvi.guides._guide import Guide
from dmvi.targets._target import Target

# All of them divide 4,000 and 20,000, so that nothing is drawn only to be thrown away.
_CHUNKS = (2000, 1000, 500, 250, 100, 50, 25)
_FEWER = (*_CHUNKS, 5, 1)  # what a chunk is divided into where a density takes long
ROUND_TRIPS = 256  # draws whose density is found again by inversion
# Numbers that one chunk may hold at a time: 64 MiB in float32.
_CHUNK_NUMBERS = 2**24


class Weighed(NamedTuple):
    """Draws xi with both terms of their log-weights log pi(xi) - log_q; arrays of JAX, then of NumPy."""

    xi: Any
    log_pi: Any
    log_q: Any

    @property
    def log_w(self) -> np.ndarray:
        """log w = log pi(xi) - log_q, in double precision."""
        with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, and is counted as such
            return np.asarray(self.log_pi, np.float64) - np.asarray(self.log_q, np.float64)


def chunk_size(dim: int, data_size: int | None) -> int:
    """How many draws go through the device together.

    A draw with its density needs room for a Jacobian of dim x dim in the worst case, and for one
    term per observation. Small chunks keep wide models and long data within memory.
    """
    numbers = dim * max(dim, 64) + 8 * (data_size or 0)
    return next((size for size in _CHUNKS if size * numbers <= _CHUNK_NUMBERS), _CHUNKS[-1])


def chunk_keys(key: PRNGKeyArray, n: int, chunk: int) -> list[PRNGKeyArray]:
    """One key for each chunk of n draws."""
    return children(key, -(-n // chunk))


def piece_size(chunk: int, seconds: float, longest: float) -> int:
    """How many draws of a chunk go through the device together where one takes so many seconds.

    Args:
        chunk: as `chunk_size` gives it.
        seconds: that one draw with its density takes; zero where that is not known.
        longest: seconds that one program may run.
    """
    return next((size for size in _FEWER if size <= chunk and size * seconds <= longest), 1)


def weigh_pieces(
    guide: Guide, target: Target, key: PRNGKeyArray, chunk: int, piece: int
) -> Iterator[Weighed]:
    """The draws of `weigh_chunk`, up to rounding, a piece at a time."""
    if piece >= chunk:
        yield weigh_chunk(guide, target, key, chunk)
        return
    keys = jr.split(key, chunk)
    for begin in range(0, chunk, piece):
        yield weigh_keys(guide, target, keys[begin : begin + piece])


@compiled
def weigh_keys(guide: Guide, target: Target, keys: PRNGKeyArray) -> Weighed:
    """One draw for each key."""
    return _weighed(guide, target, keys)


@compiled
def weigh_chunk(guide: Guide, target: Target, key: PRNGKeyArray, chunk: int) -> Weighed:
    """One chunk of draws; training and diagnostics call this one compiled program."""
    return _weighed(guide, target, jr.split(key, chunk))


def _weighed(guide: Guide, target: Target, keys: PRNGKeyArray) -> Weighed:
    def one(key: PRNGKeyArray) -> Weighed:
        draw = guide.draw(key)
        return Weighed(draw.xi, target.log_density(draw.xi), draw.log_q)

    return jax.vmap(one)(keys)


@compiled
def evidence_chunk(guide: Guide, xi: Float[Array, "n dim"]) -> Float[Array, " n"]:
    """log q of given points, by inverting the guide."""
    return jax.vmap(guide.evidence)(xi)


@compiled
def round_trip_chunk(
    guide: Guide, keys: PRNGKeyArray
) -> tuple[Float[Array, " n"], Float[Array, " n"]] | None:
    """log_q of fresh draws, and log q by inversion; None where draws have no inverse."""
    return jax.vmap(guide.round_trip)(keys)
