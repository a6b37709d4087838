"""calibrate(): does a way of fitting a model recover what simulated its data?"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dmvi._errors import InputError
from dmvi._fit import STEPS, check_choices, fit, recipe_of
from dmvi._fit_many import PARTICLES_OF_MANY, FailedFit, fit_many
from dmvi._run import Status
from dmvi._study import SIMULATION, Simulate, Sites, Study, around, checked, over_prior, simulated
from dmvi.calibration import Calibration, rank_of, scalar_names
from dmvi.guides import GuideRecipe
from dmvi.objectives import Objective
from dmvi.posterior import Posterior, Verdict

DATASETS = 200
DRAWS = 999
SHORTEST = 1e-3  # seconds that a fit is given when there are none left
FEWEST = 10  # data sets of which ranks can be judged at all
LOG_JOINT = "log p(y, theta)"
_CUT_SHORT = (Status.INTERRUPTED, Status.TIME_LIMIT)


def calibrate(
    model: Any,
    data: Mapping[str, Any] | Simulate,
    *,
    n: int = DATASETS,
    near: bool | Posterior = False,
    shared: Mapping[str, Any] | None = None,
    init: Any = None,
    guide: str | GuideRecipe = "auto",
    seed: int = 0,
    one_by_one: bool = False,
    draws: int = DRAWS,
    resample: bool | None = False,
    level: float = 0.95,
    steps: int = STEPS,
    particles: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    objective: Objective | None = None,
    time_limit: float | None = None,
    progress: bool = True,
    client: Any = None,
) -> Calibration:
    r"""Fit simulated data sets and see where the truth lies among the draws.

    Over the prior (simulation-based calibration, Talts et al., 2018):

        theta* ~ p(theta),   y ~ p(y | theta*),   theta ~ q(theta | y).

    If q(theta | y) = p(theta | y), theta* and theta have the same law given y, so the rank of f(theta*, y)
    among L draws f(theta, y) is uniform on {0, ..., L}. Looked at are every scalar of every site and
    log p(y, theta), which sees what no scalar alone shows, such as lost correlations (Modrak et al., 2023).

    With `near`, in the neighbourhood of given data y (posterior calibration, Saeilynoja et al., 2025):

        theta* ~ p(theta | y),   y' ~ p(y' | theta*),   theta ~ p(theta | y', y).

    As y' and y are independent given theta*, the pair (theta*, y') has the law p(theta, y' | y), of which
    p(theta | y', y) is the conditional: averaged over y', theta is distributed as p(theta | y), and the ranks
    of theta* are uniform. The fit of y stands in for p(theta | y), and a fit of the model that has seen both
    for p(theta | y', y); a fault in either shows.

    Args:
        model: a NumPyro model; or, with `init` and a simulator, a JAX log-density of a point and its data.
        data: the model's arguments by name. Observed ones are found and simulated anew: their values do not
            matter, and a shape, `dict(y=(8,), sigma=sigma)`, will do. The model may use them for nothing but
            their shape and being observed. Or a simulator, a function of a JAX key that returns the truth
            (sites by name, or a point like `init`) and the data set (arguments by name, or a pytree).
        n: number of data sets.
        near: simulate around `data` instead of over the prior; they are fitted first, unless their posterior
            is given here. `data` then hold values, not shapes.
        shared: with a simulator, arguments of a NumPyro model that are the same for all data sets.
        init: as in `fit`, for a log-density.
        guide: what to calibrate; as in `fit_many`.
        seed: same seed, same result.

    Other Args:
        one_by_one: fit every data set with `fit`, which looks for separate modes, instead of all side by side
            with `fit_many`, which does not; many times slower.
        draws: draws of every fit, L.
        resample: whether draws are corrected by their weights; None follows the verdict of every fit.
        level: probability that everything is called calibrated if it is; also that of the bands.
        steps: as in `fit_many`, like all below; so are fits of `near` and those one by one made.
        particles: draws per step; by default those of `fit_many`, or of `fit`.
        optimizer: an Optax transformation.
        objective: what to minimise.
        time_limit: seconds for all fits together, that of `near` included, after which training winds down.
            Of fits one by one, the one that it cuts short is left out with those that would follow.
        progress: show the live line. Ctrl-C judges what is there: of fits one by one those that are done, if
            there are at least ten, else the best so far of each.
        client: a Dask client.

    Returns:
        The ranks, with p-values, a verdict for every site and figures; print it.

    Example:
        `print(dmvi.calibrate(eight_schools, dict(y=(8,), sigma=sigma), n=200))`
    """
    began = time.perf_counter()
    recipe = recipe_of(guide)
    _check(n=n, draws=draws, seed=seed, level=level, resample=resample)
    count = PARTICLES_OF_MANY if particles is None else particles
    check_choices(seed, steps, count, time_limit, optimizer, objective)
    _check_near(near, data, shared, init)
    if one_by_one and client is not None:
        raise InputError("a cluster fits side by side; leave out client, or one_by_one.")
    how: dict[str, Any] = {"steps": steps, "optimizer": optimizer, "objective": objective}
    alone = functools.partial(fit, guide=guide, particles=particles, **how)
    clock = _Clock(began, time_limit)
    base = near
    if near is True:
        base = alone(model, data=checked(data), seed=seed, progress=progress, time_limit=clock.left)
        if base.run.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
    if isinstance(base, Posterior):
        study = around(model, data, base, int(n), int(seed))
    elif callable(data):
        study = simulated(model, data, shared, init, int(n), int(seed))
    else:
        study = over_prior(model, data, shared, init, int(n), int(seed))
    if one_by_one:
        fits = _one_by_one(study, int(n), init, int(seed), alone, clock)
    else:
        fits = fit_many(
            study.model,
            study.datasets,
            shared=study.shared,
            init=init,
            guide=recipe,
            seed=seed,
            particles=count,
            time_limit=clock.left,
            progress=progress,
            client=client,
            **how,
        )
    tally = _Tally(study, int(n), int(draws), resample, np.random.default_rng([int(seed), SIMULATION]))
    tally.take(fits)
    columns, sites = tally.columns()
    return Calibration(
        ranks=columns,
        sites=sites,
        draws=int(draws),
        failed=tally.failed,
        reason=tally.reason,
        cut_short=tally.cut_short,
        left_over=tally.left_over,
        near=near is not False,
        level=float(level),
        title=_title(model, recipe, objective, resample),
        seconds=time.perf_counter() - began,
    )


class _Clock(NamedTuple):
    """What is left of the time limit, which is that of all fits together."""

    began: float
    limit: float | None

    @property
    def over(self) -> bool:
        return self.limit is not None and time.perf_counter() - self.began >= self.limit

    @property
    def left(self) -> float | None:
        """Seconds; as good as none where it is over, as fits that begin wind down at once."""
        if self.limit is None:
            return None
        return max(self.limit - (time.perf_counter() - self.began), SHORTEST)


def _one_by_one(
    study: Study, n: int, init: Any, seed: int, alone: Callable[..., Posterior], clock: _Clock
) -> Iterator[Posterior | FailedFit]:
    """The fits of `fit`, each forgotten after its ranks are taken: their programs would fill the memory.

    The fit that an interruption or the time limit ends is left out, as are those that would follow it.

    Raises:
        KeyboardInterrupt: where there was one, which the training of `fit` keeps to itself.
    """
    for i in range(n):
        data = jax.tree.map(lambda leaf, i=i: leaf[i], study.datasets)
        model, arguments = study.model, {**(study.shared or {}), **data} if init is None else None
        if init is not None:
            model = functools.partial(_at_data, study.model, data)
        own = (seed + i) % 2**32
        try:
            found = alone(model, data=arguments, init=init, seed=own, progress=False, time_limit=clock.left)
        except InputError as error:
            found = FailedFit(i, str(error))
        if isinstance(found, Posterior) and found.run.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if clock.over:
            return
        yield found
        jax.clear_caches()


def _at_data(log_density: Callable, data: Any, point: Any) -> Any:
    return log_density(point, data)


def _title(model: Any, recipe: GuideRecipe, objective: Objective | None, resample: bool | None) -> str:
    parts = [getattr(model, "__name__", "model"), f"guide {recipe.name}"]
    parts += [] if objective is None else [f"objective {type(objective).__name__}"]
    parts += {False: [], True: ["resampled"], None: ["resampled where the verdict says so"]}[resample]
    return ", ".join(parts)


class _Tally:
    """Ranks as fits come in.

    Attributes:
        failed: data sets that could not be fitted, or not ranked.
        reason: why the first of them could not.
        cut_short: fits that an interruption or a time limit has ended.
    """

    def __init__(self, study: Study, n: int, draws: int, resample: bool | None, rng: np.random.Generator):
        self._study, self._n, self._draws, self._resample, self._rng = study, n, draws, resample, rng
        self.failed = self.cut_short = self._fitted = 0
        self.reason = ""
        self._ranks: dict[str, list[np.ndarray]] = {}
        self._constant: dict[str, np.ndarray] = {}  # scalars whose truth and draws have been one value so far

    @property
    def left_over(self) -> int:
        """Data sets that were never come to."""
        return self._n - self._fitted - self.failed

    def take(self, fits: Iterable[Posterior | FailedFit]) -> None:
        """The ranks of all fits; after Ctrl-C of those there are, if these are enough to judge."""
        try:
            for i, posterior in enumerate(fits):
                self._add(i, posterior)
        except KeyboardInterrupt:
            if self._fitted < FEWEST:
                raise

    def _add(self, i: int, posterior: Posterior | FailedFit) -> None:
        """The ranks of one data set's truth among draws of its fit."""
        if isinstance(posterior, FailedFit):
            self._fail(posterior.reason)
            return
        chosen = posterior.verdict is Verdict.RESAMPLE if self._resample is None else self._resample
        sites = posterior.sample(self._draws, resample=chosen)
        truth = {name: values[i] for name, values in self._study.truth.items()}
        _check_truth(truth, sites)
        pairs = {name: (value, sites[name]) for name, value in truth.items()}
        if self._study.log_joint is not None:
            pairs[LOG_JOINT] = _joint(self._study, i, truth, sites)
        for name, pair in pairs.items():
            for what, values in zip(("the truth", "draws of the fit"), pair, strict=True):
                # Ties are broken at random, so that ranks of what is never a number would look uniform.
                if np.isnan(np.asarray(values, np.float64)).any():
                    self._fail(f"{name!r} is not a number in {what}.")
                    return
        ranks = {name: rank_of(*pair, self._rng) for name, pair in pairs.items()}
        # All at once, so that an interruption leaves no data set half counted.
        self._fitted += 1
        self.cut_short += posterior.run.status in _CUT_SHORT
        for name, rank in ranks.items():
            self._ranks.setdefault(name, []).append(rank)
        for name in truth:
            constant = np.all(sites[name] == truth[name], axis=0)
            self._constant[name] = self._constant.get(name, True) & constant

    def _fail(self, reason: str) -> None:
        self.failed += 1
        self.reason = self.reason or reason

    def columns(self) -> tuple[Sites, dict[str, tuple[str, ...]]]:
        """Ranks by scalar, and the scalars of each site, without those that never vary, as on a diagonal."""
        if self._fitted < FEWEST:
            why = f"The first that could not: {self.reason}" if self.failed else "Give more time."
            raise InputError(
                f"only {self._fitted} of {self._n} data sets could be fitted and ranked, too few to "
                f"judge. {why}"
            )
        ranks = {name: np.stack(parts) for name, parts in self._ranks.items()}
        scalars = scalar_names({site: values.shape[1:] for site, values in ranks.items()})
        varying: Sites = {}
        for site, values in ranks.items():
            constant = np.ravel(self._constant.get(site, np.zeros(values.shape[1:], bool)))
            flat = values.reshape(len(values), -1)
            varying |= {name: flat[:, k] for k, name in enumerate(scalars[site]) if not constant[k]}
        kept = {site: tuple(name for name in names if name in varying) for site, names in scalars.items()}
        return varying, {site: names for site, names in kept.items() if names}


def _check_truth(truth: Sites, sites: Sites) -> None:
    missing = [name for name in truth if name not in sites]
    if missing or not truth:
        raise InputError(f"the truth names {missing or 'nothing'}; the fit has {list(sites)}.")
    for name, value in truth.items():
        if np.shape(value) != sites[name].shape[1:]:
            raise InputError(
                f"the truth of {name!r} has shape {np.shape(value)}, a draw of the fit has "
                f"{sites[name].shape[1:]}."
            )


def _joint(study: Study, i: int, truth: Sites, sites: Sites) -> tuple[np.ndarray, np.ndarray]:
    """log p(y, theta) of the truth and of the draws; all come from one call, so that rounding is the same."""
    assert study.log_joint is not None
    together = {
        name: jnp.asarray(np.concatenate([value[None], sites[name]]).astype(sites[name].dtype))
        for name, value in truth.items()
    }
    data = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), study.datasets)
    values = np.asarray(study.log_joint(together, data), np.float64)
    return values[0], values[1:]


def _check_near(near: Any, data: Any, shared: Any, init: Any) -> None:
    if not isinstance(near, bool | Posterior):
        raise InputError(
            f"near must be True, False or what dmvi.fit returned; got a {type(near).__name__}. A file "
            "becomes a posterior again with its model: dmvi.load(path, model, data=data)."
        )
    if near is False:
        return
    if callable(data) or shared is not None or init is not None:
        raise InputError(
            "near simulates from a NumPyro model around its arguments in data; leave out simulator, "
            "shared and init."
        )
    shapes = [name for name, value in checked(data).items() if isinstance(value, tuple)]
    if shapes:
        raise InputError(f"near needs the data themselves; of {shapes[0]!r} there is only a shape.")


def _check(*, n: Any, draws: Any, seed: Any, level: Any, resample: Any) -> None:
    for name, value, least in (("n", n, FEWEST), ("draws", draws, 19), ("seed", seed, 0)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not least <= value < 2**32:
            raise InputError(f"{name} must be an integer of at least {least} and below 2^32, got {value!r}.")
    if not isinstance(level, float) or not 0 < level < 1:
        raise InputError(f"level must be a probability, such as 0.95; got {level!r}.")
    if resample not in (True, False, None):
        raise InputError(f"resample must be True, False or None; got {resample!r}.")
