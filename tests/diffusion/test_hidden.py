"""Closed-form derivatives of the hidden layers against autodiff."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.diffusion._hidden import Hidden, gelu, gelu_jet
from dmvi.diffusion._networks import time_features
from tests.guides.registry import perturbed


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def test_gelu_and_its_derivatives():
    x = jnp.linspace(-5, 5, 41)
    value, slope, curvature = gelu_jet(x)
    np.testing.assert_allclose(value, x * jax.scipy.stats.norm.cdf(x), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(gelu(x), value, rtol=1e-12)
    np.testing.assert_allclose(slope, jax.vmap(jax.grad(gelu))(x), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(curvature, jax.vmap(jax.grad(jax.grad(gelu)))(x), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_jet_and_trace_gradient(depth):
    hidden = perturbed(Hidden(3, 5, depth, key=jr.key(depth)), size=0.3)
    rng = np.random.default_rng(depth)
    a, y = jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=(3, 5)))
    embedding = hidden.embed(jnp.asarray(0.7))
    jet = hidden.jet(a, embedding)
    np.testing.assert_allclose(jet.h, hidden(a, embedding), rtol=1e-12)
    jacobian = jax.jacfwd(hidden)
    np.testing.assert_allclose(jet.tangents.T, jacobian(a, embedding), rtol=1e-10)
    expected = jax.grad(lambda a: jnp.trace(y @ jacobian(a, embedding)))(a)
    np.testing.assert_allclose(hidden.trace_gradient(jet, y), expected, rtol=1e-9)


def test_trace_gradient_is_that_of_the_log_determinant():
    """grad log det(I + F J(a)) for Y = (I + F J)^-1 F."""
    hidden = perturbed(Hidden(3, 5, 2, key=jr.key(0)), size=0.3)
    rng = np.random.default_rng(0)
    a, f = jnp.asarray(rng.normal(size=3)), jnp.asarray(0.3 * rng.normal(size=(3, 5)))
    embedding = hidden.embed(jnp.asarray(1.2))

    def log_det(a):
        return jnp.linalg.slogdet(jnp.eye(3) + f @ jax.jacfwd(hidden)(a, embedding))[1]

    jet = hidden.jet(a, embedding)
    y = jnp.linalg.solve(jnp.eye(3) + f @ jet.tangents.T, f)
    np.testing.assert_allclose(hidden.trace_gradient(jet, y), jax.grad(log_det)(a), rtol=1e-9)


def test_time_features():
    t = 0.8
    expected = [1, *np.cos(t * np.arange(1, 5)), *np.sin(t * np.arange(1, 5))]
    np.testing.assert_allclose(time_features(jnp.asarray(t)), expected, rtol=1e-12)
