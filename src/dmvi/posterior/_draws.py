"""Draws of a fitted guide, computed in chunks of one compiled size."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.guides import Guide
from dmvi.targets import Target

# All of them divide 4,000 and 20,000, so that nothing is drawn only to be thrown away.
_CHUNKS = (4000, 2000, 1000, 500, 250, 100, 50, 25)
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
            return self.log_pi.astype(np.float64) - self.log_q.astype(np.float64)


def chunk_size(dim: int, data_size: int | None) -> int:
    """How many draws go through the device together.

    A draw with its density needs room for a Jacobian of dim x dim in the worst case, and for one
    term per observation. Small chunks keep wide models and long data within memory.
    """
    numbers = dim * max(dim, 64) + 8 * (data_size or 0)
    return next((size for size in _CHUNKS if size * numbers <= _CHUNK_NUMBERS), _CHUNKS[-1])


class Draws:
    """The maps a posterior is made of, for any number of draws.

    Every map is compiled for one chunk and called as often as needed, so asking for another
    number of draws compiles nothing anew, and n draws are the first n of any larger request.

    Args:
        target: the model at its learned parameters.
        guide: the fitted guide.
    """

    def __init__(self, target: Target, guide: Guide):
        self._target = target
        self._guide = guide
        self._chunk = chunk_size(target.dim, target.data_size)

        def weigh(guide: Guide, key: PRNGKeyArray) -> Weighed:
            def one(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
                draw = guide.draw(key)
                return draw.xi, target.log_density(draw.xi), draw.log_q

            return Weighed(*jax.vmap(one)(jax.random.split(key, self._chunk)))

        self._propose = eqx.filter_jit(lambda guide, key: guide.sample(key, (self._chunk,)))
        self._weigh = eqx.filter_jit(weigh)
        self._evidence = eqx.filter_jit(lambda guide, xi: jax.vmap(guide.evidence)(xi))
        self._constrain = jax.jit(jax.vmap(target.constrain))
        self._log_likelihood = jax.jit(jax.vmap(target.log_likelihood))

    def propose(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n dim"]:
        """Draws xi of the guide, without density."""
        return self._repeat(lambda chunk_key: self._propose(self._guide, chunk_key), key, n)

    def weigh(self, key: PRNGKeyArray, n: int) -> Weighed:
        """Draws xi of the guide with log pi(xi) on the full data and log_q."""
        return self._repeat(lambda chunk_key: self._weigh(self._guide, chunk_key), key, n)

    def evidence(self, xi: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """log q(xi) by inverting the guide."""
        return _over_rows(lambda rows: self._evidence(self._guide, rows), xi, min(self._chunk, len(xi)))

    def constrain(self, xi: Float[np.ndarray, "n dim"]) -> dict[str, np.ndarray]:
        """The model's variables at each xi, in the model's own order."""
        sites = _over_rows(self._constrain, xi, self._chunk)
        return {name: sites[name] for name in self._site_names}

    def log_likelihood(self, xi: Float[np.ndarray, "n dim"]) -> dict[str, np.ndarray]:
        """The pointwise log-likelihood at each xi."""
        return _over_rows(self._log_likelihood, xi, self._chunk)

    @functools.cached_property
    def _site_names(self) -> list[str]:
        # Compiled functions return dictionaries sorted by name; only a bare trace shows the model's order.
        origin = jnp.zeros(self._target.dim)
        return eqx.filter_eval_shape(lambda xi: list(self._target.constrain(xi)), origin)

    def _repeat(self, draw_chunk: Callable[[PRNGKeyArray], Any], key: PRNGKeyArray, n: int) -> Any:
        chunks = -(-n // self._chunk)
        return _join([draw_chunk(jax.random.fold_in(key, i)) for i in range(chunks)], n)


def _over_rows(f: Callable[[np.ndarray], Any], xi: np.ndarray, chunk: int) -> Any:
    """f over the rows of xi; the last chunk is filled up with repeated rows, then cut."""
    n = len(xi)
    padded = xi[np.arange(-(-n // chunk) * chunk) % n]
    return _join([f(padded[start : start + chunk]) for start in range(0, len(padded), chunk)], n)


def _join(chunks: list[Any], n: int) -> Any:
    """Chunks of arrays as one array of n rows on the host; the device runs on while they are collected."""
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts])[:n], *chunks)
