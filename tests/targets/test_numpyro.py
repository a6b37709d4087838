"""Structure of NumPyro models: plates, deterministic and factor sites, handlers, masks, scans."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam, ProjectedNormalReparam, TransformReparam
from scipy.stats import expon, multivariate_normal, norm

from dmvi.targets import from_numpyro
from tests.targets.models import SIGMA, Y, eight_schools, eight_schools_log_density


def point(target, seed=0):
    return np.random.default_rng(seed).uniform(-1.5, 1.5, target.dim).astype(np.float32)


def log_density(target, xi):
    return np.asarray(jax.jit(target.log_density)(xi))


def constrain(target, xi):
    return jax.tree.map(np.asarray, jax.jit(target.constrain)(xi))


@pytest.fixture(scope="module")
def schools():
    return from_numpyro(eight_schools, (SIGMA,), {"y": Y})


def test_density_of_eight_schools_by_hand(schools):
    xi = point(schools)
    np.testing.assert_allclose(
        log_density(schools, xi), eight_schools_log_density(xi.astype(float)), rtol=1e-6
    )


def test_structure_of_eight_schools(schools):
    assert schools.names == ("mu", "tau", *(f"theta[{i}]" for i in range(8)))
    assert schools.dims == {
        "mu": (),
        "tau": (),
        "theta": ("school",),
        "effect": ("school",),
        "y": ("school",),
    }
    assert schools.data_size == 8
    assert not schools.subsampled
    assert schools.params == {}
    assert schools.constrained_params() == {}
    assert schools.draw_batch(jax.random.key(0)) is None
    np.testing.assert_array_equal(schools.observed["y"], Y)
    shown = "mu, tau, theta[0], theta[1], ..., theta[7]"
    assert repr(schools) == f"Target(10 dimensions: {shown}, 8 observations)"


def test_constrain_gives_latents_and_deterministics(schools):
    xi = point(schools)
    values = constrain(schools, xi)
    order = []
    jax.eval_shape(lambda x: order.extend(schools.constrain(x)), xi)
    assert order == ["mu", "tau", "theta", "effect"]
    np.testing.assert_allclose(values["tau"], np.exp(xi[1]), rtol=1e-6)
    np.testing.assert_allclose(values["effect"], xi[2:] - xi[0], rtol=1e-6)


def test_pointwise_log_likelihood_by_hand(schools):
    xi = point(schools)
    values = jax.jit(schools.log_likelihood)(xi)
    assert list(values) == ["y"]
    np.testing.assert_allclose(values["y"], norm.logpdf(Y, xi[2:], SIGMA), rtol=1e-5)


def test_vectorised_over_points_and_differentiable(schools):
    points = np.stack([point(schools, seed) for seed in range(3)])
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(schools.log_density)))(points)
    np.testing.assert_allclose(
        values, [eight_schools_log_density(xi) for xi in points.astype(float)], rtol=1e-5
    )
    step = 1e-6 * np.eye(schools.dim)
    xi = points[1].astype(float)
    numeric = [(eight_schools_log_density(xi + h) - eight_schools_log_density(xi - h)) / 2e-6 for h in step]
    np.testing.assert_allclose(gradients[1], numeric, rtol=1e-3, atol=1e-3)
    assert jax.jit(jax.vmap(schools.constrain))(points)["effect"].shape == (3, 8)


def test_starts_are_uniform(schools):
    starts = jax.vmap(schools.start)(jax.random.split(jax.random.key(0), 2000))
    assert starts.shape == (2000, 10)
    assert np.all(np.abs(starts) < 2)
    np.testing.assert_allclose(starts.mean(0), 0.0, atol=0.1)
    np.testing.assert_allclose(starts.var(0), 16 / 12, rtol=0.1)


def test_model_is_traced_twice_at_construction_and_once_per_compilation():
    calls = []

    def model(y):
        calls.append(1)
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    target = from_numpyro(model, data={"y": Y})
    assert len(calls) == 2  # once for the structure, once for the density and its gradient
    density = jax.jit(target.log_density)
    density(jnp.zeros(1))
    density(jnp.ones(1))
    assert len(calls) == 3


def test_nested_plates():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(4, 3))

    def model(y):
        scale = numpyro.sample("scale", dist.Exponential(1.0))
        with numpyro.plate("column", 3, dim=-1):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
            with numpyro.plate("row", 4, dim=-2):
                b = numpyro.sample("b", dist.Normal(a, scale))
                numpyro.deterministic("twice", 2 * b)
                numpyro.sample("y", dist.Normal(b, 0.5), obs=y)

    target = from_numpyro(model, data={"y": y})
    assert target.dim == 1 + 3 + 12
    assert target.names[4:7] == ("b[0,0]", "b[0,1]", "b[0,2]")
    assert target.dims["a"] == ("column",)
    assert target.dims["b"] == target.dims["twice"] == target.dims["y"] == ("row", "column")
    assert target.data_size == 12
    xi = point(target)
    scale, a, b = np.exp(xi[0]), xi[1:4], xi[4:].reshape(4, 3)
    expected = expon.logpdf(scale) + xi[0] + norm.logpdf(a).sum()
    expected += norm.logpdf(b, a, scale).sum() + norm.logpdf(y, b, 0.5).sum()
    np.testing.assert_allclose(log_density(target, xi), expected, rtol=1e-5)


def test_plate_dims_stop_at_the_first_dimension_without_plate():
    def model():
        with numpyro.plate("inner", 3, dim=-1):
            numpyro.sample("a", dist.Normal(jnp.zeros((2, 1)), 1.0))
        with numpyro.plate("outer", 2, dim=-2):
            b = numpyro.sample("b", dist.Normal(jnp.zeros((1, 4)), 1.0))
            numpyro.deterministic("total", b.sum())

    target = from_numpyro(model)
    assert target.dims == {"a": (), "b": ("outer",), "total": ()}


def test_factors_count_in_the_density_and_nowhere_else():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("penalty", -(x**4))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    target = from_numpyro(model, (Y[:3],))
    expected = norm.logpdf(0.7) - 0.7**4 + norm.logpdf(Y[:3], 0.7).sum()
    np.testing.assert_allclose(log_density(target, jnp.array([0.7])), expected, rtol=1e-6)
    assert list(target.observed) == list(target.log_likelihood(jnp.array([0.7]))) == ["y"]
    assert target.data_size == 3


def test_without_observed_sites():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 3.0))
        numpyro.factor("more", jnp.sin(x))

    target = from_numpyro(model)
    assert target.data_size is None
    assert target.log_likelihood(jnp.zeros(1)) == {}


def test_reparameterised_sites_become_deterministic():
    model = handlers.reparam(eight_schools, config={"theta": LocScaleReparam(centered=0.0)})
    target = from_numpyro(model, (SIGMA,), {"y": Y})
    assert "theta_decentered[0]" in target.names
    xi = point(target)
    mu, tau, z = xi[0], np.exp(xi[1]), xi[2:]
    np.testing.assert_allclose(constrain(target, xi)["theta"], mu + tau * z, rtol=1e-5)
    # The centred density at theta = mu + tau z, times |d theta / d z| = tau^8.
    centred = np.concatenate([xi[:2], mu + tau * z]).astype(float)
    expected = eight_schools_log_density(centred) + 8 * xi[1]
    np.testing.assert_allclose(log_density(target, xi), expected, rtol=1e-5)


def test_transform_reparam_inside_the_model():
    def model(y):
        with handlers.reparam(config={"scale": TransformReparam()}):
            base = dist.Normal(0.0, 1.0)
            scale = numpyro.sample(
                "scale", dist.TransformedDistribution(base, dist.transforms.ExpTransform())
            )
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    target = from_numpyro(model, data={"y": Y})
    assert target.names == ("scale_base",)
    np.testing.assert_allclose(constrain(target, jnp.array([0.4]))["scale"], np.exp(0.4), rtol=1e-6)
    expected = norm.logpdf(0.4) + norm.logpdf(Y, 0, np.exp(0.4)).sum()
    np.testing.assert_allclose(log_density(target, jnp.array([0.4])), expected, rtol=1e-6)


def test_sphere_through_its_reparameterisation():
    def model():
        with handlers.reparam(config={"v": ProjectedNormalReparam()}):
            numpyro.sample("v", dist.ProjectedNormal(jnp.array([1.0, 0.0, 0.0])))

    target = from_numpyro(model)
    v = constrain(target, jnp.array([0.3, -0.2, 1.0]))["v"]
    np.testing.assert_allclose(np.linalg.norm(v), 1.0, rtol=1e-6)


def test_support_that_depends_on_another_latent():
    """x is uniform below `top`, which is itself random: the bijection moves with it."""

    def model():
        top = numpyro.sample("top", dist.Exponential(1.0))
        x = numpyro.sample("x", dist.Uniform(0.0, top))
        numpyro.sample("above", dist.ImproperUniform(constraints.greater_than(x), (), ()))

    target = from_numpyro(model)
    xi = np.array([0.5, -0.3, 0.8])
    top = np.exp(xi[0])
    share = 1 / (1 + np.exp(-xi[1]))
    values = constrain(target, xi.astype(np.float32))
    np.testing.assert_allclose(values["x"], top * share, rtol=1e-5)
    np.testing.assert_allclose(values["above"], top * share + np.exp(xi[2]), rtol=1e-5)
    expected = -top + xi[0] - np.log(top) + np.log(top * share * (1 - share)) + xi[2]
    np.testing.assert_allclose(log_density(target, xi.astype(np.float32)), expected, rtol=1e-5)


def test_improper_flat_priors():
    def model(y):
        mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
        with numpyro.plate("group", 2):
            numpyro.sample("delta", dist.ImproperUniform(constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    target = from_numpyro(model, data={"y": Y})
    xi = np.array([2.0, 0.5, 0.1, 0.2], dtype=np.float32)
    expected = 0.5 + norm.logpdf(Y, 2.0, np.exp(0.5)).sum()
    np.testing.assert_allclose(log_density(target, xi), expected, rtol=1e-5)


def test_masked_entries_may_be_nan():
    """NumPyro's handlers.mask leaves missing values out; neither density nor gradient see the NaN."""
    y = np.array([1.0, np.nan, 2.0])

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with handlers.mask(mask=~np.isnan(y)), numpyro.plate("n", 3):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    target = from_numpyro(model, data={"y": y})
    value, gradient = jax.jit(jax.value_and_grad(target.log_density))(jnp.array([0.5]))
    np.testing.assert_allclose(value, norm.logpdf([0.5, 0.5, 1.5]).sum(), rtol=1e-6)
    np.testing.assert_allclose(gradient, [0.5 + 1.5 - 0.5], rtol=1e-5)
    np.testing.assert_allclose(target.log_likelihood(jnp.array([0.5]))["y"][1], 0.0)


