"""Studies for `calibrate`: simulated data sets, the truth behind each, and the model they are fitted with."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from dmvi._errors import InputError
from dmvi.posterior import Posterior, Verdict
from dmvi.targets import latents_of, log_joint, read_point, read_simulator, seen_twice

SIMULATION = 2**31 - 1  # folded into the seed's key: fits use seed, seed + 1, ...

Sites = dict[str, np.ndarray]
Simulate = Callable[[PRNGKeyArray], tuple[Any, Any]]


class Study(NamedTuple):
    """Simulated data sets, the truth behind each, and the model that they are fitted with.

    Attributes:
        model: for `fit_many`.
        datasets: the data sets, stacked.
        shared: what they share.
        truth: sites behind each data set, stacked.
        log_joint: log p(y, theta) at draws of one data set; None where the truth does not name all latents.
    """

    model: Any
    datasets: Any
    shared: dict[str, Any] | None
    truth: Sites
    log_joint: Callable[[dict[str, Any], Any], Any] | None


def checked(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(
            f"expected named values in a dict, such as dict(y=y, sigma=sigma); got a {type(value).__name__}."
        )
    return value


def _keys(seed: int, n: int) -> PRNGKeyArray:
    return jr.split(jr.fold_in(jr.key(seed), SIMULATION), n)


def over_prior(model: Any, data: Any, shared: Any, init: Any, n: int, seed: int) -> Study:
    """Data sets from the model's prior."""
    if init is not None:
        raise InputError(
            "a log-density does not say how its data come about; give a simulator: a function of a JAX key "
            "that returns a point like init and a data set."
        )
    if shared is not None:
        raise InputError("shared goes with a simulator; without one all arguments stand in data.")
    simulator = read_simulator(model, checked(data))
    truth, datasets = simulator.simulate(_keys(seed, n))
    joint = log_joint(model, simulator.shared, simulator.latents)
    return Study(model, datasets, simulator.shared, truth, joint)


def around(model: Any, data: Any, base: Posterior, n: int, seed: int) -> Study:
    """Data sets around given ones, whose posterior is `base`."""
    simulator = read_simulator(model, checked(data))
    for site in simulator.arguments:
        given, seen = simulator.observed[simulator.arguments[site]], base.observed.get(site)
        if seen is None or np.shape(seen) != np.shape(given) or not np.allclose(seen, given, equal_nan=True):
            raise InputError(
                f"the posterior in near is of other data than those in data: {site!r} differs. Pass the data "
                "that it was fitted to."
            )
    resample = base.verdict is Verdict.RESAMPLE
    truth = base.sample(n, seed=seed, resample=resample)
    drawn = base.predictive(seed, n, resample=resample)  # at the latents of the same seed
    names = {site: f"{argument}_seen_again" for site, argument in simulator.arguments.items()}
    both = seen_twice(model, names)
    shared = {**simulator.shared, **simulator.observed}
    datasets = {names[site]: drawn[site] for site in simulator.arguments}
    return Study(both, datasets, shared, truth, log_joint(both, shared, simulator.latents))


def simulated(model: Any, simulate: Simulate, shared: Any, init: Any, n: int, seed: int) -> Study:
    """Data sets from the caller's simulator."""
    truths, datasets = [], []
    for key in _keys(seed, n):
        found = simulate(key)
        if not isinstance(found, tuple) or len(found) != 2:
            raise InputError(
                "a simulator returns two things, the truth and the data set; got an object of type "
                f"{type(found).__name__}."
            )
        truth = checked(found[0] if init is None else read_point(found[0]).leaves)
        truths.append({name: np.asarray(value) for name, value in truth.items()})
        datasets.append(found[1])
    try:
        stacked = {name: np.stack([truth[name] for truth in truths]) for name in truths[0]}
        data = jax.tree.map(lambda *parts: np.stack([np.asarray(part) for part in parts]), *datasets)
    except (KeyError, ValueError) as error:
        raise InputError(f"a simulator returns the same names and shapes every time: {error}.") from error
    if init is not None:
        return Study(model, data, None, stacked, _density_at(model, init))
    same = dict(shared or {})
    latents = latents_of(model, {**same, **checked(datasets[0])})
    joint = log_joint(model, same, latents) if set(latents) <= set(stacked) else None
    return Study(model, data, same or None, stacked, joint)


def _density_at(log_density: Callable, init: Any) -> Callable[[Sites, Any], Any]:
    point = read_point(init)

    @jax.jit
    def at(sites: dict[str, Any], data: Any) -> Any:
        def one(draw: dict[str, Any]) -> Any:
            leaves = [draw[name] for name in point.leaves]
            return log_density(jax.tree.unflatten(point.structure, leaves), data)

        return jax.vmap(one)(sites)

    return at
