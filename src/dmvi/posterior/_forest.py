"""Medians and intervals of many scalars, one below the other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dmvi._errors import InputError
from dmvi.posterior._named import scalars
from dmvi.posterior._plots import COLOURS, few_ticks, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RATIO = 10.0  # of widths from which scalars no longer share an axis
_ROW, _EDGE = 0.24, 0.55  # inches of a row, and of the ticks of a panel
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_ROWS = 150


class Interval(NamedTuple):
    """Quantiles of one scalar: 5, 25, 50, 75 and 95 %."""

    name: str
    quantiles: np.ndarray

    @property
    def width(self) -> float:
        """Of everything the row shows, zero included so that offsets count."""
        return float(max(self.quantiles[-1] - self.quantiles[0], 1e-300))


def plot_forest(draws: Mapping[str, np.ndarray]) -> "Figure":
    """A row for each scalar: median, 50 % (thick) and 90 % (thin) interval.

    Scalars of similar scale share an axis; where scales differ by more than ten, a new panel begins.

    Args:
        draws: constrained draws by site.
    """
    from matplotlib.figure import Figure

    rows = [Interval(name, np.quantile(values, _LEVELS)) for name, values in scalars(draws).items()]
    if not rows:
        raise InputError("there is no scalar to show.")
    left_out = len(rows) - MOST_ROWS
    panels = _panels(rows[:MOST_ROWS])
    heights = [_ROW * len(panel) + _EDGE for panel in panels]
    figure = Figure(figsize=(6.8, sum(heights) + 0.3), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, panel in zip(axes, panels, strict=True):
        _plot_panel(ax, panel)
    axes[-1].set_xlabel(
        "median, 50 % and 90 % interval" + (f"; {left_out:,} more left out" if left_out > 0 else "")
    )
    return figure


def _panels(rows: list[Interval]) -> list[list[Interval]]:
    """Neighbours whose intervals have comparable widths and places, together."""
    panels: list[list[Interval]] = []
    for row in rows:
        if panels:
            together = [*panels[-1], row]
            span = max(r.quantiles[-1] for r in together) - min(r.quantiles[0] for r in together)
            widths = [r.width for r in together]
            if max(widths) <= _RATIO * min(widths) and span <= 8 * _RATIO * min(widths):
                panels[-1].append(row)
                continue
        panels.append([row])
    return panels


def _plot_panel(ax: "Axes", panel: list[Interval]) -> None:
    places = np.arange(len(panel))
    q = np.stack([row.quantiles for row in panel])
    ax.hlines(places, q[:, 0], q[:, 4], color=COLOURS[0], linewidth=1.4)
    ax.hlines(places, q[:, 1], q[:, 3], color=COLOURS[0], linewidth=4.0)
    ax.plot(q[:, 2], places, "o", markersize=4, markerfacecolor="white", markeredgecolor=COLOURS[0])
    if q.min() < 0 < q.max():
        ax.axvline(0.0, color="0.6", linewidth=0.8, linestyle=":")
    ax.set_yticks(places, [label(row.name) for row in panel])
    ax.set_ylim(len(panel) - 0.4, -0.6)
    few_ticks(ax.xaxis, 6)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.grid(axis="x", alpha=0.25)
