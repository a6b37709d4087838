"""numpyro.param sites are generative parameters: unconstrained in the target, learned by gradient."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam
from scipy.stats import norm

from dmvi.targets import from_numpyro
from tests.targets.models import SIGMA, Y, eight_schools


def model(y):
    location = numpyro.param("location", 1)  # an integer start is a number like any other
    scale = numpyro.param("scale", 2.0, constraint=constraints.positive)
    weights = numpyro.param("weights", jnp.array([0.2, 0.3, 0.5]), constraint=constraints.simplex)
    x = numpyro.sample("x", dist.Normal(location, scale))
    numpyro.sample("y", dist.Normal(weights[0] * x, 1.0), obs=y)


def with_params(target, params):
    return eqx.tree_at(lambda t: t.params, target, params)


def test_params_start_unconstrained_and_come_back_constrained():
    target = from_numpyro(model, (Y,))
    assert set(target.params) == {"location", "scale", "weights"}
    assert all(value.dtype == jnp.result_type(float) for value in target.params.values())
    np.testing.assert_allclose(target.params["scale"], np.log(2.0), rtol=1e-6)
    assert target.params["weights"].shape == (2,)
    constrained = target.constrained_params()
    np.testing.assert_allclose(constrained["location"], 1.0)
    np.testing.assert_allclose(constrained["scale"], 2.0, rtol=1e-6)
    np.testing.assert_allclose(constrained["weights"], [0.2, 0.3, 0.5], rtol=1e-5)
    assert target.names == ("x",)


def test_density_at_changed_params_has_no_jacobian_of_theirs():
    target = from_numpyro(model, (Y,))
    params = {**target.params, "location": jnp.array(0.5), "scale": jnp.array(-0.7)}
    moved = with_params(target, params)
    expected = norm.logpdf(0.3, 0.5, np.exp(-0.7)) + norm.logpdf(Y, 0.2 * 0.3).sum()
    np.testing.assert_allclose(moved.log_density(jnp.array([0.3])), expected, rtol=1e-6)
    np.testing.assert_allclose(moved.constrained_params()["scale"], np.exp(-0.7), rtol=1e-6)


def test_gradient_flows_to_the_params():
    target = from_numpyro(model, (Y,))

    @jax.jit
    def gradient(params):
        return jax.grad(lambda p: with_params(target, p).log_density(jnp.array([0.3])))(params)

    values = gradient(target.params)
    # d/d location of log N(x; location, scale^2), and d/d log scale of the same
    np.testing.assert_allclose(values["location"], (0.3 - 1.0) / 4.0, rtol=1e-5)
    np.testing.assert_allclose(values["scale"], (0.3 - 1.0) ** 2 / 4.0 - 1.0, rtol=1e-5)


def test_target_is_an_argument_of_compiled_functions():
    """Changed params do not compile again: training may pass the target as an argument."""
    target = from_numpyro(model, (Y,))
    compilations = []

    @eqx.filter_jit
    def density(target, xi):
        compilations.append(1)
        return target.log_density(xi)

    first = density(target, jnp.array([0.3]))
    second = density(
        with_params(target, {**target.params, "location": jnp.array(0.3, float)}), jnp.array([0.3])
    )
    assert second > first
    assert len(compilations) == 1


def test_learned_centring_is_a_param():
    reparameterised = handlers.reparam(eight_schools, config={"theta": LocScaleReparam()})
    target = from_numpyro(reparameterised, (SIGMA,), {"y": Y})
    np.testing.assert_allclose(target.constrained_params()["theta_centered"], 0.5, rtol=1e-6)


def test_lifted_params_are_latents():
    lifted = handlers.lift(model, prior={"scale": dist.Exponential(1.0)})
    target = from_numpyro(lifted, (Y,))
    assert target.names == ("scale", "x")
    assert set(target.params) == {"location", "weights"}


def test_random_and_nested_params():
    """Starts may be drawn from a key, and a param may be a pytree, as the weights of a network."""

    def network(y):
        drawn = numpyro.param("drawn", lambda key: jax.random.normal(key, (3,)))
        layer = numpyro.param("layer", {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)})
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.sum(layer["w"] @ x + layer["b"]) + drawn[0], 1.0), obs=y)

    target = from_numpyro(network, (Y,))
    xi = np.array([0.1, 0.2], dtype=np.float32)
    start = float(target.params["drawn"][0])
    expected = norm.logpdf(xi).sum() + norm.logpdf(Y, 2 * xi.sum() + start).sum()
    np.testing.assert_allclose(jax.jit(target.log_density)(xi), expected, rtol=1e-5)
    again = from_numpyro(network, (Y,))
    np.testing.assert_array_equal(target.params["drawn"], again.params["drawn"])
