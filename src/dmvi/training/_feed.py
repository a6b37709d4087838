"""Batches of rows for training, read while the device works."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from jax.sharding import Mesh

from dmvi.training._mesh import across_processes, shared_rows


class Feed:
    """The batches of coming chunks; one thread reads the next while the device works on the last.

    Of several processes each reads the rows that its own devices work on.

    Args:
        stream: where rows come from, a `dmvi.targets.Stream`; None where the target has its data in memory.
        chunk: steps of a chunk.
        seed: of the choice of rows, which depends on nothing but this and the number of a step.
        mesh: devices over which rows are spread.
    """

    def __init__(self, stream: Any, chunk: int, seed: int, mesh: Mesh | None):
        self._stream, self._chunk, self._seed = stream, chunk, seed
        self._pool = None if stream is None else ThreadPoolExecutor(1)
        self._coming: tuple[int, Future] | None = None
        self._sharding, self._part = None, None
        if stream is not None and mesh is not None and not stream.team.alone:
            self._sharding, self._part = shared_rows(mesh, chunk, stream.batch_size)

    def take(self, step: int) -> Any:
        """The stacked batches of the chunk that begins at a step; None without a stream."""
        if self._pool is None:
            return None
        if self._coming is None or self._coming[0] != step:
            self._coming = (step, self._pool.submit(self._read, step))
        found = self._coming[1].result()
        self._coming = (step + self._chunk, self._pool.submit(self._read, step + self._chunk))
        if self._sharding is None or self._part is None:
            return found
        rows = self._stream.batch_size
        return {
            name: across_processes(values, self._sharding, self._part, rows) for name, values in found.items()
        }

    def close(self) -> None:
        """No more batches are wanted."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, step: int) -> dict[str, np.ndarray]:
        batches = [self._stream.batch(self._seed, step + i, self._part) for i in range(self._chunk)]
        return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
