"""Whole runs on small plans, in processes of their own."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from typer.testing import CliRunner

from dmvi.cli._app import app
from dmvi.paper import Plan, _runner, run
from dmvi.paper._cells import COORDINATES, RESULTS, STORE, Job, Store, whole_lines
from dmvi.paper._estimate import STARTING, expected_seconds, spoken
from dmvi.paper._pool import Pool, Told
from dmvi.paper._runner import Clock, Summary

PLAN = Plan(
    models=("mean", "hierarchical_1"), methods=("exact", "advi-code"), sizes=(40,), replicates=2, epochs=3
)
# What a machine may lack that only runs cells.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pandas", "xarray", "matplotlib", "arviz_base", "arviz", "pymc", "PIL"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of PLAN, the lines it said, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    lines: list[str] = []
    return run(PLAN, folder, processes=1, say=lines.append), lines, folder


def rows_of(path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_request_to_end_is_an_interruption_while_a_run_goes_on(finished):
    found: list[object] = []
    run(PLAN, finished[2], processes=1, say=lambda line: found.append(signal.getsignal(signal.SIGTERM)))
    assert found == [signal.default_int_handler]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_every_cell_becomes_a_row(finished):
    summary, lines, folder = finished
    assert summary == Summary(done=8, left=0, failed=0)
    rows = rows_of(folder / RESULTS)
    assert {(row["model"], row["method"], row["replicate"]) for row in rows} == {
        (model, method, str(replicate))
        for model in PLAN.models
        for method in PLAN.methods
        for replicate in range(2)
    }
    assert len({row["reference_mse"] for row in rows if row["model"] == "mean"}) == 2  # each its own truth
    for row in rows:
        if row["method"] == "exact":
            assert abs(float(row["mse_ratio"]) - 1) < 0.05
            assert float(row["wasserstein_max"]) < 0.05
            assert float(row["elbo"]) == float(row["reference_log_evidence"])
    assert len(rows_of(folder / COORDINATES)) == 2 * 2 * (5 + 13)
    assert "8 cells" in lines[0]
    assert "expected time" in lines[0]
    assert "cells left" in lines[1]


def test_nothing_is_done_twice(finished):
    _, _, folder = finished
    before = (folder / "cells.jsonl").read_bytes()
    lines: list[str] = []
    assert run(PLAN, folder, processes=1, say=lines.append) == Summary(0, 0, 0)
    assert lines == ["everything is done already"]
    assert (folder / "cells.jsonl").read_bytes() == before


def test_a_time_limit_starts_nothing_that_would_not_end(tmp_path):
    lines: list[str] = []
    assert run(PLAN, tmp_path, processes=1, time_limit=1.0, say=lines.append) == Summary(0, 8, 0)


def test_a_job_that_fails_is_told_and_tried_again(tmp_path):
    """The data are there when the plan is checked, and gone when the job looks for them."""
    file = tmp_path / "mean_model_6.npz"
    np.savez(file, y=np.ones((6, 5)), truth_u=np.zeros(5))
    plan = Plan(models=("mean",), methods=("exact",), sizes=(6,), replicates=1, fixed=tmp_path)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        file.unlink(missing_ok=True)

    assert run(plan, tmp_path / "out", processes=1, say=say) == Summary(done=0, left=1, failed=1)
    assert any("failed" in line and "mean_model_6.npz" in line for line in lines)
    np.savez(file, y=np.ones((6, 5)), truth_u=np.zeros(5))
    assert run(plan, tmp_path / "out", processes=1, say=lines.append).done == 1


def test_an_interrupted_run_goes_on(tmp_path):
    """What it did is there in whole lines, and none of it is done again."""
    words = ["reproduce", "--models", "hierarchical_1", "--methods", "exact", "--n", "40"]
    words += ["--replicates", "4", "--jobs", "1", "--out", str(tmp_path)]
    cells = tmp_path / STORE
    process = subprocess.Popen([sys.executable, "-m", "dmvi", *words], stdout=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 120
        while not (cells.exists() and b"\n" in cells.read_bytes()) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 4
    assert "interrupted" in said
    first, whole = whole_lines(cells.read_bytes())
    assert whole == cells.stat().st_size
    assert 0 < len(first) < 4
    assert len(rows_of(tmp_path / RESULTS)) == len(first)
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, again.output
    assert f"{4 - len(first)} cells to do, {len(first)} done before" in again.stdout
    keys = [cell["key"] for cell in whole_lines(cells.read_bytes())[0]]
    assert len(keys) == len(set(keys)) == 4
    assert keys[: len(first)] == [cell["key"] for cell in first]


def mortal(job: Job, references) -> Iterator[dict]:
    """Dies where it is told to."""
    if "die" in references:
        os._exit(1)
    yield {"key": job.key(0)}


def test_a_process_that_dies_is_told_and_replaced():
    job = Job("mean", "printed", 40, "exact", (0,), None)
    pool = Pool(1, mortal)
    told: list[Told] = []
    try:
        for references in ({"die": True}, {}):
            pool.give(job, references)
            assert pool.idle == 0
            until = time.monotonic() + 60
            while pool.running and time.monotonic() < until:
                told += pool.listen(1.0)
            assert pool.idle == 1
    finally:
        pool.close()
    assert [one.kind for one in told] == ["failed", "cell", "done"]
    assert "died" in told[0].content
    assert told[1].content == {"key": job.key(0)}


class Failing:
    """A pool whose jobs fail at once."""

    def __init__(self, size: int, work):
        self.size, self.running = size, []

    @property
    def idle(self) -> int:
        return self.size - len(self.running)

    def give(self, job: Job, references) -> None:
        self.running.append(job)

    def listen(self, timeout: float) -> list[Told]:
        return [Told("failed", self.running.pop(0), "made up")]

    def close(self) -> None:
        pass


def test_what_a_run_says_of_time_and_of_cells(tmp_path, monkeypatch):
    """Eight processes are no faster than two cores, failures teach nothing, others' cells do not count."""
    monkeypatch.setattr(_runner, "Pool", Failing)
    monkeypatch.setattr(_runner, "cores", lambda: [0, 1])
    plan = Plan(models=("mean",), methods=("diffusion",), replicates=5, sizes=(100,))
    job, *others = plan.jobs()
    row = {"model": "mean", "variant": "printed", "data": "own", "n": 100, "method": "diffusion"}
    store = Store(tmp_path)
    for one in (job, Job("mean", "printed", 1000, "diffusion", (0,), None)):
        store.add({"key": one.key(0), "row": row | {"n": one.n, "replicate": 0}, "coordinates": {}})
    store.close()
    lines: list[str] = []
    assert run(plan, tmp_path, processes=8, say=lines.append) == Summary(done=0, left=4, failed=4)
    each = expected_seconds(job)
    assert len(others) == 4
    assert lines[0] == (
        f"4 cells to do, 1 done before; expected time on 2 cores: {spoken(STARTING + 4 * each / 2)}"
    )
    assert lines[1].splitlines()[0].endswith(f"failed; 3 cells left, about {spoken(3 * each / 2)}")


def test_processes_that_share_a_core_take_longer_and_do_more_at_once():
    job = Job("mean", "printed", 100, "diffusion", (0,), None)
    clock = Clock(None, crowd=4.0)
    assert clock.lasts(job) == 4.0 * expected_seconds(job)
    clock.learn(job, clock.lasts(job))
    assert clock.pace == 1.0


def test_cells_need_neither_pandas_nor_figures():
    code = f"{BLOCKED}\nimport dmvi.paper._runner, dmvi.cli\nfrom dmvi.posterior._psis import smooth\n"
    code += "import numpy as np; smooth(np.random.default_rng(0).normal(size=1000))\n"
    code += "assert not {'pandas', 'xarray', 'matplotlib', 'pymc'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
