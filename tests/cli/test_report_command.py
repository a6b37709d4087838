"""dmvi fit writes the whole fit and its page; dmvi report makes the page from the file alone."""

from pathlib import Path

import numpy as np
import pytest

import dmvi
from dmvi.posterior import Verdict
from tests.cli.test_fit_command import fake as fake
from tests.cli.test_fit_command import folder as folder
from tests.cli.test_fit_command import run


@pytest.mark.usefixtures("folder")
def test_fit_writes_a_file_that_loads_and_a_page(fake):
    result = run(
        *("fit", "model.py:regression", "--data", "data.json", "--draws", "100"),
        *("--out", "fit.dmvi", "--report", "page.html"),
    )
    assert result.exit_code == 0, result.output
    assert "wrote fit.dmvi" in result.output
    assert "wrote page.html" in result.output
    stored = dmvi.load("fit.dmvi")
    assert stored.draws == 100
    assert stored.verdict is Verdict.TRUST
    assert "Trust these draws" in Path("page.html").read_text("utf-8")
    again = run("report", "fit.dmvi", "--out", "again.html")
    assert again.exit_code == 0, again.output
    assert "Trust these draws" in Path("again.html").read_text("utf-8")


@pytest.mark.usefixtures("folder")
def test_places_are_checked_before_training(fake):
    for arguments in (("--report", "page.pdf"), ("--report", "nowhere/page.html"), ("--out", "fit.pickle")):
        result = run("fit", "model.py:regression", "--data", "data.json", *arguments)
        assert result.exit_code == 2, result.output
    Path("page.html").write_text("mine")
    result = run("fit", "model.py:regression", "--data", "data.json", "--report", "page.html")
    assert result.exit_code == 2
    assert Path("page.html").read_text() == "mine"
    assert fake.calls == 0


@pytest.mark.usefixtures("folder")
def test_a_file_that_is_no_fit_is_a_mistake_of_the_user():
    np.savez("other.npz", a=np.zeros(3))
    result = run("report", "other.npz", "--out", "page.html")
    assert result.exit_code == 2
    assert "no" in result.output
    assert not Path("page.html").exists()
