"""What ranks of known posteriors say: uniform for exact ones, flagged for wrong ones, in the right words."""

import dataclasses

import numpy as np
import pytest

from dmvi.calibration import Calibration, rank_of

N, DRAWS, ROWS = 200, 999, 5
RNG = np.random.default_rng(0)
MU = RNG.normal(0.0, 2.0, (N, 2))  # mu ~ N(0, 2^2), y_i ~ N(mu, 1)
Y = MU[:, None, :] + RNG.normal(size=(N, ROWS, 2))
PRECISION = 1 / 4 + ROWS


def calibration(stretch: float = 1.0, shift: float = 0.0) -> Calibration:
    """Ranks among draws of the conjugate posterior, the second coordinate's sd stretched and mean shifted."""
    rng = np.random.default_rng(1)
    sd = PRECISION**-0.5 * np.array([1.0, stretch])
    mean = Y.sum(axis=1) / PRECISION + np.array([0.0, shift]) * PRECISION**-0.5
    ranks = np.stack([rank_of(MU[i], mean[i] + sd * rng.normal(size=(DRAWS, 2)), rng) for i in range(N)])
    return Calibration({"a": ranks[:, 0], "b": ranks[:, 1]}, {"a": ("a",), "b": ("b",)}, DRAWS)


def test_exact_posteriors_are_calibrated():
    found = calibration()
    assert found.calibrated
    assert min(found.p_values.values()) > 0.05
    assert found.coverage(0.9)["a"] == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / N))
    assert repr(found).startswith("No sign of miscalibration over the prior, in 2 quantities.")


@pytest.mark.parametrize(
    ("stretch", "shift", "words"),
    [(0.6, 0.0, "too narrow"), (1.8, 0.0, "too wide"), (1.0, 0.6, "too high"), (1.0, -0.6, "too low")],
)
def test_wrong_posteriors_are_flagged_and_named(stretch, shift, words):
    found = calibration(stretch, shift)
    good, bad = found.verdicts
    assert good.calibrated
    assert not bad.calibrated
    assert bad.p_value < 0.01
    assert bad.words.startswith(words)
    assert repr(found).startswith("Not calibrated over the prior: b.")


def test_curves_outside_the_bands_look_different():
    found = calibration(0.6)
    lines = [ax.lines[-1] for ax in found.plot_ecdf().axes]
    assert len({line.get_linestyle() for line in lines}) == 2
    assert [patch.get_hatch() for ax in found.plot_ranks().axes for patch in ax.patches[:1]] == [None, "//"]


def test_very_many_scalars_show_the_worst():
    ranks = {f"x[{i}]": np.random.default_rng(i).integers(0, DRAWS + 1, N) for i in range(70)}
    ranks["x[69]"] = np.full(N, 3)
    found = Calibration(ranks, {"x": tuple(ranks)}, DRAWS)
    titles = [ax.get_title() for ax in found.plot_ecdf().axes if ax.get_visible()]
    assert len(titles) == 64
    assert any(title.startswith("x[69]") for title in titles)


def test_too_many_failures_are_no_calibration_and_cut_fits_are_said():
    ranks = np.random.default_rng(0).integers(0, 1000, 200)
    fine = Calibration(ranks={"a": ranks}, sites={"a": ("a",)}, draws=999, failed=10, cut_short=3)
    assert fine.calibrated
    assert "3 fits were cut short" in repr(fine)
    failed = dataclasses.replace(fine, failed=11)
    assert not failed.calibrated
    assert repr(failed).startswith("Cannot be judged")
