"""What ranks of the truth say about a way of fitting a model."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from dmvi.calibration._uniformity import holm, simultaneous_bands, uniformity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_FAILED = 0.05  # share of the data sets
_SHOWN = 0.9  # mass of the interval whose coverage the words and the table tell


@dataclass(frozen=True)
class SiteVerdict:
    """What the ranks of one site say.

    Attributes:
        site: its name.
        calibrated: whether no scalar of it shows the contrary.
        p_value: the smallest p-value among its scalars, corrected for the number of all scalars.
        worst: the scalar it belongs to.
        words: the finding in plain words.
    """

    site: str
    calibrated: bool
    p_value: float
    worst: str
    words: str


@dataclass(frozen=True)
class Calibration:
    r"""Ranks of the truth among draws of the fit, over simulated data sets.

        theta* ~ p(theta),  y ~ p(y | theta*),  theta_1..L ~ q(theta | y),  rank = #{l: theta_l < theta*}

    If q is the posterior, every rank is uniform on {0, ..., L}, for any function of theta and y. The draws of
    a guide are independent, so nothing has to be thinned.

    Printing it gives a verdict for every site; `plot_ecdf` and `plot_ranks` show what it rests on.

    Attributes:
        ranks: scalar -> one rank per data set.
        sites: site -> names of its scalars.
        draws: L.
        failed: data sets that are left out: without a fit, or with a truth or draws that are not numbers.
        reason: why the first of them is.
        cut_short: fits that ended by an interruption or a time limit, which are not.
        left_over: data sets that were not come to before an interruption or the time limit.
        near: whether data sets were simulated around one that was given.
        level: probability that all scalars are called calibrated if they are.
        title: model and guide in words.
        seconds: wall time.
    """

    ranks: Mapping[str, Int[np.ndarray, " datasets"]]
    sites: Mapping[str, tuple[str, ...]]
    draws: int
    failed: int = 0
    reason: str = ""
    cut_short: int = 0
    left_over: int = 0
    near: bool = False
    level: float = 0.95
    title: str = ""
    seconds: float = 0.0

    @property
    def datasets(self) -> int:
        """Number of data sets behind every rank."""
        return len(next(iter(self.ranks.values())))

    @functools.cached_property
    def p_values(self) -> dict[str, float]:
        """Scalar -> how often uniform ranks stray as far, exactly."""
        return {name: uniformity(ranks, self.draws) for name, ranks in self.ranks.items()}

    @functools.cached_property
    def adjusted(self) -> dict[str, float]:
        """The p-values corrected for their number by Holm's method."""
        return dict(zip(self.p_values, holm(np.array(list(self.p_values.values()))).tolist(), strict=True))

    def coverage(self, mass: float = _SHOWN) -> dict[str, float]:
        """Scalar -> share of data sets whose central interval of that mass holds the truth."""
        edge = 0.5 * (1 - mass) * (self.draws + 1)
        return {
            name: float(np.mean((ranks + 0.5 > edge) & (ranks + 0.5 < self.draws + 1 - edge)))
            for name, ranks in self.ranks.items()
        }

    @functools.cached_property
    def verdicts(self) -> tuple[SiteVerdict, ...]:
        """One for each site."""
        found = []
        for site, names in self.sites.items():
            worst = min(names, key=lambda name: self.p_values[name])
            p_value = self.adjusted[worst]
            calibrated = p_value >= 1 - self.level
            words = "no sign of miscalibration" if calibrated else self._fault(worst)
            found.append(SiteVerdict(site, calibrated, p_value, worst, words))
        return tuple(found)

    @property
    def calibrated(self) -> bool:
        """Whether no site shows the contrary, and next to no data set was left out."""
        return not self._too_few and all(verdict.calibrated for verdict in self.verdicts)

    @property
    def _too_few(self) -> bool:
        """Whether so many fits failed that the others say little: they are not left out at random."""
        return self.failed > _MOST_FAILED * (self.failed + self.datasets)

    def _fault(self, name: str) -> str:
        """What is wrong with the ranks of a scalar: the larger of shift and spread, in their own sds."""
        ranks = self.ranks[name]
        u = (ranks + 0.5) / (self.draws + 1) - 0.5
        shift = np.mean(u) * np.sqrt(12 * len(u))
        spread = (np.mean(u**2) - 1 / 12) * np.sqrt(180 * len(u))
        if max(abs(shift), abs(spread)) < 2:
            return f"ranks of {name} are not uniform; look at plot_ecdf()"
        if abs(shift) > abs(spread):
            side, share = ("low", np.mean(u > 0)) if shift > 0 else ("high", np.mean(u < 0))
            where = "above" if shift > 0 else "below"
            return (
                f"too {side}: the truth of {name} lies {where} the median in {100 * share:.0f} % of data sets"
            )
        kind, held = "narrow" if spread > 0 else "wide", 100 * self.coverage()[name]
        intervals = f"{100 * _SHOWN:.0f} % intervals of {name}"
        return f"too {kind}: the {intervals} hold the truth in {held:.0f} % of data sets"

    def plot_ecdf(self) -> "Figure":
        """The ranks' distribution functions less the diagonal, in bands that hold all of one at once."""
        from dmvi.calibration._figures import plot_ecdf

        return plot_ecdf(self)

    def plot_ranks(self) -> "Figure":
        """Histograms of the ranks: flat if calibrated, a valley if too narrow, a hill if too wide."""
        from dmvi.calibration._figures import plot_ranks

        return plot_ranks(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "title": self.title,
            "datasets": self.datasets,
            "draws": self.draws,
            "failed": self.failed,
            "reason": self.reason,
            "cut_short": self.cut_short,
            "left_over": self.left_over,
            "near": self.near,
            "level": self.level,
            "seconds": self.seconds,
            "sites": {site: list(names) for site, names in self.sites.items()},
            "ranks": {name: ranks.tolist() for name, ranks in self.ranks.items()},
            "p_values": self.p_values,
            "adjusted": self.adjusted,
        }

    def __repr__(self) -> str:
        faulty = [verdict.site for verdict in self.verdicts if not verdict.calibrated]
        where = "around the given data" if self.near else "over the prior"
        head = (
            f"Not calibrated {where}: {', '.join(faulty)}."
            if faulty
            else f"No sign of miscalibration {where}, in {len(self.ranks)} quantities."
        )
        if self._too_few and not faulty:
            head = f"Cannot be judged {where}: too many data sets could not be fitted."
        # As wide as they are for a verdict on all scalars together.
        bands = simultaneous_bands(self.datasets, self.draws, 1 - (1 - self.level) / len(self.ranks))
        width = float(np.max(np.maximum(bands.high - self.datasets * bands.z, 0)) / self.datasets)
        lines = [head]
        if self.title:
            lines.append(f"  {self.title}")
        lines.append(
            f"  {self.datasets} data sets, {self.draws} draws each; errors of a probability below about "
            f"{width:.2f} do not show"
        )
        if self.failed:
            lines.append(
                f"  Note: {self.failed} more could not be fitted or ranked and are left out, not at random."
            )
            lines += [f"  The first of them: {self.reason}"] if self.reason else []
        if self.left_over:
            lines.append(
                f"  Note: {self.left_over} more were not come to before the interruption or time limit."
            )
        if self.cut_short:
            lines.append(f"  Note: {self.cut_short} fits were cut short, and are judged as they were then.")
        size = max(len(verdict.site) for verdict in self.verdicts)
        coverage = self.coverage()
        lines.append(f"  {'site':<{size}}  {'p, corrected':>12}  {'90 % holds':>10}")
        for verdict in self.verdicts:
            held = np.mean([coverage[name] for name in self.sites[verdict.site]])
            lines.append(
                f"  {verdict.site:<{size}}  {verdict.p_value:>12.2g}  {100 * held:>8.0f} %  {verdict.words}"
            )
        return "\n".join(lines)
