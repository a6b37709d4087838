"""What importance weights on fresh draws say about a fit."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy.special import logsumexp

from dmvi._clock import Clock
from dmvi._run import Run, Status
from dmvi.objectives import ROUND_TRIPS, Weighed
from dmvi.posterior._draws import Draws
from dmvi.posterior._drivers import Driver, drivers
from dmvi.posterior._missed import TRIED, missed_share
from dmvi.posterior._psis import smooth
from dmvi.posterior._rounding import EVALUATIONS, rounding_error

DRAWS = 20_000
# The standard error of k-hat is about (1 + k) / sqrt(3 sqrt(n)): 0.08 at n = 20,000 and 0.06 at 80,000.
MORE_DRAWS = 80_000
_DOUBTFUL = (0.6, 1.0)
# An error of log q beyond this many nats is no rounding: the solver was not inverted.
_ROUND_TRIP_TOLERANCE = 0.1
_LATER = (
    "missed",
    "rounding",
    "gradients",
    "rows_of_a_step",
    "rows",
    "gradient_seconds",
)  # fields that files may lack


@dataclass(frozen=True)
class Care:
    """How much the diagnostics may take where a density is slow or time is limited.

    Attributes:
        patience: seconds of weighing without a time limit, beyond which there are fewer draws.
        fewest: draws that are weighed nevertheless.
        many: dimensions above which there are fewer draws, without a look at the clock: a draw takes time in
            proportion to its dimension.
        coordinates: of all draws together there.
        weighing: share of the time left that goes to the weights; the rest is for what is found out beside
            them, and for compiling that.
        beside: share of the time then left that each of those may take, or it is left out.
        fewest_tried: draws around a mode from which its share of the posterior can be told.
    """

    patience: float = 300.0
    fewest: int = 1000
    many: int = 2000
    coordinates: int = 80_000_000
    weighing: float = 0.6
    beside: float = 0.4
    fewest_tried: int = 25

    def draws(self, dim: int, seconds: float) -> float:
        """How many may be weighed of so many coordinates, where one takes so many seconds."""
        affordable = self.patience / max(seconds, 1e-9)
        if dim > self.many:
            affordable = min(affordable, self.coordinates // dim)
        return max(self.fewest, affordable)


CARE = Care()


def later_draws(dim: int) -> int:
    """Draws that the diagnostics of a fit of so many coordinates weigh where a draw takes no long time."""
    return int(min(DRAWS, CARE.draws(dim, 0.0)))


class Weights(NamedTuple):
    """The part of `Diagnostics` that log-weights alone decide; the names mean the same."""

    elbo: float
    elbo_se: float
    log_evidence: float
    log_evidence_se: float
    khat: float
    ess: float
    non_finite: int
    draws: int


@dataclass(frozen=True)
class Diagnostics:
    r"""Everything known about the quality of a fit and how it came about.

    The first eight come from log-weights log w_i = log pi(xi_i) - log q(xi_i), i = 1..n, on the
    full data and on draws that training never saw. They look at the target from the guide's own
    draws: a mode the guide has missed altogether leaves no trace in them.

    Attributes:
        elbo: mean of the finite log-weights; in expectation a lower bound of the log evidence.
        elbo_se: its standard error.
        log_evidence: log of the mean weight; the mean weight itself is unbiased.
        log_evidence_se: standard error by the delta method, sd(w) / (mean(w) sqrt(n)).
        khat: tail index of the weights; below 0.7 importance sampling can be relied on.
        ess: effective share of the draws, (sum w)^2 / (n sum w^2), between 0 and 1.
        non_finite: number of log-weights that are not finite; they count as weight zero.
        draws: n.
        round_trip_error: largest |log q(xi) - log_q| over 256 draws, in nats, where log_q came
            with the draw and log q(xi) inverts the guide, or of a mixture the component that made the draw;
            infinite where an inversion failed, NaN for a guide that is not inverted because its weights are
            those of whole paths.
        round_trip_misses: share of these draws with an error above 0.1 nats. The density of a
            guide is exact only where its map is injective.
        status: why training ended.
        steps: optimiser steps of the guide.
        seconds: wall time of the fit, compilation and warm start included.
        skipped: updates left out because they were not finite.
        warm_start: the start that won.
        guide: name of the guide.
        drivers: the coordinates in which the heaviest draws stand apart, the strongest first.
        history: ELBO on fresh draws, one value per look at the guide during training.
        history_steps: step of each look.
        missed: share of the posterior, by estimate, around a mode that the warm start's searches ended in
            and the guide has next to no draws near; the largest of several, NaN where there was no time.
        rounding: standard deviation, in nats, of rounding errors of the log-density in single precision; zero
            in double precision and for rows gone through in batches, which are summed in it; NaN where
            there was no time to look.
        gradients: evaluations of the model's gradient, or of its density alone, by warm start and training.
        rows_of_a_step: rows that a step of training saw, where it saw a batch; else zero.
        rows: rows in all, where training saw batches or a gradient is slow; else zero.
        gradient_seconds: what a gradient over all rows takes, where that is long and batches would help; else
            zero.
    """

    elbo: float
    elbo_se: float
    log_evidence: float
    log_evidence_se: float
    khat: float
    ess: float
    non_finite: int
    draws: int
    round_trip_error: float
    round_trip_misses: float
    status: Status
    steps: int
    seconds: float
    skipped: int
    warm_start: str
    guide: str = ""
    drivers: tuple[Driver, ...] = ()
    history: tuple[float, ...] = ()
    history_steps: tuple[int, ...] = ()
    missed: float = 0.0
    rounding: float = 0.0
    gradients: int = 0
    rows_of_a_step: int = 0
    rows: int = 0
    gradient_seconds: float = 0.0

    @property
    def gap(self) -> float:
        """Estimate of KL(q || p) = log evidence - ELBO, in nats."""
        return self.log_evidence - self.elbo

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; the status by name, infinities and NaN as text."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Diagnostics":
        """The inverse of `to_dict`; raises KeyError, TypeError or ValueError where a value is amiss."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name in _LATER and field.name not in values:
                continue  # files of 0.1.0 and before
            value = values[field.name]
            if field.type in (float, int, str):
                found[field.name] = field.type(value)
        drivers = tuple(Driver(str(name), float(pull)) for name, pull in values["drivers"])
        return cls(
            **found,
            status=Status[values["status"]],
            drivers=drivers,
            history=tuple(map(float, values["history"])),
            history_steps=tuple(map(int, values["history_steps"])),
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Status):
        return value.name
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def weigh(log_w: Float[np.ndarray, " n"]) -> Weights:
    """Estimates of evidence and quality from n log-weights."""
    n = log_w.size
    finite = log_w[np.isfinite(log_w)]
    if finite.size < 2:
        return Weights(-np.inf, np.inf, -np.inf, np.inf, np.inf, 0.0, n - finite.size, n)
    log_sum, log_sum_squares = logsumexp(finite), logsumexp(2 * finite)
    ess = float(np.exp(2 * log_sum - log_sum_squares) / n)
    relative = np.exp(finite - (log_sum - np.log(n)))  # w / mean(w), zeros left out
    squares = np.sum((relative - 1) ** 2) + (n - finite.size)
    return Weights(
        elbo=float(np.mean(finite)),
        elbo_se=float(np.std(finite, ddof=1) / np.sqrt(finite.size)),
        log_evidence=float(log_sum - np.log(n)),
        log_evidence_se=float(np.sqrt(squares / (n - 1) / n)),
        khat=smooth(log_w)[1],
        ess=min(ess, 1.0),
        non_finite=n - finite.size,
        draws=n,
    )


