"""Estimates from importance weights against closed forms."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from dmvi._clock import Clock
from dmvi._interrupt import Interrupt
from dmvi._run import Status
from dmvi.objectives import chunk_size
from dmvi.posterior import Diagnostics, Posterior
from dmvi.posterior._diagnostics import CARE, DRAWS, MORE_DRAWS, weigh
from dmvi.posterior._draws import Draws
from tests.posterior.gaussians import LOG_EVIDENCE, ScaledGaussian, a_run, gaussian_target


def kl_of_stretch(stretch: float, dim: int = 3) -> float:
    """KL(N(0, stretch^2 S) || N(0, S)) = dim (stretch^2 - 1 - 2 log stretch) / 2."""
    return dim * (stretch**2 - 1 - 2 * np.log(stretch)) / 2


def ess_of_stretch(stretch: float, dim: int = 3) -> float:
    """1 / E_q[(p/q)^2] = (sqrt(2 stretch^2 - 1) / stretch^2)^dim."""
    return (np.sqrt(2 * stretch**2 - 1) / stretch**2) ** dim


@pytest.mark.parametrize("stretch", [0.9, 1.0, 1.1, 1.4])
def test_elbo_evidence_and_ess_of_a_gaussian(stretch):
    d = Posterior(gaussian_target(), ScaledGaussian(stretch), a_run(), jax.random.key(1)).diagnostics
    assert d.draws == 20_000
    assert d.non_finite == 0
    assert d.elbo == pytest.approx(LOG_EVIDENCE - kl_of_stretch(stretch), abs=4 * d.elbo_se + 1e-5)
    assert d.log_evidence == pytest.approx(LOG_EVIDENCE, abs=4 * d.log_evidence_se + 1e-5)
    assert d.gap == pytest.approx(kl_of_stretch(stretch), abs=4 * (d.elbo_se + d.log_evidence_se) + 1e-5)
    assert d.ess == pytest.approx(ess_of_stretch(stretch), abs=0.02)


def test_the_mean_weight_is_unbiased_and_its_standard_error_is_right():
    """Over many batches the mean weight is the evidence, and errors spread as `log_evidence_se` says."""
    draws = Draws(gaussian_target(), ScaledGaussian(1.3, shift=0.2))
    log_w = draws.weigh(jax.random.key(7), 100_000).log_w.reshape(200, 500)
    batches = [weigh(row) for row in log_w]
    evidence = np.exp([batch.log_evidence for batch in batches])
    spread = evidence.std(ddof=1)
    assert evidence.mean() == pytest.approx(np.exp(LOG_EVIDENCE), abs=4 * spread / np.sqrt(200))
    claimed = np.mean([batch.log_evidence_se for batch in batches])
    assert claimed == pytest.approx(spread / np.exp(LOG_EVIDENCE), rel=0.15)


def test_formulas_on_three_weights():
    weights = np.array([1.0, 2.0, 5.0])
    result = weigh(np.log(weights) + 100)
    assert result.ess == pytest.approx(8.0**2 / (3 * 30.0))
    assert result.log_evidence == pytest.approx(np.log(8 / 3) + 100)
    assert result.log_evidence_se == pytest.approx(weights.std(ddof=1) / (8 / 3) / np.sqrt(3))
    assert result.elbo == pytest.approx(np.log(weights).mean() + 100)


def test_weights_that_are_not_finite_count_as_zero_in_evidence_and_ess():
    weights = np.array([1.0, 2.0, 5.0, 0.0])
    result = weigh(np.array([0.0, np.log(2.0), np.log(5.0), np.nan]))
    assert result.non_finite == 1
    assert result.log_evidence == pytest.approx(np.log(8 / 4))
    assert result.log_evidence_se == pytest.approx(weights.std(ddof=1) / 2 / np.sqrt(4))
    assert result.ess == pytest.approx(64 / (4 * 30))
    assert result.elbo == pytest.approx(np.log(10) / 3)


def test_no_finite_weight_at_all_is_no_crash():
    result = weigh(np.full(100, np.nan))
    assert (result.elbo, result.ess, result.khat, result.non_finite) == (-np.inf, 0.0, np.inf, 100)


def test_khat_tells_a_narrow_guide_from_a_wide_one():
    """Weights of N(0, stretch^2) for N(0, 1) have tail index 1 - stretch^2, bounded from stretch 1 on."""
    target = gaussian_target()
    narrow = Posterior(target, ScaledGaussian(0.25), a_run(), jax.random.key(0)).diagnostics
    wide = Posterior(target, ScaledGaussian(1.3), a_run(), jax.random.key(0)).diagnostics
    assert narrow.khat > 0.7
    assert wide.khat < 0.1


@pytest.mark.parametrize(("stretch", "draws"), [(0.9, DRAWS), (0.45, MORE_DRAWS)])
def test_where_khat_leaves_it_open_more_draws_are_weighed(stretch, draws):
    """Narrower by `stretch`, weights have the tail index 1 - stretch^2: 0.19 is clear, 0.80 is not."""
    posterior = Posterior(gaussian_target(), ScaledGaussian(stretch), a_run(), jax.random.key(0))
    assert posterior.diagnostics.draws == posterior.log_weights.size == draws
    again = posterior._draws.weigh(posterior._diagnostics_key, DRAWS).log_w
    np.testing.assert_array_equal(posterior.log_weights[:DRAWS], again)


def test_round_trip_error_is_the_error_of_the_density():
    target = gaussian_target()
    right = Posterior(target, ScaledGaussian(), a_run(), jax.random.key(0)).diagnostics
    wrong = Posterior(target, ScaledGaussian(error=0.25), a_run(), jax.random.key(0)).diagnostics
    assert right.round_trip_error < 1e-4
    assert right.round_trip_misses == 0
    assert wrong.round_trip_error == pytest.approx(0.25, abs=1e-4)
    assert wrong.round_trip_misses == 1


def test_a_failed_inversion_is_an_infinite_error():
    d = Posterior(
        gaussian_target(), ScaledGaussian(error=float("nan")), a_run(), jax.random.key(0)
    ).diagnostics
    assert d.round_trip_error == np.inf
    assert d.non_finite == d.draws


def test_draws_with_a_density_that_is_not_finite_are_counted():
    d = Posterior(gaussian_target(holes=0.01), ScaledGaussian(), a_run(), jax.random.key(0)).diagnostics
    assert d.non_finite == pytest.approx(200, abs=60)
    assert d.log_evidence == pytest.approx(LOG_EVIDENCE + np.log(0.99), abs=0.004)
    assert np.isfinite(d.elbo)


def test_the_record_of_the_run_is_kept_and_nothing_can_be_changed():
    d = Posterior(
        gaussian_target(), ScaledGaussian(), a_run(Status.TIME_LIMIT), jax.random.key(0)
    ).diagnostics
    assert (d.status, d.steps, d.seconds, d.skipped, d.warm_start) == (
        Status.TIME_LIMIT,
        2000,
        12.5,
        0,
        "laplace",
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        d.elbo = 0.0  # pyright: ignore[reportAttributeAccessIssue]


def test_to_dict_survives_strict_json():
    d = Posterior(
        gaussian_target(), ScaledGaussian(error=float("nan")), a_run(), jax.random.key(0)
    ).diagnostics
    read = json.loads(json.dumps(d.to_dict(), allow_nan=False))
    assert read["status"] == "CONVERGED"
    assert float(read["khat"]) == np.inf
    assert read["draws"] == 20_000


def test_chunks_shrink_with_dimension_and_data_but_always_divide_the_usual_numbers():
    assert chunk_size(5000, None) < chunk_size(500, None) < chunk_size(10, None)
    assert chunk_size(10, 1_000_000) < chunk_size(10, 8)
    assert all(4000 % chunk_size(dim, size) == 0 for dim in (1, 60, 102, 5000) for size in (None, 10_000))


def test_slow_draws_are_weighed_in_pieces_with_the_same_result():
    """A piece takes a second at most; and there are as many of them as there is time for."""
    quick, slow = (Draws(gaussian_target(), ScaledGaussian(0.9), seconds) for seconds in (0.0, 0.03))
    whole = quick.weigh(jax.random.key(0), 500)
    np.testing.assert_allclose(slow.weigh(jax.random.key(0), 500).log_w, whole.log_w, atol=1e-5)
    asked = []

    def goes_on():
        asked.append(None)
        return len(asked) < 3

    few = slow.weigh(jax.random.key(0), 500, goes_on=goes_on)
    assert len(few.log_w) == len(few.xi) == 75
    np.testing.assert_allclose(few.log_w, whole.log_w[:75], atol=1e-5)
    assert len(slow.weigh(jax.random.key(0), 500, goes_on=lambda: False).log_w) == 25


@pytest.mark.parametrize(
    ("seconds", "draws"), [(0.0, DRAWS), (0.01, DRAWS), (0.05, 6000), (10.0, CARE.fewest)]
)
def test_without_a_time_limit_slow_draws_are_fewer(seconds, draws):
    run = dataclasses.replace(a_run(), gradient_seconds=seconds)
    posterior = Posterior(gaussian_target(), ScaledGaussian(0.9), run, jax.random.key(0))
    assert posterior.diagnostics.draws == len(posterior.log_weights) == draws
    # Where more would not be patient enough, doubt is left as it is.
    doubtful = Posterior(gaussian_target(), ScaledGaussian(0.45), run, jax.random.key(0))
    assert doubtful.diagnostics.draws == (MORE_DRAWS if seconds == 0 else draws)


def test_diagnostics_within_a_limit_leave_out_what_there_is_no_time_for():
    run = dataclasses.replace(a_run(), gradient_seconds=0.03, gradients=123)
    posterior = Posterior(gaussian_target(), ScaledGaussian(0.9), run, jax.random.key(0))
    posterior.judge_within(Clock(1.0, used=2.0), Interrupt())
    found = posterior.diagnostics
    assert (found.draws, found.gradients) == (25, 123)
    assert np.isnan(found.rounding)
    assert posterior.verdict.name == "DO_NOT_TRUST"
    assert Diagnostics.from_dict(json.loads(json.dumps(found.to_dict()))).draws == 25


def test_draws_are_fewer_where_each_is_wide():
    """All of them up to 2,000 dimensions; above, 80 million numbers, and 1,000 draws at least."""
    assert CARE.draws(2000, 0.0) > MORE_DRAWS
    assert CARE.draws(4000, 0.0) == DRAWS
    assert CARE.draws(20_000, 0.0) == 4000
    assert CARE.draws(10**6, 0.0) == 1000
    assert CARE.draws(20_000, 0.2) == 1500  # five minutes
