"""Figures that set several approximations of one posterior side by side.

Matplotlib is imported where it is used, and figures are made without pyplot, so nothing here
opens a window or changes global settings. Colours are those of Okabe and Ito, which remain
distinct under every common form of colour blindness; line styles differ as well.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter, gaussian_filter1d

from dmvi._errors import InputError

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DrawsByMethod = Mapping[str, Mapping[str, np.ndarray]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = ("-", "--", "-.", ":")
_REFERENCE_COLOUR = "0.55"
_GRID = 256


class Regions(NamedTuple):
    """A density over a plane and the levels that enclose given shares of its mass."""

    x: np.ndarray
    y: np.ndarray
    density: np.ndarray
    levels: np.ndarray


def plot_marginals(draws: DrawsByMethod, *, reference: str, title: str = "", columns: int = 5) -> "Figure":
    """Marginal densities of every method over the reference's, one panel for each variable.

    Args:
        draws: method -> variable -> draws of that scalar. All methods share their variables.
        reference: the method shown as a filled area behind the others.
        title: printed above the panels.
        columns: panels beside one another.
    """
    from matplotlib.figure import Figure

    variables = _shared_variables(draws, reference)
    columns = min(columns, len(variables))
    rows = math.ceil(len(variables) / columns)
    figure = Figure(figsize=(2.4 * columns, 2.1 * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax, variable in zip(axes.flat, variables, strict=False):
        by_method = {method: np.asarray(values[variable]) for method, values in draws.items()}
        grid = _grid(by_method[reference])
        area = _density(by_method[reference], grid)
        ax.fill_between(grid, area, color=_REFERENCE_COLOUR, alpha=0.45, linewidth=0, label=reference)
        for i, method in enumerate(m for m in draws if m != reference):
            style = _STYLES[i % len(_STYLES)]
            ax.plot(
                grid, _density(by_method[method], grid), style, color=_colour(i), linewidth=1.6, label=method
            )
        ax.set_xlabel(label(variable))
        ax.set_xlim(grid[0], grid[-1])
        ax.set_ylim(bottom=0)
        ax.set_yticks([])
        few_ticks(ax.xaxis)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right", "left"]].set_visible(False)
    for ax in list(axes.flat)[len(variables) :]:
        ax.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(draws), frameon=False)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def plot_plane(draws: DrawsByMethod, *, x: str, y: str, reference: str, title: str = "") -> "Figure":
    """Draws in one plane, a panel for each method, over contours of the reference.

    Args:
        draws: method -> variable -> draws of that scalar.
        x: variable of the horizontal axis.
        y: variable of the vertical axis.
        reference: the method whose highest-density regions (50, 90 and 99 %) are outlined
            in every panel.
        title: printed above the panels.
    """
    from matplotlib.figure import Figure

    variables = _shared_variables(draws, reference)
    if x not in variables or y not in variables:
        raise InputError(f"expected x and y among the variables {variables}; got {x!r} and {y!r}.")
    methods = [reference, *(method for method in draws if method != reference)]
    figure = Figure(figsize=(3.0 * len(methods), 3.6), layout="constrained")
    axes = figure.subplots(1, len(methods), sharex=True, sharey=True, squeeze=False)[0]
    regions = _regions(np.asarray(draws[reference][x]), np.asarray(draws[reference][y]))
    for i, (ax, method) in enumerate(zip(axes, methods, strict=True)):
        colour = "0.25" if method == reference else _colour(i - 1)
        points = (draws[method][x], draws[method][y])
        ax.plot(*points, ".", color=colour, markersize=3, alpha=0.4, markeredgewidth=0, rasterized=True)
        ax.contour(
            regions.x,
            regions.y,
            regions.density,
            levels=regions.levels,
            colors="black",
            linewidths=(0.7, 1.0, 1.3),
        )
        ax.set_title(method, fontsize=11)
        ax.set_xlabel(label(x))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(label(y))
    axes[0].set_xlim(regions.x[0], regions.x[-1])
    axes[0].set_ylim(regions.y[0], regions.y[-1])
    if title:
        figure.suptitle(title)
    return figure


def label(name: str, longest: int = 28) -> str:
    """A name as Matplotlib shows it: long ones cut in the middle, dollar signs not taken for mathematics."""
    if len(name) > longest:
        half = (longest - 1) // 2
        name = f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"
    return name.replace("$", r"\$")


def few_ticks(axis: "Axis", most: int = 3) -> None:
    """At most so many tick labels, which small panels have room for."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_powerlimits((-3, 6))
    axis.set_major_formatter(formatter)


def _shared_variables(draws: DrawsByMethod, reference: str) -> list[str]:
    if reference not in draws:
        raise InputError(f"expected the reference to be one of the methods {list(draws)}; got {reference!r}.")
    variables = list(draws[reference])
    for method, values in draws.items():
        missing = [variable for variable in variables if variable not in values]
        if missing:
            raise InputError(f"expected draws of {variables} from every method; {method!r} lacks {missing}.")
    return variables


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _grid(values: np.ndarray, stray: float = 0.002) -> np.ndarray:
    """An even grid over the draws, leaving out a share of stray ones at either end."""
    low, high = np.quantile(values, (stray, 1 - stray))
    margin = 0.1 * (high - low) or 0.5  # draws that are all the same still need a grid
    # A positive variable gets no density below zero.
    low = max(low - margin, 0.0) if np.min(values) > 0 else low - margin
    return np.linspace(low, high + margin, _GRID)


def _mode(grid: np.ndarray) -> str:
    """How smoothing treats the edges: what would leak below zero is reflected."""
    return "reflect" if grid[0] == 0 else "constant"


def _density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Density of the draws on an even grid: a histogram smoothed with Silverman's bandwidth."""
    step = grid[1] - grid[0]
    edges = np.append(grid - step / 2, grid[-1] + step / 2)
    counts, _ = np.histogram(values, edges)
    return gaussian_filter1d(counts / (len(values) * step), _width(values, step), mode=_mode(grid))


def _width(values: np.ndarray, step: float) -> float:
    """Silverman's bandwidth, 0.9 min(sd, IQR / 1.34) n^(-1/5), in steps of a grid and within it."""
    low, high = np.quantile(values, (0.25, 0.75))
    bandwidth = 0.9 * min(float(np.std(values)), (high - low) / 1.34) * len(values) ** -0.2
    return float(np.clip(bandwidth / step, 0.5, _GRID))


def _regions(x: np.ndarray, y: np.ndarray) -> Regions:
    """The smallest regions of the plane that hold 50, 90 and 99 % of the draws."""
    grids = [_grid(values, stray=0.0005) for values in (x, y)]
    steps = [grid[1] - grid[0] for grid in grids]
    edges = [np.append(grid - step / 2, grid[-1] + step / 2) for grid, step in zip(grids, steps, strict=True)]
    counts, _, _ = np.histogram2d(x, y, edges)
    # In the plane the rule for a line would leave holes between the draws.
    widths = [2 * _width(values, step) for values, step in zip((x, y), steps, strict=True)]
    modes: Any = [_mode(grid) for grid in grids]  # one for each axis, which SciPy takes and its types do not
    density = gaussian_filter(counts, widths, mode=modes)
    # A region of mass m is where the density exceeds its own (1 - m)-quantile over the draws.
    order = np.argsort(density, axis=None)
    mass = np.cumsum(counts.flat[order]) / counts.sum()
    levels = np.unique(density.flat[order][np.searchsorted(mass, (0.01, 0.1, 0.5))])
    return Regions(grids[0], grids[1], density.T, levels)
