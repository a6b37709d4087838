"""Linear algebra on one thread where matrices are small, and only there."""

import numpy as np
from threadpoolctl import threadpool_info

from dmvi.starts._threads import SMALL, small_matrices


def threads() -> list[int]:
    np.linalg.eigvalsh(np.eye(3))
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_small_matrices_have_one_thread_and_others_what_they_had():
    before = threads()
    assert before
    with small_matrices(SMALL):
        assert threads() == [1] * len(before)
    assert threads() == before
    with small_matrices(SMALL + 1):
        assert threads() == before
