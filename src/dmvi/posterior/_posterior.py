"""The result of a fit."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from dmvi._errors import InputError
from dmvi._random import children
from dmvi._run import Run
from dmvi.guides import Guide
from dmvi.posterior._arviz import to_datatree
from dmvi.posterior._diagnostics import DRAWS, Diagnostics, diagnose
from dmvi.posterior._draws import Draws
from dmvi.posterior._psis import resample as choose
from dmvi.posterior._psis import smooth
from dmvi.posterior._summary import Summary, summarise
from dmvi.posterior._verdict import Judgement, Verdict, judge
from dmvi.targets import Target

# Resampling n draws out of this many times n keeps repeated draws rare.
_POOL = 4


class Posterior:
    """An approximate posterior with its own verdict on whether to trust it.

    Printing it gives the verdict in plain words. All draws come back as NumPy arrays, the
    leading axis counting draws; the same seed gives the same draws.

    Args:
        target: the model, at its learned generative parameters.
        guide: the fitted guide.
        run: the record of the fit.
        key: source of randomness of the diagnostics and of all later draws.

    Attributes:
        target: as given.
        guide: as given.
        run: as given.
    """

    target: Target
    guide: Guide
    run: Run

    def __init__(self, target: Target, guide: Guide, run: Run, key: PRNGKeyArray):
        if guide.dim != target.dim:
            raise InputError(
                f"expected a guide of dimension {target.dim}, the target's; got one of {guide.dim}. "
                "Build the guide for this target."
            )
        self._diagnostics_key, self._key = children(key, 2)
        self.target = target
        self.guide = guide
        self.run = run
        self._draws = Draws(target, guide)

    @functools.cached_property
    def diagnostics(self) -> Diagnostics:
        """What 20,000 fresh draws on the full data say about the fit; made when first asked for."""
        return diagnose(self._draws, self.run, self._diagnostics_key)

    @functools.cached_property
    def judgement(self) -> Judgement:
        """The verdict with its reasons and what to do next."""
        return judge(self.diagnostics)

    @property
    def verdict(self) -> Verdict:
        """Whether to trust the draws as they are, after resampling, or not."""
        return self.judgement.verdict

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The learned generative parameters psi on their own supports."""
        return {name: np.asarray(value) for name, value in self.target.constrained_params().items()}

    def sample(
        self, n: int = 4000, *, seed: int = 0, resample: bool = False, sites: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Draws of the model's variables, deterministic sites included.

        Args:
            n: number of draws.
            seed: chooses the draws; repeat it to get the same ones.
            resample: correct the draws by their importance weights. A pool of at least 4 n and
                20,000 draws is weighed, the weights are Pareto-smoothed, and n draws are chosen
                in proportion to them; a draw that weighs more than 1/n comes up more than once.
            sites: names of the sites to return; all of them when left out.

        Returns:
            Site name -> array of shape (n, *shape of the site).
        """
        draws = self._draws.constrain(self._xi(n, seed, resample))
        if sites is None:
            return draws
        unknown = [site for site in sites if site not in draws]
        if isinstance(sites, str) or unknown:
            raise InputError(
                f"expected `sites` to be a list of names among {sorted(draws)}; got {sites!r}. "
                "Observed sites have no draws."
            )
        return {site: draws[site] for site in sites}

    def summary(
        self,
        n: int = 4000,
        *,
        seed: int = 0,
        resample: bool | None = None,
        sites: Sequence[str] | None = None,
    ) -> Summary:
        """Mean, standard deviation and quantiles of every scalar element of every site.

        Args:
            n: number of draws behind the table.
            seed: chooses the draws.
            resample: as in `sample`; left out, the verdict decides.
            sites: names of the sites to show; all of them when left out.
        """
        resample = self._advised(resample)
        return summarise(self.sample(n, seed=seed, resample=resample, sites=sites), resample)

    def to_arviz(
        self, n: int = 4000, *, seed: int = 0, resample: bool | None = None, log_likelihood: bool = True
    ) -> xr.DataTree:
        """The fit as ArviZ reads it: groups posterior (one chain), observed_data, log_likelihood.

        For a PyMC model it is what `pm.sample` would return: before PyMC 6 that is an `InferenceData`.

        Args:
            n: number of draws.
            seed: chooses the draws.
            resample: as in `sample`; left out, the verdict decides.
            log_likelihood: whether to add the pointwise log-likelihood, n numbers for each
                observation, which `arviz_stats.loo` needs.
        """
        resample = self._advised(resample)
        xi = self._xi(n, seed, resample)
        attributes: dict[str, Any] = {
            "inference_library": "dmvi",
            "guide": self.run.guide_name,
            "seed": self.run.seed,
            "sampling_time": self.run.seconds,
            "resampled": int(resample),
            "verdict": self.verdict.value,
        }
        tree = to_datatree(
            self._draws.constrain(xi),
            self.target.observed,
            self._draws.log_likelihood(xi) if log_likelihood else {},
            self.target.dims,
            attributes,
            self.target.coords,
            self.target.constant,
        )
        return self.target.export(tree)

    def _advised(self, resample: bool | None) -> bool:
        return self.verdict is Verdict.RESAMPLE if resample is None else resample

    def _xi(self, n: int, seed: int, resample: bool) -> np.ndarray:
        """n draws in unconstrained coordinates."""
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise InputError(f"expected a number of draws of at least 1; got {n!r}.")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
            raise InputError(f"expected a seed that is a whole number from 0 to 2**32 - 1; got {seed!r}.")
        key = jax.random.fold_in(self._key, np.uint32(seed))
        if not resample:
            return self._draws.propose(key, int(n))
        pool_key, choice_key = children(key, 2)
        pool = self._draws.weigh(pool_key, max(_POOL * int(n), DRAWS))
        log_w, _ = smooth(pool.log_w)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(choice_key)))
        return pool.xi[choose(log_w, int(n), rng)]

    def __repr__(self) -> str:
        d = self.diagnostics
        lines = [f"{self.verdict.value}: {self.judgement.reasons[0]}."]
        lines += [f"  Note: {remark}." for remark in self.judgement.reasons[1:]]
        lines += [f"  Next: {advice}." for advice in self.judgement.advice]
        rows = {
            "ELBO": f"{d.elbo:.3f} +- {d.elbo_se:.3f}",
            "log evidence": f"{d.log_evidence:.3f} +- {d.log_evidence_se:.3f} (gap {d.gap:.3f} nats)",
            "k-hat": f"{d.khat:.2f}",
            "ESS": f"{d.ess:.3f} of each of {d.draws:,} draws",
            "round trip": "none: weights are those of whole paths"
            if np.isnan(d.round_trip_error)
            else f"{d.round_trip_error:.1e} nats at most",
            "training": f"{d.seconds:.1f} s, {d.steps:,} steps; {d.status.value}",
            "warm start": d.warm_start,
            "guide": f"{self.run.guide_name}, {self.target.dim} dimensions, seed {self.run.seed}",
        }
        return "\n".join(lines + [f"  {name:<13} {value}" for name, value in rows.items()])
