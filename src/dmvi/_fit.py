"""fit(): a model and data in, a posterior out."""

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from dmvi._checkpoint import Checkpoint
from dmvi._choice import CHOICE
from dmvi._clock import Clock
from dmvi._errors import InputError, memory_told
from dmvi._grow import chosen
from dmvi._interrupt import Interrupt
from dmvi._random import children
from dmvi._recipes import describe_base, describe_recipe, visible_density
from dmvi._run import Run, no_modes
from dmvi._team import Team
from dmvi._train import Fitted, Plan, train
from dmvi.guides import (
    ChainGuide,
    DiffusionGuide,
    FlowGuide,
    GaussianGuide,
    GuideRecipe,
    anchored,
)
from dmvi.objectives import CoveringELBO, Objective, Paper
from dmvi.posterior import Posterior, digest, later_draws
from dmvi.targets import SlowGradient, Target, as_target, from_rows, slow_gradient
from dmvi.training import Settings, as_mesh, default_optimizer, progress_for

GUIDES: dict[str, GuideRecipe] = {
    "auto": DiffusionGuide(),
    "diffusion": DiffusionGuide(),
    "chain": ChainGuide(),
    "full-rank": GaussianGuide(full_rank=True),
    "mean-field": GaussianGuide(full_rank=False),
    "flow": FlowGuide(),
}
# What trains a recipe of this name where the user names no objective.
OBJECTIVES: dict[str, Objective] = {"paper": Paper()}
STEPS, PARTICLES = CHOICE.steps, CHOICE.particles  # where the dimension is not known yet
LEARNING_RATE = 1e-2
LOOKS = 16  # chunks of a full-length training
COOLDOWN_LOOKS = 10


