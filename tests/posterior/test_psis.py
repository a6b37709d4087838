"""Pareto smoothing and resampling against tails and weights that are known."""

import warnings

import numpy as np
import pytest
from scipy.special import logsumexp

from dmvi.posterior._psis import resample, smooth


def pareto_log_weights(k: float, n: int, seed: int) -> np.ndarray:
    """Logarithms of w = U^-k, a Pareto variable of tail index k exactly."""
    return -k * np.log(np.random.default_rng(seed).uniform(size=n))


@pytest.mark.parametrize("k", [0.2, 0.5, 0.7, 1.0, 1.5])
def test_khat_is_the_index_of_a_pareto_tail(k):
    khats = [smooth(pareto_log_weights(k, 20_000, seed))[1] for seed in range(8)]
    # 424 tail draws give each estimate a standard error of about (1 + k) / sqrt(424).
    assert np.mean(khats) == pytest.approx(k, abs=3 * (1 + k) / np.sqrt(8 * 424))
    assert np.std(khats) < 2 * (1 + k) / np.sqrt(424)


def test_khat_of_the_opposite_sign_differs():
    """psislw negates its input: log-weights passed as they are would be judged by their lower tail."""
    log_w = pareto_log_weights(1.0, 20_000, 0)
    assert smooth(log_w)[1] > 0.9
    assert smooth(-log_w)[1] < 0.0


def test_khat_does_not_depend_on_the_scale_of_the_weights():
    log_w = pareto_log_weights(0.6, 20_000, 1)
    assert smooth(log_w - 1e4)[1] == pytest.approx(smooth(log_w)[1], abs=1e-6)


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-5])
def test_equal_weights_have_no_tail_and_raise_no_warning(noise):
    rng = np.random.default_rng(0)
    log_w = (-31.4 + noise * rng.normal(size=20_000)).astype(np.float32).astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smoothed, khat = smooth(log_w)
    assert khat == 0.0
    np.testing.assert_allclose(np.exp(smoothed), 1 / 20_000, rtol=1e-3)


def test_bounded_weights_of_two_values_have_no_tail():
    """Proposing from a box twice as wide as the target's gives weights 0 and 2 only."""
    log_w = np.where(np.arange(20_000) % 2 == 0, np.log(2.0), -np.inf)
    smoothed, khat = smooth(log_w)
    assert khat == 0.0
    assert np.all(smoothed[1::2] == -np.inf)


def test_smoothed_weights_sum_to_one_and_keep_the_bulk():
    log_w = pareto_log_weights(0.6, 20_000, 2)
    smoothed, _ = smooth(log_w)
    assert logsumexp(smoothed) == pytest.approx(0.0, abs=1e-9)
    bulk = log_w < np.quantile(log_w, 0.9)
    differences = (smoothed - log_w)[bulk]
    assert np.ptp(differences) < 1e-9
    assert np.all(np.argsort(smoothed[~bulk], kind="stable") == np.argsort(log_w[~bulk], kind="stable"))


def test_weights_that_are_not_finite_count_as_zero():
    log_w = pareto_log_weights(0.3, 20_000, 3)
    spoilt = log_w.copy()
    spoilt[:10], spoilt[10:20] = -np.inf, np.nan
    smoothed, khat = smooth(spoilt)
    assert np.all(smoothed[:20] == -np.inf)
    assert khat == pytest.approx(smooth(log_w)[1], abs=0.05)


@pytest.mark.parametrize(
    "log_w",
    [
        np.full(1000, -np.inf),
        np.array([0.0, 1.0, 5.0]),
        np.where(np.arange(20_000) < 3, 5.0, -np.inf),
        np.where(np.arange(20_000) < 50, np.arange(20_000), -np.inf),
    ],
    ids=["none positive", "three draws", "three of many positive", "fewer positive than the tail needs"],
)
def test_khat_is_infinite_where_no_tail_can_be_fitted(log_w):
    smoothed, khat = smooth(log_w)
    assert khat == np.inf
    assert logsumexp(smoothed) == pytest.approx(0.0, abs=1e-9)


def test_systematic_resampling_takes_each_draw_as_often_as_its_weight_says():
    rng = np.random.default_rng(0)
    log_w = rng.normal(size=500)
    weights = np.exp(log_w) / np.exp(log_w).sum()
    counts = np.bincount(resample(log_w, 2000, rng), minlength=500)
    assert counts.sum() == 2000
    assert np.all(np.abs(counts - 2000 * weights) < 1 + 1e-9)


def test_equal_weights_repeat_no_draw():
    indices = resample(np.zeros(16_000), 4000, np.random.default_rng(1))
    assert len(np.unique(indices)) == 4000
    # Random order: half of the result already covers the pool evenly.
    assert indices[:2000].mean() == pytest.approx(8000, abs=400)


def test_resampling_never_takes_a_draw_of_weight_zero():
    log_w = np.full(1000, -np.inf)
    log_w[[0, 400, 999]] = 0.0
    assert set(resample(log_w, 300, np.random.default_rng(2)).tolist()) == {0, 400, 999}
