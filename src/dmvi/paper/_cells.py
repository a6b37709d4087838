"""Cells of the experiment: what there is to do, what is done, and the file that remembers it."""

import contextlib
import csv
import fcntl
import gzip
import io
import json
import os
import signal
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dmvi._errors import InputError
from dmvi.paper._methods import METHODS
from dmvi.paper._models import MODELS, fingerprint, paper_model, read_fixed
from dmvi.paper._published import EPOCHS

STORE = "cells.jsonl"
PACKED = "cells.jsonl.gz"  # finished cells of earlier runs, kept with the docs
RESULTS = "results.csv"
COORDINATES = "coordinates.csv"
OWN, FIXED = "own", "fixed"  # data of each replicate, or one data set for all
EXACT = "exact"
REFERENCE = "nuts"  # of the models without an exact posterior
KEY = ("model", "variant", "data", "n", "method", "replicate")


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        models: names of models.
        methods: names of methods.
        sizes: numbers of data rows.
        replicates: number of them, each with a data set and a truth of its own.
        variant: "printed" or "code".
        fixed: folder of data sets that all replicates share; None where each has its own.
        epochs: length of the published training.
    """

    models: tuple[str, ...] = MODELS
    methods: tuple[str, ...] = tuple(METHODS)
    sizes: tuple[int, ...] = (100, 1000)
    replicates: int = 5
    variant: str = "printed"
    fixed: Path | None = None
    epochs: int = EPOCHS

    def jobs(self) -> list["Job"]:
        """Everything to be done, in jobs that one process does in one go."""
        found = []
        for model in self.models:
            for n in self.sizes:
                data = self._data_of(model, n)
                for name in self._methods_of(model):
                    together = METHODS[name].side_by_side
                    every = tuple(range(self.replicates))
                    groups = [every] if together else [(replicate,) for replicate in every]
                    found += [
                        Job(model, self.variant, n, name, group, self.fixed, self.epochs, data)
                        for group in groups
                    ]
        return found

    def _data_of(self, model: str, n: int) -> str:
        """Those of each replicate, or what tells a given data set from others."""
        if self.fixed is None:
            return OWN
        return f"{FIXED}-{fingerprint(read_fixed(paper_model(model, self.variant), n, self.fixed))}"

    def _methods_of(self, model: str) -> list[str]:
        """The methods that apply to a model; one without an exact posterior needs NUTS to compare with."""
        if not _without_exact(model):
            return list(self.methods)
        return [REFERENCE, *(name for name in self.methods if name not in (EXACT, REFERENCE))]


@dataclass(frozen=True)
class Job:
    """One method on one model and size, for some replicates, as in `Plan`.

    Attributes:
        data: which data, "own" or "fixed" and what tells them from others; part of the key.
    """

    model: str
    variant: str
    n: int
    method: str
    replicates: tuple[int, ...]
    fixed: Path | None
    epochs: int = EPOCHS
    data: str = OWN

    def key(self, replicate: int) -> str:
        """What identifies a cell."""
        method = METHODS[self.method]
        length = f"-{self.epochs}" if method.side_by_side and self.epochs != EPOCHS else ""
        name = f"{self.method}{length}{_revision(self.method, self.model)}"
        return f"{self.model}/{self.variant}/{self.data}/{self.n}/{name}/{replicate}"

    def reference_keys(self) -> list[str]:
        """Cells that have to be done before: the reference posteriors of the same data sets."""
        if not _without_exact(self.model) or self.method == REFERENCE:
            return []
        return [replace(self, method=REFERENCE).key(replicate) for replicate in self.replicates]

    def without(self, done: Iterable[str]) -> "Job | None":
        """The job with finished cells left out; None where nothing is left."""
        finished = set(done)
        left = tuple(r for r in self.replicates if self.key(r) not in finished)
        if not left:
            return None
        return replace(self, replicates=left)

    @property
    def source(self) -> str:
        """Where data come from, as tables say it."""
        return OWN if self.fixed is None else FIXED

    def __str__(self) -> str:
        which = (
            f"replicate {self.replicates[0]}"
            if len(self.replicates) == 1
            else f"{len(self.replicates)} replicates"
        )
        return f"{self.model}, n = {self.n}, {self.method}, {which}"


class Store:
    """Finished cells: one line of JSON each, appended and flushed to disk as they come.

    A line that an interruption cut short is dropped when the file is opened again, so a cell is there
    whole or not at all.

    Args:
        folder: where the file is; made where there is none.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / STORE).open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another run writes into {str(folder)!r}; choose another folder.") from error
        except OSError as error:
            raise InputError(f"cannot write into {str(folder)!r}: {error.strerror or error}.") from error
        self.cells: dict[str, dict[str, Any]] = {}
        self._read()

    def add(self, cell: Mapping[str, Any]) -> None:
        """Remember a finished cell, in the file and for the tables; an interruption waits for both."""
        line = json.dumps(cell).encode() + b"\n"
        with _interrupted_after():
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            self.cells[cell["key"]] = dict(cell)

    def close(self) -> None:
        """Write the tables of all cells and close the file."""
        self._file.close()
        write_rows(self.folder, self.cells.values())

    def _read(self) -> None:
        cells, whole = whole_lines((self.folder / STORE).read_bytes())
        self.cells |= _current([*packed_cells(self.folder), *cells])
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)


