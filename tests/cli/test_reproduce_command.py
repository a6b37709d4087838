"""dmvi reproduce: options, mistakes, a small run from end to end."""

import os
from typing import Any

import pytest
from typer.testing import CliRunner

from dmvi import InputError
from dmvi.cli._app import app
from dmvi.cli._reproduce import FULL, QUICK, plan_from
from dmvi.paper import Plan


def plan_of(*, quick: bool = False, **given: Any) -> Plan:
    """The plan of some options, the others left out."""
    names = ("models", "methods", "sizes", "replicates", "variant", "fixed_data")
    options: dict[str, Any] = dict.fromkeys(names)
    options.update(given)
    return plan_from(quick=quick, **options)


def invoke(*words: str):
    return CliRunner().invoke(app, ["reproduce", *words])


def test_what_is_left_out_is_the_full_set():
    assert plan_of() == FULL
    assert plan_of(quick=True) == QUICK
    plan = plan_of(models=["mean"], sizes=[1000], quick=True)
    assert (plan.models, plan.sizes, plan.methods) == (("mean",), (1000,), QUICK.methods)


def test_groups_of_methods():
    plan = plan_of(methods=["dmvi", "advi", "advi"])
    assert len(plan.methods) == 9
    plan = plan_of(methods=["published"])
    assert {"advi-code", "nfvi-code", "dmvi-100-20-3"} <= set(plan.methods)
    assert len(plan.methods) == 10


def test_given_data_are_the_codes(tmp_path):
    assert plan_of(fixed_data=tmp_path).variant == "code"
    plan = plan_of(fixed_data=tmp_path, variant="printed")
    assert plan.variant == "printed"
    with pytest.raises(InputError, match="no folder"):
        plan_of(fixed_data=tmp_path / "none")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--models", "mean", "median"], "median"),
        (["--methods", "advy"], "advy"),
        (["--n", "100", "0"], "at least 2"),
        (["--variant", "neither"], "neither"),
        (["--jobs", "0"], "--jobs 0"),
        (["--replicates", "0"], "replicate"),
        (["--tables", "nowhere"], "dmvi reproduce"),
        (["--page", "page.html"], "ends in .md"),
        (["--page", "nowhere/page.md"], "folder that exists"),
        (["--tables", "nowhere", "--page", "page.html"], "ends in .md"),
    ],
)
def test_mistakes_come_before_work(words, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    assert result.exit_code == 2
    assert match in result.stderr
    assert "Traceback" not in result.stderr
    assert os.listdir(tmp_path) == []


def test_from_end_to_end(tmp_path):
    """Several values after one option; a limit that stops; the same command goes on; then tables."""
    out = str(tmp_path / "out")
    words = ["--models", "mean", "hierarchical_1", "--methods", "exact", "--n", "20", "30"]
    words += ["--replicates", "1", "--jobs", "1", "--out", out]
    page = tmp_path / "out" / "page.md"  # the run makes its folder
    stopped = invoke(*words, "--time-limit", "1", "--page", str(page))
    assert stopped.exit_code == 4
    assert not page.exists()
    assert "4 left" in stopped.stdout
    done = invoke(*words, "--page", str(page))
    assert done.exit_code == 0, done.output
    assert "expected time" in done.stdout
    assert page.exists()
    page.unlink()
    assert (tmp_path / "out" / "tables.tex").exists()
    again = invoke("--tables", out, "--page", str(page))
    assert again.exit_code == 0
    assert "page.md" in again.stdout
    assert page.exists()


def test_help_teaches():
    text = invoke("--help").stdout
    for word in ("--quick", "--fixed-data", "dmvi-D-S-O", "Exit codes", "--time-limit"):
        assert word in text
