"""The examples run, in small, and leave what they promise."""

import runpy
from pathlib import Path

import pytest

import dmvi

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs(example, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "100")
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert "log evidence" in printed
    assert "log Bayes factor" in printed
    stored = dmvi.load(tmp_path / f"{example.stem}.dmvi")
    assert stored.run.steps <= 100
    assert (tmp_path / f"{example.stem}.html").stat().st_size > 100_000
