"""A fit read from a file without its model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dmvi._errors import InputError
from dmvi.posterior._arviz import Labels, to_datatree
from dmvi.posterior._named import chosen
from dmvi.posterior._save import Fit
from dmvi.posterior._summary import summarise
from dmvi.posterior._views import Views

if TYPE_CHECKING:
    import xarray as xr


class StoredPosterior(Views):
    """What a file keeps of a fit: draws, diagnostics, settings; enough for verdict, plots and report.

    Draws are those that were stored: asking for fewer gives the first of them, asking for more is
    refused. With the model and its data, `dmvi.load` gives the posterior itself.

    Args:
        fit: what the file says.

    Attributes:
        params: learned generative parameters.
        constant: arrays the model was given beside its observations.
        date: when the file was written.
    """

    def __init__(self, fit: Fit):
        self._fit = fit
        self.run = fit.run
        self.names = tuple(fit.record["names"])
        self.observed = fit.groups["observed"]
        self.versions = {str(k): str(v) for k, v in dict(fit.record["versions"]).items()}
        self.params: Mapping[str, np.ndarray] = fit.groups["params"]
        self.constant: Mapping[str, np.ndarray] = fit.groups["constant"]
        self.date = str(fit.record["date"])

    @property
    def diagnostics(self):
        """The diagnostics of the fit, as they were stored."""
        return self._fit.diagnostics

    @property
    def log_weights(self):
        """The log-weights behind the diagnostics."""
        return self._fit.arrays["log_weights"]

    @property
    def data_digest(self):
        """A fingerprint of the observed values; None where the model showed none."""
        value = self._fit.record["data_digest"]
        return None if value is None else str(value)

    @property
    def draws(self) -> int:
        """Number of stored draws."""
        return len(self._fit.arrays["xi"])

    def sample(self, n=None, *, seed=None, resample=False, sites=None):
        """Stored draws of the model's variables; all of them, or the first n.

        Args:
            n: number of draws, at most as many as were stored.
            seed: that of the stored draws, or None.
            resample: those corrected by importance weights.
            sites: names of the sites to return; all of them when left out.
        """
        n = self._checked(n, seed)
        draws = self._fit.groups["corrected" if resample else "draws"]
        return {site: values[:n] for site, values in chosen(draws, sites).items()}

    def unconstrained(self, n=None, *, seed=None, resample=False):
        """The draws of `sample` in unconstrained coordinates."""
        return self._fit.arrays["corrected_xi" if resample else "xi"][: self._checked(n, seed)]

    def summary(self, n=None, *, seed=None, resample=None, sites=None):
        """Mean, standard deviation and quantiles of every scalar element of every site."""
        resample = self._advised(resample)
        return summarise(self.sample(n, seed=seed, resample=resample, sites=sites), resample)

    def shown(self, n, seed, *, resample, sites=None):
        """The stored draws, at most n."""
        return self.sample(min(n, self.draws), resample=resample, sites=sites)

    def shown_unconstrained(self, n, seed, *, resample):
        """The stored draws in unconstrained coordinates, at most n."""
        return self.unconstrained(min(n, self.draws), resample=resample)

    def stages(self, n=None, *, seed=None):
        """The stored draws on their way from noise, at most n."""
        return self._fit.arrays["stages"][:, :n]

    def predictions(self, n=None, *, seed=None):
        """The stored posterior-predictive draws of the observed sites, at most n."""
        return {site: values[:n] for site, values in self._fit.groups["predictions"].items()}

    def to_arviz(
        self,
        *,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    ) -> "xr.DataTree":
        """The stored draws as ArviZ reads them, corrected by their weights if the verdict says so."""
        groups, arrays = self._fit.groups, self._fit.arrays
        resampled = self._advised(None)
        tree_groups = {
            "posterior": groups["corrected" if resampled else "draws"],
            "posterior_predictive": groups["predictions"],
            "log_likelihood": groups["log_likelihood"],
            "sample_stats": {
                "lp": arrays["log_pi"],
                "log_q": arrays["log_q"],
                "log_weight": arrays["log_pi"] - arrays["log_q"],
            },
            "observed_data": self.observed,
            "constant_data": self.constant,
        }
        attributes = {
            "inference_library": "dmvi",
            "guide": self.run.guide_name,
            "seed": self.run.seed,
            "sampling_time": self.run.seconds,
            "resampled": int(resampled),
            "verdict": self.verdict.value,
        }
        return to_datatree(
            tree_groups, Labels(self._fit.record["dims"], dims or {}, coords or {}), attributes
        )

    def _checked(self, n: Any, seed: Any) -> int:
        if seed is not None and seed != self._fit.record["draws_seed"]:
            raise InputError(
                f"the file holds the draws of seed {self._fit.record['draws_seed']} only; for others load it "
                "with the model and its data."
            )
        if n is None:
            return self.draws
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= self.draws:
            raise InputError(
                f"expected a number of draws from 1 to {self.draws}, which the file holds; got {n!r}. "
                "For more load it with the model and its data."
            )
        return int(n)