def weigh_enough(
    draws: Draws,
    key: PRNGKeyArray,
    kept: int,
    goes_on: Callable[[], bool] | None = None,
) -> Weighed:
    """The weighed draws of the diagnostics: DRAWS, or MORE_DRAWS where k-hat is too near 0.7 to tell.

    Where a draw takes long or has thousands of coordinates there are fewer.

    Args:
        draws: the guide's.
        key: random key; the first DRAWS are the same in either case.
        kept: how many xi are kept.
        goes_on: asked between programs whether there is time for another.
    """
    affordable = CARE.draws(draws.dim, draws.draw_seconds)
    weighed = draws.weigh(key, int(min(DRAWS, affordable)), kept, goes_on=goes_on)
    low, high = _DOUBTFUL
    whole = len(weighed.log_q) == DRAWS and affordable >= MORE_DRAWS
    if not draws.streamed and whole and low < smooth(weighed.log_w)[1] < high:
        return draws.weigh(key, MORE_DRAWS, kept, before=weighed, goes_on=goes_on)
    return weighed


def diagnose(
    draws: Draws,
    run: Run,
    weighed: Weighed,
    names: tuple[str, ...],
    key: PRNGKeyArray,
    clock: Clock | None = None,
) -> Diagnostics:
    """Weights of fresh draws, the round trip of 256 of them, and the record of the run.

    Args:
        draws: the guide's.
        run: the record.
        weighed: the fresh draws.
        names: of the coordinates.
        key: random key, for guides whose draws have to be made anew to be inverted.
        clock: of the fit, where it has a limit that this has to keep.
    """
    error, misses = _round_trip(draws, weighed, key)
    weights = weigh(weighed.log_w)
    affordable = _evaluations(draws, clock)
    tried = int(min(TRIED, affordable() / max(len(run.visited), 1)))
    missed = np.nan if len(run.visited) else 0.0
    if len(run.visited) and tried >= CARE.fewest_tried:
        missed = missed_share(draws, weighed, run.visited, weights.log_evidence, tried)
    rounding = 0.0 if draws.streamed or weighed.xi.dtype == np.float64 else np.nan
    if np.isnan(rounding) and affordable() >= EVALUATIONS:
        rounding = rounding_error(draws, weighed.xi)
    return Diagnostics(
        **weights._asdict(),
        round_trip_error=error,
        round_trip_misses=misses,
        status=run.status,
        steps=run.steps,
        seconds=run.seconds,
        skipped=run.skipped,
        warm_start=run.warm_start,
        guide=run.guide_name,
        drivers=drivers(weighed.xi, weighed.log_w[: len(weighed.xi)], names),
        history=tuple(map(float, run.history)),
        history_steps=tuple(map(int, run.history_steps)),
        missed=missed,
        rounding=rounding,
        gradients=run.gradients,
        **_rows(run.settings),
    )


