"""What every guide promises, for every guide in the registry."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.stats import norm

from dmvi.guides import Diffusion, Draw
from tests.guides.registry import (
    CHAINS,
    DIFFUSIONS,
    DIM,
    EXACT,
    GUIDES,
    LOC,
    LOG_DENSITIES,
    LOG_EVIDENCE,
    TRIANGLE,
    as_vector,
    draw_many,
    from_noise,
    log_q_from_noise,
    target,
    trained_like,
    untrained,
)

DRAWS = 20_000
FEW = 200
STANDARD_ERRORS = 5.0


@functools.cache
def many_draws(name: str) -> Draw:
    """Draws of the registry's guide, made once for all tests."""
    return draw_many(trained_like(name), DRAWS)


@pytest.fixture
def double():
    """Double precision, so that formulas are compared and not roundings."""
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", DIFFUSIONS)
def test_registry_guides_are_far_from_their_gaussian(name):
    """Else all that follows would test the base alone."""
    draws = many_draws(name)
    log_prob = np.sum(norm.logpdf(draws.noise), axis=1)
    assert np.std(log_prob - draws.log_q) > 0.05  # log |det| of the map is not constant


@pytest.mark.parametrize("target_name", LOG_DENSITIES)
@pytest.mark.parametrize("name", GUIDES)
def test_mean_weight_is_the_evidence(name, target_name):
    """E[exp(log pi(xi) - log_q)] = Z."""
    draws = many_draws(name)
    log_pi = jax.jit(jax.vmap(target(target_name).log_density))(draws.xi)
    weights = np.exp(np.asarray(log_pi - draws.log_q, float) - LOG_EVIDENCE[target_name])
    error = weights.std() / np.sqrt(DRAWS)
    assert error < 0.03  # even weights: the test can see an error of a few percent
    assert abs(weights.mean() - 1) < STANDARD_ERRORS * error


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", EXACT)
def test_log_q_is_the_log_determinant_of_the_whole_map(name):
    """log q(xi) = log N(z) - log |det d xi / d z| by autodiff."""
    guide = trained_like(name)

    def whole_map(z):
        return from_noise(guide, z)

    def by_autodiff(draw):
        log_normal = jnp.sum(norm.logpdf(draw.noise))
        return whole_map(draw.noise), log_normal - jnp.linalg.slogdet(jax.jacfwd(whole_map)(draw.noise))[1]

    draws = draw_many(guide, FEW)
    assert draws.log_q.dtype == jnp.float64
    xi, log_q = jax.jit(jax.vmap(by_autodiff))(draws)
    np.testing.assert_allclose(draws.xi, xi, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(draws.log_q, log_q, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", EXACT)
def test_evidence_inverts_draw(name):
    guide = trained_like(name)
    draws = draw_many(guide, FEW)
    log_q = jax.jit(jax.vmap(guide.evidence))(draws.xi)
    np.testing.assert_allclose(log_q, draws.log_q, rtol=1e-9)


@pytest.mark.parametrize("name", ["full-rank", "projected"])
def test_evidence_inverts_draw_in_single_precision(name):
    draws = many_draws(name)
    log_q = jax.jit(jax.vmap(trained_like(name).evidence))(draws.xi[:FEW])
    assert log_q.dtype == jnp.float32
    np.testing.assert_allclose(log_q, draws.log_q[:FEW], atol=1e-4)


@pytest.mark.parametrize("name", ["projected, narrow"])
def test_evidence_integrates_to_one_away_from_the_draws(name):
    """Over points of a wide Gaussian that has nothing to do with the guide, mean q / p = 1."""
    guide = trained_like(name)
    noise = jr.normal(jr.key(4), (DRAWS, DIM))
    points = jnp.asarray(LOC, float)[None, :] + 3.0 * noise
    log_p = -0.5 * jnp.sum(noise**2, axis=1) - DIM * jnp.log(3.0 * jnp.sqrt(2 * jnp.pi))
    ratios = np.exp(np.asarray(jax.jit(jax.vmap(guide.evidence))(points) - log_p, float))
    error = ratios.std() / np.sqrt(DRAWS)
    assert error < 0.03
    assert abs(ratios.mean() - 1) < STANDARD_ERRORS * error


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["full-rank", "projected, narrow", "flow"])
def test_path_draw_is_the_draw_with_the_path_gradient(name):
    """Same xi and log_q; d log_q / d phi = (d xi / d phi)^T G with G = grad_xi log q(xi).

    From log q as a function of the noise z, (d xi / d z)^T G = grad_z log q(xi(z)) by autodiff.
    """
    guide = trained_like(name)
    phi, rebuild = as_vector(guide)

    def expected(draw):
        jacobian = jax.jacfwd(lambda z: from_noise(guide, z))(draw.noise)
        score = jnp.linalg.solve(jacobian.T, jax.jacfwd(lambda z: log_q_from_noise(guide, z))(draw.noise))
        return jax.vjp(lambda phi: from_noise(rebuild(phi), draw.noise), phi)[1](score)[0]

    keys = jr.split(jr.key(0), FEW)
    plain = draw_many(guide, FEW)
    with_path = jax.jit(jax.vmap(guide.draw_path))(keys)
    np.testing.assert_allclose(with_path.xi, plain.xi, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(with_path.log_q, plain.log_q, rtol=1e-10, atol=1e-10)
    gradient = jax.jit(jax.vmap(jax.grad(lambda phi, key: rebuild(phi).draw_path(key).log_q), (None, 0)))(
        phi, keys
    )
    np.testing.assert_allclose(gradient, jax.jit(jax.vmap(expected))(plain), rtol=1e-7, atol=1e-8)
    assert np.abs(gradient).max() > 0.1


@pytest.mark.parametrize("name", ["mean-field", "full-rank", "projected, narrow", "mlp, layer norm", *CHAINS])
def test_sample_has_the_law_of_draw(name):
    """Any shape, and the same means and second moments."""
    guide = trained_like(name)
    assert jax.eval_shape(guide.sample, jr.key(0)).shape == (DIM,)
    assert jax.eval_shape(lambda key: guide.sample(key, (2, 5)), jr.key(0)).shape == (2, 5, DIM)
    samples = np.asarray(jax.jit(lambda key: guide.sample(key, (DRAWS,)))(jr.key(7)), float)
    draws = np.asarray(many_draws(name).xi, float)
    for power in (1, 2):
        left, right = samples**power, draws**power
        error = np.hypot(left.std(axis=0), right.std(axis=0)) / np.sqrt(DRAWS)
        assert np.all(np.abs(left.mean(axis=0) - right.mean(axis=0)) < STANDARD_ERRORS * error)


@pytest.mark.parametrize("name", GUIDES)
def test_untrained_guide_is_its_gaussian(name):
    """xi = a + S e and log q = log N(xi; a, S S^T), whatever the network, its steps and its order.

    A chain ends at an e of its own, not at the noise it began with.
    """
    guide = untrained(name)
    scale = np.diag(np.diagonal(TRIANGLE)) if name == "mean-field" else TRIANGLE
    draws = draw_many(guide, DRAWS)
    noise = np.asarray(draws.noise, float)
    if name in CHAINS:
        noise = np.linalg.solve(scale, (np.asarray(draws.xi, float) - LOC).T).T
        assert np.all(np.abs(noise.T @ noise / DRAWS - np.eye(DIM)) < 0.05)
    log_normal = -0.5 * np.sum(noise**2, axis=1) - DIM / 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(draws.xi, LOC + noise @ scale.T, rtol=3e-6, atol=3e-6)
    # A chain adds up the terms of its path in single precision, and the noise above is solved for.
    tolerance = 1e-5 if name in CHAINS else 3e-6
    expected = log_normal - np.log(np.diagonal(scale)).sum()
    np.testing.assert_allclose(draws.log_q, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", GUIDES)
def test_frozen_arrays_are_not_trained(name):
    """The anchor belongs to the guide, but no gradient reaches it."""
    guide = untrained(name)
    phi, rebuild = as_vector(guide)
    moved = rebuild(phi + 1.0)
    np.testing.assert_array_equal(moved.affine.anchor.value, guide.affine.anchor.value)  # pyright: ignore
    np.testing.assert_array_equal(moved.affine.anchor_scale.value, guide.affine.anchor_scale.value)  # pyright: ignore
    np.testing.assert_array_equal(moved.affine.loc, guide.affine.loc + 1.0)  # pyright: ignore


@pytest.mark.parametrize("name", GUIDES)
def test_stages_lead_from_noise_to_the_draw(name):
    guide, key = trained_like(name), jr.key(3)
    stages, draw = guide.stages(key), guide.draw(key)
    np.testing.assert_allclose(stages[-1], draw.xi, rtol=1e-5, atol=1e-5)
    assert stages.shape[0] >= 2
    if isinstance(guide, Diffusion):
        assert stages.shape[0] == guide.flow.steps + 1  # pyright: ignore[reportAttributeAccessIssue]
        np.testing.assert_allclose(guide.affine.inverse(stages[0]), draw.noise, rtol=1e-4, atol=1e-4)
