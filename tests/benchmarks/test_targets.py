"""The lab targets say what they claim to say."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro.infer.util import log_density

from benchmarks import targets
from benchmarks.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_density_and_gradient_are_finite_at_the_start(name):
    target = TARGETS[name]()
    value, gradient = jax.value_and_grad(target.log_density)(jnp.zeros(target.dim))
    assert target.name == name
    assert jnp.isfinite(value)
    assert gradient.shape == (target.dim,)
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize(("build", "low", "high"), [(targets.ring, -9.0, 9.0), (targets.banana, -12.0, 60.0)])
def test_normalised_in_the_plane(build, low, high):
    """The integral of exp(log pi) over a box that holds all the mass is exp(log Z)."""
    target = build()
    x, y = np.linspace(-12.0, 12.0, 500), np.linspace(low, high, 2000)
    points = jnp.asarray(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
    cell = (x[1] - x[0]) * (y[1] - y[0])
    total = logsumexp(jax.vmap(target.log_density)(points)) + jnp.log(cell)
    np.testing.assert_allclose(total, target.log_evidence, atol=1e-3)


def test_funnel_is_the_law_of_its_own_draws():
    """E_p[log p] of the funnel is minus its entropy, h(v) + 9 h(x | v), known in closed form."""
    keys = jax.random.split(jax.random.key(0))
    v = 3.0 * jax.random.normal(keys[0], (20_000,))
    x = jnp.exp(v / 2.0)[:, None] * jax.random.normal(keys[1], (20_000, 9))
    values = jax.vmap(targets.funnel().log_density)(jnp.concatenate([v[:, None], x], axis=1))
    entropy = 5.0 * (1.0 + np.log(2.0 * np.pi)) + np.log(3.0)
    # The integrand's standard deviation is 13.7, nearly all of it linear in v: take that part out.
    values = values + 4.5 * v
    np.testing.assert_allclose(values.mean(), -entropy, atol=4.0 * values.std() / np.sqrt(values.size))


def eight_schools_model():
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    numpyro.sample("y", dist.Normal(theta, sigma).to_event(1), obs=y)


def test_eight_schools_is_the_numpyro_model():
    """log pi(mu, log tau, theta) = log p(y, mu, tau, theta) + log tau."""
    x = jax.random.normal(jax.random.key(1), (10,))
    sites = {"mu": x[0], "tau": jnp.exp(x[1]), "theta": x[2:]}
    expected = log_density(eight_schools_model, (), {}, sites)[0] + x[1]
    np.testing.assert_allclose(targets.eight_schools().log_density(x), expected, rtol=1e-5)