def _evaluations(draws: Draws, clock: Clock | None) -> Callable[[], float]:
    """How many evaluations of the log-density there is time for now."""

    def affordable() -> float:
        left = CARE.patience if clock is None else clock.share(CARE.beside)
        return left / max(draws.draw_seconds, 1e-9)

    return affordable


def _rows(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How training went through the rows, from the record of the run."""
    if "batch_rows" in settings:
        count, size = settings["batch_rows"]
        return {"rows_of_a_step": int(count), "rows": int(size)}
    if "slow_gradient" in settings:
        seconds, rows = settings["slow_gradient"]
        return {"gradient_seconds": float(seconds), "rows": int(rows)}
    return {}


def _round_trip(draws: Draws, weighed: Weighed, key: PRNGKeyArray) -> tuple[float, float]:
    """Largest error of log q by inversion over ROUND_TRIPS draws, and the share of draws that it misses."""
    if draws.exact:
        found = weighed.log_q[:ROUND_TRIPS], draws.evidence(weighed.xi[:ROUND_TRIPS])
    else:
        found = draws.round_trips(key)
    if found is None:
        return np.nan, 0.0
    log_q, again = (part.astype(np.float64) for part in found)
    with np.errstate(invalid="ignore"):
        error = np.abs(again - log_q)
    error = np.where(np.isnan(error), np.inf, error)
    return float(np.max(error)), float(np.mean(error > _ROUND_TRIP_TOLERANCE))
