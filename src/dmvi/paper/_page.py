"""The page of the docs on the reproduction: every figure on it comes from the rows of a run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dmvi.paper._aggregate import Key, Line, gather, line_of
from dmvi.paper._cells import REFERENCE
from dmvi.paper._methods import METHODS
from dmvi.paper._models import MODELS, TITLES
from dmvi.paper._page_missing import not_run
from dmvi.paper._page_parts import DMVI, OURS, OWN, missed, of_all, span, table, with_error
from dmvi.paper._page_published import authors_data, shrinking
from dmvi.paper._page_texts import (
    ASKED,
    COST,
    COST_ASKED,
    DISTANCE_BAR,
    FASTER,
    INTRODUCTION,
    ORACLE,
    RATIO_BAR,
    REFINED,
    REPAIRED,
    REPEAT,
    SAMPLE_BAR,
    UNREFINED,
)
from dmvi.paper._tables import CAPTION, COLUMNS, configured, number

ERRORS = 2.0  # standard errors that a coverage may be off
PAPERS_OWN = "dmvi-100-10-3"  # the configuration of the paper's main text
PUBLISHED_STEP = 1 / 65  # CPU seconds of a gradient step of the published code, hierarchical model 5


def reproduction_page(results: Sequence[Mapping[str, Any]], figures: Mapping[str, str]) -> str:
    """The page.

    Args:
        results: rows of results.csv.
        figures: for each model the file of its figure, as the page links to it.
    """
    gathered = gather(results)
    own = {key: lines for key, lines in gathered.items() if key[:2] == OWN}
    fixed = {key: lines for key, lines in gathered.items() if key[:2] == ("code", "fixed")}
    parts = [INTRODUCTION, *shrinking(own or gathered), *authors_data(fixed), *_oracle(own, fixed)]
    parts += [*_repaired(own), *_speed(own), *_every_method(own, figures), *_provenance(results)]
    return "\n".join(parts) + "\n"


def _oracle(own: Mapping[Key, Sequence[Line]], fixed: Mapping[Key, Sequence[Line]]) -> list[str]:
    """What the exact posterior scores on the paper's metric."""
    parts = [
        "## What the exact posterior scores\n",
        ORACLE,
    ]
    if any(key[0] == "code" and line_of(lines, "exact") for key, lines in fixed.items()):
        parts.append(
            "On the authors' data sets these are the last column above; on data sets of their own:\n"
        )
    rows = []
    for model in MODELS:
        cells = [TITLES[model]]
        for n in (100, 1000):
            lines = own.get(("printed", "own", model, n), [])
            dmvi = [line for line in lines if line.method in DMVI]
            ours = line_of(lines, OURS)
            cells += [
                number((ours or lines[0]).reference_mse, ".3g") if lines else "",
                number(ours.mse, ".3g") if ours else "",
                of_all(span([line.mse for line in dmvi], ".3g"), dmvi),
            ]
        if any(cells[1:]):
            rows.append(cells)
    heads = [
        f"{what}, N={n}" for n in (100, 1000) for what in ("exact", "diffusion (ours)", "DMVI, as published")
    ]
    return [*parts, *table(["model", *heads], rows)]


def _repaired(own: Mapping[Key, Sequence[Line]]) -> list[str]:
    """What dmvi's diffusion guide gives, and where it misses what was asked of it."""
    rows, misses = [], []
    for (_, _, model, n), lines in own.items():
        line = line_of(lines, OURS)
        if line is None:
            continue
        rows.append(
            [
                TITLES[model],
                str(n),
                number(line.mse, ".3g"),
                number(line.reference_mse, ".3g"),
                with_error(line.ratio, line.ratio_error, ".3f"),
                number(line.distance, ".3f"),
                f"{line.cover50:.2f} ± {ERRORS * line.cover50_error:.2f}",
                f"{line.cover90:.2f} ± {ERRORS * line.cover90_error:.2f}",
                number(line.gap),
                number(line.khat),
                f"{line.trusted} + {line.resampled} of {line.judged}" if line.judged else "",
            ]
        )
        exact = line_of(lines, "exact") or line_of(lines, REFERENCE)
        misses += [f"{TITLES[model]}, N = {n}: {miss}" for miss in _misses(model, line, exact)]
    if not rows:
        return ["## What the repaired method gives\n", "Not run yet: see the end of the page.\n"]
    heads = [
        "model",
        "N",
        "MSE",
        "exact MSE",
        "ratio",
        "W1, worst coordinate",
        "50 %",
        "90 %",
        "gap",
        "k-hat",
        "trust + resample",
    ]
    return [
        "## What the repaired method gives\n",
        REPAIRED,
        *table(heads, rows),
        missed(f"{ASKED}. Run so far: {len(rows)} of {2 * len(MODELS)} models and sizes", misses),
    ]


