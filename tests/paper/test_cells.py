"""Plans, jobs and the file of finished cells."""

import csv
import gzip
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from dmvi import InputError
from dmvi.cli._reproduce import QUICK
from dmvi.paper import METHODS, MODELS, Plan
from dmvi.paper._cells import (
    PACKED,
    RESULTS,
    STORE,
    Job,
    Store,
    check_plan,
    check_same_data,
    refresh,
    whole_lines,
)
from dmvi.paper._estimate import STARTING, expected_seconds, spoken, total_seconds

PLAN = Plan(models=("mean", "mixture"), methods=("exact", "advi", "dmvi-50-10-1"), sizes=(100,), replicates=2)


def a_cell(key: str = "mean/printed/own/100/exact/0", replicate: int = 0) -> dict:
    row = {"model": "mean", "variant": "printed", "data": "own", "n": 100, "method": "exact"}
    return {"key": key, "row": row | {"replicate": replicate, "mse": 0.5, "khat": None}, "coordinates": {}}


@pytest.mark.parametrize("moment", ["before the disk has it", "after"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cell_that_is_being_stored_when_a_run_is_interrupted_is_in_every_file(
    tmp_path, monkeypatch, number, moment
):
    """The interruption is heard once the cell is whole, so that file, tables and counts agree."""
    really = os.fsync

    def interrupting(handle: int) -> None:
        if moment == "after":
            really(handle)
        signal.raise_signal(number)
        really(handle)

    store = Store(tmp_path)
    before = signal.signal(number, signal.default_int_handler)
    try:
        monkeypatch.setattr(os, "fsync", interrupting)
        with pytest.raises(KeyboardInterrupt):
            store.add(a_cell())
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert list(store.cells) == [a_cell()["key"]]
    store.close()
    assert [cell["key"] for cell in whole_lines((tmp_path / STORE).read_bytes())[0]] == list(store.cells)
    with (tmp_path / RESULTS).open() as file:
        assert [row["replicate"] for row in csv.DictReader(file)] == ["0"]


def test_the_full_set():
    """Seven models, two sizes, five replicates; the mixture has no exact posterior but a reference."""
    jobs = Plan().jobs()
    cells = [job.key(replicate) for job in jobs for replicate in job.replicates]
    assert len(cells) == len(set(cells)) == (7 * len(METHODS) - 1) * 2 * 5
    assert len(METHODS) == 17
    assert len(MODELS) == 7


def test_the_full_set_is_expected_to_take_three_hours_on_two_cores():
    assert total_seconds(Plan().jobs()) / 2 < 3 * 3600


def test_the_quick_set_is_expected_to_take_four_minutes_on_two_cores():
    assert STARTING + total_seconds(QUICK.jobs()) / 2 < 240


def test_replicates_trained_together_are_one_job():
    jobs = PLAN.jobs()
    together = [job for job in jobs if len(job.replicates) == 2]
    assert {job.method for job in together} == {"dmvi-50-10-1"}
    assert {job.method for job in jobs if job.model == "mixture"} == {"nuts", "advi", "dmvi-50-10-1"}
    for job in jobs:
        needs = [f"mixture/printed/own/100/nuts-r2/{replicate}" for replicate in job.replicates]
        waits = job.model == "mixture" and job.method != "nuts"
        assert job.reference_keys() == (needs if waits else [])


def test_what_is_done_is_left_out():
    job = Job("mean", "printed", 100, "dmvi-50-10-1", (0, 1, 2), None)
    left = job.without([job.key(1)])
    assert left is not None
    assert left.replicates == (0, 2)
    assert job.without([job.key(r) for r in (0, 1, 2)]) is None
    assert expected_seconds(left) < expected_seconds(job)
    short = Job("mean", "printed", 100, "dmvi-50-10-1", (0,), None, epochs=3)
    assert short.key(0) != job.key(0)  # a shorter training is another cell


def test_cells_of_an_earlier_revision_do_not_count(tmp_path):
    job = Job("mean", "printed", 100, "dmvi-50-10-1", (0,), None)
    now = job.key(0)
    assert METHODS[job.method].revision == 2
    row = a_cell()["row"] | {"method": job.method}
    before, other = now.replace("-r2/", "/"), now.replace("-r2/", "-r12/")
    store = Store(tmp_path)
    for key in (before, other, now):
        store.add({"key": key, "row": row, "coordinates": {}})
    store.close()
    again = Store(tmp_path)
    assert list(again.cells) == [now]
    again.close()


def test_cells_measured_by_an_earlier_reference_do_not_count(tmp_path, monkeypatch):
    job = Job("mixture", "printed", 100, "advi", (0,), None)
    exactly = Job("mean", "printed", 100, "advi", (0,), None)
    store = Store(tmp_path)
    for one in (job, exactly):
        row = a_cell()["row"] | {"model": one.model, "method": "advi"}
        store.add({"key": one.key(0), "row": row, "coordinates": {}})
    store.close()
    raised = replace(METHODS["nuts"], revision=METHODS["nuts"].revision + 1)
    monkeypatch.setitem(METHODS, "nuts", raised)
    again = Store(tmp_path)
    assert list(again.cells) == [exactly.key(0)]
    again.close()


def test_cells_measured_by_an_earlier_exact_posterior_do_not_count(tmp_path, monkeypatch):
    """Nor does what that posterior scored itself; the mixture has none, and its cells go on counting."""
    jobs = [
        Job(model, "printed", 100, method, (0,), None)
        for model, method in (("mean", "exact"), ("mean", "advi"), ("mean", "nuts"), ("mixture", "advi"))
    ]
    assert [job.key(0).split("/")[4] for job in jobs] == ["exact", "advi", "nuts-r2", "advi-r1.2"]
    store = Store(tmp_path)
    for job in jobs:
        row = a_cell()["row"] | {"model": job.model, "method": job.method}
        store.add({"key": job.key(0), "row": row, "coordinates": {}})
    store.close()
    monkeypatch.setitem(METHODS, "exact", replace(METHODS["exact"], revision=2))
    assert [job.key(0).split("/")[4] for job in jobs] == ["exact-r2", "advi-r1.2", "nuts-r2.2", "advi-r1.2"]
    again = Store(tmp_path)
    assert list(again.cells) == [jobs[-1].key(0)]
    again.add({"key": jobs[1].key(0), "row": row | {"model": "mean"}, "coordinates": {}})
    again.close()
    once_more = Store(tmp_path)
    assert list(once_more.cells) == [jobs[-1].key(0), jobs[1].key(0)]
    once_more.close()


def test_given_data_are_told_apart_by_what_they_are(tmp_path):
    """Not by the folder that they are in."""
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "mean_model_6.npz", y=np.full((6, 5), value), truth_u=np.zeros(5))
    plans = [
        Plan(("mean",), ("advi",), sizes=(6,), replicates=1, variant="code", fixed=tmp_path / name)
        for name in "abc"
    ]
    a, b, c = (plan.jobs()[0] for plan in plans)
    assert a.key(0) == b.key(0) != c.key(0)
    store = Store(tmp_path / "out")
    store.add({"key": a.key(0), "row": a_cell()["row"] | {"method": "advi"}, "coordinates": {}})
    check_same_data([b, Plan(("mean",), ("advi",), sizes=(6,)).jobs()[0]], store)
    with pytest.raises(InputError, match="mean with 6 rows"):
        check_same_data([c], store)
    store.close()


def test_cells_of_given_data_without_a_fingerprint_do_not_count(tmp_path):
    """Whose data they are of cannot be told, so they stand in the way of no others."""
    np.savez(tmp_path / "mean_model_6.npz", y=np.ones((6, 5)), truth_u=np.zeros(5))
    plan = Plan(("mean",), ("advi",), sizes=(6,), replicates=1, variant="code", fixed=tmp_path)
    row = a_cell()["row"] | {"variant": "code", "data": "fixed", "n": 6, "method": "advi"}
    store = Store(tmp_path / "out")
    store.add({"key": "mean/code/fixed/6/advi/0", "row": row, "coordinates": {}})
    store.close()
    again = Store(tmp_path / "out")
    assert again.cells == {}
    check_same_data(plan.jobs(), again)
    again.add({"key": plan.jobs()[0].key(0), "row": row, "coordinates": {}})
    again.close()
    assert len((tmp_path / "out" / RESULTS).read_text().splitlines()) == 2


def test_cells_survive_and_half_a_line_does_not(tmp_path):
    store = Store(tmp_path)
    store.add(a_cell())
    store.close()
    with (tmp_path / STORE).open("ab") as file:
        file.write(json.dumps(a_cell("other", 1)).encode()[:40])
    again = Store(tmp_path)
    assert list(again.cells) == ["mean/printed/own/100/exact/0"]
    again.add(a_cell("mean/printed/own/100/exact/1", 1))
    again.close()
    cells, whole = whole_lines((tmp_path / STORE).read_bytes())
    assert len(cells) == 2
    assert whole == (tmp_path / STORE).stat().st_size
    assert (tmp_path / RESULTS).read_text().splitlines()[1] == "mean,printed,own,100,exact,0,0.5,"
    (tmp_path / RESULTS).unlink()
    refresh(tmp_path)
    assert len((tmp_path / RESULTS).read_text().splitlines()) == 3


def test_a_run_goes_on_from_packed_cells(tmp_path):
    (tmp_path / PACKED).write_bytes(gzip.compress(json.dumps(a_cell()).encode() + b"\n"))
    store = Store(tmp_path)
    assert list(store.cells) == ["mean/printed/own/100/exact/0"]
    store.add(a_cell("mean/printed/own/100/exact/1", 1))
    store.close()
    assert len((tmp_path / STORE).read_bytes().splitlines()) == 1  # only what is new
    (tmp_path / RESULTS).unlink()
    refresh(tmp_path)
    assert len((tmp_path / RESULTS).read_text().splitlines()) == 3
    (tmp_path / PACKED).write_bytes(b"no archive")
    with pytest.raises(InputError, match="cannot read"):
        refresh(tmp_path)


def test_two_runs_cannot_write_into_one_folder(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(InputError, match="another run"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        Store(tmp_path / "file")


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (Plan(models=("media",)), "media"),
        (Plan(methods=("advi", "dmvi-50-10-2")), "dmvi-50-10-2"),
        (Plan(sizes=(1,)), "at least 2"),
        (Plan(sizes=()), "data rows"),
        (Plan(replicates=0), "replicate"),
        (Plan(variant="other"), "variant"),
        (Plan(models=()), "model"),
    ],
)
def test_mistakes_are_seen_before_work(plan, match):
    with pytest.raises(InputError, match=match):
        check_plan(plan)


def test_fixed_data_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match=r"mean_model_100\.npz"):
        check_plan(Plan(fixed=tmp_path, variant="code"))


def test_durations():
    assert [spoken(seconds) for seconds in (12.2, 600, 9000)] == ["12 s", "10 min", "2.5 h"]
