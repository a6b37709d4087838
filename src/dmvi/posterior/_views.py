"""What can be shown of a fit, whether its model is at hand or only its file."""

import abc
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dmvi._run import Run
from dmvi.posterior._diagnostics import Diagnostics
from dmvi.posterior._summary import Summary
from dmvi.posterior._verdict import Judgement, Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sites = Sequence[str] | None


class Views(abc.ABC):
    """Verdict, plots and report of a fit.

    Every `plot_` method returns a Matplotlib figure: save it with `.savefig("figure.png")`; a notebook
    shows it. Nothing opens a window.

    Attributes:
        run: the record of the fit.
        names: one label for each unconstrained coordinate.
        observed: observed values by site.
        versions: versions of the libraries the fit was made with.
    """

    run: Run
    names: tuple[str, ...]
    observed: Mapping[str, np.ndarray]
    versions: Mapping[str, str]

    @property
    @abc.abstractmethod
    def diagnostics(self) -> Diagnostics:
        """What fresh draws on the full data say about the fit."""

    @property
    @abc.abstractmethod
    def log_weights(self) -> np.ndarray:
        """The log-weights log pi(xi) - log q(xi) behind the diagnostics."""

    @property
    @abc.abstractmethod
    def data_digest(self) -> str | None:
        """A fingerprint of the observed values; None where the model shows none."""

    @abc.abstractmethod
    def sample(
        self, n: int = 4000, *, seed: int = 0, resample: bool = False, sites: Sites = None
    ) -> dict[str, np.ndarray]:
        """Draws of the model's variables, deterministic sites included."""

    @abc.abstractmethod
    def summary(
        self, n: int = 4000, *, seed: int = 0, resample: bool | None = None, sites: Sites = None
    ) -> Summary:
        """Mean, standard deviation and quantiles of every scalar element of every site."""

    @abc.abstractmethod
    def unconstrained(self, n: int = 4000, *, seed: int = 0, resample: bool = False) -> np.ndarray:
        """The draws of `sample` in unconstrained coordinates."""

    @abc.abstractmethod
    def shown(self, n: int, seed: int, *, resample: bool, sites: Sites = None) -> dict[str, np.ndarray]:
        """As `sample`, for figures: at most n draws, of another seed where those asked for are not kept."""

    @abc.abstractmethod
    def shown_unconstrained(self, n: int, seed: int, *, resample: bool) -> np.ndarray:
        """As `shown`, in unconstrained coordinates."""

    @abc.abstractmethod
    def stages(self, n: int = 1000, *, seed: int = 0) -> np.ndarray:
        """Draws on their way from noise: stage, draw, unconstrained coordinate."""

    @abc.abstractmethod
    def predictions(self, n: int = 500, *, seed: int = 0) -> dict[str, np.ndarray]:
        """Posterior-predictive draws of the observed sites; empty where there are none."""

    @functools.cached_property
    def judgement(self) -> Judgement:
        """The verdict with its reasons and what to do next."""
        return judge(self.diagnostics)

    @property
    def verdict(self) -> Verdict:
        """Whether to trust the draws as they are, after resampling, or not."""
        return self.judgement.verdict

    def plot_history(self) -> "Figure":
        """The ELBO during training, where it stopped and why."""
        from dmvi.posterior._figures import plot_history

        return plot_history(self)

    def plot_marginals(self, sites: Sites = None, *, n: int = 4000, seed: int = 0) -> "Figure":
        """Marginal densities of the guide over those of PSIS-resampled draws."""
        from dmvi.posterior._figures import plot_guide_marginals

        return plot_guide_marginals(self, sites, n=n, seed=seed)

    def plot_pairs(self, variables: Sequence[str] | None = None, *, n: int = 4000, seed: int = 0) -> "Figure":
        """Draws of the guide over regions of PSIS-resampled draws, two variables at a time.

        Args:
            variables: scalars such as "mu" or "theta[0]"; by default up to six, first those in which
                the heaviest weights stand apart.
            n: number of draws.
            seed: chooses the draws.
        """
        from dmvi.posterior._pairs import plot_pairs

        return plot_pairs(self, variables, n=n, seed=seed)

    def plot_weights(self) -> "Figure":
        """The importance weights, their tail and k-hat."""
        from dmvi.posterior._figures import plot_weights

        return plot_weights(self)

    def plot_forest(
        self, sites: Sites = None, *, n: int = 4000, seed: int = 0, resample: bool | None = None
    ) -> "Figure":
        """Medians with intervals of 50 and 90 %, a row for each scalar."""
        from dmvi.posterior._forest import plot_forest

        return plot_forest(self.shown(n, seed, resample=self._advised(resample), sites=sites))

    def plot_predictive(self, *, n: int = 500, seed: int = 0) -> "Figure":
        """Posterior predictive check: what the model could have observed beside what was observed."""
        from dmvi.posterior._checks import plot_predictive

        return plot_predictive(self.observed, self.predictions(n, seed=seed))

    def plot_diffusion(
        self,
        x: str | None = None,
        y: str | None = None,
        *,
        n: int = 1000,
        seed: int = 0,
        gif: str | Path | None = None,
    ) -> "Figure":
        """The noise turning into the posterior along the solver's steps, a panel for each.

        Args:
            x: unconstrained coordinate of the horizontal axis; by default those two that move most.
            y: of the vertical axis.
            n: number of draws.
            seed: chooses the draws.
            gif: also write the way as an animation to this file.
        """
        from dmvi.posterior._way import plot_diffusion

        return plot_diffusion(self, x, y, n=n, seed=seed, gif=gif)

    def report(self, path: str | Path, *, n: int = 4000, seed: int = 0) -> Path:
        """Write one self-contained HTML page: verdict, parameters, figures, checks, settings.

        Args:
            path: where to; a file that exists is replaced.
            n: number of draws behind table and figures.
            seed: chooses the draws.
        """
        from dmvi.posterior._report import write_report

        return write_report(self, Path(path), n=n, seed=seed)

    def _advised(self, resample: bool | None) -> bool:
        return self.verdict is Verdict.RESAMPLE if resample is None else resample

    def __repr__(self) -> str:
        lines = [f"{self.verdict.value}: {self.judgement.reasons[0]}."]
        lines += [f"  Note: {remark}." for remark in self.judgement.reasons[1:]]
        lines += [f"  Next: {advice}." for advice in self.judgement.advice]
        return "\n".join(lines + [f"  {name:<13} {value}" for name, value in self.figures().items()])

    def figures(self) -> dict[str, str]:
        """The numbers behind the verdict, written out."""
        d = self.diagnostics
        rows = {
            "ELBO": f"{d.elbo:.3f} +- {d.elbo_se:.3f}",
            "log evidence": f"{d.log_evidence:.3f} +- {d.log_evidence_se:.3f} (gap {d.gap:.3f} nats)",
            "k-hat": f"{d.khat:.2f}",
            "ESS": f"{d.ess:.3f} of each of {d.draws:,} draws",
            "round trip": "none: weights are those of whole paths"
            if np.isnan(d.round_trip_error)
            else f"{d.round_trip_error:.1e} nats at most",
            "training": f"{d.seconds:.1f} s, {d.steps:,} steps; {d.status.value}",
            "gradients": f"{d.gradients:,} evaluations" if d.gradients else "not counted",
            "skipped": f"{d.skipped:,} updates",
            "warm start": d.warm_start,
            "guide": f"{self.run.guide_name}, {len(self.names)} dimensions, seed {self.run.seed}",
        }
        if "chosen" in self.run.settings:
            rows["chosen"] = str(self.run.settings["chosen"])
        if d.drivers and self.verdict is not Verdict.TRUST:
            rows["driven by"] = ", ".join(f"{driver.name} ({driver.pull:.2f})" for driver in d.drivers)
        return rows
