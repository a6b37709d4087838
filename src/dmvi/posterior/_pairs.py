"""The pair plot: the guide's draws over regions of the corrected ones."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dmvi._errors import InputError
from dmvi.posterior._figures import BLUE, CORRECTED, GUIDE, VERMILLION
from dmvi.posterior._named import scalars
from dmvi.posterior._plots import _density, _grid, _regions, few_ticks, label
from dmvi.posterior._views import Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 6
MOST = 12
_POINTS = 1500

Scalars = Mapping[str, np.ndarray]


def plot_pairs(fit: Views, variables: Sequence[str] | None, *, n: int, seed: int) -> "Figure":
    """Draws of the guide over the 50, 90 and 99 % regions of PSIS-resampled draws.

    Args:
        fit: the fit.
        variables: names of scalars; None chooses those the heaviest weights come from, then the first.
        n: number of draws.
        seed: chooses the draws.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    guide = scalars(fit.shown(n, seed, resample=False))
    corrected = scalars(fit.shown(n, seed, resample=True))
    names = _chosen(fit, list(guide), variables)
    k = len(names)
    size = 1.55 if k > 2 else 2.4
    figure = Figure(figsize=(size * k + 0.8, size * k + 0.7), layout="constrained")
    places = figure.add_gridspec(k, k)
    grids = {name: _grid(corrected[name]) for name in names}
    for i, row in enumerate(names):
        for j, column in enumerate(names[: i + 1]):
            ax = figure.add_subplot(places[i, j])
            if i == j:
                _plot_marginal(ax, guide[row], corrected[row], grids[row])
            else:
                _plot_plane(ax, (guide[column], guide[row]), (corrected[column], corrected[row]))
                ax.set_ylim(grids[row][0], grids[row][-1])
            ax.set_xlim(grids[column][0], grids[column][-1])
            _label(ax, column if i == k - 1 else None, row if j == 0 and i > 0 else None, inner=i != j)
    handles = [
        Line2D([], [], color=BLUE, marker=".", linestyle="-", label=GUIDE),
        Line2D([], [], color=VERMILLION, label=f"{CORRECTED}: 50, 90, 99 %"),
    ]
    figure.legend(handles=handles, loc="outside upper right", frameon=False, ncols=2)
    return figure


def _chosen(fit: Views, names: list[str], variables: Sequence[str] | None) -> list[str]:
    if variables is None:
        # Names of unconstrained coordinates are those of scalars except where a support has fewer dimensions.
        first = [driver.name for driver in fit.diagnostics.drivers if driver.name in names]
        return list(dict.fromkeys([*first, *names]))[:SHOWN]
    unknown = [name for name in variables if name not in names]
    if isinstance(variables, str) or unknown or not 1 <= len(variables) <= MOST:
        raise InputError(
            f"expected a list of one to {MOST} variables such as {names[:3]}; got {variables!r}"
            + (f", of which {unknown} are unknown." if unknown else ".")
        )
    return list(variables)


def _plot_marginal(ax: "Axes", guide: np.ndarray, corrected: np.ndarray, grid: np.ndarray) -> None:
    ax.plot(grid, _density(guide, grid), color=BLUE, linewidth=1.4)
    ax.plot(grid, _density(corrected, grid), "--", color=VERMILLION, linewidth=1.4)
    ax.set_ylim(bottom=0)


def _plot_plane(
    ax: "Axes", guide: tuple[np.ndarray, np.ndarray], corrected: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = guide
    ax.plot(
        x[:_POINTS],
        y[:_POINTS],
        ".",
        color=BLUE,
        markersize=2,
        alpha=0.35,
        markeredgewidth=0,
        rasterized=True,
    )
    regions = _regions(*corrected)
    if len(regions.levels) > 1 or np.ptp(regions.density) > 0:
        ax.contour(
            regions.x, regions.y, regions.density, levels=regions.levels, colors=VERMILLION, linewidths=1.0
        )


def _label(ax: "Axes", x: str | None, y: str | None, *, inner: bool) -> None:
    few_ticks(ax.xaxis, 2)
    few_ticks(ax.yaxis, 2)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    if x is None:
        ax.tick_params(labelbottom=False)
    else:
        ax.set_xlabel(label(x, 18), fontsize=9)
    if y is None:
        ax.tick_params(labelleft=False)
    else:
        ax.set_ylabel(label(y, 18), fontsize=9)
    if not inner:
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
