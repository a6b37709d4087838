"""Figures of a calibration."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # loads scipy.stats when it is used

from dmvi.calibration._calibration import Calibration
from dmvi.calibration._uniformity import counts_below, simultaneous_bands
from dmvi.posterior import COLOURS, few_ticks, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, VERMILLION = COLOURS[:2]
MOST_PANELS = 64
COLUMNS = 5
BINS = (20, 10, 5)  # the most that leave ten ranks in a bin


def plot_ecdf(calibration: Calibration) -> "Figure":
    """F(z) - z of every scalar's ranks, in the bands that hold all of it at once."""
    names = _shown(calibration)
    figure, axes = _panels(names)
    count = calibration.datasets
    bands = simultaneous_bands(count, calibration.draws, calibration.level)
    z = np.concatenate([[0.0], bands.z, [1.0]])
    low, high = (np.concatenate([[0.0], edge / count - bands.z, [0.0]]) for edge in (bands.low, bands.high))
    for ax, name in zip(axes, names, strict=True):
        found = counts_below(calibration.ranks[name], calibration.draws)
        colour, style = (VERMILLION, "--") if _faulty(calibration, name) else (BLUE, "-")
        difference = np.concatenate([[0.0], found / count - bands.z, [0.0]])
        ax.fill_between(z, low, high, color="0.55", alpha=0.35, linewidth=0)
        ax.axhline(0.0, color="0.4", linewidth=0.8)
        ax.plot(z, difference, style, color=colour, linewidth=1.6)
        reach = 1.15 * max(np.abs(difference).max(), np.abs(low).max(), np.abs(high).max())
        ax.set_ylim(-reach, reach)
        ax.set_xlim(0, 1)
        _finish(ax, name, calibration.p_values[name])
    level = f"{100 * calibration.level:g}"
    figure.suptitle(
        _heading(calibration, names) + "rank of the truth: distribution function less the diagonal\n"
        f"grey: all of a curve lies here in {level} % of cases, if calibrated; p is of each curve alone\n"
        "dashed: miscalibrated, corrected for the number of curves",
        fontsize=10,
    )
    return figure


def plot_ranks(calibration: Calibration) -> "Figure":
    """Histograms of every scalar's ranks."""
    names = _shown(calibration)
    figure, axes = _panels(names)
    count = calibration.datasets
    bins = next((bins for bins in BINS if count >= 10 * bins), BINS[-1])
    edges = np.linspace(0, calibration.draws + 1, bins + 1)
    shares = np.diff(np.ceil(edges)) / (calibration.draws + 1)
    tail = 0.5 * (1 - calibration.level) / bins  # for all bins at once
    low, high = scipy.stats.binom.ppf(tail, count, shares), scipy.stats.binom.isf(tail, count, shares)
    for ax, name in zip(axes, names, strict=True):
        out = _faulty(calibration, name)
        heights = np.histogram(calibration.ranks[name], np.ceil(edges))[0]
        places = (edges[:-1] + edges[1:]) / (2 * (calibration.draws + 1))
        ax.bar(
            places,
            heights,
            width=0.9 / bins,
            color=VERMILLION if out else BLUE,
            alpha=0.85,
            hatch="//" if out else None,
            edgecolor="white",
            linewidth=0,
        )
        for edge in (low, high):
            ax.stairs(edge, edges / edges[-1], baseline=None, color="0.25", linestyle="--", linewidth=1.0)
        ax.axhline(count / bins, color="0.25", linewidth=0.8)
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1.15 * max(heights.max(), high.max()))
        _finish(ax, name, calibration.p_values[name])
    figure.suptitle(
        _heading(calibration, names)
        + "rank of the truth among draws: flat if calibrated, a valley if fits are "
        "too narrow, a hill if too wide\n"
        f"dashed: all bars end between in {100 * calibration.level:g} % of cases, if calibrated",
        fontsize=10,
    )
    return figure


def _faulty(calibration: Calibration, name: str) -> bool:
    """Whether a scalar is called miscalibrated: by its p-value among all, not by its own curve alone."""
    return calibration.adjusted[name] < 1 - calibration.level


def _shown(calibration: Calibration) -> list[str]:
    """All scalars in order, or of very many those with the smallest p-values."""
    names = list(calibration.ranks)
    if len(names) > MOST_PANELS:
        worst = set(sorted(names, key=lambda name: calibration.p_values[name])[:MOST_PANELS])
        names = [name for name in names if name in worst]
    return names


def _heading(calibration: Calibration, names: list[str]) -> str:
    left_out = len(calibration.ranks) - len(names)
    more = f"the {len(names)} of smallest p among {len(calibration.ranks)}; " if left_out else ""
    title = f"{label(calibration.title, 80)}\n" if calibration.title else ""
    return title + more


def _panels(names: list[str]) -> tuple["Figure", list[Any]]:
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    width = max(2.4 * columns, 6.8)
    figure = Figure(figsize=(width, 1.9 * rows + 1.0), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    return figure, axes[: len(names)]


def _finish(ax: Any, name: str, p_value: float) -> None:
    shown = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    ax.set_title(f"{label(name, 22)}, {shown}", fontsize=9)
    few_ticks(ax.xaxis)
    few_ticks(ax.yaxis)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
