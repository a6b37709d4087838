"""Triangles in an order that keeps what is local local."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.guides import Affine, anchored
from dmvi.warmstart._whitening import ordered_scale, shared_first, triangle, whitened_locally

DIM = 1 + 8 + 48 + 144


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def precision_of(edges: list[tuple[int, int]], dim: int, seed: int) -> np.ndarray:
    """The precision of a graph, nodes renumbered at random: sum over edges of w (x_i - x_j)^2, and more."""
    rng = np.random.default_rng(seed)
    place, matrix = rng.permutation(dim), 0.5 * np.eye(dim)
    for i, j in edges:
        difference = np.eye(dim)[place[i]] - np.eye(dim)[place[j]]
        matrix += rng.uniform(0.7, 1.3) * np.outer(difference, difference)
    return matrix


def star() -> list[tuple[int, int]]:
    return [(0, i) for i in range(1, 40)]


def chain() -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(39)]


def tree(groups: int, subgroups: int, members: int) -> tuple[list[tuple[int, int]], int]:
    """A mean, groups, subgroups of each and members of each of these; and how many all are."""
    edges, level = [], [0]
    count = 1
    for children in (groups, subgroups, members):
        edges += [
            (parent, count + children * i + j) for i, parent in enumerate(level) for j in range(children)
        ]
        level = list(range(count, count + children * len(level)))
        count += len(level)
    return edges, count


# With its number of nodes, the most entries of a row in the order, and those of the worst at least.
GRAPHS = {
    "star": (star(), 40, 2, 40),
    "chain": (chain(), 40, 3, 2),
    "tree": (*tree(8, 6, 3), 2, 40),
    "bushy tree": (*tree(5, 4, 5), 21, 50),  # subgroups have more neighbours than groups, and go before them
}


def filled(precision: np.ndarray, order: np.ndarray) -> int:
    """The most entries in a row of T^-1: on how many coordinates before it one hangs, and itself."""
    inverse = np.linalg.inv(np.linalg.cholesky(np.linalg.inv(precision)[np.ix_(order, order)]))
    return int(np.max(np.sum(np.abs(inverse) > 1e-9, axis=1)))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_in_the_order_each_coordinate_hangs_on_few(name, seed):
    """The other way round, with what is shared last, groups hang on all that is in them."""
    edges, dim, few, many = GRAPHS[name]
    precision = precision_of(edges, dim, seed)
    order = shared_first(np.linalg.cholesky(np.linalg.inv(precision)))
    np.testing.assert_array_equal(np.sort(order), np.arange(dim))
    assert filled(precision, order) <= few
    assert filled(precision, order[::-1]) >= many


def test_the_hub_of_a_star_comes_first():
    precision = precision_of(star(), 40, 3)
    hub = int(np.argmax(np.count_nonzero(precision, axis=0)))
    assert shared_first(np.linalg.inv(np.linalg.cholesky(precision)).T)[0] == hub


def test_the_order_does_not_depend_on_units():
    """Partial correlations have none."""
    precision = precision_of(*tree(8, 6, 3), 0)
    scale = np.linalg.cholesky(np.linalg.inv(precision))
    units = np.exp(np.random.default_rng(0).normal(size=DIM))
    np.testing.assert_array_equal(shared_first(scale), shared_first(units[:, None] * scale))


def test_a_triangle_is_the_cholesky_factor():
    """Of any root, at any signs, without the rounding of the product S S^T."""
    rng = np.random.default_rng(0)
    scale = rng.normal(size=(6, 6))
    np.testing.assert_allclose(triangle(scale), np.linalg.cholesky(scale @ scale.T), rtol=1e-8, atol=1e-10)
    lower = np.tril(rng.normal(size=(6, 6)), -1) + np.diag(10.0 ** np.arange(-10, 2, 2))
    np.testing.assert_allclose(triangle(lower), lower, rtol=1e-10, atol=1e-14)


def test_an_ordered_scale_is_a_root_of_the_same_covariance():
    rng = np.random.default_rng(1)
    scale, order = rng.normal(size=(7, 7)), rng.permutation(7)
    ordered = ordered_scale(scale, order)
    np.testing.assert_allclose(ordered @ ordered.T, scale @ scale.T, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(ordered[order], np.tril(ordered[order]))
    assert np.all(np.diagonal(ordered[order]) > 0)


@pytest.mark.parametrize("full", [False, True])
def test_whitened_locally_is_the_same_gaussian_with_a_diagonal_or_a_triangle_to_train(full):
    precision = precision_of(*tree(8, 6, 3), 0)
    scale = np.linalg.cholesky(np.linalg.inv(precision))
    loc = np.random.default_rng(0).normal(size=DIM)
    affine = anchored(jnp.asarray(loc), jnp.asarray(scale), full=True)
    local = whitened_locally(affine, full=full)
    assert isinstance(local, Affine)
    assert (local.lower is not None) == full
    assert local.order is not None
    new = np.asarray(local.anchor_scale.value)
    np.testing.assert_allclose(new @ new.T, scale @ scale.T, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(local.log_det(), affine.log_det(), rtol=1e-10)
    np.testing.assert_array_equal(local(jnp.zeros(DIM)), loc)
    # The same density everywhere.
    xi = jnp.asarray(loc) + jr.normal(jr.key(0), (DIM,))
    lengths = [jnp.sum(each.inverse(xi) ** 2) for each in (affine, local)]
    np.testing.assert_allclose(lengths[1], lengths[0], rtol=1e-9)
    np.testing.assert_allclose(lengths[0], (xi - loc) @ precision @ (xi - loc), rtol=1e-9)


def test_a_diagonal_stays_as_it_is():
    affine = anchored(jnp.zeros(3), jnp.ones(3), full=False)
    assert whitened_locally(affine, full=True) is affine
