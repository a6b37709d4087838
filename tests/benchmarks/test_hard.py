"""The harder suite: what its rows amount to, and that an interrupted benchmark goes on."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm
from numpyro.infer.util import log_density

from benchmarks import hard, hard_more
from benchmarks.hard_measure import Case, Compilation, Sampling, covered, limited, measure_nuts, mixing
from benchmarks.hard_table import Bars, are_right, markdown, reached, reference_rhat, worst

MACHINE = {"processor": "one core", "date": "2026-11-19", "versions": "dmvi"}


def fit_row(name: str = "a", seed: int = 0, **other) -> dict:
    numbers = {"gap": 0.05, "ess": 0.9, "khat": 0.2, "elbo": -1.0, "log_evidence": -0.95, "seconds": 30.0}
    return {
        "kind": "fit", "name": name, "seed": seed, "d": 3, "verdict": "TRUST", "log_evidence_se": 0.01,
        "compiling_seconds": 15.0, "errors": {"mean_max": 0.1, "log_sd_max": 0.2}, "machine": MACHINE,
        **numbers, **other,
    }  # fmt: skip


def failed_row(name: str = "a", seed: int = 0) -> dict:
    error = {"error": "InputError: no start", "seconds": 1.0, "machine": MACHINE}
    return {"kind": "fit", "name": name, "seed": seed, **error}


def test_time_that_spans_cover_counts_once():
    assert covered([]) == 0.0
    assert covered([(0.0, 2.0), (1.0, 3.0), (1.5, 1.7), (5.0, 6.0)]) == 4.0


def test_compilation_is_heard_while_the_block_runs_and_not_after():
    with Compilation() as heard:
        jax.jit(lambda x: jnp.sin(x) * 3.25)(1.0)
    within = heard.seconds()
    assert within > 0.0
    jax.jit(lambda x: jnp.cos(x) * 7.125)(1.0)
    assert heard.seconds() == within


def test_mixing_is_that_of_the_worst_entry_that_moves():
    rng = np.random.default_rng(0)
    good = rng.normal(size=(4, 500, 3))
    good[..., 1] = 1.0  # an entry that is a constant
    rhat, ess = mixing({"x": good})
    assert rhat < 1.02
    assert ess > 1_000
    apart = good[..., 0] + 3.0 * np.arange(4)[:, None]
    rhat, ess = mixing({"x": good, "y": apart})
    assert rhat > 2.0
    assert ess < 20
    stuck = np.repeat(np.arange(4.0)[:, None], 500, axis=1)
    rhat, ess = mixing({"y": stuck})
    assert rhat == math.inf
    assert ess < 4
    assert mixing({"y": np.ones((4, 500))}) == (math.inf, 0.0)


def test_nuts_finds_a_gaussian_in_either_precision():
    few = Sampling(chains=2, warm_up=200, kept=300, double=True)
    case = Case("gaussian", lambda x: norm.logpdf(x).sum(), dim=2)
    row = measure_nuts(case, 0, few)
    assert row["rhat"] < 1.05
    assert row["min_ess"] > 50
    assert row["precision"] == "float64"
    assert jnp.zeros(1).dtype == jnp.float32  # the precision of everything else is as it was

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    row = measure_nuts(
        Case("model", model, lambda: {"y": np.ones(3)}), 0, dataclasses.replace(few, double=False)
    )
    assert row["rhat"] < 1.05
    assert row["precision"] == "float32"


def test_a_run_that_fails_in_single_precision_is_done_in_double():
    def model(y):
        if jnp.zeros(1).dtype == jnp.float32:
            raise ValueError("invalid loc parameter")
        numpyro.sample("mu", dist.Normal(y, 1))

    row = measure_nuts(Case("one", model, lambda: {"y": 1.0}), 0, Sampling(chains=2, warm_up=100, kept=100))
    assert row["precision"] == "float64"
    assert row["single_error"] == "ValueError: invalid loc parameter"
    assert "error" not in row


def test_a_run_that_fails_is_a_row_with_its_error():
    row = measure_nuts(Case("gone", lambda y: None, lambda: {"x": 1.0}), 0, Sampling())
    assert row["error"].startswith("TypeError")


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ([fit_row()], [True]),
        ([fit_row(errors={"mean_max": 0.31, "log_sd_max": 0.0})], [False]),
        ([fit_row(verdict="DO_NOT_TRUST")], [False]),
        ([fit_row(), failed_row(seed=1)], [True, False]),
        ([fit_row(errors=None)], [None]),
        ([fit_row(errors=None), fit_row(seed=1, errors=None, log_evidence=-0.8)], [True, True]),
        ([fit_row(errors=None), fit_row(seed=1, errors=None, log_evidence=-0.7)], [False, False]),
        ([fit_row(errors=None, known=-0.9)], [True]),
        ([fit_row(errors=None, known=0.0)], [False]),
    ],
)  # fmt: skip
def test_a_fit_is_right_by_its_means_or_else_by_the_evidence_of_the_seeds(rows, right):
    assert are_right(rows, Bars()) == right


def test_the_worst_seed_is_a_failed_one_else_a_wrong_one_else_that_of_the_largest_gap():
    fine, far, lost = fit_row(seed=0), fit_row(seed=1, gap=0.4), fit_row(seed=2, gap=math.nan)
    wrong = fit_row(seed=3, errors={"mean_max": 0.5, "log_sd_max": 0.0})
    assert worst([fine, far], Bars())[0] is far
    assert worst([fine, lost, far], Bars())[0] is lost
    assert worst([fine, lost, wrong], Bars())[0] is wrong
    assert worst([failed_row(seed=4), wrong], Bars())[0]["seed"] == 4


def test_the_line_of_bars_counts_and_names():
    fits = {
        "good": [fit_row("good"), fit_row("good", 1)],
        "far": [fit_row("far"), fit_row("far", 1, gap=0.2, seconds=130.0)],
        "failed": [failed_row("failed")],
    }
    nuts = {"good": {"rhat": 1.01, "seconds": 31.0}, "far": {"rhat": 1.01, "seconds": 40.0}}
    nuts["failed"] = {"rhat": 1.2, "seconds": 0.5}
    line = reached(fits, nuts, Bars())
    assert "right on every seed: 2 of 3 (bar 18 of 21); not failed." in line
    assert "Gap below 0.1 on every seed: 1 of 3 (bar 14 of 21); not far, failed." in line
    assert "Slower than NUTS where NUTS mixes: 1 of 2 (bar none): far." in line
    assert "Within 120 s on every seed: 1 of 3; not far, failed." in line


def test_the_tables_have_a_cell_for_every_column():
    nuts = {"kind": "nuts", "name": "a", "rhat": 1.0, "min_ess": 9.0, "divergences": 0, "seconds": 2.0}
    text = markdown([fit_row(), failed_row("b"), nuts | {"machine": MACHINE}], Bars())
    tables = [block.splitlines() for block in text.split("\n\n")[:2]]
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    assert "50%" in tables[0][2]
    assert "InputError: no start" in tables[0][3]
    assert "one core; 2026-11-19; dmvi." in text


def test_the_reference_is_read_from_the_table_of_the_suite():
    table = [
        "| posterior | d | NUTS R-hat | s |",
        "|---|---|---|---|",
        "| a | 2 | 1.01 | 3 |",
        "| b | 9 | not run | |",
    ]
    assert reference_rhat("\n".join(["Text | with a bar.", "", *table, "", "More text."])) == {"a": 1.01}


def test_a_benchmark_goes_on_where_it_was(tmp_path, monkeypatch):
    done = []

    def measured(case, seed, score, sampling):
        done.append((case.name, seed))
        return {key: value for key, value in fit_row().items() if key not in ("kind", "name", "seed")}

    monkeypatch.setattr(hard, "measure_fit", measured)
    cases = [Case("a", lambda x: x, reference=1.0), Case("b", lambda x: x)]
    rows = hard.Rows(tmp_path / "hard.jsonl")
    table = hard.run(cases[:1], [0, 1], rows, None, None, Bars())
    rows.path.write_text(rows.path.read_text() + '{"kind": "fi')
    again = hard.Rows(rows.path)
    assert again.rows == rows.rows
    assert hard.run(cases[:1], [0, 1], again, None, None, Bars()) == table
    hard.run(cases, [0, 1], again, None, None, Bars())
    hard.run([limited(case, 20.0) for case in cases[:1]], [0], again, None, None, Bars())
    assert done == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 0)]


def test_the_local_level_model_is_the_walk_it_says():
    """log p(y, mu | s_mu, s_y) by hand, and the data have the sds they were drawn with."""
    data = hard_more.local_level_data(length=2_000)
    steps = np.diff(data["y"])
    # Var(y_t - y_{t-1}) = s_mu^2 + 2 s_y^2.
    np.testing.assert_allclose(steps.var(), 0.3**2 + 2.0, rtol=0.1)
    y, mu = data["y"][:5], np.linspace(0.0, 1.0, 5)
    values = {"s_mu": jnp.asarray(0.4), "s_y": jnp.asarray(1.2), "mu": jnp.asarray(mu)}
    found = log_density(hard_more.local_level, (y,), {}, values)[0]
    walk = norm.logpdf(np.diff(mu, prepend=0.0), 0.0, 0.4).sum() + norm.logpdf(y, mu, 1.2).sum()
    prior = sum(norm.logpdf(s, 0.0, 10.0) + np.log(2.0) for s in (0.4, 1.2))
    np.testing.assert_allclose(found, walk + prior, rtol=1e-5)


def test_the_rows_of_the_student_t_regression_are_noise_around_tanh():
    data = hard_more.student_t_data(rows=20_000)
    rng = np.random.default_rng(0)
    rng.normal(size=data["x"].shape)
    beta = rng.normal(size=10) / np.sqrt(10)
    # A t of 4 degrees of freedom has its quartiles at 0.741.
    share = np.mean(np.abs(data["y"] - np.tanh(data["x"] @ beta)) < 0.5 * 0.7407)
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(20_000)