def fit(
    model: Any = None,
    data: Mapping[str, Any] | str | Path | None = None,
    *,
    args: tuple = (),
    init: Any = None,
    guide: str | GuideRecipe = "auto",
    seed: int = 0,
    steps: int | None = None,
    particles: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    objective: Objective | None = None,
    batch_size: int | None = None,
    control_variates: bool = True,
    mesh: Any = None,
    time_limit: float | None = None,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
) -> Posterior:
    """Infer the posterior of a model.

    Args:
        model: a NumPyro model; or, with `init`, a JAX log-density of a pytree; or a PyMC model (left out:
            the one whose context is open); or a pinned joint distribution of TFP on JAX; or a `Target`.
        data: the model's keyword arguments. With `batch_size`, arrays or names of .npy files, or the name of
            a Parquet or Arrow file that holds them as columns.
        args: the model's positional arguments.
        init: a pytree of the log-density's argument; its values are where the search starts.
        guide: "auto", "diffusion", "chain", "flow", "full-rank", "mean-field", or a recipe such as
            `dmvi.DiffusionGuide(steps=8)`. "auto" is the diffusion: on a Gaussian of full covariance up to
            2,000 dimensions, above of sparse precision where the Hessian is sparse, else of low rank; of
            projected steps and, up to 20 dimensions, a triangular one, above one or two of sparse bends.
            Where its training leaves more than 0.1 nats it grows and is trained on, in up to 64
            dimensions, or where there are several modes gives way to guides on many Gaussians; in up to 500,
            one that leaves 0.5 to 5 nats is trained on with more particles. All this if warm start and
            training took less than two minutes. Printing the posterior says what was chosen.
        seed: same seed, same machine, same result, bit for bit.

    Other Args:
        steps: most optimiser steps of a training, which stops earlier at a plateau; a guide that grows is
            trained twice. By default 3600, and 2400 above 200 dimensions; above 2,000 fewer, the more
            coordinates there are: 600 for 4,000, 240 for 10,000.
        particles: draws per step of the first training; by default 32, and on one device 64 above 64
            dimensions, 48 above 200 and 16 above 2,000.
        optimizer: Optax transformation; by default Adam with clipped gradients. Its updates are warmed
            up at the start and annealed to zero at the end.
        objective: what to minimise; by default `dmvi.objectives.CoveringELBO()`, and
            `dmvi.objectives.Paper()` for a `dmvi.PaperGuide`.
        batch_size: rows of data per step, for data too long to go through at every step, or to hold in
            memory. The data's longest axis is that of the rows; see `dmvi.targets.from_rows`.
        control_variates: whether batches, of `batch_size` or of a model's own `subsample_size`, are corrected
            by the likelihood's slope, and where it is known its curvature, at the warm start's mode, which
            takes most of their noise away.
        mesh: devices to train on: their number, over which particles are spread, or a `jax.sharding.Mesh`
            with axes "particles" and "rows". Where `jax.distributed` has joined several processes it may
            be of all their devices; then the same call is made in each of them.
        time_limit: seconds for the whole fit, diagnostics included, which are then made before it
            returns; the best fit so far is kept. Results depend on the clock.
        progress: show the live line. With or without it Ctrl-C ends any stage with the best fit so far, a
            second Ctrl-C with nothing.
        checkpoint: a folder to save training in; the same call, made again after an interruption, goes on
            from there and ends with the same result, bit for bit.
        checkpoint_every: seconds between two saves; SIGTERM saves too, then ends the process.

    Returns:
        The posterior; print it for the verdict.

    Example:
        >>> import dmvi, jax.numpy as jnp
        >>> posterior = dmvi.fit(lambda x: -0.5 * jnp.sum(x["a"] ** 2), init={"a": jnp.zeros(2)})
    """
    clock, stop = Clock(time_limit if _is_limit(time_limit) else None), Interrupt()
    recipe = recipe_of(guide)
    count = PARTICLES if particles is None else particles
    check_choices(seed, STEPS if steps is None else steps, count, time_limit, optimizer, objective)
    devices = as_mesh(mesh, int(count), batch_size)
    team = Team.of(devices)
    target = _target(model, data, args, init, batch_size, team)
    recipe = CHOICE.guide(target.dim) if guide == "auto" else recipe
    trained = trained_dimensions(recipe, target)
    steps = CHOICE.most_steps(trained) if steps is None else steps
    if particles is None and devices is None:
        count = CHOICE.draws(trained)
    record = settings_record(model, recipe, steps, count, optimizer, objective, time_limit)
    record |= {} if batch_size is None else {"batch_size": batch_size}
    if target.batch_rows is not None:
        record |= {"control_variates": bool(control_variates), "batch_rows": list(target.batch_rows)}
    recipe = recipe.seeing(visible_density(target))
    keys = fit_keys(int(seed))
    settings = training_settings(recipe, int(steps), int(count), optimizer, objective, trained)
    settings = dataclasses.replace(settings, mesh=devices)
    _check_recipe(recipe, settings.objective, target.dim)
    if settings.objective.caution is not None:
        warnings.warn(settings.objective.caution, stacklevel=2)
    saved = None
    if checkpoint is not None and team.leads:
        made = {**record, "seed": int(seed), "grows": guide == "auto", "objective": repr(settings.objective)}
        made |= {"init": digest({str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(init))})}
        saved = Checkpoint(checkpoint, checkpoint_every, target, made, clock)
    line = progress_for(progress and team.leads)
    slow = slow_gradient(model, data, target) if not args and init is None and team.alone else None
    if slow is not None:
        line.remark(str(slow))
    plan = Plan(
        recipe,
        target,
        settings,
        keys,
        int(steps),
        clock,
        later_draws(target.dim) if clock.limited else 0,
        control_variates,
        grows=guide == "auto",
    )
    try:
        with memory_told(), stop if team.leads else contextlib.nullcontext():
            with saved or contextlib.nullcontext():
                fitted = train(plan, line, saved, stop)
            posterior = _posterior(plan, fitted, record, int(seed), slow)
            if clock.limited and team.alone:
                line.note("diagnostics")
                posterior.judge_within(fitted.clock, stop)
    finally:
        line.close()
    return posterior


def trained_dimensions(recipe: GuideRecipe, target: Target) -> int:
    """The dimension by which a training is sized.

    Few steps do in thousands of dimensions where the warm start's Gaussian is near: not where a guide begins
    from nothing, parameters are learned or batches make noise.
    """
    near = recipe.warm and not target.params and not target.subsampled
    return target.dim if near else min(target.dim, CHOICE.thousands.above)


def _posterior(
    plan: Plan, fitted: Fitted, record: dict[str, Any], seed: int, slow: SlowGradient | None
) -> Posterior:
    """What training has led to, with the record of how."""
    outcome, start, recipe = fitted.outcome, fitted.start, fitted.recipe
    target = eqx.tree_at(lambda t: t.params, start.target, outcome.params)
    made = {"guide": describe_recipe(recipe), "particles": fitted.settings.particles}
    made |= {"base": describe_base(outcome.guide)}
    made |= {"chosen": chosen(start, fitted.pilot)} if plan.grows else {}
    made |= {} if fitted.pace == 1 else {"pace": fitted.pace}
    made |= {} if slow is None else {"slow_gradient": list(slow)}
    seconds = fitted.clock.seconds
    run = Run(
        status=outcome.status,
        steps=outcome.steps,
        seconds=seconds,
        skipped=outcome.skipped,
        history=outcome.history + target.offset,
        history_steps=outcome.history_steps,
        warm_start=start.name,
        guide_name=recipe.name,
        seed=seed,
        settings={**record, **made},
        visited=no_modes() if start.visited is None else start.visited,
        gradients=start.gradients + outcome.gradients,
        gradient_seconds=outcome.gradient_seconds or start.gradient_seconds,
        stage_seconds={"warm start": fitted.warm_seconds, "training": seconds - fitted.warm_seconds},
    )
    training = jax.tree.leaves(outcome.state)
    return Posterior(target, outcome.guide, run, plan.keys[3], training=training)


