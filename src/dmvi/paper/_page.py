"""The page of the docs on the reproduction: every figure on it comes from the rows of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dmvi.paper._aggregate import Key, Line, gather, line_of
from dmvi.paper._methods import METHODS
from dmvi.paper._models import MODELS, TITLES
from dmvi.paper._reported import REPORTED
from dmvi.paper._tables import CAPTION, COLUMNS, configured, number

OURS = "diffusion"
RATIO_BAR = 0.05
DISTANCE_BAR = 0.05
ERRORS = 2.0  # standard errors that a coverage may be off
DMVI = [name for name, method in METHODS.items() if method.configuration is not None]

INTRODUCTION = r"""# The paper's experiments, reproduced

Dirmeier and Perez-Cruz (*Diffusion models for probabilistic programming*, 2023) propose diffusion models as
the variational family of probabilistic programs, the idea that dmvi is built on. This page repeats their
experiments with `dmvi reproduce`, beside what they had no room for: the exact posterior. It is written by
that command from the results of a run. Every figure below is computed from them, except those of the paper
itself, which are marked.

## What the paper claims

On seven models and two sizes of data, draws of DMVI are compared with the parameters that simulated the
data. Their mean squared error (MSE) is reported to be lower than that of ADVI and of flows (NFVI) in most
cases, at similar cost.

## What its code optimises

