"""The root of a sparse precision against dense linear algebra, and how sparse it stays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmvi.warmstart._elimination import Dissection, Elimination

SMALL = Dissection(leaf=4, width=4)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def pattern(edges: list[tuple[int, int]], dim: int):
    """Rows and columns of a symmetric pattern with its diagonal."""
    pairs = {(i, i) for i in range(dim)} | set(edges) | {(j, i) for i, j in edges}
    rows, columns = np.array(sorted(pairs)).T
    return rows, columns


def chain(n: int, shared: int = 0) -> list[tuple[int, int]]:
    last = range(n, n + shared)
    return [
        *((i, i + 1) for i in range(n - 1)),
        *((i, s) for s in last for i in range(n)),
        *((s, t) for s in last for t in last if s < t),
    ]


def tree(n: int) -> list[tuple[int, int]]:
    return [(i, (i - 1) // 2) for i in range(1, n)]


def grid(n: int) -> list[tuple[int, int]]:
    across = [(i * n + j, i * n + j + 1) for i in range(n) for j in range(n - 1)]
    return across + [(i * n + j, i * n + j + n) for i in range(n - 1) for j in range(n)]


def star(n: int, shared: int) -> list[tuple[int, int]]:
    return [edge for edge in chain(n, shared) if edge[1] >= n]


CASES = {
    "chain": (chain(60), 60, 0),
    "chain, shared": (chain(60, 3), 63, 3),
    "star": (star(40, 3), 43, 3),
    "tree": (tree(63), 63, 0),
    "grid": (grid(8), 64, 0),
    "forest": ([edge for edge in chain(60) if edge[0] % 7], 60, 0),
    "complete": ([(i, j) for i in range(12) for j in range(i)], 12, 0),
}


def precision(rows, columns, dim: int, seed: int = 0) -> np.ndarray:
    """A random positive definite matrix with that pattern."""
    matrix = np.zeros((dim, dim))
    matrix[rows, columns] = np.random.default_rng(seed).normal(size=rows.size)
    matrix = matrix + matrix.T
    return matrix + np.diag(1 + np.abs(matrix).sum(axis=1))


def rooted(name: str, settings: Dissection):
    edges, dim, shared = CASES[name]
    rows, columns = pattern(edges, dim)
    matrix = precision(rows, columns, dim)
    elimination = Elimination(rows, columns, dim, np.arange(dim - shared, dim), settings)
    root = elimination.root(matrix[rows, columns])
    assert root is not None
    return matrix, elimination, root


@pytest.mark.parametrize("settings", [SMALL, Dissection(leaf=1, width=1), Dissection(shared=1, leaf=8)])
@pytest.mark.parametrize("name", CASES)
def test_root_of_a_pattern(name, settings):
    matrix, elimination, root = rooted(name, settings)
    s = np.stack([elimination.transposed(root, row) for row in np.eye(len(matrix))])
    np.testing.assert_allclose(s.T @ matrix @ s, np.eye(len(matrix)), atol=1e-10)


@pytest.mark.parametrize("name", ["chain, shared", "grid"])
def test_map_of_the_root_with_a_dense_term(name):
    matrix, elimination, root = rooted(name, Dissection(leaf=4, width=8, shared=2))
    dim = len(matrix)
    dense = np.random.default_rng(1).normal(size=(dim, 2))
    scale = elimination.scale(root, dense, np.dtype(float))
    s = np.asarray(jax.jit(jax.vmap(lambda z: scale(z)))(jnp.eye(dim))).T
    whole = matrix + dense @ dense.T
    np.testing.assert_allclose(s.T @ whole @ s, np.eye(dim), atol=1e-10)
    np.testing.assert_allclose(
        jax.jit(lambda: scale.log_det())(), -0.5 * np.linalg.slogdet(whole)[1], rtol=1e-10
    )
    x = np.random.default_rng(2).normal(size=dim)
    np.testing.assert_allclose(
        jax.jit(lambda x: scale.solve(x))(jnp.asarray(x)), np.linalg.solve(s, x), rtol=1e-7
    )


def test_what_is_not_positive_definite_has_no_root():
    rows, columns = pattern(chain(20), 20)
    matrix = precision(rows, columns, 20)
    matrix[7, 7] = -1.0
    assert Elimination(rows, columns, 20, np.arange(0), SMALL).root(matrix[rows, columns]) is None


def test_a_chain_has_about_log_n_levels():
    counts = []
    for n in (200, 800, 3200):
        rows, columns = pattern(chain(n, 2), n + 2)
        counts.append(len(Elimination(rows, columns, n + 2, np.arange(n, n + 2), SMALL).plans))
    assert counts[2] - counts[1] <= counts[1] - counts[0] + 3
    assert counts[2] <= 16


@pytest.mark.parametrize(
    ("edges", "dim", "shared", "most"),
    [(chain(2000, 2), 2002, 2, 16), (star(2000, 3), 2003, 3, 4.01), (tree(2047), 2047, 0, 16)],
)
def test_roots_stay_sparse(edges, dim, shared, most):
    rows, columns = pattern(edges, dim)
    assert Elimination(rows, columns, dim, np.arange(dim - shared, dim), SMALL).fill < most
