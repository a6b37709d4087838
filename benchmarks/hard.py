"""The harder suite: default `dmvi.fit` beside NumPyro's NUTS on posteriors that people really fit.

    python -m benchmarks.hard FOLDER
    python -m benchmarks.hard FOLDER --targets dogs,soil_incubation --seeds 0 --no-nuts
    python -m benchmarks.hard --more bent_1000 local_level --data FOLDER_OF_PINES
    python -m benchmarks.hard --rows A/hard.jsonl B/hard.jsonl

FOLDER holds `suite.py` (POSTERIORS: name to a NumPyro model with data), `score.py` (score(draws, name):
errors in posterior sds), and `README.md`, whose column "NUTS R-hat" says which reference draws are to be
relied on. Nothing is tuned: the only settings are the seed and, where asked for, a time limit. Fit and NUTS
(4 chains one after another, 1,000 steps of warm-up and 1,000 draws each) run in this process on the same
cores, each with empty compilation caches. Both are in single precision, JAX's default; `--nuts-x64` runs
NUTS in double, as does a failure in single. Seconds are those of the wall, and of a fit include the first
print of the posterior, which weighs its draws; CPU seconds, all threads together, tell where other work
held the machine up.

Every fit and every run of NUTS is a line of `hard.jsonl` as soon as it ends, and is not done again: after an
interruption the same command goes on. Another state of the code needs another `--out`. `--rows` measures
nothing and prints the tables of what several runs have left.
"""

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.hard_measure import Case, Sampling, Score, limited, measure_fit, measure_nuts
from benchmarks.hard_more import MORE
from benchmarks.hard_table import Bars, markdown, reference_rhat
from benchmarks.machine import describe_machine


class Rows:
    """Finished measurements, a line of JSON each.

    Args:
        path: of the file; a last line that an interruption cut short is dropped.
    """

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole)
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]

    def has(self, **key: Any) -> bool:
        """Whether there is a row with these values."""
        return any(all(row.get(name) == value for name, value in key.items()) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row to the file."""
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)


def suite_cases(folder: Path) -> tuple[dict[str, Case], Score]:
    """The posteriors of a folder of models by name, and the function that scores draws."""
    sys.path.insert(0, str(folder.resolve()))
    posteriors = importlib.import_module("suite").POSTERIORS
    readme = folder / "README.md"
    rhat = reference_rhat(readme.read_text()) if readme.exists() else {}
    cases = {
        name: Case(name, one.model, one.load, nuts=one.nuts or {}, reference=rhat.get(name))
        for name, one in posteriors.items()
    }
    return cases, importlib.import_module("score").score


def run(
    cases: Sequence[Case],
    seeds: Sequence[int],
    rows: Rows,
    score: Score | None,
    sampling: Sampling | None,
    bars: Bars,
) -> str:
    """Measures what is not measured yet; returns the tables of these cases and seeds.

    Args:
        cases: what to measure.
        seeds: of the fits.
        rows: what is measured already, and where the rest is kept.
        score: compares draws with the suite's; None where there are none.
        sampling: how NUTS is run; None leaves it out.
        bars: what is asked for.
    """
    machine = describe_machine()
    keys = []
    for case in cases:
        # Draws that have not mixed are no reference: the seeds then judge each other.
        mixed = case.reference is not None and case.reference < bars.mixes
        judged = case if mixed else dataclasses.replace(case, reference=None)
        fixed = {"name": case.name, "time_limit": case.time_limit}
        for seed in seeds:
            keys.append({"kind": "fit", **fixed, "seed": seed})
            if not rows.has(**keys[-1]):
                found = measure_fit(judged, seed, score, sampling or Sampling())
                rows.add(keys[-1] | found | {"known": case.log_evidence, "machine": machine})
                print(rows.rows[-1], flush=True)
        if sampling is not None:
            keys.append({"kind": "nuts", "name": case.name, "double": sampling.double})
            if not rows.has(**keys[-1]):
                rows.add(keys[-1] | measure_nuts(case, 0, sampling) | {"machine": machine})
                print(rows.rows[-1], flush=True)
    chosen = [row for row in rows.rows if any(row.items() >= key.items() for key in keys)]
    return markdown(chosen, bars)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hard", description="The harder suite.")
    parser.add_argument("folder", type=Path, nargs="?", help="folder of suite.py, score.py and README.md")
    parser.add_argument("--targets", type=lambda text: text.split(","), metavar="A,B", help="some of them")
    parser.add_argument(
        "--more", nargs="*", choices=list(MORE), help="these further targets instead; all where none is named"
    )
    parser.add_argument("--data", type=Path, default=Path(), help="folder of pines.csv, for the Cox process")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of the fits")
    parser.add_argument("--rows", nargs="+", type=Path, metavar="FILE", help="print the tables of these rows")
    parser.add_argument("--time-limit", type=float, help="seconds given to each fit; none by default")
    parser.add_argument("--no-nuts", action="store_true", help="leave NUTS out")
    parser.add_argument("--nuts-x64", action="store_true", help="NUTS in double precision")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="of hard.jsonl, hard.md")
    arguments = parser.parse_args()
    if arguments.rows is not None:
        print(markdown([row for path in arguments.rows for row in Rows(path).rows], Bars()))
        return
    if arguments.more is None and arguments.folder is None:
        parser.error("name the folder of models, or further targets with --more")
    if arguments.more is not None:
        score = None
        cases = {name: MORE[name](arguments.data) for name in arguments.more or MORE}
    else:
        cases, score = suite_cases(arguments.folder)
    if unknown := set(arguments.targets or ()) - set(cases):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; choose from {', '.join(cases)}")
    chosen = [limited(cases[name], arguments.time_limit) for name in arguments.targets or cases]
    sampling = None if arguments.no_nuts else Sampling(double=arguments.nuts_x64)
    rows = Rows(arguments.out / "hard.jsonl")
    table = run(chosen, arguments.seeds, rows, score, sampling, Bars())
    (arguments.out / "hard.md").write_text(table)
    print("\n" + table)


if __name__ == "__main__":
    main()