def fit_keys(seed: int) -> list[PRNGKeyArray]:
    """Keys of the warm start, of the guide, of training and of the posterior."""
    return children(jr.key(seed), 4)


def settings_record(
    model: Any,
    recipe: GuideRecipe,
    steps: int,
    particles: int,
    optimizer: Any,
    objective: Any,
    time_limit: float | None,
) -> dict[str, Any]:
    """How a fit is made, in values that JSON can hold."""
    return {
        "model": getattr(model, "__name__", type(model).__name__),
        "guide": describe_recipe(recipe),
        "steps": int(steps),
        "particles": int(particles),
        "optimizer": "default" if optimizer is None else "given by the user",
        "objective": "default" if objective is None else type(objective).__name__,
        "time_limit": None if time_limit is None else float(time_limit),
        "backend": jax.default_backend(),
        "precision": str(np.dtype(jnp.result_type(float))),
    }


def training_settings(
    recipe: GuideRecipe,
    steps: int,
    particles: int,
    optimizer: optax.GradientTransformation | None,
    objective: Objective | None,
    dim: int = 0,
) -> Settings:
    """How to train, with defaults where the user has no wishes."""
    chunk = max(1, steps // LOOKS)
    cooldown_steps = min(COOLDOWN_LOOKS * chunk, steps)
    if dim > CHOICE.thousands.above:
        chunk = max(1, min(max(chunk, CHOICE.thousands.chunk), steps // 2))
        cooldown_steps = max(1, steps // 2)
    return Settings(
        objective=objective or OBJECTIVES.get(recipe.name, CoveringELBO()),
        optimizer=optimizer or default_optimizer(recipe.pace * LEARNING_RATE),
        particles=particles,
        chunk=chunk,
        cooldown_steps=cooldown_steps,
    )


def _target(model: Any, data: Any, args: tuple, init: Any, batch_size: int | None, team: Team) -> Target:
    """The target of the arguments of `fit`."""
    if batch_size is None:
        if isinstance(data, str | Path):
            raise InputError("data names a file, whose rows are read in batches; give batch_size too.")
        return as_target(model, args=args, data=data, init=init)
    if not callable(model) or isinstance(model, Target) or args or init is not None or data is None:
        raise InputError(
            "batch_size goes with a NumPyro model and its arguments in data, and with nothing else."
        )
    return from_rows(model, data, batch_size, team)


def recipe_of(guide: str | GuideRecipe) -> GuideRecipe:
    if isinstance(guide, GuideRecipe):
        return guide
    if isinstance(guide, str) and guide in GUIDES:
        return GUIDES[guide]
    names = ", ".join(f'"{name}"' for name in GUIDES)
    raise InputError(
        f"guide must be one of {names}, or a recipe such as dmvi.DiffusionGuide(); got {guide!r}."
    )


def _check_recipe(recipe: GuideRecipe, objective: Objective, dim: int) -> None:
    """Build the guide once on the identity, so that what does not fit is named at once."""
    objective.check(recipe.build(anchored(jnp.zeros(dim), jnp.ones(dim), full=False), key=jr.key(0)))


def check_choices(
    seed: Any, steps: Any, particles: Any, time_limit: Any, optimizer: Any, objective: Any
) -> None:
    """Raises `InputError` for what no fit can be made with."""
    _check_numbers(seed=seed, steps=steps, particles=particles, time_limit=time_limit)
    _check_kinds(optimizer, objective)


def _check_kinds(optimizer: Any, objective: Any) -> None:
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise InputError(f"optimizer must be an Optax transformation, got {type(optimizer).__name__}.")
    if objective is not None and not isinstance(objective, Objective):
        raise InputError(
            f"objective must be one of dmvi.objectives, such as PathELBO(); got {type(objective).__name__}."
        )


def _check_numbers(*, seed: Any, steps: Any, particles: Any, time_limit: Any) -> None:
    for name, value, least in (("seed", seed, 0), ("steps", steps, 1), ("particles", particles, 1)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not least <= value < 2**32:
            raise InputError(f"{name} must be an integer of at least {least} and below 2^32, got {value!r}.")
    if time_limit is not None and not _is_limit(time_limit):
        raise InputError(f"time_limit must be a positive number of seconds or None, got {time_limit!r}.")


def _is_limit(seconds: Any) -> bool:
    return isinstance(seconds, int | float) and 0 < seconds < np.inf
