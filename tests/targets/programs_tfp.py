"""The five models in TFP on JAX."""

import jax.numpy as jnp
from tensorflow_probability.substrates import jax as tfp

from tests.targets.programs import GP_Y, GROUP, LINE_Y, MEANS, MIXED, SIGMA, X, Y, covariance

tfd = tfp.distributions


def _real(value):
    return jnp.asarray(value, jnp.result_type(float))


def _pinned(joint, **data):
    model = tfd.JointDistributionCoroutineAutoBatched(joint)
    return model.experimental_pin(**{name: _real(value) for name, value in data.items()})


def centred():
    def joint():
        mu = yield tfd.Normal(_real(0), 5, name="mu")
        tau = yield tfd.HalfCauchy(_real(0), 5, name="tau")
        theta = yield tfd.Sample(tfd.Normal(mu, tau), 8, name="theta")
        yield tfd.Normal(theta, _real(SIGMA), name="y")

    return _pinned(joint, y=Y)


def noncentred():
    def joint():
        mu = yield tfd.Normal(_real(0), 5, name="mu")
        tau = yield tfd.HalfCauchy(_real(0), 5, name="tau")
        z = yield tfd.Sample(tfd.Normal(_real(0), 1), 8, name="z")
        yield tfd.Normal(mu + tau * z, _real(SIGMA), name="y")

    return _pinned(joint, y=Y)


def regression():
    def joint():
        mu = yield tfd.Sample(tfd.Normal(_real(0), 2), 2, name="mu")
        sd = yield tfd.Sample(tfd.HalfNormal(_real(1)), 2, name="sd")
        corr = yield tfd.CholeskyLKJ(2, _real(2), name="corr")
        noise = yield tfd.HalfNormal(_real(1), name="noise")
        scale = sd[..., :, None] * corr
        beta = yield tfd.Sample(tfd.MultivariateNormalTriL(mu, scale_tril=scale), 4, name="beta")
        yield tfd.Normal(beta[..., GROUP, 0] + beta[..., GROUP, 1] * X, noise, name="y")

    return _pinned(joint, y=LINE_Y)


def gp():
    def joint():
        amplitude = yield tfd.HalfNormal(_real(1), name="amplitude")
        length = yield tfd.LogNormal(_real(0), 0.5, name="length")
        noise = yield tfd.HalfNormal(_real(0.5), name="noise")
        chol = jnp.linalg.cholesky(covariance(amplitude, length, noise))
        yield tfd.MultivariateNormalTriL(jnp.zeros(8), scale_tril=chol, name="y")

    return _pinned(joint, y=GP_Y)


def mixture():
    def joint():
        weight = yield tfd.Beta(_real(2), _real(2), name="weight")
        means = yield tfd.Normal(_real(MEANS), 1, name="means")
        sd = yield tfd.HalfNormal(_real(1), name="sd")
        parts = tfd.Categorical(probs=jnp.stack([weight, 1 - weight], axis=-1))
        y = tfd.MixtureSameFamily(parts, tfd.Normal(means, sd))
        yield tfd.Sample(y, 20, name="y")

    return _pinned(joint, y=MIXED)


MODELS = {f.__name__: f for f in (centred, noncentred, regression, gp, mixture)}
