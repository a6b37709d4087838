"""The lab benchmark's arithmetic; the measurements themselves take minutes and are not tests."""

import dataclasses

import numpy as np
import pytest

from benchmarks import lab, targets
from benchmarks.clock import Seen

GOOD = lab.GuideResult(
    seed=0,
    seconds=10.0,
    elbo=-0.004,
    log_evidence=0.0,
    khat=0.2,
    ess=0.98,
    round_trip_error=1e-4,
    steps=2000,
    needed=1600,
    status="converged",
    draw_seconds=0.1,
    density_seconds=0.5,
)
PEER = lab.PeerResult(seed=0, seconds=12.0, elbo=-0.03)
MACHINE = {"processor": "an abacus"}


def test_the_worst_seed_is_reported():
    slow = dataclasses.replace(GOOD, seed=1, seconds=11.0, elbo=-0.008, khat=0.4, ess=0.9)
    row = lab.summarise(targets.funnel(), [GOOD, slow], [PEER, dataclasses.replace(PEER, seconds=10.0)])
    assert (row.gap, row.khat, row.ess, row.seconds) == (0.008, 0.4, 0.9, 11.0)
    assert (row.peer_gap, row.peer_seconds) == (0.03, 12.0)
    assert row.ratio == pytest.approx(1.1)
    assert lab.misses(row) == []


def test_unknown_evidence_is_pooled_over_the_seeds():
    fits = [dataclasses.replace(GOOD, log_evidence=np.log(z), elbo=-1.0) for z in (1.0, 2.0, 6.0)]
    row = lab.summarise(targets.eight_schools(), fits, [])
    np.testing.assert_allclose(row.log_evidence, np.log(3.0), rtol=1e-6)
    np.testing.assert_allclose(row.gap, np.log(3.0) + 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"elbo": -0.016}, "gap"),
        ({"elbo": float("nan")}, "gap"),
        ({"khat": 0.7}, "k-hat"),
        ({"khat": float("nan")}, "k-hat"),
        ({"ess": 0.5}, "ESS"),
        ({"seconds": 15.0}, "time ratio"),
        ({"draw_seconds": 0.3}, "draws"),
        ({"density_seconds": 1.5}, "draws with density"),
        ({"needed": 1500}, "steps"),
    ],
)
def test_a_missed_bar_is_named(change, word):
    bad = dataclasses.replace(GOOD, seed=1, **change)
    row = lab.summarise(targets.funnel(), [GOOD, bad], [PEER, PEER])
    (miss,) = lab.misses(row)
    assert miss.startswith(f"funnel: {word} ")
    assert miss in lab.markdown([row], MACHINE, [0, 1])


def looks(gaps, steps):
    return [Seen(0.0, step, -gap, gap) for gap, step in zip(gaps, steps, strict=True)]


def test_steps_needed_are_those_after_which_the_gap_stays():
    assert lab.steps_needed(looks([4.0, 0.005, 0.2, 0.009, 0.004, 0.0], range(10, 61, 10)), 0.0) == 40
    assert lab.steps_needed(looks([0.02, 0.0], [10, 20]), 0.012) == 10
    assert lab.steps_needed(looks([3.0, 2.0, 1.0, 0.0, 0.0], [10, 20, 10, 20, 30]), 0.0) == 40  # it has grown
    assert lab.steps_needed(looks([0.0, float("nan")], [10, 20]), 0.0) == 20
    assert lab.steps_needed([], 0.0) == 1


def test_of_a_hard_target_only_gap_and_steps_are_judged():
    fit = dataclasses.replace(GOOD, elbo=-0.4, khat=1.0, ess=0.0, seconds=100.0)
    assert lab.misses(lab.summarise(targets.horseshoe(), [fit], [PEER])) == []
    fit = dataclasses.replace(fit, elbo=-0.6)
    assert lab.misses(lab.summarise(targets.horseshoe(), [fit], [PEER])) == ["horseshoe regression: gap 0.6"]


def test_a_target_without_bar_misses_nothing():
    assert lab.misses(lab.summarise(targets.ring(), [dataclasses.replace(GOOD, elbo=-5.0)], [])) == []


def test_every_row_of_the_table_has_every_column():
    rows = [lab.summarise(targets.funnel(), [GOOD], [PEER]), lab.summarise(targets.ring(), [GOOD], [])]
    table = [line for line in lab.markdown(rows, MACHINE, [0]).splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert {line.count("|") for line in table} == {len(lab.COLUMNS) + 1}
