"""One figure for each model: what methods believe about every coordinate, in sds of the exact posterior."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dmvi.paper._methods import METHODS
from dmvi.paper._models import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = ("exact", "nuts", "diffusion", "chain", "advi", "nfvi", "advi-code", "nfvi-code", "dmvi-100-10-3")
COLOURS = ("#222222", "#7f7f7f", "#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#e69f00", "#f0e442", "#d55e00")
REACH = 6.0  # sds shown; what lies beyond is drawn at the edge


def draw_figure(rows: Sequence[Mapping[str, Any]], model: str, path: Path) -> None:
    """Intervals of the first replicate there is, one panel for each size.

    Args:
        rows: rows of coordinates.csv of one model, variant and kind of data.
        model: its name.
        path: where the figure goes.
    """
    from matplotlib.figure import Figure

    sizes = sorted({row["n"] for row in rows})
    names = list(dict.fromkeys(row["coordinate"] for row in rows))
    figure = Figure(figsize=(5.2 * len(sizes) + 0.6, 0.36 * len(names) + 2.2), layout="constrained")
    axes = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    for n, panel in zip(sizes, axes, strict=True):
        first = min(row["replicate"] for row in rows if row["n"] == n)
        _panel(panel, [row for row in rows if row["n"] == n and row["replicate"] == first], names)
        panel.set_title(f"N = {n}", fontsize=10)
        panel.set_xlabel(f"sds of {'NUTS' if model == 'mixture' else 'the exact posterior'} from its mean")
    axes[0].set_yticks(range(len(names)), names, fontsize=8)
    axes[0].set_ylim(len(names) - 0.4, -0.6)
    found = {
        label: handle
        for panel in axes  # sizes may have been run with other methods
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    titles = [METHODS[name].title for name in SHOWN if METHODS[name].title in found]
    figure.legend(
        [found[title] for title in titles],
        titles,
        loc="outside lower center",
        ncols=2 * len(sizes),
        fontsize=8,
        frameon=False,
    )
    figure.suptitle(f"{TITLES[model]}: 50 % and 90 % intervals; x: truth; at the edge: beyond", fontsize=11)
    figure.savefig(path, dpi=130)


def _panel(panel: "Axes", rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Intervals of all methods, side by side at each coordinate."""
    present = [name for name in SHOWN if any(row["method"] == name for row in rows)]
    for i, method in enumerate(present):
        own = {row["coordinate"]: row for row in rows if row["method"] == method}
        place = np.arange(len(names)) + 0.8 * ((i + 0.5) / len(present) - 0.5)
        colour = COLOURS[SHOWN.index(method)]

        def at(column: str, own=own) -> np.ndarray:
            values = [(own[n][column] - own[n]["reference_mean"]) / own[n]["reference_sd"] for n in names]
            return np.clip(values, -REACH, REACH)

        panel.hlines(place, at("q05"), at("q95"), color=colour, linewidth=1.0)
        panel.hlines(place, at("q25"), at("q75"), color=colour, linewidth=2.6, label=METHODS[method].title)
        panel.plot(at("q50"), place, ".", color=colour, markersize=3)
    first = {row["coordinate"]: row for row in rows}
    truth = [(first[n]["truth"] - first[n]["reference_mean"]) / first[n]["reference_sd"] for n in names]
    panel.plot(np.clip(truth, -REACH, REACH), range(len(names)), "x", color="black", markersize=4)
    panel.set_xlim(-REACH - 0.3, REACH + 0.3)
    panel.grid(axis="x", alpha=0.3)
