"""The noise turning into the posterior along the solver's steps."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dmvi._errors import InputError
from dmvi.posterior._figures import BLUE, VERMILLION
from dmvi.posterior._plots import Regions, _regions, few_ticks, label
from dmvi.posterior._views import Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 1000
_COLUMNS = 5
_FRAMES = 12  # between two stages of the animation
_MILLISECONDS = 60
_HOLD = 12  # frames for which the last stage stays


def plot_diffusion(
    fit: Views, x: str | None, y: str | None, *, n: int, seed: int, gif: str | Path | None
) -> "Figure":
    """Draws at each of the solver's steps over the regions of the corrected posterior.

    Args:
        fit: the fit.
        x: coordinate of the horizontal axis; None chooses the one that moves most.
        y: coordinate of the vertical axis.
        n: number of draws.
        seed: chooses the draws.
        gif: file to write an animation to.
    """
    from matplotlib.figure import Figure

    stages = fit.stages(n, seed=seed)
    if stages.shape[2] < 2:
        raise InputError("a plane needs two coordinates; this model has one.")
    i, j = _plane(fit, stages, x, y)
    way = np.asarray(stages[:, :_POINTS][:, :, [i, j]], float)
    corrected = np.asarray(fit.shown_unconstrained(4000, seed, resample=True), float)
    regions = _regions(corrected[:, i], corrected[:, j])
    limits = _limits(way, regions)
    names = (label(fit.names[i]), label(fit.names[j]))
    count = len(way)
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(2.5 * columns + 0.4, 2.6 * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for k, ax in enumerate(axes.flat):
        if k >= count:
            ax.set_visible(False)
            continue
        _plot_stage(ax, way[k], regions, limits)
        ax.set_title(_title(k, count), fontsize=11)
    figure.supxlabel(f"{names[0]} (unconstrained)", fontsize=10)
    figure.supylabel(f"{names[1]} (unconstrained)", fontsize=10)
    if gif is not None:
        _write_gif(Path(gif), way, regions, limits, names)
    return figure


def _title(k: int, count: int) -> str:
    if k == 0:
        return "noise"
    return "posterior" if k == count - 1 else f"after step {k} of {count - 1}"


def _plane(fit: Views, stages: np.ndarray, x: str | None, y: str | None) -> tuple[int, int]:
    """Indices of the two coordinates: those asked for, else the weights' first driver and what moves most."""
    names = fit.names
    for name in (x, y):
        if name is not None and name not in names:
            raise InputError(f"expected coordinates among {list(names[:12])}; got {name!r}.")
    if x is not None and x == y:
        raise InputError(f"expected two different coordinates; got {x!r} twice.")
    moved = np.mean(np.abs(stages[-1] - stages[0]), axis=0) / (np.std(stages[-1], axis=0) + 1e-30)
    if fit.diagnostics.drivers:
        moved[names.index(fit.diagnostics.drivers[0].name)] = np.inf
    order = [int(i) for i in np.argsort(-moved) if names[int(i)] not in (x, y)]
    i = names.index(x) if x is not None else order.pop(0)
    j = names.index(y) if y is not None else order.pop(0)
    return i, j


def _limits(way: np.ndarray, regions: Regions) -> tuple[tuple[float, float], tuple[float, float]]:
    """Room for the posterior and for nearly all of the noise."""
    found = []
    for axis, grid in enumerate((regions.x, regions.y)):
        low, high = np.quantile(way[:, :, axis], (0.005, 0.995))
        found.append((float(min(low, grid[0])), float(max(high, grid[-1]))))
    return found[0], found[1]


def _plot_stage(ax: "Axes", points: np.ndarray, regions: Regions, limits: tuple) -> None:
    ax.plot(*points.T, ".", color=BLUE, markersize=2.5, alpha=0.45, markeredgewidth=0, rasterized=True)
    ax.contour(
        regions.x, regions.y, regions.density, levels=regions.levels, colors=VERMILLION, linewidths=0.9
    )
    ax.set_xlim(*limits[0])
    ax.set_ylim(*limits[1])
    few_ticks(ax.xaxis)
    few_ticks(ax.yaxis)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _write_gif(path: Path, way: np.ndarray, regions: Regions, limits: tuple, names: tuple[str, str]) -> None:
    """An animation that goes straight from each stage to the next."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    if path.suffix.lower() != ".gif":
        raise InputError(f"expected a file that ends in .gif for the animation; got {str(path)!r}.")
    figure = Figure(figsize=(4.2, 4.2), dpi=90, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    ax = figure.subplots()
    _plot_stage(ax, way[0], regions, limits)
    ax.set_xlabel(f"{names[0]} (unconstrained)")
    ax.set_ylabel(f"{names[1]} (unconstrained)")
    (points,) = ax.lines
    frames = []
    for k, share in _times(len(way)):
        now = way[k] if share == 0 else (1 - share) * way[k] + share * way[k + 1]
        points.set_data(*now.T)
        ax.set_title(_title(k if share < 0.5 else k + 1, len(way)))
        canvas.draw()
        figure.set_layout_engine("none")  # the first frame has settled where things go
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3]).quantize(64))
    frames += [frames[-1]] * _HOLD
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=_MILLISECONDS, loop=0)


def _times(count: int) -> list[tuple[int, float]]:
    """Stage and share of the way to the next, for each frame."""
    between = [(k, i / _FRAMES) for k in range(count - 1) for i in range(_FRAMES)]
    return [*between, (count - 1, 0.0)]
