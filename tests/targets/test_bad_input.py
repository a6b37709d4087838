"""Every mistake a user can make is told before training, with its place and a way out."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints

import dmvi
from dmvi._errors import InputError
from dmvi.targets import Target, as_target, from_log_density, from_numpyro
from tests.targets.models import SIGMA, Y, eight_schools


def refuses(*words, model, args=(), data=None):
    """The message holds every one of the words; the error is the one users catch."""
    with pytest.raises(InputError) as caught:
        from_numpyro(model, args, data)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    return caught.value


# Arguments.


@pytest.mark.parametrize("values", [[3_000_000_000, 1], np.array([-(2**40)]), np.array([2**33], np.uint64)])
def test_integers_that_jax_would_wrap_around(values):
    def model(y):
        numpyro.sample("y", dist.Poisson(numpyro.sample("rate", dist.Exponential(1.0))), obs=y)

    refuses("'y'", "beyond the", "pass floats", model=model, data={"y": values})


def test_floats_that_single_precision_would_call_infinite():
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    refuses("'y'", "1e+39", "float32", "rescale", model=model, data={"y": np.array([1.0, -1e39, np.inf])})
    refuses("'y'", "1e+300", model=model, data={"y": [1.0, 1e300]})
    with pytest.raises(InputError, match="datasets"):
        dmvi.fit_many(model, {"y": np.array([[1.0], [1e39]])}, progress=False)


def test_unknown_keyword_lists_the_known_and_suggests_the_closest():
    refuses(
        "'sigmas'",
        "'sigma', 'y'",
        "Did you mean 'sigma'?",
        model=eight_schools,
        data={"sigmas": SIGMA, "y": Y},
    )


def test_unknown_keyword_that_differs_by_case():
    refuses("Did you mean 'y'?", model=eight_schools, args=(SIGMA,), data={"Y": Y})


def test_missing_argument():
    refuses("misses 'sigma'", "eight_schools(sigma, y=None)", model=eight_schools, data={"y": Y})


def test_argument_given_twice():
    refuses("multiple values", "'sigma'", model=eight_schools, args=(SIGMA,), data={"sigma": SIGMA, "y": Y})


def test_too_many_arguments():
    refuses("too many positional arguments", model=eight_schools, args=(SIGMA, Y, 3))


def test_args_and_data_of_the_wrong_kind():
    refuses("tuple", "ndarray", "args=(y,)", model=eight_schools, args=SIGMA)
    refuses("dict", "ndarray", model=eight_schools, data=SIGMA)


def test_keyword_arguments_of_wrapped_and_variadic_models():
    wrapped = handlers.reparam(eight_schools, config={})
    refuses("'sigmma'", "'sigma'", model=wrapped, data={"sigmma": SIGMA})
    refuses("'sigmma'", model=functools.partial(eight_schools, y=Y), data={"sigmma": SIGMA})
    variadic = from_numpyro(lambda **data: eight_schools(**data), data={"sigma": SIGMA, "y": Y})
    assert variadic.dim == 10


def test_labels_are_no_numbers():
    refuses(
        "'y'",
        "numbers were expected",
        "integers",
        model=eight_schools,
        args=(SIGMA,),
        data={"y": np.array(["a", "b"])},
    )


# Data.


def test_shape_that_does_not_fit_names_the_site():
    refuses("'y'", "(7,)", "(8,)", model=eight_schools, args=(SIGMA,), data={"y": Y[:7]})


def test_column_of_data_does_not_become_a_matrix():
    """Values (8, 1) against a distribution (8,) would broadcast to 64 terms without an error."""
    refuses("'y'", "(8, 1)", "(8,)", model=eight_schools, args=(SIGMA,), data={"y": Y[:, None]})


def test_shapes_that_do_not_fit_inside_the_model_name_line_and_shapes():
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    error = refuses(
        "test_bad_input.py", "x (5, 2)", "y (5,)", model=model, data={"x": np.ones((5, 2)), "y": np.ones(5)}
    )
    assert isinstance(error.__cause__, TypeError)


def test_plate_that_does_not_fit_names_the_site():
    def model(y):
        with numpyro.plate("n", 5):
            numpyro.sample("theta", dist.Normal(jnp.zeros(8), 1.0))

    error = refuses("at site 'theta'", "y (8,)", model=model, data={"y": Y})
    assert isinstance(error.__cause__, ValueError)


def test_nan_in_the_observations():
    y = Y.copy()
    y[[1, 4]] = np.nan
    refuses("'y' holds 2 NaN entries", "site 'y'", "mask", model=eight_schools, args=(SIGMA,), data={"y": y})


def test_gap_in_a_list_is_nan():
    y = [28.0, None, *Y[2:]]
    refuses("'y' holds 1 NaN entry", "site 'y'", model=eight_schools, args=(SIGMA,), data={"y": y})


def test_infinite_covariate():
    sigma = SIGMA.copy()
    sigma[0] = np.inf
    refuses("'sigma' holds 1 infinite entry", "site 'y'", model=eight_schools, args=(sigma,), data={"y": Y})


@pytest.mark.parametrize(
    ("likelihood", "y", "number"),
    [
        (lambda rate: dist.Poisson(rate), [3.0, -1.0, 2.0], "1 observed value "),
        (lambda rate: dist.Poisson(rate), [3.0, 1.5, 2.5], "2 observed values "),
        (lambda rate: dist.HalfNormal(rate), [3.0, -1.0, 2.0], "1 observed value "),
        (lambda rate: dist.Bernoulli(logits=rate), [0, 1, 2], "1 observed value "),
        (lambda rate: dist.Uniform(0.0, 1.0).expand([3]).to_event(1), [0.5, 0.5, 2.0], "1 observed value "),
    ],
    ids=["negative count", "fractional count", "half normal", "bernoulli", "uniform"],
)
def test_observations_outside_the_support(likelihood, y, number):
    """Most of NumPyro's densities are finite there, so the density alone would be silently wrong."""

    def model(y):
        rate = numpyro.sample("rate", dist.Exponential(1.0))
        numpyro.sample("y", likelihood(rate), obs=y)

    refuses("'y'", number, "outside the support", model=model, data={"y": np.array(y)})