@contextlib.contextmanager
def _interrupted_after() -> Iterator[None]:
    """A request to end that comes within is heard after it; only the main thread hears any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, lambda number, frame: heard.append(number))
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    for number in heard:
        signal.raise_signal(number)


def _revision(method: str, model: str) -> str:
    """How keys tell revisions apart: the method's, and after it that of the reference it is measured by."""
    own = METHODS[method].revision
    by = REFERENCE if _without_exact(model) else EXACT
    if method == by:
        return f"-r{own}" if own > 1 else ""
    reference = METHODS[by].revision
    # Its first revision is left out of keys: cells were there before keys knew of it.
    if _without_exact(model) or reference > 1:
        return f"-r{own}.{reference}"
    return f"-r{own}" if own > 1 else ""


def _without_exact(model: str) -> bool:
    """Whether a model's posterior is not known exactly, so that NUTS is what methods are measured by."""
    return model == "mixture"


def _current(cells: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Cells by their keys, without those that earlier revisions left and those of data that nobody knows."""
    found = {}
    for cell in cells:
        *_, data, _, method, _ = cell["key"].split("/")
        if data == FIXED:  # written before keys had the data's fingerprint
            continue
        _, mark, number = method.rpartition("-r")
        numbered = number.replace(".", "", 1).isdigit()
        if (mark + number if numbered else "") == _revision(cell["row"]["method"], cell["row"]["model"]):
            found[cell["key"]] = cell
    return found


def check_same_data(jobs: Iterable[Job], store: "Store") -> None:
    """Results of different data sets of one name would stand in one table."""
    known = {}
    for key in store.cells:
        model, variant, data, n, *_ = key.split("/")
        if data != OWN:
            known[model, variant, n] = data
    for job in jobs:
        before = known.get((job.model, job.variant, str(job.n)), job.data)
        if job.data not in (OWN, before):
            raise InputError(
                f"expected the data of {job.model} with {job.n} rows that the results in "
                f"{str(store.folder)!r} are of; got others. Choose another folder with --out."
            )


def whole_lines(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The cells in the file's content, and how much of it they take: what follows was cut short."""
    cells, whole = [], 0
    for line in content.splitlines(keepends=True):
        try:
            cells.append(json.loads(line) if line.endswith(b"\n") else None)
        except ValueError:
            break
        if cells[-1] is None:
            break
        whole += len(line)
    return [cell for cell in cells if cell is not None], whole


def write_rows(folder: Path, cells: Iterable[Mapping[str, Any]]) -> None:
    """results.csv and coordinates.csv, in the order of tables."""
    ordered = sorted(cells, key=lambda cell: _rank(cell["row"]))
    write_csv(folder / RESULTS, [cell["row"] for cell in ordered])
    write_csv(folder / COORDINATES, coordinate_rows(ordered))


def refresh(folder: Path) -> None:
    """Bring the CSV files up to date with finished cells, as after a run that could not end tidily."""
    path = folder / STORE
    added = whole_lines(path.read_bytes())[0] if path.exists() else []
    if cells := [*packed_cells(folder), *added]:
        write_rows(folder, _current(cells).values())


def packed_cells(folder: Path) -> list[dict[str, Any]]:
    """The cells of earlier runs that were packed, none where nothing was: `gzip -9n cells.jsonl` packs."""
    path = folder / PACKED
    try:
        return whole_lines(gzip.decompress(path.read_bytes()))[0] if path.exists() else []
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {str(path)!r}: {error}.") from error


def coordinate_rows(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each coordinate of each cell."""
    return [
        {name: cell["row"][name] for name in KEY} | dict(zip(cell["coordinates"], values, strict=True))
        for cell in cells
        for values in zip(*cell["coordinates"].values(), strict=True)
    ]


def _rank(row: Mapping[str, Any]) -> tuple:
    """Order of rows: as the models and methods are listed."""
    return (
        row["variant"],
        row["data"],
        MODELS.index(row["model"]),
        row["n"],
        list(METHODS).index(row["method"]),
        row["replicate"],
    )


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of rows with the same columns, written in one piece."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text.getvalue())
    os.replace(partial, path)


def _cell(value: Any) -> Any:
    # As many digits as differences of log-densities of large data need.
    return f"{value:.10g}" if isinstance(value, float) else value


def check_plan(plan: Plan) -> None:
    """Everything about a plan that can be wrong, before any work."""
    for kind, names, known in (("model", plan.models, MODELS), ("method", plan.methods, tuple(METHODS))):
        if not names:
            raise InputError(f"expected at least one {kind}; choose from {', '.join(known)}.")
        for name in names:
            if name not in known:
                raise InputError(f"there is no {kind} {name!r}; expected some of {', '.join(known)}.")
    if not plan.sizes or any(size < 2 for size in plan.sizes):
        raise InputError(f"expected numbers of data rows of at least 2; got {plan.sizes}.")
    if plan.replicates < 1:
        raise InputError(f"expected at least one replicate; got {plan.replicates}.")
    for name in plan.models:
        model = paper_model(name, plan.variant)
        if plan.fixed is not None:
            for n in plan.sizes:
                read_fixed(model, n, plan.fixed)
