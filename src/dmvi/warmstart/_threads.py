"""One thread for linear algebra on small matrices.

Searches for modes make thousands of calls at a few dozen dimensions. Threads that wake up for each of them,
and then wait for work beside those of XLA, take many times as long as the arithmetic. XLA has the same
library do factorisations, which may be large in few dimensions: such models keep all threads.
"""

import contextlib
import threading
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

from dmvi.warmstart._laplace import Surface

SMALL = 256  # dimensions up to which one thread is quicker
# What XLA has a library of linear algebra do, and a user's own code: a density of these may need the threads.
FACTORISATIONS = frozenset(
    {"cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "schur", "svd"}
)
SOLVES = frozenset({"hessenberg", "triangular_solve", "tridiagonal", "tridiagonal_solve"})
CALLBACKS = frozenset({"io_callback", "pure_callback"})
LARGE = FACTORISATIONS | SOLVES | CALLBACKS


@contextlib.contextmanager
def small_matrices(surface: Surface) -> Iterator[None]:
    """Within this, libraries of linear algebra use one thread where only the searches of `surface` need them.

    Their number of threads is one for the whole process, so it is left alone by all but the main thread.
    """
    alone = threading.current_thread() is threading.main_thread()
    if surface.dim > SMALL or not alone or surface.primitives() & LARGE:
        yield
        return
    with threadpool_limits(limits=1, user_api="blas"):
        yield
