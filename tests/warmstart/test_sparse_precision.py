"""Natural gradients end at the Gaussian itself where the target is one."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.targets import Target, from_log_density
from dmvi.training import Silent
from dmvi.warmstart._sparse_precision import SparseSteps, _Search, sparse_gaussian

DIM = 40
SHORT = SparseSteps(iterations=60)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def gaussian() -> tuple[Target, np.ndarray, np.ndarray]:
    """A chain with a coordinate next to all, and a sum held near zero."""
    rng = np.random.default_rng(0)
    matrix = np.zeros((DIM, DIM))
    at = np.arange(DIM - 2)
    matrix[at, at + 1] = -1.0
    matrix[:-1, -1] = 0.2 * rng.normal(size=DIM - 1)
    matrix = matrix + matrix.T + 2.5 * np.eye(DIM)
    matrix[-1, -1] = 8.0
    c = np.where(np.arange(DIM) < DIM - 1, 3.0, 0.0)
    matrix = matrix + np.outer(c, c)
    loc = rng.normal(size=DIM)
    precision, centre = jnp.asarray(matrix), jnp.asarray(loc)

    def log_density(x):
        return -0.5 * (x - centre) @ precision @ (x - centre)

    return from_log_density(log_density, init=jnp.zeros(DIM)), loc, matrix


def test_a_gaussian_is_found_exactly():
    target, loc, precision = gaussian()
    start = (loc + 1.0, np.full(DIM, 0.3))
    found = sparse_gaussian(
        target, start, key=jr.key(0), seconds_left=lambda: 1e9, progress=Silent(), settings=SHORT
    )
    assert found is not None
    affine, log_evidence = found.affine, 0.5 * (DIM * np.log(2 * np.pi) - np.linalg.slogdet(precision)[1])
    np.testing.assert_allclose(found.elbo, log_evidence, atol=1e-2)
    s = np.asarray(jax.jit(jax.vmap(lambda z: affine.anchor_scale.value(z)))(jnp.eye(DIM))).T
    np.testing.assert_allclose(s.T @ precision @ s, np.eye(DIM), atol=1e-3)
    np.testing.assert_allclose(affine.anchor.value, loc, atol=1e-3)


def test_without_time_there_is_none():
    target, loc, _ = gaussian()
    start = (loc, np.ones(DIM))
    assert sparse_gaussian(target, start, key=jr.key(0), seconds_left=lambda: 0.0, progress=Silent()) is None


def test_a_step_gone_wrong_is_taken_back(monkeypatch):
    """Its error is as large as its loss, which must not excuse it: the next step is from where it began."""
    target, loc, precision = gaussian()
    look, move, looked, begun = _Search._look, _Search._moved, [], []

    def wrong_once(self, state, key):
        looked.append(state)
        found = look(self, state, key)
        return found._replace(elbo=-1e33, error=2e33) if len(looked) == 3 else found

    def recorded(self, state, *arguments):
        begun.append(state)
        return move(self, state, *arguments)

    monkeypatch.setattr(_Search, "_look", wrong_once)
    monkeypatch.setattr(_Search, "_moved", recorded)
    start = (loc + 1.0, np.full(DIM, 0.3))
    found = sparse_gaussian(
        target, start, key=jr.key(0), seconds_left=lambda: 1e9, progress=Silent(), settings=SHORT
    )
    assert begun[1] is looked[1]
    assert begun[2] is looked[1]
    assert begun[3] is looked[3]
    assert found is not None
    log_evidence = 0.5 * (DIM * np.log(2 * np.pi) - np.linalg.slogdet(precision)[1])
    np.testing.assert_allclose(found.elbo, log_evidence, atol=1e-2)


def test_a_search_that_gains_nothing_gives_way(monkeypatch):
    """Its start is a mean field, which has another road to go on."""
    target, loc, _ = gaussian()
    monkeypatch.setattr(_Search, "_moved", lambda self, *arguments: None)
    start = (loc, np.ones(DIM))
    found = sparse_gaussian(target, start, key=jr.key(0), seconds_left=lambda: 1e9, progress=Silent())
    assert found is None