def test_masked_observations_may_be_outside_the_support():
    def model(y):
        rate = numpyro.sample("rate", dist.Exponential(1.0))
        with numpyro.plate("n", 3), handlers.mask(mask=y >= 0):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    assert from_numpyro(model, data={"y": np.array([3, -1, 2])}).dim == 1


def test_support_that_moves_with_a_latent_needs_one_start_inside():
    def model(y):
        top = numpyro.sample("top", dist.Exponential(0.1))
        numpyro.sample("y", dist.Uniform(0.0, top), obs=y)

    target = from_numpyro(model, data={"y": np.array([0.5, 1.5])})
    values = jax.jit(jax.vmap(target.log_density))(np.log([[1.0], [2.0]]))
    assert values[0] == -jnp.inf
    np.testing.assert_allclose(values[1], np.log(0.1) - 0.2 + np.log(2.0) - 2 * np.log(2.0), rtol=1e-5)
    pointwise = jax.jit(target.log_likelihood)(np.zeros(1))["y"]
    np.testing.assert_array_equal(pointwise, [0.0, -np.inf])


# Models.


def test_discrete_latent():
    def model(y):
        k = numpyro.sample("k", dist.Categorical(jnp.ones(2) / 2), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(jnp.array([0.0, 1.0])[k], 1.0), obs=y)

    refuses("'k'", "discrete", "MixtureSameFamily", model=model, data={"y": Y})


def test_discrete_imputation():
    def model(y):
        rate = numpyro.sample("rate", dist.Exponential(1.0))
        numpyro.sample("y", dist.Poisson(rate), obs=y, obs_mask=np.array([True, False]))

    refuses("'y_unobserved'", "handlers.mask", model=model, data={"y": np.array([1, 2])})


