"""Posterior predictive checks: what the model could have observed beside what was observed."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dmvi._errors import InputError
from dmvi.posterior._plots import COLOURS, _density, _grid, few_ticks, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 40  # observations shown one by one
_LINES = 50
_VALUES = 30  # distinct counts shown as bars
_BLUE, _DARK = COLOURS[0], "black"


def plot_predictive(observed: Mapping[str, np.ndarray], predicted: Mapping[str, np.ndarray]) -> "Figure":
    """A panel for each observed site.

    Few observations are shown one by one over their predictive intervals, many by the density of
    replicated data sets, counts by how often each value comes up.

    Args:
        observed: observed values by site.
        predicted: predictive draws by site, draws leading.
    """
    from matplotlib.figure import Figure

    sites = [site for site in observed if site in predicted]
    if not sites:
        raise InputError(
            "there are no predictive draws to check: the model observes nothing, or is a log-density."
        )
    columns = min(2, len(sites))
    rows = math.ceil(len(sites) / columns)
    figure = Figure(figsize=(7.5 if columns == 1 else 11.0, 3.6 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax, site in zip(axes.flat, sites, strict=False):
        y = np.asarray(observed[site], float).ravel()
        replicated = np.asarray(predicted[site], float).reshape(len(predicted[site]), -1)
        seen = np.isfinite(y)
        _plot_site(ax, y[seen], replicated[:, seen], site, whole=_is_whole(observed[site]))
    for ax in list(axes.flat)[len(sites) :]:
        ax.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _is_whole(values: np.ndarray) -> bool:
    values = np.asarray(values)
    return values.dtype.kind in "biu" or bool(np.all(values == np.round(values)) and values.size > _FEW)


def _plot_site(ax: "Axes", y: np.ndarray, replicated: np.ndarray, site: str, *, whole: bool) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    if y.size == 0:
        ax.text(0.5, 0.5, "nothing observed", ha="center", transform=ax.transAxes)
    elif whole and len(np.unique(y)) <= _VALUES and y.size > 2:
        _plot_counts(ax, y, replicated, site)
    elif y.size <= _FEW:
        _plot_each(ax, y, replicated, site)
    else:
        _plot_densities(ax, y, replicated, site)


def _plot_each(ax: "Axes", y: np.ndarray, replicated: np.ndarray, site: str) -> None:
    places = np.arange(y.size)
    low, quarter, middle, three, high = np.quantile(replicated, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    ax.vlines(places, low, high, color=_BLUE, linewidth=1.6, label="90 % predicted")
    ax.vlines(places, quarter, three, color=_BLUE, linewidth=5, alpha=0.75, label="50 % predicted")
    ax.plot(places, middle, "_", color="white", markersize=7)
    ax.plot(places, y, "D", color=_DARK, markersize=5, label="observed")
    ax.set_xlabel("observation")
    ax.set_ylabel(label(site))
    ax.set_xticks(places[:: max(1, math.ceil(y.size / 20))])
    inside = np.mean((y >= low) & (y <= high))
    ax.set_title(f"{label(site)}: {100 * inside:.0f} % of the observations inside 90 %", fontsize=11)


def _plot_densities(ax: "Axes", y: np.ndarray, replicated: np.ndarray, site: str) -> None:
    grid = _grid(np.concatenate([y, replicated[:_LINES].ravel()]), stray=0.001)
    for i, values in enumerate(replicated[:_LINES]):
        density = _density(values[np.isfinite(values)], grid)
        ax.plot(grid, density, color=_BLUE, linewidth=0.6, alpha=0.4, label="replicated" if i == 0 else None)
    ax.plot(grid, _density(y, grid), color=_DARK, linewidth=2, label="observed")
    ax.set_xlim(grid[0], grid[-1])
    ax.set_ylim(bottom=0)
    ax.set_yticks([])
    ax.set_ylabel("density")
    ax.set_xlabel(label(site))
    larger = float(np.mean(replicated.mean(axis=1) > y.mean()))
    ax.set_title(f"{label(site)}: replicated means exceed the observed in {100 * larger:.0f} %", fontsize=11)
    few_ticks(ax.xaxis, 7)


def _plot_counts(ax: "Axes", y: np.ndarray, replicated: np.ndarray, site: str) -> None:
    values = np.unique(np.concatenate([y, np.unique(replicated)]))
    if len(values) > 2 * _VALUES:
        values = np.unique(y)
    shares = np.stack([np.mean(replicated == value, axis=1) for value in values], axis=1)
    low, middle, high = np.quantile(shares, (0.05, 0.5, 0.95), axis=0)
    places = np.arange(len(values))
    ax.bar(places, [np.mean(y == value) for value in values], color="0.78", label="observed")
    ax.errorbar(
        places, middle, [middle - low, high - middle], fmt="o", color=_BLUE, capsize=3, label="90 % predicted"
    )
    every = max(1, math.ceil(len(values) / 15))
    ax.set_xticks(places[::every], [f"{value:g}" for value in values[::every]])
    ax.set_xlabel(label(site))
    ax.set_ylabel("share of the observations")
    ax.set_title(label(site), fontsize=11)