def test_imputation_keeps_the_evidence():
    """With obs_mask the density stays normalisable: the imputed values integrate to one."""
    y = np.array([0.8, np.nan, -0.4])

    def model(y):
        with numpyro.plate("n", 3):
            numpyro.sample("y", dist.Normal(0.5, 2.0), obs=y, obs_mask=~np.isnan(y))

    target = from_numpyro(model, data={"y": y})
    assert target.names == ("y_unobserved[0]", "y_unobserved[1]", "y_unobserved[2]")
    xi = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    expected = norm.logpdf([0.8, -0.4], 0.5, 2).sum() + norm.logpdf(xi, 0.5, 2).sum()
    np.testing.assert_allclose(log_density(target, xi), expected, rtol=1e-6)
    np.testing.assert_allclose(constrain(target, xi)["y"], [0.8, 0.2, -0.4], rtol=1e-6)


def test_imputation_of_vector_events_inside_plates():
    y = np.array([[0.8, 0.1], [0.0, 0.0]])

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("n", 2):
            pair = dist.Normal(mu, 2.0).expand([2]).to_event(1)
            numpyro.sample("y", pair, obs=y, obs_mask=np.array([True, False]))

    target = from_numpyro(model, data={"y": y})
    assert target.dim == 5
    xi = np.linspace(-1.0, 1.0, 5, dtype=np.float32)
    expected = norm.logpdf(xi[0]) + norm.logpdf(y[0], xi[0], 2).sum() + norm.logpdf(xi[1:], xi[0], 2).sum()
    np.testing.assert_allclose(log_density(target, xi), expected, rtol=1e-5)


