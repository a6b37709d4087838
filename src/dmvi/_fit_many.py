"""fit_many(): one model, many data sets of one shape, one compiled program."""

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from dmvi._clock import Clock
from dmvi._dask import fit_on_cluster
from dmvi._errors import InputError, memory_told
from dmvi._fit import STEPS, check_choices, fit_keys, recipe_of, settings_record
from dmvi._many_block import Fitted, Plan, fit_block
from dmvi._recipes import describe_base
from dmvi._run import Run, no_modes
from dmvi.guides import Guide, GuideRecipe, anchored
from dmvi.objectives import Objective
from dmvi.posterior import Posterior
from dmvi.targets import Target, family
from dmvi.training import progress_for

# Near the target the path gradient has little noise: many steps of few draws go further than few of many.
PARTICLES_OF_MANY = 8
MOST_DIMENSIONS = 200  # of a model, whose full covariances stand side by side
SHOWN = 5  # failed fits named in the warning


@dataclass(frozen=True)
class FailedFit:
    """Stands in the list of `fit_many` where a data set could not be fitted; counts as false.

    Attributes:
        index: number of the data set.
        reason: why.
    """

    index: int
    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"data set {self.index}: {self.reason}"


def fit_many(
    model: Any,
    datasets: Any,
    *,
    shared: Mapping[str, Any] | None = None,
    init: Any = None,
    guide: str | GuideRecipe = "auto",
    seed: int = 0,
    steps: int = STEPS,
    particles: int = PARTICLES_OF_MANY,
    optimizer: optax.GradientTransformation | None = None,
    objective: Objective | None = None,
    time_limit: float | None = None,
    progress: bool = True,
    client: Any = None,
) -> list[Posterior | FailedFit]:
    """Infer the posterior of one model on each of many data sets of one shape.

    All fits run side by side in one program that is compiled once. Training goes in three
    rounds of a third of the steps each; a fit that is within 0.05 nats of its target, as its log-weights
    show, ends after the first or second. No result is worse than its own warm start.

    Args:
        model: a NumPyro model; or, with `init`, a JAX log-density of a pytree and a data set.
        datasets: the model's arguments, each an array whose first axis counts the data sets, in a dict by
            name (for a log-density, in any pytree); or a list with the arguments of each data set.
        shared: arguments of a NumPyro model that are the same for all: sizes, design matrices, flags.
        init: a point of the log-density, as in `fit`.
        guide: as in `fit`, but "auto" is the projected diffusion and does not grow. The chain goes without
            the target's slope, and there are no mixtures over modes.
        seed: data set i is fitted with seed + i.

    Other Args:
        steps: most steps of a fit.
        particles: draws per step, fewer than in `fit`: many steps of few draws go further at the same cost.
        optimizer: as in `fit`.
        objective: as in `fit`.
        time_limit: seconds after which training winds down.
        progress: show the live line. Ctrl-C keeps the fits that are done, and the best so far of the others.
        client: a `dask.distributed.Client`, over whose workers the data sets are spread.

    Returns:
        One `Posterior` per data set, in order; a `FailedFit`, which counts as false, where there is none.

    Example:
        >>> import dmvi, jax.numpy as jnp
        >>> log_density = lambda mu, y: -0.5 * mu**2 - 0.5 * jnp.sum((y - mu) ** 2)
        >>> posteriors = dmvi.fit_many(log_density, jnp.ones((100, 8)), init=0.0)
    """
    recipe = recipe_of(guide)
    check_choices(seed, steps, particles, time_limit, optimizer, objective)
    clock = Clock(time_limit)
    plan = Plan(
        recipe.seeing(None),
        int(steps),
        int(particles),
        optimizer,
        objective,
        clock,
    )
    targets, faults, stacked = family(model, datasets, shared=shared, init=init)
    structure = _structure(plan, targets[0].dim)
    seeds = {i: (int(seed) + i) % 2**32 for i in range(len(targets)) if i not in faults}
    record = settings_record(model, recipe, steps, particles, optimizer, objective, time_limit)
    line = progress_for(progress)
    try:
        with memory_told():
            if not seeds:
                found = []
            elif client is None:
                found = fit_block([targets[i] for i in seeds], list(seeds.values()), plan, line)
            else:
                found = fit_on_cluster(
                    client, model, stacked, shared=shared, init=init, seeds=seeds, plan=plan, line=line
                )
    finally:
        line.close()
    results: list[Posterior | FailedFit] = [FailedFit(i, faults.get(i, "")) for i in range(len(targets))]
    seconds = clock.seconds / max(len(seeds), 1)
    cautioned = plan.settings.objective.caution is not None
    for (i, own), fitted in zip(seeds.items(), found, strict=True):
        results[i] = _result(i, targets[i], fitted, structure, recipe, own, seconds, record, cautioned)
    _report_failures([result for result in results if isinstance(result, FailedFit)], len(results))
    return results


def _structure(plan: Plan, dim: int) -> Guide:
    """A guide of the shape that every fit will have; what does not fit is named here."""
    if dim > MOST_DIMENSIONS:
        raise InputError(
            f"fit_many is for models of at most {MOST_DIMENSIONS} coordinates, this one has {dim}; "
            "call dmvi.fit in a loop."
        )
    full = plan.recipe.warm and plan.recipe.name != "mean-field"
    scale = jnp.eye(dim) if full else jnp.ones(dim)
    guide = plan.recipe.build(anchored(jnp.zeros(dim), scale, full=full), key=jr.key(0))
    plan.settings.objective.check(guide)
    if plan.settings.objective.caution is not None:
        warnings.warn(plan.settings.objective.caution, stacklevel=3)
    return guide


def _result(
    index: int,
    target: Target,
    fitted: Fitted | str,
    structure: Guide,
    recipe: GuideRecipe,
    seed: int,
    seconds: float,
    record: dict[str, Any],
    cautioned: bool,
) -> Posterior | FailedFit:
    if isinstance(fitted, str):
        return FailedFit(index, fitted)
    outcome = fitted.outcome
    # An objective that is no bound may lead to a guide that folds, whose draws are what was asked for.
    usable = np.isfinite(outcome.flat).all() if cautioned else np.isfinite(outcome.look.elbo)
    if not usable:
        return FailedFit(index, "the ELBO is not finite; look at these data, or fit them with dmvi.fit.")
    arrays, rest = eqx.partition(structure, eqx.is_array)
    leaves = [jnp.asarray(leaf) for leaf in fitted.guide]
    guide = eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), leaves), rest)
    params = jax.tree.map(jnp.asarray, fitted.params)
    run = Run(
        status=outcome.status,
        steps=outcome.steps,
        seconds=seconds,
        skipped=outcome.skipped,
        history=outcome.history,
        history_steps=outcome.history_steps,
        warm_start=fitted.warm_start,
        guide_name=recipe.name,
        seed=seed,
        settings={**record, "base": describe_base(guide), "data_set": index},
        visited=no_modes() if fitted.visited is None else fitted.visited,
        gradients=fitted.gradients + outcome.gradients,
    )
    target = dataclasses.replace(target, params=params)
    return Posterior(target, guide, run, fit_keys(seed)[3], training=outcome.state)


def _report_failures(failed: list[FailedFit], count: int) -> None:
    if failed:
        shown = "; ".join(map(str, failed[:SHOWN])) + ("; ..." if len(failed) > SHOWN else "")
        warnings.warn(f"{len(failed)} of {count} fits failed. {shown}", stacklevel=3)