[The paper's DMVI](paper.md) derives this at length. In short: with noisy states $w$, a reverse model
$q(\theta, w)$ and a forward process $r(w \mid \theta)$, Jensen's inequality gives

$$\log q(\theta) \ge \mathbb{E}_{r}\left[\log \frac{q(\theta, w)}{r(w \mid \theta)}\right] = -L(\theta),
\qquad\text{so}\qquad
\mathbb{E}_q[\log p(y, \theta) - \log q(\theta)] \le \mathbb{E}_q[\log p(y, \theta) + L(\theta)] .$$

The printed objective, on the right, lies above the ELBO and bounds nothing. The published code minimises
$-\log p(y, \theta) + L(\theta)$, and for ADVI and NFVI $-\log p(y, \theta) - \log q(\theta)$: the entropy
counts as a cost, for all three guides alike, and each contracts towards a point for as long as it is
trained. Its minibatches are not scaled and count the prior once for every row, so that this point is not the
posterior's mode either: in the mean model it is half the mean of the data.
"""

SHRINKING = r"""
The table shows how far they got: standard deviation of the fitted guide over that of the exact posterior,
median over coordinates and data sets, after the published training of 2,000 epochs.
"""

STILL_WIDE = r"""
ADVI starts with standard deviations of 2.7. Where its ratio is above 1 it has contracted as well, but not
far enough by the end of training: Adam, which remembers the large gradients of the start, slows it down.
"""

AUTHORS = r"""
The published experiments use one data set for each model and size, whatever the seed. The table repeats them
on these, with the models as the code has them and trained as it trains, and sets the paper's values beside
ours. Ours is not its program: networks start from other weights, and the dropout mask of a draw stays the
same from one step of the solver to the next. MSE, least and largest of the configurations, and that of the
exact posterior:
"""

ORACLE = r"""
Draws of any distribution with mean $m$ and variance $v$ have the expected squared error $v + (m -
\theta^*)^2$ to the truth $\theta^*$. Under the exact posterior both terms are equal on average over data
sets; a point at its mean scores the second alone. So the metric prefers a point to the right answer, and
the figure to match is the exact posterior's. A method well below it is too sure of itself.
"""

REPAIRED = r"""
dmvi's diffusion guide with all defaults, every replicate on a data set of its own, with draws as the verdict
of the fit advises. After ± stand two binomial standard errors, as if coordinates of one data set were
independent, which they are not. The last column counts the fits whose own verdict is to trust them.
"""

REPEAT = """```
dmvi reproduce --out results
dmvi reproduce --variant code --fixed-data authors --methods published exact --out results
dmvi reproduce --tables results --page docs/reproduction.md
```

`authors` is a folder of the published data sets, such as `mean_model_100.npz` with arrays `y` and `truth_u`.
`dmvi reproduce --quick` takes some minutes.
"""


def reproduction_page(results: Sequence[Mapping[str, Any]], figures: Mapping[str, str]) -> str:
    """The page.

    Args:
        results: rows of results.csv.
        figures: for each model the file of its figure, as the page links to it.
    """
    gathered = gather(results)
    own = {key: lines for key, lines in gathered.items() if key[:2] == ("printed", "own")}
    fixed = {key: lines for key, lines in gathered.items() if key[:2] == ("code", "fixed")}
    parts = [INTRODUCTION, *_shrinking(own or gathered), *_authors_data(fixed), *_oracle(own, fixed)]
    parts += [*_repaired(own), *_every_method(own, figures), *_provenance(results)]
    return "\n".join(parts) + "\n"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def span(values: Sequence[float], style: str) -> str:
    """Least and largest of some figures."""
    finite = [value for value in values if not math.isnan(value)]
    if not finite:
        return ""
    ends = [number(min(finite), style), number(max(finite), style)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _shrinking(gathered: Mapping[Key, Sequence[Line]]) -> list[str]:
    """How narrow the published objective makes every guide."""
    rows, wide = [], False
    for (_, _, model, n), lines in gathered.items():
        dmvi = [line for line in lines if line.method in DMVI]
        cells = [line_of(lines, "advi-code"), line_of(lines, "nfvi-code")]
        if not dmvi and not any(cells):
            continue
        ours = line_of(lines, OURS)
        wide = wide or any(line is not None and line.sd_ratio > 1 for line in cells[:1])
        rows.append(
            [
                TITLES[model],
                str(n),
                *(number(line.sd_ratio, ".3f") if line else "" for line in cells),
                span([line.sd_ratio for line in dmvi], ".3f"),
                number(ours.sd_ratio, ".3f") if ours else "",
            ]
        )
    if not rows:
        return []
    heads = ["model", "N", "ADVI", "NFVI", "DMVI, 8 configurations", "diffusion (ours), by the ELBO"]
    return [
        SHRINKING,
        *table(heads, rows),
        *([STILL_WIDE] if wide else []),
    ]


def _authors_data(fixed: Mapping[Key, Sequence[Line]]) -> list[str]:
    """On the one data set per model that the paper uses, its values come out again."""
    rows = []
    for (_, _, model, n), lines in fixed.items():
        reported = REPORTED[model, n]
        advi, nfvi = line_of(lines, "advi-code"), line_of(lines, "nfvi-code")
        dmvi = [line.mse for line in lines if line.method in DMVI]
        if not dmvi:
            continue
        rows.append(
            [
                TITLES[model],
                str(n),
                span([reported.dmvi_least, reported.dmvi_most], ".2f"),
                span(dmvi, ".2f"),
                f"{reported.advi:.2f}",
                number(advi.mse) if advi else "",
                f"{reported.nfvi:.2f}",
                number(nfvi.mse) if nfvi else "",
                number(lines[0].reference_mse, ".3f"),
            ]
        )
    if not rows:
        return []
    heads = [
        "model",
        "N",
        "DMVI, paper",
        "DMVI, here",
        "ADVI, paper",
        "ADVI, here",
        "NFVI, paper",
        "NFVI, here",
    ]
    return [
        "## On the authors' own data\n",
        AUTHORS,
        *table([*heads, "exact posterior"], rows),
        *_landing(fixed),
    ]


def _landing(fixed: Mapping[Key, Sequence[Line]]) -> list[str]:
    """How near the paper's values DMVI comes where its training has an end."""
    models = ("mean", "hierarchical_1", "hierarchical_2")
    away = []
    for (_, _, model, n), lines in fixed.items():
        reported = REPORTED[model, n]
        for line in lines if model in models else ():
            if line.method in DMVI:
                away.append(max(reported.dmvi_least - line.mse, line.mse - reported.dmvi_most, 0.0))
    if not away:
        return []
    text = "In the mean model and hierarchical models 1 and 2 the largest distance of a configuration's MSE "
    return [f"{text}from the range that the paper reports is {max(away):.3f}.\n"]


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
            dmvi = [line.mse for line in lines if line.method in DMVI]
            ours = line_of(lines, OURS)
            cells += [
                number((ours or lines[0]).reference_mse, ".3g") if lines else "",
                number(ours.mse, ".3g") if ours else "",
                span(dmvi, ".3g"),
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
        errors = [math.sqrt(p * (1 - p) / line.intervals) for p in (0.5, 0.9)]
        rows.append(
            [
                TITLES[model],
                str(n),
                number(line.mse, ".3g"),
                number(line.reference_mse, ".3g"),
                number(line.ratio, ".3f"),
                number(line.distance, ".3f"),
                f"{line.cover50:.2f} ± {ERRORS * errors[0]:.2f}",
                f"{line.cover90:.2f} ± {ERRORS * errors[1]:.2f}",
                number(line.gap, ".3f"),
                number(line.khat),
                f"{line.trusted} of {line.judged}" if line.judged else "",
            ]
        )
        misses += [f"{TITLES[model]}, N = {n}: {miss}" for miss in _misses(model, line, errors)]
    if not rows:
        return []
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
        "trusted",
    ]
    return [
        "## What the repaired method gives\n",
        REPAIRED,
        *table(heads, rows),
        _asked(misses),
    ]


def _asked(misses: Sequence[str]) -> str:
    missed = "; ".join(misses) if misses else "nothing"
    return (
        f"Asked for: MSE within {RATIO_BAR:.0%} of the exact posterior's; W1 of at most {DISTANCE_BAR} sds "
        f"in the worst coordinate of hierarchical models; coverage within these errors. Missed: {missed}.\n"
    )


def _misses(model: str, line: Line, errors: Sequence[float]) -> list[str]:
    found = []
    if abs(line.ratio - 1) > RATIO_BAR:
        found.append(f"ratio {line.ratio:.3f}")
    if model.startswith("hierarchical") and line.distance > DISTANCE_BAR:
        found.append(f"W1 {line.distance:.3f}")
    for share, level, error in ((line.cover50, 0.5, errors[0]), (line.cover90, 0.9, errors[1])):
        if abs(share - level) > ERRORS * error:
            found.append(f"coverage of {level:.0%} intervals {share:.2f}")
    return found


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
            rows = [
                [" ".join(configured(line.method)).strip(), *(column.show(line) for column in COLUMNS)]
                for line in lines
            ]
            parts += [f"N = {n}, {max(line.replicates for line in lines)} data sets:\n"]
            parts += table(["method", *(column.head for column in COLUMNS)], rows)
    return parts


def _provenance(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the figures come from."""
    machines = sorted({f"{row['machine']}; {row['versions']}" for row in results})
    hours = sum(row["train_seconds"] + row["sample_seconds"] for row in results) / 3600
    return [
        "## How to repeat this\n",
        REPEAT,
        f"{len(results):,} cells, {hours:.1f} CPU-hours of fits and draws. " + ". ".join(machines) + ".",
    ]
