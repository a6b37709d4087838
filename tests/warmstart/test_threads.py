"""Linear algebra on one thread where only searches need it, and all threads elsewhere."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dmvi.targets import Target, from_log_density
from dmvi.warmstart._laplace import Surface
from dmvi.warmstart._threads import SMALL, small_matrices


def threads() -> set[int]:
    np.linalg.eigvalsh(np.eye(3))
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def plain(dim: int) -> Surface:
    return Surface(from_log_density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(dim)))


def factorising() -> Surface:
    """A Gaussian process, say: few dimensions and large matrices, within a conditional for good measure."""

    def log_density(x):
        root = jnp.linalg.cholesky(jnp.eye(3) * (1 + x[0] ** 2))
        return -0.5 * jnp.sum(x**2) - jnp.sum(jnp.log(jnp.diagonal(root)))

    return Surface(from_log_density(log_density, init=jnp.zeros(2)))


def calling_back() -> Surface:
    return Surface(Target.from_value_and_grad(lambda x: (-0.5 * (x**2).sum(axis=1), -x), dim=2))


@pytest.fixture(autouse=True)
def _two_threads():
    with threadpool_limits(limits=2, user_api="blas"):
        yield


def test_searches_have_one_thread_and_what_follows_what_it_had():
    with small_matrices(plain(3)):
        assert threads() == {1}
    assert threads() == {2}


@pytest.mark.parametrize("surface", [lambda: plain(SMALL + 1), factorising, calling_back])
def test_large_matrices_keep_their_threads(surface):
    with small_matrices(surface()):
        assert threads() == {2}


def test_other_threads_of_the_process_leave_them_alone():
    found = []

    def work():
        with small_matrices(plain(3)):
            found.append(threads())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert found == [{2}]
