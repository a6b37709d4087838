"""Objectives: which bound, which gradient, with what variance."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.diffusion import Projected
from dmvi.guides import DiffusionGuide, Gaussian
from dmvi.objectives import ELBO, PathELBO
from dmvi.targets import from_log_density
from tests.guides.registry import (
    COVARIANCE,
    DIM,
    LOG_EVIDENCE,
    MEAN,
    as_vector,
    base,
    from_noise,
    log_q_from_noise,
    perturbed,
    target,
    untrained,
)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def small_diffusion():
    recipe = DiffusionGuide(steps=2, network=Projected(rank=2, scale_rank=1, width=3, scale_width=3, depth=1))
    return perturbed(recipe.build(base(), key=jr.key(1)), size=0.2)


class GivenNoise(Gaussian):
    """A Gaussian guide whose key is the noise itself, so that expectations can be exact."""

    def _noise(self, key):
        return key


def loss_of(objective, rebuild, model, batch=None):
    return lambda phi, keys: objective(rebuild(phi), model, keys, batch, objective.memory(DIM)).loss


def test_gradients_of_a_gaussian_are_those_of_its_divergence():
    """For q and pi Gaussian every term is of degree two in the noise, and cubature of degree three is exact.

    -ELBO = KL(N(m, C), N(MEAN, COVARIANCE)) - log Z, differentiated by hand's closed form.
    """
    guide = perturbed(GivenNoise(affine=base(), dim=DIM))
    phi, rebuild = as_vector(guide)
    points = np.sqrt(DIM) * np.concatenate([np.eye(DIM), -np.eye(DIM)])

    def divergence(phi):
        affine = rebuild(phi).affine
        loc = affine(jnp.zeros(DIM))
        root = jax.jacfwd(affine)(jnp.zeros(DIM))
        precision = jnp.asarray(np.linalg.inv(COVARIANCE))
        shift = loc - MEAN
        trace = jnp.trace(precision @ root @ root.T) + shift @ precision @ shift
        log_dets = np.linalg.slogdet(COVARIANCE)[1] - 2 * affine.log_det()
        return 0.5 * (trace - DIM + log_dets) - LOG_EVIDENCE["gaussian"]

    value, gradient = jax.jit(jax.value_and_grad(divergence))(phi)
    for objective in (ELBO(), PathELBO()):
        evaluate = jax.jit(jax.value_and_grad(loss_of(objective, rebuild, target("gaussian"))))
        loss, found = evaluate(phi, jnp.asarray(points))
        np.testing.assert_allclose(loss, value, rtol=1e-10)
        np.testing.assert_allclose(found, gradient, rtol=1e-9, atol=1e-10)


def test_path_gradient_is_the_elbo_gradient_in_expectation():
    """Same draws, so the difference is the score of q alone, of mean zero: within five standard errors."""
    guide, model = small_diffusion(), target("funnel")
    phi, rebuild = as_vector(guide)

    @jax.jit
    def both(keys):
        def one(key):
            return [
                jax.grad(loss_of(objective, rebuild, model))(phi, key[None])
                for objective in (ELBO(), PathELBO())
            ]

        return jax.vmap(one)(keys)

    full, path = (np.asarray(part) for part in both(jr.split(jr.key(0), 10_000)))
    difference = full - path
    error = difference.std(axis=0) / np.sqrt(len(difference))
    moved = error > 1e-12
    assert moved.mean() > 0.5  # the score of q is not zero draw by draw
    assert np.max(np.abs(difference.mean(axis=0))[moved] / error[moved]) < 5
    # The gradient that both estimate is far from zero, so agreement says something.
    assert np.max(np.abs(path.mean(axis=0)) / (path.std(axis=0) / 100 + 1e-12)) > 20


@pytest.mark.parametrize("name", ["full-rank", "pair"])
def test_path_gradient_vanishes_draw_by_draw_for_an_untrained_guide_that_is_exact(name):
    guide = untrained(name)
    phi, rebuild = as_vector(guide)
    affine = base(name)

    def log_density(x):
        return 2.0 - 0.5 * jnp.sum(affine.inverse(x) ** 2)

    with jax.numpy_rank_promotion("allow"):
        model = from_log_density(log_density, jnp.zeros(DIM))
    gradient = jax.jit(jax.vmap(jax.grad(loss_of(PathELBO(), rebuild, model)), (None, 0)))(
        phi, jr.split(jr.key(0), 20)[:, None]
    )
    np.testing.assert_allclose(gradient, 0, atol=1e-9)


def test_path_gradient_vanishes_for_an_exact_guide_that_is_no_gaussian():
    """pi = q itself: grad log pi = G at every draw, by autodiff along the noise."""
    guide = small_diffusion()
    phi, rebuild = as_vector(guide)

    @jax.jit
    def gradients(key):
        draw = guide.draw(key)
        jacobian = jax.jacfwd(lambda z: from_noise(guide, z))(draw.noise)
        score = jnp.linalg.solve(jacobian.T, jax.jacfwd(lambda z: log_q_from_noise(guide, z))(draw.noise))

        def log_weight(phi, method):
            made = getattr(rebuild(phi), method)(key)
            return score @ made.xi - made.log_q  # log pi to first order at the draw

        return jax.grad(log_weight)(phi, "draw_path"), jax.grad(log_weight)(phi, "draw")

    for seed in range(5):
        path, full = gradients(jr.key(seed))
        np.testing.assert_allclose(path, 0, atol=1e-9)
        assert np.abs(full).max() > 0.1


def test_log_weights_are_reported():
    guide, model = untrained("full-rank"), target("gaussian")
    keys = jr.split(jr.key(0), 6)
    draws = jax.jit(jax.vmap(guide.draw))(keys)
    log_weights = jax.vmap(model.log_density)(draws.xi) - draws.log_q
    for objective in (ELBO(), PathELBO()):
        value = eqx.filter_jit(objective)(guide, model, keys, None, objective.memory(DIM))
        np.testing.assert_allclose(value.log_weights, log_weights, rtol=1e-9)
        np.testing.assert_allclose(value.loss, -log_weights.mean(), rtol=1e-9)


def test_generative_parameters_get_their_gradient():
    """grad_psi log p(y, theta; psi) at the draws."""

    def log_density(xi, params, batch):
        return -0.5 * jnp.sum((xi - params["psi"]) ** 2)

    model = dataclasses.replace(
        target("gaussian"), params={"psi": jnp.full(DIM, 0.3)}, _log_density=log_density
    )
    guide, keys = Gaussian(affine=base(), dim=DIM), jr.split(jr.key(0), 8)

    def loss(params):
        moved = eqx.tree_at(lambda t: t.params, model, params)
        return PathELBO()(guide, moved, keys, None, None).loss

    draws = jax.vmap(guide.draw)(keys).xi
    np.testing.assert_allclose(jax.grad(loss)(model.params)["psi"], 0.3 - draws.mean(axis=0), rtol=1e-9)