def test_no_latents():
    refuses(
        "no latent sites",
        "init",
        model=lambda y: numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y),
        args=(Y,),
    )


def test_support_without_a_bijection():
    support = constraints.positive_definite_circulant_vector
    refuses("'x'", "reparam", model=lambda: numpyro.sample("x", dist.ImproperUniform(support, (), (4,))))


def test_delta_latent():
    refuses("'x'", "numpyro.deterministic", model=lambda: numpyro.sample("x", dist.Delta(1.0)))


def test_latent_inside_a_subsampled_plate():
    def model(y):
        with numpyro.plate("n", 8, subsample_size=2) as index:
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y[index])

    refuses("'theta'", "'n'", "Drop subsample_size", model=model, data={"y": Y})


def test_subsample_larger_than_its_plate():
    def model():
        with numpyro.plate("n", 4, subsample_size=9):
            numpyro.sample("x", dist.Normal(0.0, 1.0))

    refuses("'n'", "9", "4", model=model)


def test_density_that_is_nowhere_finite_names_the_sites():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("hard", jnp.where(x > 100.0, 0.0, -jnp.inf))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    error = refuses("not finite at any of 100 starts", "'hard'", model=model, data={"y": Y})
    assert "'y'" not in str(error)


def test_gradient_that_is_nowhere_finite():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("kink", jnp.where(x > 100.0, 0.0, jnp.sqrt(0.0 * x)))

    refuses("gradient", "sqrt", model=model)


def test_density_finite_at_some_starts_is_enough():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("hard", jnp.where(x > 1.5, 0.0, -jnp.inf))

    assert from_numpyro(model).dim == 1


def test_param_outside_its_constraint():
    def model():
        scale = numpyro.param("scale", -1.0, constraint=constraints.positive)
        numpyro.sample("x", dist.Normal(scale, 1.0))

    refuses("'scale'", "constraint", "init_value", model=model)


def test_python_branch_on_a_latent():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        if x > 0:
            numpyro.sample("z", dist.Normal(x, 1.0))

    refuses("TracerBoolConversionError", "jax.numpy", "test_bad_input.py", model=model)


def test_fault_of_the_model_itself_keeps_its_cause():
    def model(y):
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        raise KeyError("groups")

    error = refuses("KeyError", "groups", model=model, data={"y": Y})
    assert isinstance(error.__cause__, KeyError)


def test_error_leaves_no_handler_behind():
    """NumPyro keeps a global stack; after a failed model the next one has to find it empty."""
    from numpyro.primitives import _PYRO_STACK

    test_fault_of_the_model_itself_keeps_its_cause()
    assert _PYRO_STACK == []


# The dispatcher.


def test_dispatch():
    target = as_target(eight_schools, args=(SIGMA,), data={"y": Y})
    assert isinstance(target, Target)
    assert as_target(target) is target
    assert as_target(lambda x: -jnp.sum(x**2), init=np.zeros(3)).dim == 3


@pytest.mark.parametrize("model", [3, "model.py", {"mu": 0.0}])
def test_dispatch_names_the_accepted_types(model):
    with pytest.raises(
        InputError, match=rf"Target, a NumPyro model .* JAX log-density .*{type(model).__name__}"
    ):
        as_target(model)


def test_dispatch_refuses_what_does_not_belong():
    target = from_log_density(lambda x: -jnp.sum(x**2), 0.0)
    with pytest.raises(InputError, match="holds its data already"):
        as_target(target, data={"y": Y})
    with pytest.raises(InputError, match="close over the data"):
        as_target(lambda x: -jnp.sum(x**2), data={"y": Y}, init=0.0)
    with pytest.raises(InputError, match="drop it for a NumPyro model"):
        as_target(lambda point: eight_schools(SIGMA, Y), init={"mu": 0.0})
    with pytest.raises(InputError, match="pass init"):
        as_target(lambda x: -jnp.sum(x**2))


def test_no_model_at_all():
    with pytest.raises(InputError, match=r"no model to fit; give one, or call fit\(\) inside"):
        as_target(None)
