"""Warm start and training of one fit, or the rest of them after an interruption."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from dmvi._checkpoint import Checkpoint
from dmvi._clock import Clock
from dmvi._errors import InputError, is_out_of_memory
from dmvi._grow import Grown, Pilot, grown, more_particles
from dmvi._interrupt import Interrupt
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
        clock: of the whole fit.
        later_draws: draws that diagnostics weigh within the limit of the clock, where it has one.
        control_variates: whether batches are corrected at the warm start's mode.
        grows: whether a guide that turns out too small may grow.
        second_share: share of the time left in which a larger guide has to be found, if it is to be trained.
    """

    recipe: GuideRecipe
    target: Target
    settings: Settings
    keys: list[PRNGKeyArray]
    steps: int
    clock: Clock
    later_draws: int
    control_variates: bool
    grows: bool
    second_share: float = 0.5


class Fitted(NamedTuple):
    """How a fit has ended.

    Attributes:
        outcome: of the training, of both where the guide has grown.
        start: what the last training began with.
        recipe: of the guide.
        settings: of the last training.
        pilot: the first training, where the guide has grown.
        pace: factor of the learning rate in the last training.
        warm_seconds: how long the warm start took; zero where an earlier call had made it.
        clock: of the fit, with the seconds that an interrupted run had used.
    """

    outcome: Outcome
    start: Start
    recipe: GuideRecipe
    settings: Settings
    pilot: Pilot | None = None
    pace: float = 1.0
    warm_seconds: float = 0.0
    clock: Clock = Clock()


def train(plan: Plan, line: Progress, saved: Checkpoint | None, stop: Interrupt) -> Fitted:
    """Warm start and training, or the rest of a checkpoint's; processes that do not lead follow."""
    team, settings = Team.of(plan.settings.mesh), plan.settings
    if not team.leads:
        start = hear(plan.recipe, plan.target, team)
        outcome = follow(start.guide, start.target, settings, key=plan.keys[2], team=team)
        return Fitted(outcome, start, plan.recipe, settings, clock=plan.clock)
    found, warm_seconds = None if saved is None else saved.found(plan.recipe), 0.0
    if found is not None:
        plan = plan._replace(clock=plan.clock.after(found.seconds))
        if found.pilot is not None and not team.alone:
            raise InputError(
                "the checkpoint is of a guide that has grown, which one process trains. Go on with one."
            )
        if found.pilot is not None:
            larger = Grown(found.recipe, found.start, found.pilot)
            return _go_on(plan, larger, line, saved, found.snapshot, stop)
        start, snapshot = found.start, found.snapshot
    else:
        # Passes over rows in files do not ask `stop`, and before their end there is nothing to give back.
        with stop.at_once() if plan.target.stream is not None else contextlib.nullcontext():
            start = begin(plan.recipe, plan.target, plan.keys, line, plan.control_variates, plan.clock, stop)
        warm_seconds, snapshot = plan.clock.seconds, None
    tell(start, team)
    if saved is not None:
        saved.begin(start)
    watch = _ignore if saved is None else saved.watch
    outcome = _trainer(plan, start, settings, line, watch, snapshot, stop).run()
    fitted = Fitted(outcome, start, plan.recipe, settings, clock=plan.clock)
    fitted = _grow(plan, fitted, line, saved, stop) if plan.grows and team.alone else fitted
    return fitted._replace(warm_seconds=warm_seconds)


def _grow(plan: Plan, fitted: Fitted, line: Progress, saved: Checkpoint | None, stop: Interrupt) -> Fitted:
    """The fit of a larger guide where there is something left to gain; what there is, whatever goes wrong."""
    outcome, start, clock = fitted.outcome, fitted.start, plan.clock
    # The second training needs its share of the time too.
    clock = clock.within(clock.share(plan.second_share)) if clock.limited else clock
    try:
        with stop.at_once():
            larger = grown(
                plan.recipe,
                start,
                outcome,
                particles=plan.settings.particles,
                seconds=plan.clock.seconds,
                clock=clock,
                key=plan.keys[1],
                progress=line,
            )
        if saved is not None:
            saved.stop_if_asked()
        if larger is None:
            return fitted
        found = _go_on(plan, larger, line, saved, None, stop)
        return found if larger.pace == 1 else _better(fitted, found)
    except KeyboardInterrupt:
        if stop.twice:
            raise
        return fitted._replace(outcome=outcome._replace(status=Status.INTERRUPTED))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        warnings.warn("there is not enough memory to train further; the first guide is kept.", stacklevel=2)
        return fitted


def _better(first: Fitted, second: Fitted) -> Fitted:
    """The better of two trainings of which the second did not begin where the first ended."""
    looks = second.outcome.history[len(first.outcome.history) :]
    if looks.size and looks[-1] > np.max(first.outcome.history):
        return second
    cut_short = second.outcome.status in (Status.INTERRUPTED, Status.TIME_LIMIT)
    status = second.outcome.status if cut_short else first.outcome.status
    outcome = first.outcome._replace(status=status, gradients=second.outcome.gradients)
    return first._replace(outcome=outcome)


def _go_on(
    plan: Plan,
    larger: Grown,
    line: Progress,
    saved: Checkpoint | None,
    snapshot: Snapshot | None,
    stop: Interrupt,
) -> Fitted:
    """The second training, of a guide that has grown or with more particles."""
    how = "more particles" if larger.recipe is plan.recipe else "the guide grows"
    line.note(f"{larger.pilot.gap:.2g} nats were left; {how}")
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
    outcome = _trainer(plan, larger.start, settings, line, watch, snapshot, stop).run()
    return Fitted(
        larger.pilot.then(outcome),
        larger.start,
        larger.recipe,
        settings,
        larger.pilot,
        larger.pace,
        clock=plan.clock,
    )


def _trainer(
    plan: Plan,
    start: Start,
    settings: Settings,
    line: Progress,
    watch: Callable[[Trainer], None],
    snapshot: Snapshot | None,
    stop: Interrupt,
) -> Trainer:
    return Trainer(
        start.guide,
        start.target,
        settings,
        Budget(plan.steps, plan.clock, plan.later_draws, start.gradient_seconds),
        key=plan.keys[2],
        progress=line,
        snapshot=snapshot,
        watch=watch,
        team=Team.of(settings.mesh),
        settled=start.look if settings.objective.caution is None else None,
        stop=stop,
    )


def _ignore(trainer: Trainer) -> None:
    """What a training does of which nobody keeps a record."""
