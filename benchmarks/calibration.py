"""Simulation-based calibration: default guide, mean-field ADVI and the paper's objective on nine models.

    python -m benchmarks.calibration
    python -m benchmarks.calibration --models eight_schools mean --methods default advi --n 100 --out results

For every model and method, n data sets are drawn from the prior and fitted, and the ranks of the truth are
tested for uniformity. Finished cells are kept in calibration.json, so that a run can be interrupted and gone
on with; the table shows all of them. Fits made one by one, where modes may be separate, are drawn from as
their verdicts advise, and can be shared out among processes with --processes.
"""

import argparse
import json
import multiprocessing
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

import dmvi
from benchmarks.machine import describe_machine
from dmvi.calibration import Calibration
from dmvi.paper import MODELS, paper_model

ROWS = 100
SEEDS = 10_000  # between those of processes
FEWEST = 10  # data sets of a calibration
COLUMNS_OF = {"mean": 5, "mixture": 2}
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
METHODS: dict[str, tuple[str, Any]] = {
    "default": ("default guide", "auto"),
    "advi": ("mean-field ADVI", "mean-field"),
    "paper": ("paper's objective", dmvi.PaperGuide()),
}
# Modes far apart are looked for by fit alone, not by fit_many.
SEVERAL_MODES = {"mixture"}
COLUMNS = (
    "model", "scalars", "method", "data sets", "failed", "smallest p", "corrected", "90 % holds", "verdict",
    "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, what to call it, and its arguments."""

    title: str
    model: Callable
    data: dict[str, Any]


def eight_schools(sigma, y):
    """The centred eight schools."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(sigma)]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, sigma).to_event(1), obs=y)


def logistic(x, y):
    """Logistic regression."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ weights).to_event(1), obs=y)


def cases() -> dict[str, Case]:
    """All nine, by name."""
    x = np.random.default_rng(3).normal(size=(ROWS, 8)) @ (np.eye(8) + 0.3 * np.ones((8, 8)))
    found = {
        "eight_schools": Case("Eight schools, centred", eight_schools, {"sigma": SIGMA, "y": (8,)}),
        "logistic": Case("Logistic regression", logistic, {"x": x, "y": (ROWS,)}),
    }
    for name in MODELS:
        described = paper_model(name, "printed")
        found[name] = Case(described.title, described.program, {"y": (ROWS, COLUMNS_OF.get(name, 10))})
    return found


def calibration(name: str, method: str, n: int, seed: int) -> Calibration:
    """The ranks of one model and method."""
    case, one_by_one = cases()[name], made_one_by_one(name, method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the paper's objective says each time that it is no bound
        return dmvi.calibrate(
            case.model,
            case.data,
            n=n,
            guide=METHODS[method][1],
            seed=seed,
            one_by_one=one_by_one,
            resample=None if one_by_one else False,
            progress=False,
        )


def made_one_by_one(name: str, method: str) -> bool:
    """Whether fits are made by `fit`, which looks for separate modes."""
    return method == "default" and name in SEVERAL_MODES


def by_several(name: str, method: str, n: int, seed: int, processes: int) -> Calibration:
    """The same by several processes, each with data sets of its own."""
    processes = max(1, min(processes, n // FEWEST))
    counts = [n // processes + (i < n % processes) for i in range(processes)]
    jobs = [(name, method, count, seed + SEEDS * i) for i, count in enumerate(counts)]
    with ProcessPoolExecutor(len(jobs), multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(calibration, *zip(*jobs, strict=True)))
    ranks = {scalar: np.concatenate([one.ranks[scalar] for one in found]) for scalar in found[0].ranks}
    counts = {name: sum(getattr(one, name) for one in found) for name in ("failed", "cut_short", "left_over")}
    return replace(
        found[0], ranks=ranks, reason=next((one.reason for one in found if one.reason), ""), **counts
    )


def measure(name: str, method: str, n: int, seed: int, processes: int) -> dict[str, Any]:
    """One cell of the table."""
    began, one_by_one = time.perf_counter(), made_one_by_one(name, method)
    if one_by_one and processes > 1:
        found = by_several(name, method, n, seed, processes)
    else:
        found = calibration(name, method, n, seed)
    print(found, flush=True)
    return {
        "p": min(found.p_values.values()),
        "corrected": min(found.adjusted.values()),
        "p_values": found.p_values,
        "coverage": float(np.mean(list(found.coverage(0.9).values()))),
        "calibrated": found.calibrated,
        "words": [f"{v.site}: {v.words}" for v in found.verdicts if not v.calibrated],
        "scalars": len(found.ranks),
        "datasets": found.datasets,
        "failed": found.failed,
        "one_by_one": one_by_one,
        "seconds": time.perf_counter() - began,
    }


def markdown(cells: dict[str, dict[str, Any]]) -> str:
    """The table of all cells there are, and where they were made."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for name, case in cases().items():
        for method, (title, _) in METHODS.items():
            cell = cells.get(f"{name}/{method}")
            if cell is None:
                continue
            verdict = "calibrated" if cell["calibrated"] else "not calibrated"
            values = [
                case.title, str(cell["scalars"]), title + (", one by one" if cell["one_by_one"] else ""),
                str(cell["datasets"]), str(cell["failed"]), f"{cell['p']:.2g}", f"{cell['corrected']:.2g}",
                f"{100 * cell['coverage']:.0f} %", verdict, f"{cell['seconds']:.0f}",
            ]  # fmt: skip
            lines.append("| " + " | ".join(values) + " |")
    machines = dict.fromkeys(cell.get("machine", "") for cell in cells.values())
    made = [f"{machine}." for machine in machines if machine]
    return "\n".join([*lines, "", *made]) + "\n"


def run(
    names: Sequence[str], methods: Sequence[str], n: int, seed: int, processes: int, out: Path, again: bool
) -> str:
    """Measures cell by cell; files are rewritten after each, so nothing is lost."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "calibration.json"
    cells = json.loads(file.read_text())["cells"] if file.exists() else {}
    machine = "; ".join(describe_machine().values())
    for name in names:
        for method in methods:
            if f"{name}/{method}" in cells and not again:
                continue
            cells[f"{name}/{method}"] = measure(name, method, n, seed, processes) | {"machine": machine}
            file.write_text(json.dumps({"cells": cells}, indent=1) + "\n")
            (out / "calibration.md").write_text(markdown(cells))
    return markdown(cells)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    names = list(cases())
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="NAME", help=str(names))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME")
    parser.add_argument("--n", type=int, default=200, help="data sets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="of fits that are made one by one")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--again", action="store_true", help="measure cells anew that are there")
    a = parser.parse_args()
    print("\n" + run(a.models, a.methods, a.n, a.seed, a.processes, a.out, a.again))


if __name__ == "__main__":
    main()
