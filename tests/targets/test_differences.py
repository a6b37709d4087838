"""Models that JAX differentiates once, in reverse: their second derivatives, and fits with every guide."""

# pyright: reportOperatorIssue=false
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint

import dmvi
from dmvi.targets import from_log_density, from_numpyro, from_rows
from dmvi.targets._differences import from_gradients

PRECISION = np.array([[4.0, 1.0], [1.0, 0.5]])
MEAN = np.array([1.0, -2.0])
COVARIANCE = np.linalg.inv(PRECISION)


@jax.custom_vjp
def known_slope(x):
    """A Gaussian log-density whose slope JAX is told."""
    return -0.5 * (x - MEAN) @ PRECISION @ (x - MEAN)


def _forward(x):
    return known_slope(x), x  # the rule calls the function itself, as `odeint`'s does


def _backward(x, cotangent):
    return (-cotangent * PRECISION @ (x - MEAN),)


known_slope.defvjp(_forward, _backward)

TIMES = np.linspace(0.0, 2.0, 9)
MEASURED = 2.0 * np.exp(-0.7 * TIMES) + 0.1 * np.random.default_rng(0).normal(size=9)


def _slope(state, _, rate):
    return -rate * state


def decay(y, t=TIMES):
    """y' = -k y, measured with noise."""
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    first = numpyro.sample("first", dist.Normal(0.0, 3.0))
    path = odeint(_slope, first, jnp.asarray(t), rate, rtol=1e-5, atol=1e-5, mxstep=64)
    numpyro.sample("y", dist.Normal(path, 0.1), obs=y)


def solved(y, t=TIMES):
    """The same model with the equation solved by hand."""
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    first = numpyro.sample("first", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(first * jnp.exp(-rate * jnp.asarray(t)), 0.1), obs=y)


@pytest.fixture
def gaussian():
    return from_log_density(lambda x: known_slope(x) + 0.0 * x[0], init=jnp.zeros(2))


def test_jax_itself_refuses(gaussian):
    """Without this, nothing below tells anything."""
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.hessian(gaussian.log_density)(jnp.zeros(2))


def test_hessian_and_its_products(gaussian):
    xi, v = jnp.array([3.0, 40.0]), jnp.array([1.0, -2.0])
    np.testing.assert_allclose(jax.jit(gaussian.hessian)(xi), -PRECISION, rtol=1e-3)
    product = jax.jit(gaussian.hessian_product)
    np.testing.assert_allclose(product(xi, v), -PRECISION @ np.array([1.0, -2.0]), rtol=1e-2, atol=1e-3)
    np.testing.assert_array_equal(product(xi, jnp.zeros(2)), np.zeros(2))
    np.testing.assert_allclose(jax.vmap(lambda v: product(xi, v))(jnp.eye(2)), -PRECISION, rtol=1e-2)


def test_products_where_jax_can_differentiate_twice():
    target = from_numpyro(solved, (MEASURED,))
    xi, v = jnp.array([-0.3, 1.5]), jnp.array([0.3, -1.0])
    np.testing.assert_allclose(target.hessian_product(xi, v), target.hessian(xi) @ v, rtol=1e-5)


def test_differences_are_exact_for_a_cubic():
    """Central differences have no error for polynomials of third order; a quartic's is h^2 / 6 times 24."""
    x, step = np.array([0.5, -3.0]), 1e-3
    cubic = from_gradients(lambda points: 3 * points**2, x, step)
    np.testing.assert_allclose(cubic, np.diag(6 * x), rtol=1e-10)
    quartic = from_gradients(lambda points: 4 * points**3, x, step)
    error = np.diagonal(quartic) - 12 * x**2
    np.testing.assert_allclose(error, 4 * (step * (1 + np.abs(x))) ** 2, rtol=1e-3)


def test_second_derivatives_through_an_ode():
    through, by_hand = from_numpyro(decay, (MEASURED,)), from_numpyro(solved, (MEASURED,))
    xi = jnp.array([np.log(0.7), 2.0])
    expected = by_hand.hessian(xi)
    np.testing.assert_allclose(jax.jit(through.hessian)(xi), expected, rtol=0.01, atol=0.5)
    v = jnp.array([1.0, 0.5])
    np.testing.assert_allclose(jax.jit(through.hessian_product)(xi, v), expected @ v, rtol=0.01)


@pytest.mark.parametrize("guide", ["auto", "full-rank", "mean-field", "chain", "flow"])
def test_every_guide_fits_without_second_derivatives(gaussian, guide):
    steps = 100 if guide in ("auto", "flow") else 600
    posterior = dmvi.fit(gaussian, guide=guide, steps=steps, progress=False)
    x = posterior.sample(20_000, resample=guide == "mean-field")["x"]
    sds = np.sqrt(np.diagonal(COVARIANCE))
    assert np.abs(x.mean(axis=0) - MEAN).max() < 0.1 * sds.max()
    if guide != "mean-field":
        np.testing.assert_allclose(x.std(axis=0), sds, rtol=0.1)


@pytest.mark.slow  # the solver, not the guide
@pytest.mark.parametrize("guide", ["auto", "full-rank", "mean-field", "chain", "flow"])
def test_every_guide_fits_a_model_with_an_ode(guide):
    posterior = dmvi.fit(decay, {"y": MEASURED}, guide=guide, steps=16, progress=False)
    first = posterior.sample(2000, resample=True)["first"]
    assert first.mean() == pytest.approx(2.0, abs=0.2)
    assert 0.02 < first.std() < 0.2


def test_batches_without_forward_mode():
    """Control variates take the batch's slope in reverse where they have to."""
    rng = np.random.default_rng(1)
    y = rng.normal(1.0, 0.5, 400)

    @jax.custom_vjp
    def identity(x):
        return x

    identity.defvjp(lambda x: (identity(x), None), lambda _, cotangent: (cotangent,))

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Normal(identity(mean), 0.5), obs=y)

    posterior = dmvi.fit(model, {"y": y}, guide="full-rank", batch_size=20, steps=64, progress=False)
    assert posterior.target.stream is not None
    assert posterior.sample(4000)["mean"].mean() == pytest.approx(y.mean(), abs=0.005)
    target = from_rows(model, {"y": y}, 20)
    hessian = target.stream.hessian(np.array([0.3]))
    np.testing.assert_allclose(hessian, [[-400 / 0.25]], rtol=1e-3)
