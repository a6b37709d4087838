"""Warm start and training of one fit, or the rest of them after an interruption."""

import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from dmvi._checkpoint import Checkpoint
from dmvi._errors import InputError, is_out_of_memory
from dmvi._grow import Grown, Pilot, grown, more_particles
from dmvi._run import Status
from dmvi._start import Start, begin, hear, tell
from dmvi._team import Team
from dmvi.guides import GuideRecipe
from dmvi.targets import Target
from dmvi.training import Budget, Outcome, Progress, Settings, Snapshot, Trainer, follow


class Plan(NamedTuple):
    """How a fit is made.

    Attributes:
        recipe: of the guide.
        target: what to approximate.
        settings: of the training.
        keys: of the warm start, of the guide, of training and of the posterior.
        steps: most steps of a training.
        time_limit: seconds for all, or None.
        control_variates: whether batches are corrected at the warm start's mode.
        grows: whether a guide that turns out too small may grow.
    """

    recipe: GuideRecipe
    target: Target
    settings: Settings
    keys: list[PRNGKeyArray]
    steps: int
    time_limit: float | None
    control_variates: bool
    grows: bool


class Fitted(NamedTuple):
    """How a fit has ended.

    Attributes:
        outcome: of the training, of both where the guide has grown.
        start: what the last training began with.
        recipe: of the guide.
        settings: of the last training.
        pilot: the first training, where the guide has grown.
        pace: factor of the learning rate in the last training.
    """

    outcome: Outcome
    start: Start
    recipe: GuideRecipe
    settings: Settings
    pilot: Pilot | None = None
    pace: float = 1.0


def train(plan: Plan, line: Progress, saved: Checkpoint | None) -> Fitted:
    """Warm start and training, or the rest of a checkpoint's; processes that do not lead follow."""
    began, team, settings = time.perf_counter(), Team.of(plan.settings.mesh), plan.settings
    if not team.leads:
        start = hear(plan.recipe, plan.target, team)
        outcome = follow(start.guide, start.target, settings, key=plan.keys[2], team=team)
        return Fitted(outcome, start, plan.recipe, settings)
    found = None if saved is None else saved.found(plan.recipe)
    if found is not None:
        began -= found.seconds
        if found.pilot is not None and not team.alone:
            raise InputError(
                "the checkpoint is of a guide that has grown, which one process trains. Go on with one."
            )
        if found.pilot is not None:
            larger = Grown(found.recipe, found.start, found.pilot)
            return _go_on(plan, larger, began, line, saved, found.snapshot)
        start, snapshot = found.start, found.snapshot
    else:
        start, snapshot = begin(plan.recipe, plan.target, plan.keys, line, plan.control_variates), None
    tell(start, team)
    if saved is not None:
        saved.begin(start)
    watch = _ignore if saved is None else saved.watch
    outcome = _trainer(plan, start, settings, began, line, watch, snapshot).run()
    fitted = Fitted(outcome, start, plan.recipe, settings)
    return _grow(plan, fitted, began, line, saved) if plan.grows and team.alone else fitted


def _grow(plan: Plan, fitted: Fitted, began: float, line: Progress, saved: Checkpoint | None) -> Fitted:
    """The fit of a larger guide where there is something left to gain; what there is, whatever goes wrong."""
    seconds = time.perf_counter() - began
    left = np.inf if plan.time_limit is None else plan.time_limit - seconds
    outcome, start = fitted.outcome, fitted.start
    try:
        larger = grown(
            plan.recipe, start, outcome, seconds=seconds, left=left, key=plan.keys[1], progress=line
        )
        if saved is not None:
            saved.stop_if_asked()
        if larger is None:
            return fitted
        found = _go_on(plan, larger, began, line, saved, None)
        return found if larger.pace == 1 else _better(fitted, found)
    except KeyboardInterrupt:
        return fitted._replace(outcome=outcome._replace(status=Status.INTERRUPTED))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        warnings.warn("there is not enough memory for a larger guide; the first one is kept.", stacklevel=2)
        return fitted


def _better(first: Fitted, second: Fitted) -> Fitted:
    """The better of two trainings of which the second did not begin where the first ended."""
    looks = second.outcome.history[len(first.outcome.history) :]
    if looks.size and looks[-1] > np.max(first.outcome.history):
        return second
    cut_short = second.outcome.status in (Status.INTERRUPTED, Status.TIME_LIMIT)
    status = second.outcome.status if cut_short else first.outcome.status
    return first._replace(outcome=first.outcome._replace(status=status))


def _go_on(
    plan: Plan,
    larger: Grown,
    began: float,
    line: Progress,
    saved: Checkpoint | None,
    snapshot: Snapshot | None,
) -> Fitted:
    """The second training, of a guide that has grown."""
    line.note(f"{larger.pilot.gap:.2g} nats were left; the guide grows")
    settings = dataclasses.replace(plan.settings, particles=more_particles(plan.settings.particles))
    settings = settings.paced(larger.pace)
    watch = _ignore
    if saved is not None and larger.pace == 1:
        saved.begin(larger.start, larger.pilot)
        watch = saved.watch
    elif saved is not None:
        # Not saved: what it is compared with at its end is the pilot, from whose end a checkpoint goes on.
        watch = saved.stop_if_asked
    # Other random numbers than those of the pilot.
    plan = plan._replace(keys=[*plan.keys[:2], jr.fold_in(plan.keys[2], 1), *plan.keys[3:]])
    outcome = _trainer(plan, larger.start, settings, began, line, watch, snapshot).run()
    return Fitted(
        larger.pilot.then(outcome), larger.start, larger.recipe, settings, larger.pilot, larger.pace
    )


def _trainer(
    plan: Plan,
    start: Start,
    settings: Settings,
    began: float,
    line: Progress,
    watch: Callable[[Trainer], None],
    snapshot: Snapshot | None,
) -> Trainer:
    return Trainer(
        start.guide,
        start.target,
        settings,
        Budget(plan.steps, None if plan.time_limit is None else began + plan.time_limit),
        key=plan.keys[2],
        progress=line,
        snapshot=snapshot,
        watch=watch,
        team=Team.of(settings.mesh),
        settled=start.look if settings.objective.caution is None else None,
    )


def _ignore(trainer: Trainer) -> None:
    """What a training does of which nobody keeps a record."""
