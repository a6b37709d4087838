"""The projected flow's own algebra."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.diffusion import Projected
from dmvi.diffusion._projected import LOG_SCALE_LIMIT, orthonormal_rows, swept
from tests.guides.registry import perturbed


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def test_orthonormal_rows_span_the_same_directions():
    w = np.random.default_rng(0).normal(size=(3, 7))
    rows = np.asarray(orthonormal_rows(jnp.asarray(w)))
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(w @ rows.T @ rows, w, rtol=1e-10)


@pytest.mark.parametrize("dim", [1, 2, 20])
def test_any_dimension(dim):
    """Ranks are cut to the dimension; the density is that of the whole map in every one of them."""
    flow = perturbed(Projected(width=6, scale_width=6).build(dim, 2, key=jr.key(0)), size=0.08)

    @jax.jit
    def look(u):
        moved, log_det = flow.move_density(u)
        return flow.invert(moved), log_det, jax.jacfwd(lambda u: flow.move(u))(u)

    u = jnp.asarray(np.random.default_rng(1).normal(size=dim))
    inverted, log_det, jacobian = look(u)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(inverted, u, rtol=1e-7, atol=1e-8)
    assert abs(float(log_det)) > 1e-4


def test_one_step_bounds_its_scales():
    """However large the network's output, no coordinate is scaled by more than exp(LOG_SCALE_LIMIT)."""
    flow = perturbed(Projected(width=4, scale_width=4).build(5, 1, key=jr.key(0)), size=100.0)
    s = flow._log_scale(jnp.ones(4))
    assert np.max(np.abs(s)) <= LOG_SCALE_LIMIT
    assert np.max(np.abs(s)) > 0.9 * LOG_SCALE_LIMIT


def test_sweeping_gives_inverse_and_log_determinant():
    matrices = np.eye(5) + 0.4 * np.random.default_rng(0).normal(size=(50, 5, 5))
    with jax.enable_x64(True):
        inverses, log_dets = jax.jit(jax.vmap(swept))(jnp.asarray(matrices))
    signs, sizes = np.linalg.slogdet(matrices)
    assert 3 < (signs < 0).sum() < 25
    np.testing.assert_allclose(inverses, np.linalg.inv(matrices), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(log_dets, np.where(signs > 0, sizes, np.nan), rtol=1e-9, atol=1e-9)
