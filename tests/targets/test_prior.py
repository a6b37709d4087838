"""Draws of the prior in unconstrained coordinates."""

import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats

from dmvi._clock import Clock
from dmvi.targets import from_log_density, from_numpyro
from dmvi.warmstart._candidates import find_candidates
from dmvi.warmstart._effort import effort_of
from dmvi.warmstart._laplace import Surface
from dmvi.warmstart._prior import prior_gaussian

DRAWS = 20_000


def supports():
    """No data: the density is that of the prior itself."""
    scale = numpyro.sample("scale", dist.LogNormal(1.0, 0.5))
    with numpyro.plate("groups", 3):
        numpyro.sample("theta", dist.Normal(2.0, jnp.asarray(scale)))
    numpyro.sample("share", dist.Beta(2.0, 3.0))
    numpyro.sample("shares", dist.Dirichlet(jnp.array([2.0, 3.0, 4.0])))
    numpyro.sample("root", dist.LKJCholesky(2, 3.0))


def assert_stein_identity(target):
    """E[grad log p] = 0 and E[xi_i d/dxi_i log p] = -1 under p, in every coordinate."""
    xi = jax.jit(jax.vmap(target.prior))(jr.split(jr.key(0), DRAWS))
    slope = jax.jit(jax.vmap(jax.grad(target.log_density)))(xi)
    for values, expected in ((slope, 0.0), (xi * slope, -1.0)):
        values = np.asarray(values, float)
        error = values.std(axis=0) / np.sqrt(DRAWS)
        np.testing.assert_array_less(np.abs(values.mean(axis=0) - expected), 4.5 * error)


def test_draws_have_the_density_of_the_prior():
    assert_stein_identity(from_numpyro(supports))


def test_draws_of_a_joint_distribution_have_its_density():
    pytest.importorskip("tensorflow_probability.substrates.jax")
    from tensorflow_probability.substrates import jax as tfp

    from dmvi.targets import as_target

    tfd = tfp.distributions
    joint = tfd.JointDistributionSequential(
        [tfd.LogNormal(0.5, 0.3), lambda scale: tfd.Normal(1.0, scale), lambda theta: tfd.Normal(theta, 1e4)]
    )
    assert_stein_identity(as_target(joint.experimental_pin(None, None, 0.0)))


def test_location_and_scale_of_the_prior():
    found = prior_gaussian(from_numpyro(supports), jr.key(1))
    assert found is not None
    loc, scale = found
    np.testing.assert_allclose(loc[0], 1.0, atol=0.15)  # scale, on the log scale
    np.testing.assert_allclose(scale[0], 0.5, rtol=0.25)
    np.testing.assert_allclose(loc[1:4], 2.0, atol=0.6)  # of sds near e
    np.testing.assert_allclose(scale[1:4], np.e, rtol=0.3)
    quartiles = scipy.stats.beta(2, 3).ppf([0.25, 0.5, 0.75])
    low, middle, high = scipy.special.logit(quartiles)
    np.testing.assert_allclose(loc[4], middle, atol=0.2)
    np.testing.assert_allclose(scale[4], (high - low) / 1.349, rtol=0.25)


def test_learned_parameters_are_those_of_the_prior():
    def model():
        centre = numpyro.param("centre", 3.0)
        numpyro.sample("mu", dist.Normal(centre, 0.1))

    found = prior_gaussian(from_numpyro(model), jr.key(0))
    assert found is not None
    np.testing.assert_allclose(found[0], 3.0, atol=0.05)


class Raises(dist.Normal):
    def sample(self, key, sample_shape=()):
        raise ValueError("not written yet")


class GivesNothing(dist.Normal):
    def sample(self, key, sample_shape=()):
        return None


@pytest.mark.parametrize(
    "prior",
    [
        dist.ImproperUniform(dist.constraints.real, (), ()),
        Raises(0.0, 1.0),
        GivesNothing(0.0, 1.0),
        dist.InverseGamma(0.001, 0.001),  # most draws overflow
    ],
)
def test_what_cannot_be_drawn_from_is_no_start(prior):
    def model():
        numpyro.sample("mu", prior)
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=0.3)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prior_gaussian(from_numpyro(model), jr.key(0)) is None


def test_a_plain_density_has_no_prior():
    density = from_log_density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(2))
    assert prior_gaussian(density, jr.key(0)) is None


def test_the_prior_is_among_the_starts():
    """Far from zero, wide and without data: nothing else begins near it."""

    def model():
        numpyro.sample("mu", dist.Normal(300.0, 20.0).expand([3]).to_event(1))

    target = from_numpyro(model)
    surface = Surface(target)
    found = find_candidates(target, surface, effort_of(surface, Clock()), jr.key(0))
    (prior,) = [candidate for candidate in found.fields if candidate.name == "prior"]
    np.testing.assert_allclose(prior.loc, 300.0, atol=8.0)
    np.testing.assert_allclose(prior.scale, 20.0, rtol=0.3)
