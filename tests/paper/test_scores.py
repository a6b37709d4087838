"""Scores of draws, on draws whose scores are known."""

import itertools

import numpy as np

from dmvi.paper import exact_posterior, paper_model
from dmvi.paper._exact import LEVELS
from dmvi.paper._scores import (
    Reference,
    error_of_mse,
    in_order,
    relabelled,
    score,
    squared_error,
    wasserstein,
)

DRAWS = 20_000


def gaussian_draws(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Draws at evenly spaced quantiles: no Monte Carlo error."""
    from scipy.stats import norm

    levels = (np.arange(DRAWS) + 0.5) / DRAWS
    return norm.ppf(levels)[:, None] * sd[None] + mean[None]


def mean_reference():
    model = paper_model("mean", "printed")
    y = np.random.default_rng(0).normal(size=(24, 5))
    exact = exact_posterior(model, y)
    assert exact is not None
    return model, exact


def test_a_shift_is_its_own_distance():
    _, exact = mean_reference()
    reference = Reference.from_exact(exact, np.zeros(5))
    shift = np.array([0.0, 0.1, -0.2, 0.3, 1.0])
    u = gaussian_draws(exact.mean + shift * exact.sd, exact.sd)
    np.testing.assert_allclose(wasserstein(u, reference), np.abs(shift), atol=2e-3)


def test_a_point_scores_half_on_average():
    """E (u - truth)^2 = sd^2 + (mean - truth)^2, and a point at the mean has the second term alone."""
    model, exact = mean_reference()
    truth = exact.mean + exact.sd  # one sd off, as it is on average
    exactly, _ = score(model, gaussian_draws(exact.mean, exact.sd), truth, Reference.from_exact(exact, truth))
    point, _ = score(
        model, gaussian_draws(exact.mean, 0 * exact.sd), truth, Reference.from_exact(exact, truth)
    )
    assert abs(exactly["mse_ratio"] - 1) < 1e-3
    assert abs(point["mse_ratio"] - 0.5) < 1e-3
    assert point["sd_ratio_most"] < 1e-9
    assert abs(exactly["sd_ratio_median"] - 1) < 1e-3


def test_coverage():
    model, exact = mean_reference()
    truth = exact.mean + exact.sd * np.array([0.0, 0.6, 0.7, 1.6, 1.7])
    whole, coordinates = score(
        model, gaussian_draws(exact.mean, exact.sd), truth, Reference.from_exact(exact, truth)
    )
    assert whole["cover50"] == 2 / 5
    assert whole["cover90"] == 4 / 5
    assert [entry["coordinate"] for entry in coordinates] == model.names
    np.testing.assert_allclose(coordinates[0]["q95"], exact.mean[0] + 1.645 * exact.sd[0], rtol=1e-3)


def test_relabelling_undoes_every_permutation():
    model, rng = paper_model("mixture", "printed"), np.random.default_rng(0)
    truth = 3 * rng.normal(size=12)
    u = truth[None] + 0.01 * rng.normal(size=(60, 12))
    parts = u.reshape(60, 2, 3, 2).copy()
    for i, order in zip(range(60), itertools.cycle(itertools.permutations(range(3))), strict=False):
        parts[i] = parts[i][:, list(order)]
    mixed = parts.reshape(60, 12)
    assert squared_error(mixed, truth) > 1
    np.testing.assert_array_equal(relabelled(model, mixed, truth), u)
    other = paper_model("mean", "printed")
    np.testing.assert_array_equal(relabelled(other, u[:, :5], truth[:5]), u[:, :5])


def test_components_in_order():
    """Whatever the labels, and without looking at a truth; pairs of location and scale stay together."""
    model = paper_model("mixture", "printed")
    loc = np.array([[[2.0, 0.1], [-1.0, 0.2], [0.5, 0.3]]])
    u = np.concatenate([loc, loc + 10], axis=1).reshape(1, 12)
    expected = np.array([-1.0, 0.2, 0.5, 0.3, 2.0, 0.1])
    np.testing.assert_array_equal(in_order(model, u), [np.concatenate([expected, expected + 10])])
    other = paper_model("mean", "printed")
    np.testing.assert_array_equal(in_order(other, u[:, :5]), u[:, :5])


def test_coverage_of_overlapping_components():
    """Truths from the posterior itself: their nearest labelling flatters intervals, an order does not."""
    model, rng = paper_model("mixture", "printed"), np.random.default_rng(1)
    draws = rng.normal(size=(1000, 12))
    reference = Reference.from_draws(draws, draws[0])
    shares = [score(model, draws, truth, reference)[0]["cover50"] for truth in rng.normal(size=(200, 12))]
    assert abs(np.mean(shares) - 0.5) < 3 * np.std(shares) / np.sqrt(200)


def test_a_reference_of_draws_survives_its_file():
    u = np.random.default_rng(0).normal(size=(1000, 3))
    reference = Reference.from_draws(u, np.zeros(3))
    again = Reference.from_dict(reference.to_dict())
    np.testing.assert_allclose(again.quantiles, reference.quantiles, atol=1e-6)
    np.testing.assert_allclose(again.mse, np.mean(u**2))
    assert again.quantiles.shape == (len(LEVELS), 3)
    assert np.all(wasserstein(u, again) < 1e-5)


def test_draws_that_are_not_finite_are_told():
    model, exact = mean_reference()
    u = gaussian_draws(exact.mean, exact.sd)
    u[3, 2] = np.nan
    whole, _ = score(model, u, exact.mean, Reference.from_exact(exact, exact.mean))
    assert whole["finite"] is False
    assert np.isnan(whole["mse"])
    assert np.isnan(whole["mse_error"])


def test_the_standard_error_of_the_mse():
    """Of independent draws sd / sqrt(n); draws that occur four times, or that stick, count for fewer."""
    rng, truth = np.random.default_rng(0), np.zeros(3)
    u = rng.normal(size=(4000, 3))
    expected = np.std(np.mean(u**2, axis=1)) / np.sqrt(4000)
    np.testing.assert_allclose(error_of_mse(u, truth), expected, rtol=0.3)
    repeated = rng.permutation(np.repeat(u[:1000], 4, axis=0))
    np.testing.assert_allclose(error_of_mse(repeated, truth), 2 * expected, rtol=0.1)
    sticking = np.repeat(u[:1000], 4, axis=0) + 1e-6 * rng.normal(size=(4000, 3))
    np.testing.assert_allclose(error_of_mse(sticking, truth), 2 * expected, rtol=0.3)
