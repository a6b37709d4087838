"""The chain guide: its bound, its gradients and its estimate of log q."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import dmvi
from dmvi.guides import Chain, ChainGuide, Draw, anchored
from tests.guides.registry import (
    COVARIANCE,
    DIM,
    LOC,
    LOG_EVIDENCE,
    MEAN,
    TRIANGLE,
    as_vector,
    draw_many,
    gaussian,
    mixture,
    trained_like,
    untrained,
)

DRAWS = 20_000
STANDARD_ERRORS = 5.0


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def exact_chain(**choices) -> Chain:
    """The chain that is the Gaussian target of the registry."""
    root = jnp.asarray(np.linalg.cholesky(COVARIANCE), float)
    affine = anchored(jnp.asarray(MEAN, float), root, full=True)
    guide = ChainGuide(steps=5, width=8, **choices).build(affine, key=jr.key(0))
    assert isinstance(guide, Chain)
    return guide


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("choices", [{"drift": False}, {"score": True, "log_density": gaussian}])
def test_weights_of_a_gaussian_target_are_constant(choices):
    draws = draw_many(exact_chain(**choices), 500)
    np.testing.assert_allclose(
        jax.vmap(gaussian)(draws.xi) - draws.log_q, LOG_EVIDENCE["gaussian"], rtol=1e-10
    )


@pytest.mark.usefixtures("double")
def test_path_gradient_of_q_vanishes_at_the_exact_guide():
    """All that is left belongs to r: with r fixed no draw has a gradient, wherever its noise was sent."""
    guide = exact_chain(drift=True)
    phi, rebuild = as_vector(guide)

    def log_weight(phi, key, far):
        draw = rebuild(phi).draw_path(key, far)
        return gaussian(draw.xi) - draw.log_q

    far = jnp.asarray([1, 0, -1])
    gradients = jax.jit(jax.vmap(jax.grad(log_weight), (None, 0, None)))(phi, jr.split(jr.key(1), 50), far)
    np.testing.assert_allclose(gradients, 0, atol=1e-9)


def test_elbo_is_a_bound():
    """E[log w] <= log Z, strictly for a guide that is not exact."""
    draws = many_draws("chain, drift")
    log_w = np.asarray(jax.jit(jax.vmap(mixture))(draws.xi) - draws.log_q, float)
    error = log_w.std() / np.sqrt(DRAWS)
    assert log_w.mean() < LOG_EVIDENCE["mixture"] - STANDARD_ERRORS * error


@functools.cache
def many_draws(name: str) -> Draw:
    return draw_many(trained_like(name), DRAWS)


@pytest.mark.parametrize("name", ["chain", "chain, score"])
def test_path_gradient_is_the_gradient_of_the_bound_in_expectation(name):
    """Both estimate d E[log pi - log_q] / d phi; over common draws their difference averages to zero."""
    guide = trained_like(name)
    phi, rebuild = as_vector(guide)

    def log_weight(phi, key, path):
        now = rebuild(phi)
        draw = now.draw_path(key) if path else now.draw(key)
        return mixture(draw.xi) - draw.log_q

    def difference(key):
        plain, path = (jax.grad(log_weight)(phi, key, path) for path in (False, True))
        return plain - path, path

    differences, path = jax.jit(jax.vmap(difference))(jr.split(jr.key(3), DRAWS // 2))
    differences = np.asarray(differences, float)
    error = differences.std(axis=0) / np.sqrt(len(differences))
    assert np.all(np.abs(differences.mean(axis=0)) < STANDARD_ERRORS * error + 1e-6)
    assert np.abs(np.asarray(path).mean(axis=0)).max() > 0.05


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["chain, score"])
def test_path_draw_has_the_values_of_draw(name):
    guide = trained_like(name)
    plain = draw_many(guide, 200)
    with_path = jax.jit(jax.vmap(guide.draw_path))(jr.split(jr.key(0), 200))
    for left, right in zip(plain, with_path, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["chain, drift"])
def test_sent_draws_keep_the_density_of_q(name):
    """Spread noise changes where a path begins and nothing else: log_q at it is q's own.

    The path from the same start by `move_density` has the same end and the same log-ratio.
    """
    guide = trained_like(name)
    assert isinstance(guide, Chain)
    far = jnp.asarray([1, 0, 0])
    key = jr.key(8)
    sent = jax.jit(lambda key: guide.draw_path(key, far))(key)
    assert sent.noise[0] != guide._start(key)[0]
    u, log_ratio = guide.chain.move_density(sent.noise, guide._noise(key), guide._feature())
    log_q = -0.5 * jnp.sum(sent.noise**2) - DIM / 2 * jnp.log(2 * jnp.pi) + log_ratio - guide.affine.log_det()
    np.testing.assert_allclose(sent.xi, guide.affine(u), rtol=1e-5)
    np.testing.assert_allclose(sent.log_q, log_q, rtol=1e-5)


def test_evidence_of_an_untrained_chain_is_exact():
    guide = untrained("chain, drift")
    xi = LOC + np.random.default_rng(0).normal(size=(20, DIM)) @ TRIANGLE.T
    log_q = jax.jit(jax.vmap(guide.evidence))(jnp.asarray(xi, float), jr.split(jr.key(2), 20))
    expected = multivariate_normal.logpdf(xi, LOC, TRIANGLE @ TRIANGLE.T)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(log_q, expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["chain, drift"])
def test_evidence_estimates_the_density_of_the_draws(name):
    """q-hat is unbiased: over points of another Gaussian p, the mean of q-hat / p is one."""
    guide = trained_like(name)
    noise = jr.normal(jr.key(4), (DRAWS // 10, DIM))
    points = jnp.asarray(LOC, float)[None, :] + 2.5 * noise
    log_p = -0.5 * jnp.sum(noise**2, axis=1) - DIM * jnp.log(2.5 * jnp.sqrt(2 * jnp.pi))
    log_q = jax.jit(jax.vmap(guide.evidence))(points, jr.split(jr.key(5), len(points)))
    ratios = np.exp(np.asarray(log_q - log_p, float))
    error = ratios.std() / np.sqrt(len(ratios))
    assert error < 0.05
    assert abs(ratios.mean() - 1) < STANDARD_ERRORS * error


def test_evidence_needs_a_key():
    with pytest.raises(dmvi.InputError, match="key"):
        untrained("chain").evidence(jnp.zeros(DIM))


@pytest.mark.parametrize("choices", [{"steps": 0}, {"width": 0}, {"depth": 1.5}])
def test_bad_choices_are_named(choices):
    with pytest.raises(dmvi.InputError, match=next(iter(choices))):
        ChainGuide(**choices)


def test_score_is_seen_only_where_asked_for():
    affine = anchored(jnp.zeros(DIM), jnp.ones(DIM), full=False)
    seen = ChainGuide(score=True).seeing(mixture).build(affine, key=jr.key(0))
    unseen = ChainGuide(score=True).seeing(None).build(affine, key=jr.key(0))
    plain = ChainGuide().seeing(mixture).build(affine, key=jr.key(0))
    assert [guide.log_density is None for guide in (seen, unseen, plain)] == [False, True, True]
    assert seen.chain.reverse.gain is not None
    assert plain.chain.reverse.gain is None


def test_cost_is_linear_in_the_dimension():
    """No array of a training step's gradient grows faster than the dimension."""
    largest = {}
    for dim in (200, 400):
        affine = anchored(jnp.zeros(dim), jnp.ones(dim), full=False)
        guide = ChainGuide(steps=3, width=8).build(affine, key=jr.key(0))
        moving, fixed = eqx.partition(guide, eqx.is_inexact_array)

        def loss(moving, fixed=fixed):
            return eqx.combine(moving, fixed).draw_path(jr.key(0)).log_q

        jaxpr = jax.make_jaxpr(jax.grad(loss))(moving)
        largest[dim] = max(var.aval.size for eqn in jaxpr.eqns for var in eqn.outvars)
    assert largest[400] <= 2.1 * largest[200]
