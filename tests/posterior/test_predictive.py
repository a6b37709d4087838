"""Predictive draws, log-likelihoods and expectations against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import dmvi
from dmvi._errors import InputError
from dmvi.targets import as_target
from tests.posterior.models import DATA, X, Y, closed_form, line, quick_fit

DESIGN = np.stack([np.ones_like(X), X], axis=1)


def test_posterior_predictive_moments_at_the_data_of_the_fit():
    mean, covariance, _ = closed_form(DESIGN, Y)
    drawn = quick_fit("line").predictive(seed=3, n=20_000)
    assert set(drawn) == {"y", "mean"}
    assert drawn["y"].shape == (20_000, len(Y))
    sd = np.sqrt(1 + np.einsum("ij,jk,ik->i", DESIGN, covariance, DESIGN))
    np.testing.assert_allclose(drawn["y"].mean(axis=0), DESIGN @ mean, atol=5 * sd.max() / np.sqrt(20_000))
    np.testing.assert_allclose(drawn["y"].std(axis=0), sd, rtol=0.03)
    assert np.all(np.abs(drawn["y"] - drawn["mean"]).std(axis=0) > 0.5), "noise is drawn, not only the mean"


def test_predictions_at_new_data_of_another_length():
    mean, covariance, _ = closed_form(DESIGN, Y)
    drawn = quick_fit("line").predictive(seed=3, n=20_000, data={"x": np.array([10.0, -4.0])})
    design = np.array([[1.0, 10.0], [1.0, -4.0]])
    sd = np.sqrt(1 + np.einsum("ij,jk,ik->i", design, covariance, design))
    assert drawn["y"].shape == (20_000, 2)
    np.testing.assert_allclose(drawn["y"].mean(axis=0), design @ mean, atol=5 * sd.max() / np.sqrt(20_000))
    np.testing.assert_allclose(drawn["y"].std(axis=0), sd, rtol=0.03)


def test_prior_predictive_moments():
    drawn = quick_fit("line").predictive(seed=5, n=20_000, prior=True)
    np.testing.assert_allclose(drawn["y"].mean(axis=0), 0.0, atol=0.08)
    np.testing.assert_allclose(drawn["y"].std(axis=0), np.sqrt(2 + X**2), rtol=0.03)


def test_predictive_draws_go_with_the_draws_of_sample():
    posterior = quick_fit("line")
    draws, drawn = posterior.sample(50, seed=9), posterior.predictive(seed=9, n=50)
    expected = draws["a"][:, None] + draws["b"][:, None] * X[None, :]
    np.testing.assert_allclose(drawn["mean"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(drawn["y"], posterior.predictive(seed=9, n=50)["y"])


def test_log_likelihood_is_that_of_the_draws():
    posterior = quick_fit("line")
    draws, values = posterior.sample(50, seed=4), posterior.log_likelihood(50, seed=4)
    expected = norm.logpdf(Y[None], draws["mean"], 1.0)
    np.testing.assert_allclose(values["y"], expected, rtol=1e-4, atol=1e-5)


def test_expectation_and_its_error():
    mean, covariance, _ = closed_form(DESIGN, Y)
    posterior = quick_fit("line")
    estimates = [
        posterior.expectation(lambda d: {"b": d["b"], "square": d["b"] ** 2}, seed=s, n=4000)
        for s in range(30)
    ]
    values = np.array([estimate.value["b"] for estimate in estimates])
    errors = np.array([estimate.se["b"] for estimate in estimates])
    assert np.std(values) == pytest.approx(errors.mean(), rel=0.4), "the error is the scatter over seeds"
    assert abs(values.mean() - mean[1]) < 5 * errors.mean() / np.sqrt(30)
    square = np.mean([estimate.value["square"] for estimate in estimates])
    assert square == pytest.approx(covariance[1, 1] + mean[1] ** 2, rel=0.02)


def test_expectation_of_a_probability_is_a_float():
    found = quick_fit("line").expectation(lambda draw: draw["a"] > draw["b"])
    assert isinstance(found.value, float)
    assert 0 < found.value < 1
    assert 0 < found.se < 0.02


def test_new_data_with_unknown_names_or_new_groups_are_refused():
    def groups(index, y):
        with numpyro.plate("group", 1 + int(np.max(index))):
            level = numpyro.sample("level", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(jnp.asarray(level)[jnp.asarray(index)], 1.0), obs=y)

    target = as_target(groups, data={"index": np.array([0, 1, 1]), "y": np.zeros(3)})
    with pytest.raises(InputError, match="no argument 'indx'"):
        target.predictive({"indx": np.array([0])})
    with pytest.raises(InputError, match=r"'level' has shape \(3,\)"):
        target.predictive({"index": np.array([0, 2])})
    with pytest.raises(InputError, match="dict of named values"):
        target.predictive([1.0])  # pyright: ignore[reportArgumentType]


def test_models_without_observations_to_draw_say_so():
    target = as_target(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(2))
    with pytest.raises(InputError, match="NumPyro"):
        target.predictive()


def test_observations_broadcast_over_a_scalar_distribution_keep_their_number():
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("a", dist.Normal(0, 1)), 1.0), obs=y)

    target = as_target(model, data={"y": Y})
    drawn = target.predictive()(jax.random.key(0), jnp.zeros(1), {})
    assert drawn["y"].shape == Y.shape
    assert len(np.unique(np.asarray(drawn["y"]))) == len(Y)


def test_discrete_masked_and_subsampled_sites_can_be_predicted():
    def model(x, y, seen):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("n", len(x), subsample_size=2) as index, numpyro.handlers.mask(mask=seen[index]):
            numpyro.sample("y", dist.Poisson(jnp.exp(a * x[index])), obs=y[index])

    data = {"x": np.ones(5), "y": np.arange(5), "seen": np.array([True, True, False, True, True])}
    target = as_target(model, data=data)
    drawn = target.predictive()(jax.random.key(0), jnp.zeros(1), {})
    assert drawn["y"].shape == (5,)
    assert drawn["y"].dtype.kind == "i"


def test_data_given_by_position_can_be_replaced_by_name():
    posterior = quick_fit("line")
    target = as_target(line, args=(X, Y))
    keyed = as_target(line, data=DATA)
    assert set(target.constant) == set(keyed.constant) == {"x"}
    drawn = target.predictive({"x": np.zeros(2)})(jax.random.key(0), jnp.zeros(2), {})
    assert drawn["y"].shape == (2,)
    assert posterior.target.dim == 2
    assert isinstance(posterior, dmvi.Posterior)
