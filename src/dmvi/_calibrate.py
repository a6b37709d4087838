"""calibrate(): does a way of fitting a model recover what simulated its data?"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dmvi._errors import InputError
from dmvi._fit import STEPS, fit, recipe_of
from dmvi._fit_many import PARTICLES_OF_MANY, FailedFit, fit_many
from dmvi._run import Status
from dmvi._study import SIMULATION, Simulate, Sites, Study, around, checked, over_prior, simulated
from dmvi.calibration import Calibration, rank_of, scalar_names
from dmvi.guides import GuideRecipe
from dmvi.objectives import Objective
from dmvi.posterior import Posterior, Verdict

DATASETS = 200
DRAWS = 999
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
        time_limit: seconds after which training winds down.
        progress: show the live line.
        client: a Dask client.

    Returns:
        The ranks, with p-values, a verdict for every site and figures; print it.

    Example:
        `print(dmvi.calibrate(eight_schools, dict(y=(8,), sigma=sigma), n=200))`
    """
    began = time.perf_counter()
    recipe = recipe_of(guide)
    _check(n=n, draws=draws, seed=seed, level=level, resample=resample)
    _check_near(near, data, shared, init)
    if one_by_one and client is not None:
        raise InputError("a cluster fits side by side; leave out client, or one_by_one.")
    alone = functools.partial(
        fit,
        guide=guide,
        steps=steps,
        particles=particles,
        optimizer=optimizer,
        objective=objective,
        time_limit=time_limit,
    )
    base = alone(model, data=checked(data), seed=seed, progress=progress) if near is True else near
    if isinstance(base, Posterior):
        study = around(model, data, base, int(n), int(seed))
    elif callable(data):
        study = simulated(model, data, shared, init, int(n), int(seed))
    else:
        study = over_prior(model, data, shared, init, int(n), int(seed))
    if one_by_one:
        fits = _one_by_one(study, int(n), init, int(seed), alone)
    else:
        fits = fit_many(
            study.model,
            study.datasets,
            shared=study.shared,
            init=init,
            guide=recipe,
            seed=seed,
            steps=steps,
            particles=PARTICLES_OF_MANY if particles is None else particles,
            optimizer=optimizer,
            objective=objective,
            time_limit=time_limit,
            progress=progress,
            client=client,
        )
    rng = np.random.default_rng([int(seed), SIMULATION])
    tally = _Tally()
    for i, posterior in enumerate(fits):
        tally.add(study, i, posterior, int(draws), resample, rng)
    columns, sites = tally.columns()
    return Calibration(
        ranks=columns,
        sites=sites,
        draws=int(draws),
        failed=tally.failed,
        cut_short=tally.cut_short,
        near=near is not False,
        level=float(level),
        title=_title(model, recipe, objective, resample),
        seconds=time.perf_counter() - began,
    )


def _one_by_one(
    study: Study, n: int, init: Any, seed: int, alone: Callable[..., Posterior]
) -> Iterator[Posterior | FailedFit]:
    """The fits of `fit`, each forgotten after its ranks are taken: their programs would fill the memory."""
    for i in range(n):
        data = jax.tree.map(lambda leaf, i=i: leaf[i], study.datasets)
        model, arguments = study.model, {**(study.shared or {}), **data} if init is None else None
        if init is not None:
            model = functools.partial(_at_data, study.model, data)
        try:
            yield alone(model, data=arguments, init=init, seed=(seed + i) % 2**32, progress=False)
        except InputError as error:
            yield FailedFit(i, str(error))
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
        failed: data sets that could not be fitted.
        cut_short: fits that an interruption or a time limit has ended.
    """

    def __init__(self):
        self.failed = self.cut_short = self._fitted = 0
        self._reason = ""
        self._ranks: dict[str, list[np.ndarray]] = {}
        self._constant: dict[str, np.ndarray] = {}  # scalars whose truth and draws have been one value so far

    def add(
        self,
        study: Study,
        i: int,
        posterior: Posterior | FailedFit,
        draws: int,
        resample: bool | None,
        rng: np.random.Generator,
    ) -> None:
        """The ranks of one data set's truth among draws of its fit."""
        if isinstance(posterior, FailedFit):
            self.failed += 1
            self._reason = self._reason or posterior.reason
            return
        self._fitted += 1
        self.cut_short += posterior.run.status in _CUT_SHORT
        chosen = posterior.verdict is Verdict.RESAMPLE if resample is None else resample
        sites = posterior.sample(draws, resample=chosen)
        truth = {name: values[i] for name, values in study.truth.items()}
        _check_truth(truth, sites)
        for name, value in truth.items():
            self._ranks.setdefault(name, []).append(rank_of(value, sites[name], rng))
            constant = np.all(sites[name] == value, axis=0)
            self._constant[name] = self._constant.get(name, True) & constant
        if study.log_joint is not None:
            self._ranks.setdefault(LOG_JOINT, []).append(_joint_rank(study, i, truth, sites, rng))

    def columns(self) -> tuple[Sites, dict[str, tuple[str, ...]]]:
        """Ranks by scalar, and the scalars of each site, without those that never vary, as on a diagonal."""
        if self._fitted < FEWEST:
            raise InputError(
                f"only {self._fitted} of {self._fitted + self.failed} data sets could be fitted, too few to "
                f"judge. The first that could not: {self._reason}"
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


def _joint_rank(study: Study, i: int, truth: Sites, sites: Sites, rng: np.random.Generator) -> np.ndarray:
    """The rank of log p(y, theta*) among the draws'; all come from one call, so that rounding is the same."""
    assert study.log_joint is not None
    together = {
        name: jnp.asarray(np.concatenate([value[None], sites[name]]).astype(sites[name].dtype))
        for name, value in truth.items()
    }
    data = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), study.datasets)
    values = np.asarray(study.log_joint(together, data), np.float64)
    return rank_of(values[0], values[1:], rng)


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
