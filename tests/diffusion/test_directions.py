"""Directions in which a Gaussian base lacks most."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.diffusion import Projected
from dmvi.diffusion._directions import _kernel, directions
from dmvi.diffusion._projected import unit

DIM = 12


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def _cubic(draws: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noise u, the slope of f = a_1 u (b_1 u)^2 + 0.6 a_2 u (b_2 u)^2, and its orthonormal vectors."""
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(DIM, 4)))[0].T
    u = rng.normal(size=(draws, DIM))
    (a1, b1, a2, b2), along = vectors, u @ vectors.T
    r = np.outer(along[:, 1] ** 2, a1) + np.outer(2 * along[:, 0] * along[:, 1], b1)
    r += 0.6 * (np.outer(along[:, 3] ** 2, a2) + np.outer(2 * along[:, 2] * along[:, 3], b2))
    return u, r, vectors


def test_the_kernel_gives_the_moments_of_all_pairs_of_draws():
    """R^T K R = sum_{n != m} r_n r_m^T <u_n u_n^T - I, u_m u_m^T - I>, the estimate of sum_jk T_ijk T_ljk."""
    rng = np.random.default_rng(1)
    u, r = rng.normal(size=(2, 7, 3))
    moments = np.einsum("ni,njk->nijk", r, np.einsum("nj,nk->njk", u, u) - np.eye(3))
    everything = np.einsum("nijk,mljk->il", moments, moments)
    alone = np.einsum("nijk,nljk->il", moments, moments)
    np.testing.assert_allclose(r.T @ _kernel(jnp.asarray(u)) @ r, everything - alone, rtol=1e-10)


def test_directions_of_a_cubic_are_found_strongest_first():
    """Of f = a (b u)^2, T's mode products have the eigenvalues 8 (along b) and 4 (along a)."""
    u, r, vectors = _cubic()
    found = np.asarray(directions(jnp.asarray(u), jnp.asarray(r), 4))
    np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(found[0] * vectors[1])), 1, atol=0.02)
    assert np.linalg.norm(found @ vectors.T @ vectors) ** 2 > 0.98 * 4


def test_a_base_that_is_only_off_in_mean_and_covariance_has_no_directions():
    """What is linear in u is taken out: it does not hide a weaker cubic."""
    u, r, vectors = _cubic()
    rng = np.random.default_rng(2)
    linear = 3 * u @ rng.normal(size=(DIM, DIM)) / np.sqrt(DIM) + rng.normal(size=DIM)
    found = np.asarray(directions(jnp.asarray(u), jnp.asarray(r + linear), 2))
    assert np.linalg.norm(found @ vectors[:2].T) ** 2 > 0.9 * 2


def test_draws_that_are_not_finite_do_not_count():
    u, r, _ = _cubic(400)
    r[3], u[5, 0] = np.nan, np.inf
    found = np.asarray(directions(jnp.asarray(u), jnp.asarray(r), 3))
    assert np.isfinite(found).all()


def test_a_draw_far_out_does_not_overflow():
    with jax.enable_x64(False):
        u, r, _ = _cubic(400)
        r[3] = 1e30
        found = np.asarray(directions(jnp.asarray(u, jnp.float32), jnp.asarray(r, jnp.float32), 3))
    assert np.isfinite(found).all()


def test_directions_are_found_from_less_than_four_draws_for_each_coordinate():
    """No linear part is taken out there, which would take the draws' own scores with it."""
    dim, draws = 160, 1200  # of which half are used
    rng = np.random.default_rng(3)
    a, b = np.linalg.qr(rng.normal(size=(dim, 2)))[0].T
    u = rng.normal(size=(draws, dim))
    r = 10 * (np.outer((u @ b) ** 2, a) + np.outer(2 * (u @ a) * (u @ b), b)) + rng.normal(size=(draws, dim))
    found = np.asarray(directions(jnp.asarray(u), jnp.asarray(r), 2))
    assert np.linalg.norm(found @ np.stack([a, b]).T) ** 2 > 1.5


def test_turning_of_projections_is_the_same_in_any_dimension():
    """Rows are as long as those of a flow just built: their size sets how fast a step turns them."""
    dim = 512
    u = np.random.default_rng(4).normal(size=(64, dim))
    flow = Projected(rank=3, scale_rank=2).build(dim, 2, key=jr.key(0))
    driven = flow.driven(jnp.asarray(u), jnp.asarray(u**2))
    for part in ("v", "raw_w"):
        before, after = (np.linalg.norm(getattr(each, part), axis=-1) for each in (flow, driven))
        np.testing.assert_allclose(after, np.mean(before), rtol=0.15)


def test_projections_begin_with_them():
    """Shifts see the strongest, scales the strongest in turn; a projection of noise has sd one."""
    u, r, _ = _cubic()
    flow = Projected(rank=3, scale_rank=2).build(DIM, 2, key=jr.key(0))
    driven = flow.driven(jnp.asarray(u), jnp.asarray(r))
    found = np.asarray(directions(jnp.asarray(u), jnp.asarray(r), 4))
    np.testing.assert_allclose(np.asarray(driven.v) * unit(DIM), np.broadcast_to(found[:3], (2, 3, DIM)))
    np.testing.assert_allclose(np.asarray(driven.raw_w).reshape(4, DIM), found)
    np.testing.assert_allclose(driven.move(jnp.asarray(u[0])), u[0], atol=1e-12)
    assert not flow.wants_drivers
