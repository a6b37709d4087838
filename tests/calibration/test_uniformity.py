"""Bands and p-values of ranks against simulation."""

import numpy as np
import pytest
from scipy.stats import kstest

from dmvi.calibration import rank_of, simultaneous_bands, uniformity
from dmvi.calibration._uniformity import counts_below, holm


@pytest.mark.parametrize(("count", "draws"), [(20, 99), (200, 999), (150, 100)])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_bands_hold_all_of_a_uniform_function_with_their_level(count, draws, level):
    """4,000 simulated sets of ranks: the share inside is binomial around the level, or a step above it."""
    rng = np.random.default_rng(0)
    bands = simultaneous_bands(count, draws, level)
    inside = [
        bool(np.all((found >= bands.low) & (found <= bands.high)))
        for found in (counts_below(rng.integers(0, draws + 1, count), draws) for _ in range(4000))
    ]
    error = np.sqrt(level * (1 - level) / 4000)
    assert level - 4 * error < np.mean(inside) < level + 4 * error + 0.01


def test_p_values_of_uniform_ranks_are_uniform():
    rng = np.random.default_rng(1)
    found = [uniformity(rng.integers(0, 1000, 200), 999) for _ in range(300)]
    assert kstest(found, "uniform").pvalue > 0.01


def test_a_p_value_below_alpha_is_a_curve_outside_the_bands():
    """Ranks narrowed by every degree, so that many lie close to the edge."""
    rng, bands = np.random.default_rng(2), simultaneous_bands(100, 999, 0.95)
    outside, small = [], []
    for width in np.linspace(0.7, 1.3, 100):
        ranks = np.clip(500 + width * (rng.integers(0, 1000, 100) - 500), 0, 999).astype(int)
        found = counts_below(ranks, 999)
        outside.append(bool(np.any((found < bands.low) | (found > bands.high))))
        small.append(uniformity(ranks, 999) < 0.05)
    assert 10 < sum(outside) < 90
    assert np.mean(np.equal(outside, small)) >= 0.99


def test_gross_faults_have_tiny_p_values():
    assert uniformity(np.full(200, 500), 999) < 1e-20
    assert uniformity(np.zeros(200, int), 999) < 1e-20


def test_holm_is_never_below_the_raw_value_and_keeps_the_family_level():
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    rng = np.random.default_rng(3)
    wrong = [np.min(holm(rng.uniform(size=8))) < 0.05 for _ in range(4000)]
    assert np.mean(wrong) == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / 4000))


def test_ranks_count_draws_below_and_break_ties_evenly():
    rng = np.random.default_rng(4)
    assert rank_of(np.array(0.5), np.array([0.1, 0.2, 0.9]), rng) == 2
    tied = [int(rank_of(np.array(0.0), np.zeros(9), rng)) for _ in range(2000)]
    assert np.bincount(tied, minlength=10).min() > 140
    assert rank_of(np.array(0.5), np.array([np.nan, 0.2, np.inf]), rng) == 2
