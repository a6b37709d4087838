"""The command that times the paper's DMVI prints both figures with their bars."""

import pytest

from benchmarks import paper_step


def test_figures_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(paper_step, "EPOCHS", 2)
    monkeypatch.setattr(paper_step, "REPEATS", 1)
    monkeypatch.setattr(paper_step, "DRAWS", 1000)
    paper_step.main(["--model", "mean", "--configuration", "50", "10", "1", "--rows", "20"])
    lines = capsys.readouterr().out.splitlines()
    step = float(next(line for line in lines if "gradient step" in line).split("|")[2])
    times = float(next(line for line in lines if "quicker" in line).split("|")[2])
    assert 0 < step < 1000
    assert times == pytest.approx(1e3 / 65 / step, rel=0.2, abs=1)
    assert any("1,000 draws" in line for line in lines)