def test_scanned_sites():
    """A random walk written with NumPyro's scan: constrained latents inside the loop."""
    y = np.array([0.3, 0.1, -0.2, 0.4])

    def model(y):
        def step(x, y):
            x = numpyro.sample("x", dist.LogNormal(jnp.log(x), 1.0))
            numpyro.sample("y", dist.Normal(x, 0.5), obs=y)
            return x, None

        scan(step, 1.0, y)

    target = from_numpyro(model, data={"y": y})
    assert target.dim == 4
    xi = np.array([0.2, -0.1, 0.3, 0.5])
    # x = exp(xi), so the log-normal steps are normal steps in xi and the Jacobian cancels their 1 / x.
    expected = norm.logpdf(np.diff(xi, prepend=0.0)).sum() + norm.logpdf(y, np.exp(xi), 0.5).sum()
    np.testing.assert_allclose(log_density(target, xi.astype(np.float32)), expected, rtol=1e-5)
    np.testing.assert_allclose(constrain(target, xi.astype(np.float32))["x"], np.exp(xi), rtol=1e-5)
    assert target.log_likelihood(xi.astype(np.float32))["y"].shape == (4,)


def test_conditioned_sites_count_as_observed():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("z", dist.Normal(x, 1.0))

    target = from_numpyro(handlers.condition(model, {"z": 1.5}))
    assert target.names == ("x",)
    np.testing.assert_allclose(target.observed["z"], 1.5)
    np.testing.assert_allclose(
        log_density(target, jnp.array([0.5])), norm.logpdf(0.5) + norm.logpdf(1.0), rtol=1e-6
    )


