"""The growing family is what it says, and the seeds are the model they claim to be."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_density

from benchmarks import public


def test_bent_family_is_normalised():
    """Over the plane the density sums to one."""
    x, y = np.linspace(-6.0, 6.0, 800), np.linspace(-8.0, 24.0, 1600)
    points = jnp.asarray(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
    total = jnp.exp(jax.vmap(public.bent(2).log_density)(points)).sum() * (x[1] - x[0]) * (y[1] - y[0])
    np.testing.assert_allclose(total, 1.0, atol=1e-3)


def seeds_model():
    tau = numpyro.sample("tau", dist.Gamma(0.01, 0.01))
    a = jnp.asarray(numpyro.sample("a", dist.Normal(0.0, 10.0).expand([4]).to_event(1)))
    b = numpyro.sample("b", dist.Normal(0.0, 1 / jnp.sqrt(tau)).expand([21]).to_event(1))
    first = jnp.concatenate([jnp.zeros(11), jnp.ones(10)])
    second = jnp.concatenate([jnp.zeros(5), jnp.ones(6), jnp.zeros(5), jnp.ones(5)])
    logits = a[0] + a[1] * first + a[2] * second + a[3] * first * second + b
    sown, germinated = jnp.asarray(public.SEEDS_SOWN), jnp.asarray(public.SEEDS_GERMINATED)
    numpyro.sample("r", dist.Binomial(sown, logits=logits).to_event(1), obs=germinated)


def test_seeds_is_the_numpyro_model():
    """log pi(log tau, a, b) = log p(r, tau, a, b) + log tau."""
    x = 0.5 * jax.random.normal(jax.random.key(1), (26,))
    values = {"tau": jnp.exp(x[0]), "a": x[1:5], "b": x[5:]}
    expected = log_density(seeds_model, (), {}, values)[0] + x[0]
    np.testing.assert_allclose(public.seeds(Path()).log_density(x), expected, rtol=1e-5)
