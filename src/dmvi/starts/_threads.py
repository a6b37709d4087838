"""One thread for linear algebra on small matrices.

Searches for modes make thousands of calls at a few dozen dimensions. Threads that wake up for each of them,
and then wait for work beside those of XLA, take many times as long as the arithmetic.
"""

import contextlib
import functools
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

SMALL = 256  # dimensions up to which one thread is quicker


@contextlib.contextmanager
def small_matrices(dim: int) -> Iterator[None]:
    """Within this, libraries of linear algebra use one thread where matrices of size `dim` are small."""
    if dim > SMALL:
        yield
        return
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
