"""calibrate(): does a way of fitting a model recover what simulated its data?"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from dmvi._errors import InputError
from dmvi._fit import STEPS, fit, recipe_of
from dmvi._fit_many import PARTICLES_OF_MANY, FailedFit, fit_many
from dmvi.calibration import Calibration, rank_of, scalar_names
from dmvi.guides import GuideRecipe
from dmvi.objectives import Objective
from dmvi.posterior import Posterior, Verdict
from dmvi.targets import log_joint, read_point, read_simulator, seen_twice

DATASETS = 200
DRAWS = 999
FEWEST = 10  # data sets of which ranks can be judged at all
LOG_JOINT = "log p(y, theta)"
_SIMULATION = 2**31 - 1  # folded into the seed's key: fits use seed, seed + 1, ...

Sites = dict[str, np.ndarray]
Simulate = Callable[[PRNGKeyArray], tuple[Any, Any]]


class _Study(NamedTuple):
    """Simulated data sets, the truth behind each, and the model that they are fitted with.

    Attributes:
        model: for `fit_many`.
        datasets: the data sets, stacked.
        shared: what they share.
        truth: sites behind each data set, stacked.
        log_joint: log p(y, theta) at draws of one data set, where the model shows it.
    """

    model: Any
    datasets: Any
    shared: dict[str, Any] | None
    truth: Sites
    log_joint: Callable[[dict[str, Any], Any], Any] | None


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
    particles: int = PARTICLES_OF_MANY,
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
            is given here.
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
        steps: as in `fit_many`, like all below.
        particles: draws per step.
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
    if near is True:
        near = fit(
            model,
            data=_checked(data),
            guide=recipe,
            seed=seed,
            optimizer=optimizer,
            objective=objective,
            progress=progress,
        )
    if isinstance(near, Posterior):
        study = _around(model, data, near, int(n), int(seed))
    elif callable(data):
        study = _simulated(model, data, shared, init, int(n), int(seed))
    else:
        study = _over_prior(model, data, shared, init, int(n), int(seed))
    if one_by_one:
        fits = _one_by_one(study, int(n), init, recipe, int(seed), int(steps), optimizer, objective)
    else:
        fits = fit_many(
            study.model,
            study.datasets,
            shared=study.shared,
            init=init,
            guide=recipe,
            seed=seed,
            steps=steps,
            particles=particles,
            optimizer=optimizer,
            objective=objective,
            time_limit=time_limit,
            progress=progress,
            client=client,
        )
    rng = np.random.default_rng([int(seed), _SIMULATION])
    ranks, failed = _ranks(study, fits, int(draws), resample, rng)
    columns, sites = _columns(ranks)
    return Calibration(
        ranks=columns,
        sites=sites,
        draws=int(draws),
        failed=failed,
        near=near is not False,
        level=float(level),
        title=_title(model, recipe, objective, resample),
        seconds=time.perf_counter() - began,
    )


def _one_by_one(
    study: _Study,
    n: int,
    init: Any,
    recipe: GuideRecipe,
    seed: int,
    steps: int,
    optimizer: optax.GradientTransformation | None,
    objective: Objective | None,
) -> Iterator[Posterior | FailedFit]:
    """The fits of `fit`, each forgotten after its ranks are taken: their programs would fill the memory."""
    for i in range(n):
        data = jax.tree.map(lambda leaf, i=i: leaf[i], study.datasets)
        model, arguments = study.model, {**(study.shared or {}), **data} if init is None else None
        if init is not None:
            model = functools.partial(_at_data, study.model, data)
        try:
            yield fit(
                model,
                data=arguments,
                init=init,
                guide=recipe,
                seed=(seed + i) % 2**32,
                steps=steps,
                optimizer=optimizer,
                objective=objective,
                progress=False,
            )
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


def _columns(ranks: Sites) -> tuple[Sites, dict[str, tuple[str, ...]]]:
    """Ranks by scalar, and the scalars of each site, without those that never vary."""
    scalars = scalar_names({site: values.shape[1:] for site, values in ranks.items()})
    columns = {
        name: values.reshape(len(values), -1)[:, i]
        for site, values in ranks.items()
        for i, name in enumerate(scalars[site])
    }
    varying = {name: found for name, found in columns.items() if not np.all(found < 0)}
    kept = {site: tuple(name for name in names if name in varying) for site, names in scalars.items()}
    return varying, {site: names for site, names in kept.items() if names}


def _keys(seed: int, n: int) -> PRNGKeyArray:
    return jr.split(jr.fold_in(jr.key(seed), _SIMULATION), n)


def _over_prior(model: Any, data: Any, shared: Any, init: Any, n: int, seed: int) -> _Study:
    if init is not None:
        raise InputError(
            "a log-density does not say how its data come about; give a simulator: a function of a JAX key "
            "that returns a point like init and a data set."
        )
    if shared is not None:
        raise InputError("shared goes with a simulator; without one all arguments stand in data.")
    simulator = read_simulator(model, _checked(data))
    truth, datasets = simulator.simulate(_keys(seed, n))
    joint = log_joint(model, simulator.shared, simulator.latents)
    return _Study(model, datasets, simulator.shared, truth, joint)


def _around(model: Any, data: Any, base: Posterior, n: int, seed: int) -> _Study:
    simulator = read_simulator(model, _checked(data))
    resample = base.verdict is Verdict.RESAMPLE
    truth = base.sample(n, seed=seed, resample=resample)
    drawn = base.predictive(seed, n, resample=resample)  # at the latents of the same seed
    names = {site: f"{argument}_seen_again" for site, argument in simulator.arguments.items()}
    both = seen_twice(model, names)
    shared = {**simulator.shared, **simulator.observed}
    datasets = {names[site]: drawn[site] for site in simulator.arguments}
    return _Study(both, datasets, shared, truth, log_joint(both, shared, simulator.latents))


def _simulated(model: Any, simulate: Simulate, shared: Any, init: Any, n: int, seed: int) -> _Study:
    truths, datasets = [], []
    for key in _keys(seed, n):
        found = simulate(key)
        if not isinstance(found, tuple) or len(found) != 2:
            raise InputError(
                "a simulator returns two things, the truth and the data set; got an object of type "
                f"{type(found).__name__}."
            )
        truth = _checked(found[0] if init is None else read_point(found[0]).leaves)
        truths.append({name: np.asarray(value) for name, value in truth.items()})
        datasets.append(found[1])
    try:
        stacked = {name: np.stack([truth[name] for truth in truths]) for name in truths[0]}
        data = jax.tree.map(lambda *parts: np.stack([np.asarray(part) for part in parts]), *datasets)
    except (KeyError, ValueError) as error:
        raise InputError(f"a simulator returns the same names and shapes every time: {error}.") from error
    joint = None
    if init is not None:
        joint = _density_at(model, init)
    return _Study(model, data, None if shared is None else dict(shared), stacked, joint)


def _density_at(log_density: Callable, init: Any) -> Callable[[Sites, Any], Any]:
    point = read_point(init)

    @jax.jit
    def at(sites: dict[str, Any], data: Any) -> Any:
        def one(draw: dict[str, Any]) -> Any:
            leaves = [draw[name] for name in point.leaves]
            return log_density(jax.tree.unflatten(point.structure, leaves), data)

        return jax.vmap(one)(sites)

    return at


def _ranks(
    study: _Study,
    fits: Iterable[Posterior | FailedFit],
    draws: int,
    resample: bool | None,
    rng: np.random.Generator,
) -> tuple[dict[str, np.ndarray], int]:
    """Ranks by site, data sets first, and the number of failed fits.

    A rank is -1 where truth and draws are one value, as on a fixed diagonal.
    """
    found: dict[str, list[np.ndarray]] = {}
    fitted = failed = 0
    for i, posterior in enumerate(fits):
        if isinstance(posterior, FailedFit):
            failed += 1
            continue
        fitted += 1
        chosen = posterior.verdict is Verdict.RESAMPLE if resample is None else resample
        sites = posterior.sample(draws, resample=chosen)
        truth = {name: values[i] for name, values in study.truth.items()}
        _check_truth(truth, sites)
        for name, value in truth.items():
            constant = np.all(sites[name] == value, axis=0)
            found.setdefault(name, []).append(np.where(constant, -1, rank_of(value, sites[name], rng)))
        if study.log_joint is not None and set(truth) >= set(sites):
            found.setdefault(LOG_JOINT, []).append(_joint_rank(study, i, truth, sites, rng))
    if fitted < FEWEST:
        raise InputError(
            f"only {fitted} of {fitted + failed} data sets could be fitted, too few to judge; "
            "the warning says why."
        )
    return {name: np.stack(parts) for name, parts in found.items()}, failed


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


def _joint_rank(study: _Study, i: int, truth: Sites, sites: Sites, rng: np.random.Generator) -> np.ndarray:
    """The rank of log p(y, theta*) among the draws'; all come from one call, so that rounding is the same."""
    assert study.log_joint is not None
    together = {
        name: jnp.asarray(np.concatenate([truth[name][None], values]).astype(values.dtype))
        for name, values in sites.items()
    }
    data = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), study.datasets)
    values = np.asarray(study.log_joint(together, data), np.float64)
    return rank_of(values[0], values[1:], rng)


def _check(*, n: Any, draws: Any, seed: Any, level: Any, resample: Any) -> None:
    for name, value, least in (("n", n, FEWEST), ("draws", draws, 19), ("seed", seed, 0)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not least <= value < 2**32:
            raise InputError(f"{name} must be an integer of at least {least} and below 2^32, got {value!r}.")
    if not isinstance(level, float) or not 0 < level < 1:
        raise InputError(f"level must be a probability, such as 0.95; got {level!r}.")
    if resample not in (True, False, None):
        raise InputError(f"resample must be True, False or None; got {resample!r}.")


def _checked(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(
            f"expected named values in a dict, such as dict(y=y, sigma=sigma); got a {type(value).__name__}."
        )
    return value
