"""The battery's truth is true, and its judge judges."""

import itertools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.battery import battery, mixture
from benchmarks.calibration import METHODS, cases
from benchmarks.calibration import markdown as table
from benchmarks.machine import describe_machine
from benchmarks.verdicts import errors_of, markdown, missed_modes, right
from dmvi._run import no_modes
from dmvi.targets import read_simulator

ROOT = Path(__file__).parents[2]
KNOWN = {case.name: case.known for case in battery() if not case.settings and case.known.sample is not None}


def test_there_are_enough_fits_of_every_kind():
    assert len(battery()) >= 40
    assert len({case.kind for case in battery()}) >= 7
    assert len({(case.kind, case.name) for case in battery()}) == len(battery())


@pytest.mark.parametrize("name", [name for name, known in KNOWN.items() if known.dim <= 10])
def test_samplers_are_exact(name):
    """E[grad log pi] = 0 and E[x_i d_i log pi] = -1 under the density's own draws."""
    known = KNOWN[name]
    assert known.sample is not None
    exact = known.sample(np.random.default_rng(0), 20_000)
    x = jnp.asarray(exact.astype(np.float32))
    score = np.asarray(jax.jit(jax.vmap(jax.grad(known.log_density)))(x), float)
    sizes = np.sqrt(np.mean(score**2, axis=0)) + 1e-12
    for values in (score / sizes, np.asarray(x, float) * score + 1):
        error = np.abs(values.mean(axis=0)) / (values.std(axis=0) / np.sqrt(len(values)))
        # Single precision, where means lie thousands of sds away or condition numbers are huge.
        assert np.all((error < 5) | (np.abs(values.mean(axis=0)) < 0.02)), error


def test_errors_and_missed_modes():
    known = mixture([[-10.0, 0.0], [10.0, 0.0]], [1.0, 1.0], [0.5, 0.5])
    assert known.sample is not None
    draws = known.sample(np.random.default_rng(1), 20_000)
    assert max(errors_of(known, draws)) < 0.05
    assert missed_modes(known, draws, no_modes()[:, 0]) == (0, 0)
    half = draws[draws[:, 0] < 0]
    assert errors_of(known, half)[0] > 0.9
    assert missed_modes(known, half, no_modes()[:, 0]) == (1, 0)
    assert missed_modes(known, half, np.array([[9.8, 0.1]])) == (1, 1)


def test_a_missed_mode_of_little_mass_is_an_error_of_the_mean():
    """15 % at twelve sds make a mean of 1.8, and an sd far beyond the quartiles' distance."""
    known = mixture([[0.0], [12.0]], [1.0, 1.0], [0.85, 0.15])
    assert known.sample is not None
    draws = known.sample(np.random.default_rng(1), 20_000)
    assert errors_of(known, draws)[0] < 0.05
    assert errors_of(known, draws[draws < 6][:, None])[0] == pytest.approx(1.8 / 4.4, rel=0.05)


def test_a_narrow_mode_beside_a_wide_one_is_missed_though_draws_are_around_it():
    known = mixture([[0.0, 0.0], [3.0, 3.0]], [1.0, 0.02], [0.5, 0.5])
    assert known.sample is not None
    draws = known.sample(np.random.default_rng(1), 20_000)
    wide = draws[np.linalg.norm(draws - 3.0, axis=1) > 0.2]
    assert missed_modes(known, draws, no_modes()[:, 0]) == (0, 0)
    assert missed_modes(known, wide, no_modes()[:, 0]) == (1, 0)
    assert missed_modes(known, wide, np.array([[3.01, 3.0]])) == (1, 1)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not in a checkout")
def test_the_machine_tells_the_state_of_the_code():
    assert re.search(r"dmvi [\d.]+ at \w+", describe_machine()["versions"])


@pytest.mark.parametrize(
    ("truth", "verdict", "fits"),
    [
        ("bad", "trust", False),
        ("bad", "resample", False),
        ("bad", "do_not_trust", True),
        ("good", "do_not_trust", False),
        ("good", "resample", True),
        ("between", "trust", True),
        ("none", "refused", True),
    ],
)
def test_what_counts_as_wrong(truth, verdict, fits):
    row = {
        "kind": "k",
        "name": "n",
        "truth": truth,
        "verdict": verdict,
        "error": 0.2,
        "missed": 0,
        "machine": "m",
    }
    assert right(row) is fits
    assert ("wrong" in markdown([row])) is not fits


def test_results_of_before_rows_named_a_machine_are_shown():
    row = {"kind": "k", "name": "n", "truth": "good", "verdict": "trust", "error": 0.0, "missed": 0}
    cell: dict[str, Any] = dict.fromkeys(("scalars", "one_by_one", "datasets", "failed", "calibrated"), 1)
    cell |= dict.fromkeys(("p", "corrected", "coverage", "seconds"), 0.5)
    first, second = list(itertools.islice(itertools.product(cases(), METHODS), 2))
    for shown in (
        markdown([row, row | {"machine": "m"}]),
        table({"/".join(first): cell, "/".join(second): cell | {"machine": "m"}}),
    ):
        assert shown.endswith("\n\nm.\n")


@pytest.mark.parametrize("name", list(cases()))
def test_every_model_of_the_calibration_can_be_simulated_from(name):
    case = cases()[name]
    simulator = read_simulator(case.model, case.data)
    assert simulator.arguments == {"y": "y"}
    truth, data = simulator.simulate(jax.random.split(jax.random.key(0), 3))
    assert data["y"].shape == (3, *case.data["y"])
    assert all(np.isfinite(value).all() for value in truth.values())