def _misses(model: str, line: Line, exact: Line | None) -> list[str]:
    """What a line misses; beside a coverage stands that of the exact posterior, or of NUTS."""
    if line.finite < line.replicates:
        return [f"draws of {line.replicates - line.finite} of {line.replicates} fits are not all finite"]
    found = []
    if abs(line.ratio - 1) > RATIO_BAR:
        found.append(f"ratio {with_error(line.ratio, line.ratio_error, '.3f')}")
    if model.startswith("hierarchical") and line.distance > DISTANCE_BAR:
        found.append(f"W1 {line.distance:.3f}")
    for name, level, error in (
        ("cover50", 0.5, line.cover50_error),
        ("cover90", 0.9, line.cover90_error),
    ):
        share = getattr(line, name)
        if abs(share - level) > ERRORS * error:
            known = "" if exact is None else f" ({METHODS[exact.method].title}: {getattr(exact, name):.2f})"
            found.append(f"coverage of {level:.0%} intervals {share:.2f}{known}")
    return found


def _speed(own: Mapping[Key, Sequence[Line]]) -> list[str]:
    """What a gradient step and draws of the paper's own configuration cost."""
    rows, misses = [], []
    for n in (100, 1000):
        line = line_of(own.get(("printed", "own", "hierarchical_5", n), []), PAPERS_OWN)
        if line is None:
            continue
        factor = PUBLISHED_STEP / line.step
        cells = [
            f"{1e3 * line.step:.2f} ms",
            f"{factor:.0f}",
            f"{line.sample_most:.2f} s",
            str(line.replicates),
        ]
        rows.append([str(n), *cells])
        if factor < FASTER:
            misses.append(f"N = {n}: {factor:.1f} times")
        if line.sample_most >= SAMPLE_BAR:
            misses.append(f"N = {n}: draws in {line.sample_most:.2f} s")
    if not rows:
        return []
    heads = ["N", "CPU time of a step", "times less than 1/65 s", "20,000 draws", "data sets"]
    return ["## What it costs\n", COST, *table(heads, rows), missed(COST_ASKED, misses)]


def _every_method(own: Mapping[Key, Sequence[Line]], figures: Mapping[str, str]) -> list[str]:
    """All methods, a table for each model and size, and its figure."""
    parts = ["## All methods\n", f"{CAPTION} As published: trained as the paper's code does.\n"]
    for model in MODELS:
        sizes = [n for (_, _, name, n) in own if name == model]
        if not sizes:
            continue
        parts.append(f"### {TITLES[model]}\n")
        if model in figures:
            parts.append(f"![Intervals of each method on the first data set]({figures[model]})\n")
        for n in sizes:
            lines = own["printed", "own", model, n]
            most = max(line.replicates for line in lines)
            rows = [[_named(line, most), *(column.show(line) for column in COLUMNS)] for line in lines]
            parts += [f"N = {n}, {most} data sets:\n"]
            parts += table(["method", *(column.head for column in COLUMNS)], rows)
    return parts


def _named(line: Line, most: int) -> str:
    """A method, its configuration, and its number of data sets where that is not the others'."""
    name = " ".join(configured(line.method)).strip()
    return name if line.replicates == most else f"{name} (data sets: {line.replicates})"


def _unrefined(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many of the distances shown are of before the exact posterior's marginals were refined."""
    count = sum(
        row["model"].startswith("hierarchical")
        and (row["variant"], row["data"]) == OWN
        and row["date"] < REFINED
        for row in results
    )
    return [UNREFINED.format(count=count, date=REFINED)] if count else []


def _provenance(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the figures come from."""
    made = Counter(f"{row['machine']}, one core a fit; {row['versions']}; {row['date']}" for row in results)
    machines = [f"{count:,} cells on {where}" for where, count in made.items()]
    hours = sum(row["train_seconds"] + row["sample_seconds"] for row in results) / 3600
    return [
        "## How to repeat this\n",
        REPEAT,
        *not_run(results),
        *_unrefined(results),
        f"{len(results):,} cells, {hours:.1f} CPU-hours of fits and draws: " + ". ".join(machines) + ".",
    ]
