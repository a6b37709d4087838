"""resume(): further training of a posterior, from where it stood."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dmvi._choice import CHOICE
from dmvi._clock import Clock
from dmvi._errors import InputError
from dmvi._fit import PARTICLES, fit_keys, trained_dimensions, training_settings
from dmvi._interrupt import Interrupt
from dmvi._recipes import recipe_from
from dmvi._run import Run, Status
from dmvi._start import with_control_variates
from dmvi.guides import DiffusionGuide, GuideRecipe
from dmvi.objectives import Objective
from dmvi.posterior import Posterior, later_draws
from dmvi.targets import Target
from dmvi.training import Budget, Outcome, Settings, State, Trained, Trainer, initial_state, progress_for


def resume(
    posterior: Posterior,
    *,
    steps: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    objective: Objective | None = None,
    time_limit: float | None = None,
    progress: bool = True,
) -> Posterior:
    """Train a posterior further, with its optimiser's state and random numbers going on where they ended.

    The learning rate rises to its full value again and is annealed at the end; the result is never worse
    than what it began from.

    Args:
        posterior: from `dmvi.fit`, or from `dmvi.load` with the model.
        steps: most further steps; by default as many as a fit of so many dimensions takes.
        optimizer: that of the fit, where it was not the default.
        objective: that of the fit, where it was not the default.
        time_limit: seconds for the further training and its diagnostics.
        progress: show the live line.

    Returns:
        A new posterior; the old one stays as it was.
    """
    clock, stop = Clock(time_limit), Interrupt()
    _check(posterior, CHOICE.steps if steps is None else steps, optimizer, objective)
    run, recipe = posterior.run, _recipe(posterior)
    dim = trained_dimensions(recipe, posterior.target)
    steps = CHOICE.most_steps(dim) if steps is None else steps
    particles = max(1, round(_setting(run, "particles", PARTICLES)))
    settings = training_settings(recipe, steps, particles, optimizer, objective, dim)
    settings = settings.paced(_setting(run, "pace", 1.0))
    train_key = fit_keys(run.seed)[2]
    trained = Trained(posterior.guide, posterior.target.params)
    state = _state(posterior, trained, settings)
    line, later = progress_for(progress), later_draws(posterior.target.dim) if clock.limited else 0
    try:
        trainer = Trainer(
            posterior.guide,
            _corrected(posterior),
            settings,
            Budget(int(state.step) + steps, clock, later, run.gradient_seconds),
            key=train_key,
            progress=line,
            state=state,
            stop=stop,
        )
        with stop:
            outcome = trainer.run()
            resumed = _posterior(posterior, outcome, state, clock)
            if clock.limited:
                resumed.judge_within(clock, stop)
    finally:
        line.close()
    return resumed


def _posterior(posterior: Posterior, outcome: Outcome, state: State, clock: Clock) -> Posterior:
    """What further training has led to, with the record of both."""
    run = posterior.run
    earlier = run.steps - int(state.step)  # of the guide before it had grown
    target = eqx.tree_at(lambda t: t.params, posterior.target, outcome.params)
    after = dataclasses.replace(
        run,
        # No better than where it began: for further training that is a plateau.
        status=Status.CONVERGED if outcome.status is Status.WARM_START else outcome.status,
        steps=earlier + outcome.steps,
        seconds=run.seconds + clock.seconds,
        skipped=run.skipped - int(state.skipped) + outcome.skipped,
        history=np.concatenate([run.history, outcome.history]),
        history_steps=np.concatenate([run.history_steps, earlier + outcome.history_steps]),
        gradients=run.gradients + outcome.gradients,
        gradient_seconds=outcome.gradient_seconds or run.gradient_seconds,
        stage_seconds={**run.stage_seconds, "further training": clock.seconds},
    )
    judge_key = fit_keys(run.seed)[3]
    return Posterior(target, outcome.guide, after, judge_key, training=jax.tree.leaves(outcome.state))


def _corrected(posterior: Posterior) -> Target:
    """The target with the control variates of the fit, which one that comes from a file has no more."""
    affine = getattr(posterior.guide, "affine", None)
    wanted = posterior.run.settings.get("control_variates", False) and posterior.run.warm_start != "none"
    if posterior.target.anchor is not None or affine is None or not wanted:
        return posterior.target
    return with_control_variates(posterior.target, affine)


def _recipe(posterior: Posterior) -> GuideRecipe:
    """The recipe of the fit; what no file describes are the user's own networks in a diffusion guide."""
    described = posterior.run.settings.get("guide")
    return DiffusionGuide() if described is None else recipe_from(described)


def _state(posterior: Posterior, trained: Trained, settings: Settings) -> State:
    """The state that training left behind, in the structure these settings give it."""
    assert posterior.training is not None
    leaves, structure = jax.tree.flatten(eqx.filter_eval_shape(initial_state, trained, settings))
    shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
    if shapes != [(np.shape(leaf), leaf.dtype) for leaf in posterior.training]:
        raise InputError(
            "the state that training left behind does not belong to this optimizer or objective, or is of an "
            "earlier version of dmvi; pass those of the fit, or fit again."
        )
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in posterior.training])


def _setting(run: Run, name: str, default: float) -> float:
    """A positive number among the settings, which may come from a file."""
    value = run.settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(
            f"expected a positive number for {name!r} in the settings of the fit; got {value!r}. The file "
            "does not say how it was trained; fit again."
        )
    return value


def _check(posterior: Posterior, steps: int, optimizer: object, objective: object) -> None:
    if not isinstance(posterior, Posterior):
        raise InputError(
            "expected a posterior with its model, from dmvi.fit or dmvi.load(path, model, data=...); got "
            f"{type(posterior).__name__}."
        )
    if posterior.training is None:
        raise InputError("this posterior does not hold the state of its training, so it cannot go on.")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps < 2**31:
        raise InputError(f"steps must be an integer of at least 1, got {steps!r}.")
    for name, given in (("optimizer", optimizer), ("objective", objective)):
        if given is None and posterior.run.settings.get(name, "default") != "default":
            raise InputError(f"the fit had an {name} of its own; pass the same to resume.")