def test_vector_events_and_data_size():
    y = np.arange(6.0).reshape(3, 2)
    covariance = np.array([[1.0, 0.3], [0.3, 2.0]])

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("n", 3):
            numpyro.sample("y", dist.MultivariateNormal(mu, covariance), obs=y)

    target = from_numpyro(model, data={"y": y})
    assert target.data_size == 3
    assert target.dims == {"mu": (), "y": ("n",)}
    xi = np.array([0.5, -0.5], dtype=np.float32)
    expected = multivariate_normal.logpdf(y, xi, covariance)
    np.testing.assert_allclose(target.log_likelihood(xi)["y"], expected, rtol=1e-5)


def test_python_computes_with_the_data():
    """Data stay concrete: a model may read sizes and branches from them, as under NumPyro's MCMC."""
    group = np.array([0, 2, 1, 2])

    def model(group, y=None, robust=False):
        with numpyro.plate("group", int(group.max()) + 1):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        noise = dist.StudentT(4.0, mu[group], 1.0) if robust else dist.Normal(mu[group], 1.0)
        numpyro.sample("y", noise, obs=y)

    target = from_numpyro(model, (group,), {"y": Y[:4], "robust": False})
    assert target.dim == 3
    xi = point(target)
    expected = norm.logpdf(xi).sum() + norm.logpdf(Y[:4], xi[group]).sum()
    np.testing.assert_allclose(log_density(target, xi), expected, rtol=1e-5)


@pytest.mark.parametrize("convert", [list, np.asarray, jnp.asarray, lambda y: y.astype(np.float32)])
def test_kinds_of_data(convert):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("n", len(y)) as index:
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])

    target = from_numpyro(model, data={"y": convert(Y)})
    np.testing.assert_array_equal(target.observed["y"], Y)
    assert target.observed["y"].dtype == np.float32
    expected = norm.logpdf(0.5) + norm.logpdf(Y, 0.5).sum()
    np.testing.assert_allclose(log_density(target, jnp.array([0.5])), expected, rtol=1e-6)


def test_models_may_ask_for_a_key():
    def model():
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        assert numpyro.prng_key() is not None

    np.testing.assert_allclose(
        log_density(from_numpyro(model), jnp.array([0.5])), norm.logpdf(0.5), rtol=1e-6
    )
