"""Patterns and entries of sparse Hessians against the matrices they are of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmvi.targets import from_log_density
from dmvi.warmstart._sparsity import Probing, hessian_products, sparse_hessian

DIM, SHARED = 90, 2
DIRECT, GROUPS = Probing(), Probing(direct=0)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def quadratic(seed: int = 0) -> np.ndarray:
    """A random sparse precision whose last coordinates are next to all others."""
    rng = np.random.default_rng(seed)
    matrix = np.zeros((DIM, DIM))
    first, second = rng.integers(0, DIM - SHARED, size=(2, DIM))
    matrix[first, second] = rng.normal(size=DIM)
    matrix[:, -SHARED:] = rng.normal(size=(DIM, SHARED))
    matrix = matrix + matrix.T
    return matrix + np.diag(1 + np.abs(matrix).sum(axis=1))


def products_of(matrix: np.ndarray):
    return lambda xi, vectors: vectors @ matrix


def measured(matrix: np.ndarray, settings: Probing):
    points = np.random.default_rng(1).normal(size=(3, DIM))
    return sparse_hessian(products_of(matrix), points, np.random.default_rng(2), settings)


def dense(hessian, xi) -> np.ndarray:
    matrix = np.zeros((DIM, DIM))
    matrix[hessian.pattern.rows, hessian.pattern.columns] = hessian.entries(xi)
    return matrix


@pytest.mark.parametrize("settings", [DIRECT, GROUPS])
def test_entries_of_a_sparse_quadratic_are_exact(settings):
    matrix = quadratic()
    hessian = measured(matrix, settings)
    assert hessian is not None
    np.testing.assert_allclose(dense(hessian, np.zeros(DIM)), matrix, atol=1e-12)
    assert hessian.pattern.rows.size == np.count_nonzero(matrix)


@pytest.mark.parametrize("settings", [DIRECT, GROUPS])
def test_a_constant_term_is_kept_apart(settings):
    c = np.where(np.arange(DIM) < 60, 0.5, 0.0)
    matrix = quadratic()
    hessian = measured(matrix + np.outer(c, c), settings)
    assert hessian is not None
    np.testing.assert_allclose(hessian.pattern.constant, c, atol=1e-10)
    np.testing.assert_allclose(dense(hessian, np.zeros(DIM)), matrix, atol=1e-9)


def test_columns_of_one_colour_share_no_row():
    hessian = measured(quadratic(), GROUPS)
    assert hessian is not None
    pattern = hessian.pattern
    assert sorted(pattern.dense) == list(range(DIM - SHARED, DIM))
    inside = (pattern.colour[pattern.rows] >= 0) & (pattern.colour[pattern.columns] >= 0)
    met = list(zip(pattern.rows[inside], pattern.colour[pattern.columns[inside]], strict=True))
    assert len(set(met)) == len(met)
    assert hessian.cost < DIM / 4


@pytest.mark.parametrize("settings", [DIRECT, GROUPS])
def test_what_is_dense_has_no_pattern(settings):
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(DIM, DIM))
    assert measured(matrix @ matrix.T, settings) is None


def test_products_of_a_target_are_those_of_its_hessian():
    def log_density(x):
        return -jnp.sum(jnp.exp(x[1:]) * x[:-1] ** 2)

    target = from_log_density(log_density, init=jnp.zeros(5))
    xi, vectors = np.random.default_rng(4).normal(size=5), np.random.default_rng(5).normal(size=(40, 5))
    expected = vectors @ -np.asarray(jax.hessian(log_density)(jnp.asarray(xi)))
    np.testing.assert_allclose(hessian_products(target)(xi, vectors), expected, rtol=1e-9, atol=1e-12)
