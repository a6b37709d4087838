"""The result of a fit."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from dmvi._clock import Clock
from dmvi._compile import quick_options
from dmvi._errors import InputError
from dmvi._interrupt import Interrupt
from dmvi._random import children, seed_of
from dmvi._run import Run
from dmvi.guides import Guide
from dmvi.posterior._arviz import Labels, to_datatree
from dmvi.posterior._diagnostics import CARE, DRAWS, Diagnostics, diagnose, weigh_enough
from dmvi.posterior._draws import Draws
from dmvi.posterior._expectation import Expectation, expect
from dmvi.posterior._named import chosen, constant_dims, digest, library_versions
from dmvi.posterior._psis import resample as choose
from dmvi.posterior._psis import smooth
from dmvi.posterior._summary import Summary, summarise
from dmvi.posterior._views import Views
from dmvi.targets import Target

if TYPE_CHECKING:
    import xarray as xr

# Resampling n draws out of this many times n keeps repeated draws rare.
_POOL = 4
_KEPT = 2  # sets of draws kept for figures
_KEPT_NUMBERS = 2**24  # coordinates of weighed draws kept to say what drives a bad fit


class Posterior(Views):
    """An approximate posterior with its own verdict on whether to trust it.

    Printing it gives the verdict in plain words. All draws come back as NumPy arrays, the
    leading axis counting draws; the same seed gives the same draws.

    Args:
        target: the model, at its learned generative parameters.
        guide: the fitted guide.
        run: the record of the fit.
        key: source of randomness of the diagnostics and of all later draws.
        training: arrays of the state that training left behind, from which it can go on.
        judged: diagnostics and log-weights, where they are known already.

    Attributes:
        target: as given.
        guide: as given.
        run: as given.
        key: as given.
        training: as given.
    """

    target: Target
    guide: Guide
    key: PRNGKeyArray
    training: tuple[np.ndarray, ...] | None

    def __init__(
        self,
        target: Target,
        guide: Guide,
        run: Run,
        key: PRNGKeyArray,
        *,
        training: Sequence[np.ndarray] | None = None,
        judged: tuple[Diagnostics, np.ndarray] | None = None,
    ):
        if guide.dim != target.dim:
            raise InputError(
                f"expected a guide of dimension {target.dim}, the target's; got one of {guide.dim}. "
                "Build the guide for this target."
            )
        self._diagnostics_key, self._key = children(key, 2)
        self.target, self.guide, self.run, self.key = target, guide, run, key
        self.training = None if training is None else tuple(training)
        self.names, self.observed = target.names, target.observed
        self.versions = library_versions()
        self._draws = Draws(target, guide, run.gradient_seconds)
        self._shown: dict[tuple[int, int, bool], dict[str, np.ndarray]] = {}
        self._known = judged

    @functools.cached_property
    def _judged(self) -> tuple[Diagnostics, np.ndarray]:
        if self._known is not None:
            return self._known
        return self._judge()

    def judge_within(self, clock: Clock, stop: Interrupt) -> None:
        """Diagnostics now, with as many draws as there is time for; after Ctrl-C they are left for later."""
        if self.run.gradient_seconds == 0 and not (stop.asked or self._draws.streamed):
            self._draws = Draws(self.target, self.guide, self._draws.seconds(self._diagnostics_key))
        weighing = clock.within(clock.share(CARE.weighing))

        def goes_on() -> bool:
            return not (stop.asked or weighing.over)

        judged = None if stop.asked else self._judge(clock, goes_on)
        if judged is not None and not stop.asked:
            self._known = judged

    def _judge(
        self, clock: Clock | None = None, goes_on: Callable[[], bool] | None = None
    ) -> tuple[Diagnostics, np.ndarray]:
        kept, key = _KEPT_NUMBERS // self.target.dim, self._diagnostics_key
        weighed = weigh_enough(self._draws, key, kept, goes_on)
        again = jax.random.fold_in(key, 1)
        return diagnose(self._draws, self.run, weighed, self.names, again, clock), weighed.log_w

    @property
    def diagnostics(self) -> Diagnostics:
        """What fresh draws on the full data say about the fit; made when first asked for.

        20,000 of them, or 80,000 where k-hat is too near 0.7 to tell; of rows in files and of densities that
        take milliseconds fewer. A fit with a time limit makes them within it, as many as there is time for.
        """
        return self._judged[0]

    @property
    def log_weights(self) -> np.ndarray:
        """The log-weights behind the diagnostics."""
        return self._judged[1]

    @functools.cached_property
    def data_digest(self) -> str | None:
        """A fingerprint of the observed values; None for a log-density, which shows none."""
        return digest(self.observed) if self.observed else None

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
        return chosen(self._draws.constrain(self.unconstrained(n, seed=seed, resample=resample)), sites)

    def summary(self, n=4000, *, seed=0, resample=None, sites=None) -> Summary:
        """Mean, standard deviation and quantiles of every scalar element of every site.

        Args:
            n: number of draws behind the table.
            seed: chooses the draws.
            resample: as in `sample`; left out, the verdict decides.
            sites: names of the sites to show; all of them when left out.
        """
        resample = self._advised(resample)
        return summarise(self.sample(n, seed=seed, resample=resample, sites=sites), resample)

    def unconstrained(self, n=4000, *, seed=0, resample=False):
        """The draws of `sample` in unconstrained coordinates, one column for each of `names`."""
        key = self._seeded(n, seed)
        if not resample:
            return self._draws.propose(key, int(n))
        pool_key, choice_key = children(key, 2)
        pool = self._draws.weigh(pool_key, max(_POOL * int(n), DRAWS))
        log_w, _ = smooth(pool.log_w)
        rng = np.random.default_rng(seed_of(choice_key))
        return pool.xi[choose(log_w, int(n), rng)]

    def shown(self, n, seed, *, resample, sites=None):
        """The draws of `sample`; kept for a while, as one report shows the same draws often."""
        asked = (n, seed, resample)
        if asked not in self._shown:
            if len(self._shown) >= _KEPT:
                self._shown.clear()
            self._shown[asked] = self.sample(n, seed=seed, resample=resample)
        return chosen(self._shown[asked], sites)

    def shown_unconstrained(self, n, seed, *, resample):
        """The draws of `unconstrained`."""
        return self.unconstrained(n, seed=seed, resample=resample)

    def predictive(
        self,
        seed: int = 0,
        n: int = 1000,
        *,
        data: Mapping[str, Any] | None = None,
        prior: bool = False,
        resample: bool | None = None,
    ) -> dict[str, np.ndarray]:
        """Predictive draws of the observed and the deterministic sites.

        Args:
            seed: chooses the draws.
            n: number of draws.
            data: new values for some of the model's arguments, by name. What gives the observations
                their size has to be among them where that changes; observed values are not looked at.
            prior: draw latents from their prior instead of the posterior.
            resample: as in `sample`; left out, the verdict decides.

        Returns:
            Site name -> array of shape (n, *shape of the site at these data).
        """
        key = jax.random.fold_in(self._seeded(n, seed), 7)
        xi = None
        if not prior:
            self.target.predictive(data)  # faults of the data show before the verdict is asked for
            xi = self.unconstrained(n, seed=seed, resample=self._advised(resample))
        return self._draws.predict(key, xi, int(n), data)

    def predictions(self, n=500, *, seed=0):
        """Posterior-predictive draws of the observed sites; empty for a log-density."""
        if not self.observed or self.target._predictive is None:
            return {}
        drawn = self.predictive(seed, n)
        return {site: drawn[site] for site in self.observed}

    def log_likelihood(
        self, n: int = 4000, *, seed: int = 0, resample: bool | None = None
    ) -> dict[str, np.ndarray]:
        """Pointwise log-likelihood of each observed site, at the draws of `sample`.

        Args:
            n: number of draws.
            seed: chooses the draws.
            resample: as in `sample`; left out, the verdict decides.
        """
        return self._draws.log_likelihood(self.unconstrained(n, seed=seed, resample=self._advised(resample)))

    def expectation(
        self, fn: Callable[[dict[str, Any]], Any], *, n: int = 20_000, seed: int = 0
    ) -> Expectation:
        """E[fn] under the posterior by importance sampling, with its standard error.

        Args:
            fn: a JAX function of one draw, a dict of its sites, to a number, an array or a pytree of them.
            n: number of weighed draws.
            seed: chooses the draws.

        Example:
            `posterior.expectation(lambda draw: draw["theta"][0] > draw["theta"][1])`
        """
        weighed = self._draws.weigh(self._seeded(n, seed), int(n))
        values = jax.jit(jax.vmap(fn), compiler_options=quick_options())(self._draws.constrain(weighed.xi))
        return expect(jax.tree.map(np.asarray, values), weighed.log_w)

    def stages(self, n=1000, *, seed=0):
        """Draws on their way from noise: stage, draw, unconstrained coordinate."""
        return self._draws.stages(self._seeded(n, seed), int(n))

    def to_arviz(
        self,
        n: int = 4000,
        *,
        seed: int = 0,
        resample: bool | None = None,
        log_likelihood: bool | None = None,
        predictive: bool = True,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    ) -> "xr.DataTree":
        """The fit as ArviZ reads it, the draws as one chain.

        Groups: posterior, posterior_predictive, log_likelihood, sample_stats (lp, log_q, log_weight),
        observed_data, constant_data; those without content are left out.

        For a PyMC model it is what `pm.sample` would return: before PyMC 6 that is an `InferenceData`, and
        the log-likelihood is left to `pm.compute_log_likelihood`, unless it is asked for.

        Args:
            n: number of draws.
            seed: chooses the draws.
            resample: as in `sample`; left out, the verdict decides.
            log_likelihood: whether to add the pointwise log-likelihood, n numbers for each
                observation, which `arviz_stats.loo` needs; left out, the model's library decides.
            predictive: whether to add posterior-predictive draws of the observed sites.
            dims: names of the dimensions of sites; plates name theirs already.
            coords: labels of the points along a dimension, by its name.
        """
        resample = self._advised(resample)
        xi = self.unconstrained(n, seed=seed, resample=resample)
        plates = {**constant_dims(self.target), **self.target.dims}
        likelihood = self.target.exports_likelihood if log_likelihood is None else log_likelihood
        groups = {
            "posterior": self._draws.constrain(xi),
            "posterior_predictive": self._predicted(xi, seed) if predictive else {},
            "log_likelihood": self._draws.log_likelihood(xi) if likelihood else {},
            "sample_stats": self._statistics(xi),
            "observed_data": self.observed,
            "constant_data": self.target.constant,
        }
        labels = Labels(plates, dims or {}, coords or {}, self.target.coords)
        return self.target.export(to_datatree(groups, labels, self._attributes(resample)))

    def save(self, path: str | Path, *, n: int = 4000, seed: int = 0) -> Path:
        """Write the fit to one file of plain arrays and JSON, which `dmvi.load` reads.

        Args:
            path: where to, customarily ending in ".dmvi"; a file that exists is replaced in one go.
            n: number of draws to store beside the guide, for those who load without the model.
            seed: chooses these draws.
        """
        from dmvi.posterior._save import save

        return save(self, Path(path), n=n, seed=seed)

    def _predicted(self, xi: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Observed sites drawn anew at given latents."""
        if not self.observed or self.target._predictive is None:
            return {}
        key = jax.random.fold_in(self._seeded(len(xi), seed), 7)
        drawn = self._draws.predict(key, xi, len(xi), None)
        return {site: drawn[site] for site in self.observed}

    def _statistics(self, xi: np.ndarray) -> dict[str, np.ndarray]:
        """log pi, log q and their difference at given draws, log q by inverting the guide."""
        log_pi, log_q = self._draws.log_density(xi), self._draws.evidence(xi)
        return {"lp": log_pi, "log_q": log_q, "log_weight": log_pi - log_q}

    def _attributes(self, resampled: bool) -> dict[str, Any]:
        return {
            "inference_library": "dmvi",
            "inference_library_version": self.versions["dmvi"],
            "guide": self.run.guide_name,
            "seed": self.run.seed,
            "sampling_time": self.run.seconds,
            "resampled": int(resampled),
            "verdict": self.verdict.value,
        }

    def _seeded(self, n: Any, seed: Any) -> PRNGKeyArray:
        """The key of one request for draws."""
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise InputError(f"expected a number of draws of at least 1; got {n!r}.")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
            raise InputError(f"expected a seed that is a whole number from 0 to 2**32 - 1; got {seed!r}.")
        return jax.random.fold_in(self._key, np.uint32(seed))
