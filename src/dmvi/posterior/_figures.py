"""Figures of one fit: training, marginals, weights."""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from dmvi._run import Status
from dmvi.posterior._named import scalars
from dmvi.posterior._plots import COLOURS, few_ticks, plot_marginals
from dmvi.posterior._psis import smooth
from dmvi.posterior._views import Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN = COLOURS[:3]
GUIDE, CORRECTED = "guide", "PSIS-resampled"
MOST_PANELS = 64
_WIDE = 24  # scalars from which panels stand more closely


def plot_history(fit: Views) -> "Figure":
    """The ELBO during training, where it stopped, and the final estimates."""
    from matplotlib.figure import Figure

    d = fit.diagnostics
    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    ax = figure.subplots()
    history, steps = np.asarray(d.history, float), np.asarray(d.history_steps, float)
    usable = np.isfinite(history)
    low, high = _elbo_range(history[usable], d.elbo, d.log_evidence)
    below = usable & (history < low)
    ax.plot(steps[usable], history[usable], "o-", color=BLUE, markersize=3.5, label="ELBO on fresh draws")
    if below.any():
        places = np.full(int(below.sum()), low)
        ax.plot(steps[below], places, "v", color=BLUE, markersize=6, clip_on=False, label="lower still")
    if np.isfinite(d.log_evidence):
        ax.axhline(d.log_evidence, color=VERMILLION, linestyle="--", linewidth=1.3, label="log evidence")
    ax.axvline(d.steps, color="0.3", linestyle=":", linewidth=1.5, label=f"stopped at step {d.steps:,}")
    if np.isfinite(d.elbo):
        error = d.elbo_se if np.isfinite(d.elbo_se) else 0.0
        ax.errorbar([d.steps], [d.elbo], 2 * error, fmt="D", color=GREEN, capsize=3, label="final ELBO, 2 se")
    ax.set_ylim(low, high)
    ax.set_xlim(left=0)
    ax.set_xlabel("optimiser step")
    ax.set_ylabel("nats")
    few_ticks(ax.xaxis, 6)
    few_ticks(ax.yaxis, 6)
    ax.set_title(_sentence(d.status), fontsize=11)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _sentence(status: Status) -> str:
    return status.value[:1].upper() + status.value[1:]


def _elbo_range(history: np.ndarray, elbo: float, log_evidence: float) -> tuple[float, float]:
    """Limits that show the last half of training, not the fall from its first steps."""
    late = history[len(history) // 2 :]
    shown = np.asarray([*late, elbo, log_evidence], float)
    shown = shown[np.isfinite(shown)]
    if shown.size == 0:
        return -1.0, 1.0
    margin = 0.25 * max(float(np.ptp(shown)), 0.02)
    return float(shown.min()) - margin, float(shown.max()) + margin


def plot_guide_marginals(fit: Views, sites: Sequence[str] | None, *, n: int, seed: int) -> "Figure":
    """Marginal densities of the guide over those of its PSIS-resampled draws."""
    draws = {
        CORRECTED: scalars(fit.shown(n, seed, resample=True, sites=sites)),
        GUIDE: scalars(fit.shown(n, seed, resample=False, sites=sites)),
    }
    count = len(draws[GUIDE])
    title = f"The first {MOST_PANELS} of {count:,} scalars" if count > MOST_PANELS else ""
    draws = {method: dict(islice(values.items(), MOST_PANELS)) for method, values in draws.items()}
    return plot_marginals(draws, reference=CORRECTED, columns=5 if count <= _WIDE else 6, title=title)


def plot_weights(fit: Views) -> "Figure":
    """The weights' distribution and the tail that k-hat is fitted to."""
    from matplotlib.figure import Figure

    d = fit.diagnostics
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    log_w = np.asarray(fit.log_weights, float)
    finite = log_w[np.isfinite(log_w)]
    if finite.size == 0:
        for ax in (left, right):
            ax.text(0.5, 0.5, "no finite weight", ha="center", va="center", transform=ax.transAxes)
        return figure
    relative = finite - d.log_evidence
    left.hist(_within(relative), bins=80, color=BLUE, alpha=0.85)
    left.axvline(0.0, color="0.2", linewidth=1.3, linestyle="--")
    left.set_yscale("log")
    left.set_xlabel("log weight minus log evidence (nats); 0 where exact")
    left.set_ylabel("draws")
    few_ticks(left.xaxis, 5)
    left.set_title(f"ESS {d.ess:.3f} of {d.draws:,} draws", fontsize=11)
    _plot_tail(right, log_w, d.log_evidence)
    word = "can be relied on" if d.khat < 0.7 else "0.7 or more: too heavy"
    right.set_title(f"k-hat {d.khat:.2f} ({word})", fontsize=11)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    # A fixed place: looking for the best one takes long, and Matplotlib warns when it does.
    right.legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def _within(values: np.ndarray) -> np.ndarray:
    """Values with the far low end, which says nothing about the posterior, gathered at its edge."""
    low = min(float(np.quantile(values, 0.001)), -0.1)
    return np.maximum(values, low)


def _plot_tail(ax: "Axes", log_w: np.ndarray, log_evidence: float) -> None:
    """The heaviest weights by rank, raw and as the Pareto tail smooths them."""
    n = len(log_w)
    size = max(int(3 * np.sqrt(n)), 5)
    raw = np.sort(np.where(np.isfinite(log_w), log_w, -np.inf))[::-1][:size] - log_evidence
    smoothed = np.sort(smooth(log_w)[0])[::-1][:size] + np.log(n)
    rank = np.arange(1, len(raw) + 1)
    ax.plot(rank, np.exp(np.clip(raw, -50, 50)), ".", color=BLUE, markersize=4, label="heaviest draws")
    ax.plot(rank, np.exp(np.clip(smoothed, -50, 50)), color=VERMILLION, linewidth=1.5, label="Pareto tail")
    ax.set_xscale("log")
    if raw[0] - raw[-1] > np.log(30):
        ax.set_yscale("log")
    else:
        few_ticks(ax.yaxis, 5)
    ax.set_xlabel("rank of the draw")
    ax.set_ylabel("weight, average 1")
