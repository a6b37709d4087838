"""Draws of a fitted guide, computed in chunks of one compiled size."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled, quick_options
from dmvi.guides import Draw, Guide
from dmvi.objectives import (
    ROUND_TRIPS,
    Weighed,
    chunk_keys,
    chunk_size,
    evidence_chunk,
    piece_size,
    round_trip_chunk,
    weigh_keys,
    weigh_pieces,
)
from dmvi.targets import Target

_PROGRAM_SECONDS = 1.0  # that one program may run, as nothing is heard while it does


class Draws:
    """The maps a posterior is made of, for any number of draws.

    Every map is compiled for one chunk and called as often as needed, so asking for another
    number of draws compiles nothing anew, and n draws are the first n of any larger request.

    Args:
        target: the model at its learned parameters.
        guide: the fitted guide.
        seconds: that one draw takes with its density; zero where that is not known. Where it is long, fewer
            densities go through the device together, so that Ctrl-C is heard between them.
    """

    def __init__(self, target: Target, guide: Guide, seconds: float = 0.0):
        self._target = target.shared()
        self._guide = guide
        self._chunk = chunk_size(target.dim, target.terms)
        self._piece = piece_size(self._chunk, seconds, _PROGRAM_SECONDS)
        self.draw_seconds = seconds
        self._predictors: dict[bool, Callable] = {}  # of the prior and of the posterior, at the fit's data

    @property
    def exact(self) -> bool:
        """Whether `evidence` gives back the density that came with a draw."""
        return self._guide.exact

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self._target.dim

    @property
    def streamed(self) -> bool:
        """Whether weighing draws takes a pass over rows in files."""
        return self._target.stream is not None

    def propose(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "n dim"]:
        """Draws xi of the guide, without density."""
        return _join([_propose(self._guide, chunk_key, self._chunk) for chunk_key in self._keys(key, n)], n)

    def weigh(
        self,
        key: PRNGKeyArray,
        n: int,
        kept: int | None = None,
        before: Weighed | None = None,
        goes_on: Callable[[], bool] | None = None,
    ) -> Weighed:
        """Draws xi of the guide with log pi(xi) on the full data and log_q.

        Args:
            key: random key.
            n: number of draws.
            kept: how many xi are kept beside the weights, at least; all where it is None. Tens of thousands
                of draws in as many dimensions would fill a memory.
            before: what this gave for the same key and a smaller n, a multiple of the chunk, to go on from.
            goes_on: asked between programs, of which at least one is run, whether there is time for another.
        """
        if self._target.stream is not None:
            return self._weigh_rows(key, min(n, self._target.stream.draws))
        nothing = np.empty((0, self._target.dim), jnp.result_type(float))
        parts = [] if before is None else [before]
        done = 0 if before is None else len(before.log_q)
        # Without anyone to ask, the device runs on while weights are collected.
        waits = goes_on is not None or self._piece < self._chunk
        for start, chunk_key in zip(range(0, n, self._chunk), self._keys(key, n), strict=True):
            if start < done:
                continue
            for part in weigh_pieces(self._guide, self._target, chunk_key, self._chunk, self._piece):
                part = jax.tree.map(np.asarray, part) if waits else part
                parts.append(part if kept is None or start < kept else part._replace(xi=nothing))
                if goes_on is not None and not goes_on():
                    return _join(parts, n)
        return _join(parts, n)

    def seconds(self, key: PRNGKeyArray) -> float:
        """How long one draw with its density takes, by trying."""
        began = taken = 0.0
        for _ in range(2):  # the first also compiles
            began = time.perf_counter()
            jax.block_until_ready(weigh_keys(self._guide, self._target, jax.random.split(key, 1)))
            taken = time.perf_counter() - began
        return taken

    def _weigh_rows(self, key: PRNGKeyArray, n: int) -> Weighed:
        """Draws weighed on all rows, in one pass over them."""
        keys = self._keys(key, n)
        drawn = _join([_draw(self._guide, chunk_key, self._chunk) for chunk_key in keys], n)
        return Weighed(drawn.xi, self._over_all_rows(drawn.xi), drawn.log_q)

    def _over_all_rows(self, xi: np.ndarray) -> Float[np.ndarray, " n"]:
        """log pi, its likelihood summed in double precision."""
        mode = np.asarray(self._target.data.get("mode", jnp.zeros(self._target.dim)))
        prior = _over_rows(lambda rows: _log_prior(self._target, rows), xi, self._chunk)
        offset = self._target.offset or self._target.stream.derivatives(mode).value
        return np.asarray(prior, float) + self._target.stream.excess(xi, mode) + offset

    def evidence(self, xi: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """log q(xi) by inverting the guide; in chunks of the size that diagnostics have compiled."""
        chunk = min(self._chunk, ROUND_TRIPS)
        return _over_rows(lambda rows: evidence_chunk(self._guide, rows), xi, chunk)

    def round_trips(self, key: PRNGKeyArray) -> tuple[np.ndarray, np.ndarray] | None:
        """log_q of fresh draws, and log q by inversion; None for a guide whose draws have no inverse."""
        chunk = min(self._chunk, ROUND_TRIPS)
        keys = jax.random.split(key, ROUND_TRIPS)
        found = [round_trip_chunk(self._guide, keys[i : i + chunk]) for i in range(0, ROUND_TRIPS, chunk)]
        return None if found[0] is None else _join(found, ROUND_TRIPS)

    def constrain(self, xi: Float[np.ndarray, "n dim"]) -> dict[str, np.ndarray]:
        """The model's variables at each xi, in the model's own order."""
        sites = _over_rows(lambda rows: _constrain(self._target, rows), xi, self._chunk)
        return {name: sites[name] for name in self._site_names}

    def log_likelihood(self, xi: Float[np.ndarray, "n dim"]) -> dict[str, np.ndarray]:
        """The pointwise log-likelihood at each xi."""
        return _over_rows(lambda rows: _log_likelihood(self._target, rows), xi, self._chunk)

    def log_density(self, xi: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """log pi(xi) on the full data."""
        if self._target.stream is not None:
            return self._over_all_rows(xi)
        return _over_rows(lambda rows: _log_density(self._target, rows), xi, self._piece)

    def stages(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "stages n dim"]:
        """n draws on their way from noise, the last stage being the draws."""
        keys = self._keys(key, n)
        chunks = [_stages(self._guide, chunk_key, self._chunk) for chunk_key in keys]
        return np.moveaxis(_join(chunks, n), 0, 1)

    def predict(
        self, key: PRNGKeyArray, xi: np.ndarray | None, n: int, data: Mapping[str, Any] | None
    ) -> dict[str, np.ndarray]:
        """n predictive draws, given latents at the rows of xi or, for None, from the prior."""
        size = min(self._chunk, n)
        across = self._predictors.get(xi is None) if data is None else None
        if across is None:
            across = _across(self._target.predictive(data), prior=xi is None)
        if data is None:
            self._predictors[xi is None] = across
        chunks = []
        for i, chunk_key in enumerate(chunk_keys(key, n, size)):
            rows = None if xi is None else jnp.asarray(xi[np.arange(i * size, (i + 1) * size) % n])
            chunks.append(across(jax.random.split(chunk_key, size), rows, self._target.params))
        return _join(chunks, n)

    @functools.cached_property
    def _site_names(self) -> list[str]:
        # Compiled functions return dictionaries sorted by name; only a bare trace shows the model's order.
        origin = jnp.zeros(self._target.dim)
        return eqx.filter_eval_shape(lambda xi: list(self._target.constrain(xi)), origin)

    def _keys(self, key: PRNGKeyArray, n: int) -> list[PRNGKeyArray]:
        return chunk_keys(key, n, self._chunk)


def _across(draw: Callable, *, prior: bool) -> Callable:
    """A predictive draw over keys and rows of xi, compiled."""
    rows = None if prior else 0
    return jax.jit(jax.vmap(draw, in_axes=(0, rows, None)), compiler_options=quick_options())


@compiled
def _propose(guide: Guide, key: PRNGKeyArray, chunk: int) -> Float[Array, "chunk dim"]:
    return guide.sample(key, (chunk,))


@compiled
def _draw(guide: Guide, key: PRNGKeyArray, chunk: int) -> Draw:
    return jax.vmap(guide.draw)(jax.random.split(key, chunk))


@compiled
def _log_prior(target: Target, xi: Float[Array, "chunk dim"]) -> Float[Array, " chunk"]:
    few = jax.tree.map(lambda values: values[:1], target.data["rows"])
    return jax.vmap(lambda xi: target.stream.prior(xi, few))(xi)


@compiled
def _log_density(target: Target, xi: Float[Array, "chunk dim"]) -> Float[Array, " chunk"]:
    return jax.vmap(target.log_density)(xi)


@compiled
def _stages(guide: Guide, key: PRNGKeyArray, chunk: int) -> Float[Array, "chunk stages dim"]:
    return jax.vmap(guide.stages)(jax.random.split(key, chunk))


@compiled
def _constrain(target: Target, xi: Float[Array, "chunk dim"]) -> dict[str, Array]:
    return jax.vmap(target.constrain)(xi)


@compiled
def _log_likelihood(target: Target, xi: Float[Array, "chunk dim"]) -> dict[str, Array]:
    return jax.vmap(target.log_likelihood)(xi)


def _over_rows(f: Callable[[Array], Any], xi: np.ndarray, chunk: int) -> Any:
    """f over the rows of xi; the last chunk is filled up with repeated rows, then cut."""
    n = len(xi)
    padded = xi[np.arange(-(-n // chunk) * chunk) % n]
    starts = range(0, len(padded), chunk)
    return _join([f(jnp.asarray(padded[start : start + chunk])) for start in starts], n)


def _join(chunks: list[Any], n: int) -> Any:
    """Chunks of arrays as one array of n rows on the host; the device runs on while they are collected."""
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts])[:n], *chunks)
