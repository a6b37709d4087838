"""The verdict case by case."""

import dataclasses

import jax
import pytest

from dmvi._run import Status
from dmvi.posterior import Diagnostics, Posterior, Verdict
from dmvi.posterior._verdict import judge
from tests.posterior.gaussians import ScaledGaussian, a_run, gaussian_target

GOOD = Diagnostics(
    elbo=-31.41,
    elbo_se=0.001,
    log_evidence=-31.4,
    log_evidence_se=0.002,
    khat=0.4,
    ess=0.97,
    non_finite=0,
    draws=20_000,
    round_trip_error=1e-4,
    round_trip_misses=0.0,
    status=Status.CONVERGED,
    steps=4000,
    seconds=20.0,
    skipped=0,
    warm_start="full-rank",
)


@pytest.mark.parametrize(
    ("changes", "verdict", "word"),
    [
        ({}, Verdict.TRUST, "even"),
        # k-hat of weights that differ in the third digit says nothing about the draws.
        ({"ess": 0.999, "khat": 1.08}, Verdict.TRUST, "does not matter"),
        ({"ess": 0.7}, Verdict.RESAMPLE, "correct"),
        ({"ess": 0.03, "khat": 0.69}, Verdict.RESAMPLE, "correct"),
        ({"ess": 0.01, "khat": 0.69}, Verdict.DO_NOT_TRUST, "200 of 20,000"),
        # However many have been weighed, draws are resampled out of 20,000.
        ({"ess": 0.01, "khat": 0.69, "draws": 80_000}, Verdict.DO_NOT_TRUST, "200 of 20,000"),
        # The centred eight schools with a Gaussian base: a tiny gap, yet the tails are missing.
        ({"ess": 0.94, "khat": 1.0}, Verdict.DO_NOT_TRUST, "tails do not"),
        ({"ess": 0.28, "khat": 1.16}, Verdict.DO_NOT_TRUST, "too much weight"),
        ({"khat": float("inf"), "ess": 0.0}, Verdict.DO_NOT_TRUST, "weight"),
        ({"khat": float("nan"), "ess": 0.95}, Verdict.DO_NOT_TRUST, "tails"),
        # Of few draws k-hat is less certain: 0.65 is above 0.7 by as much as its error is larger.
        ({"khat": 0.65, "draws": 1000}, Verdict.DO_NOT_TRUST, "too uncertain"),
        ({"khat": 0.4, "draws": 1000}, Verdict.TRUST, "even"),
        ({"khat": 0.4, "draws": 249}, Verdict.DO_NOT_TRUST, "249 draws only"),
        ({"ess": 0.999, "khat": 0.0, "draws": 249}, Verdict.DO_NOT_TRUST, "too few to judge"),
        ({"non_finite": 21}, Verdict.DO_NOT_TRUST, "not finite"),
        ({"non_finite": 21, "ess": 1.0}, Verdict.DO_NOT_TRUST, "not finite"),
        ({"round_trip_misses": 0.02, "round_trip_error": 3.0}, Verdict.DO_NOT_TRUST, "inverting"),
    ],
)
def test_verdict(changes, verdict, word):
    judgement = judge(dataclasses.replace(GOOD, **changes))
    assert judgement.verdict is verdict
    assert word in judgement.reasons[0]


@pytest.mark.parametrize(
    "changes", [{"ess": 0.2, "khat": 1.2}, {"non_finite": 900}, {"round_trip_misses": 0.5}]
)
@pytest.mark.parametrize("status", list(Status))
def test_whoever_is_told_not_to_trust_is_told_what_to_do(changes, status):
    assert judge(dataclasses.replace(GOOD, status=status, **changes)).advice


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (Status.STEP_LIMIT, "more steps"),
        (Status.TIME_LIMIT, "time_limit"),
        (Status.INTERRUPTED, "run to its end"),
        (Status.DIVERGED, "reparameterise"),
    ],
)
def test_the_advice_follows_why_training_ended(status, word):
    bad = dataclasses.replace(GOOD, status=status, ess=0.2, khat=1.2)
    assert word in judge(bad).advice[0]


@pytest.mark.parametrize("status", list(Status))
def test_good_weights_are_trusted_however_training_ended(status):
    judgement = judge(dataclasses.replace(GOOD, status=status))
    assert judgement.verdict is Verdict.TRUST
    assert judgement.advice == ()


def test_what_there_was_no_time_for_is_told():
    judgement = judge(dataclasses.replace(GOOD, missed=float("nan"), rounding=float("nan")))
    assert judgement.verdict is Verdict.TRUST
    assert "no time to see whether modes" in judgement.reasons[1]
    assert "longer time_limit" in judge(dataclasses.replace(GOOD, draws=100)).advice[0]


def test_small_faults_are_remarked_upon_without_changing_the_verdict():
    judgement = judge(dataclasses.replace(GOOD, non_finite=20, round_trip_misses=0.004, skipped=1000))
    assert judgement.verdict is Verdict.TRUST
    text = " ".join(judgement.reasons[1:])
    assert "20 of 20,000" in text
    assert "0.4 %" in text
    assert "1,000 of 4,000 updates" in text


@pytest.mark.parametrize(
    ("guide", "verdict"),
    [
        (ScaledGaussian(), Verdict.TRUST),
        (ScaledGaussian(1.3), Verdict.RESAMPLE),
        (ScaledGaussian(0.25), Verdict.DO_NOT_TRUST),
    ],
)
def test_posteriors_judge_themselves(guide, verdict):
    posterior = Posterior(gaussian_target(), guide, a_run(), jax.random.key(0))
    assert posterior.verdict is verdict
    first, *rest = repr(posterior).splitlines()
    assert first.startswith(verdict.value)
    for word in (
        "ELBO",
        "log evidence",
        "k-hat",
        "ESS",
        "12.5 s",
        "2,000 steps",
        "plateau",
        "laplace",
        "diffusion",
    ):
        assert any(word in line for line in rest), word


def test_noise_of_batches_is_named_where_training_saw_batches():
    bad = dataclasses.replace(GOOD, ess=0.2, khat=1.2, guide="diffusion")
    assert "larger guide" in " ".join(judge(bad).advice)
    on_batches = judge(dataclasses.replace(bad, rows_of_a_step=100, rows=2000)).advice
    assert "100 of 2,000 rows" in on_batches[0]
    assert "subsample_size" in on_batches[0]
    assert "larger guide" not in " ".join(on_batches)
    assert "more steps will not help" not in " ".join(on_batches)
    uneven = dataclasses.replace(GOOD, ess=0.5, rows_of_a_step=100, rows=2000)
    assert any("100 of 2,000 rows" in advice for advice in judge(uneven).advice)
    # A start that was kept owes nothing to batches.
    kept = dataclasses.replace(bad, rows_of_a_step=100, rows=2000, steps=0, status=Status.SETTLED)
    assert "larger guide" in " ".join(judge(kept).advice)


def test_a_slow_gradient_is_remarked_upon_without_changing_the_verdict():
    judgement = judge(dataclasses.replace(GOOD, gradient_seconds=0.012, rows=400_000))
    assert judgement.verdict is Verdict.TRUST
    assert "12 ms over 400,000 rows" in judgement.reasons[1]
    assert "batch_size" in judgement.reasons[1]
