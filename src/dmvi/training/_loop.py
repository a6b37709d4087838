"""The loop: chunks on the device, decisions on the host between them."""

import contextlib
import time
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._random import children
from dmvi._run import Status
from dmvi.guides._guide import Guide
from dmvi.targets._target import Target
from dmvi.training._look import Look, look_at, look_back
from dmvi.training._progress import Progress
from dmvi.training._state import Seen, Settings, State, Trained, initial_state, run_chunk
from dmvi.training._stopping import TOLERANCE, Plateau

COLLAPSE = 10.0  # nats below the best look at which training is taken back to it
STALLED = 0.5  # share of a chunk's updates skipped at which it is taken back too
MAX_RETURNS = 3
OPENING = 8  # steps that hardly move the guide yet, so that their draws tell what it was like before
ROUGHLY = 60  # draws from which they do

compiled_start = compiled(initial_state)


@compiled
def compiled_chunk(
    state: State, trained: Trained, target: Target, settings: Settings, key: PRNGKeyArray
) -> tuple[State, Trained, Seen]:
    """A chunk of steps and what it has trained."""
    state, seen = run_chunk(state, trained, target, settings, key)
    return state, trained.with_flat(state.flat), seen


class Budget(NamedTuple):
    """How long training may go on: steps, of which the last `cooldown_steps` anneal, and a clock time."""

    steps: int
    deadline: float | None


class Outcome(NamedTuple):
    """What training gives back."""

    guide: Guide
    params: dict[str, Array]
    status: Status
    steps: int
    skipped: int
    history: np.ndarray
    history_steps: np.ndarray
    state: State


class Trainer:
    """One training run, from a guide's start to its best.

    Args:
        guide: where to begin.
        target: what to approximate.
        settings: how to train.
        budget: how long; its steps count from the first of `state`.
        key: random key; the same one as before continues the same random numbers.
        progress: told of every look.
        state: where an earlier run ended, to go on from; None begins anew.
    """

    def __init__(
        self,
        guide: Guide,
        target: Target,
        settings: Settings,
        budget: Budget,
        *,
        key: PRNGKeyArray,
        progress: Progress,
        state: State | None = None,
    ):
        self._target, self._settings, self._budget, self._progress = target, settings, budget, progress
        self._step_key, self._look_key = children(key, 2)
        self._trained = Trained(guide, target.params)
        self._state = compiled_start(self._trained, settings) if state is None else _resumed(state)
        self._looks: list[Look] = []
        self._look_steps: list[int] = []
        self._returns = 0
        self._steered = settings.objective.caution is None  # by the ELBO of looks
        self._chunk_seconds = 0.0
        self._fresh = state is None
        self._start = self._best = (self._trained, Look(-np.inf, 0.0))

    def run(self) -> Outcome:
        """Train to a plateau or a limit, anneal, and give back the best."""
        status = Status.INTERRUPTED
        with contextlib.suppress(KeyboardInterrupt):
            status = self._anneal(self._explore())
        return self._outcome(status)

    def _explore(self) -> Status:
        """Full learning rate until the plateau or until only the cooldown fits in the budget."""
        plateau = Plateau()
        last = self._budget.steps - self._settings.cooldown_steps
        while int(self._state.step) + self._settings.chunk <= last:
            look = self._advance()
            if self._returns > MAX_RETURNS:
                return Status.STEP_LIMIT  # too wild for the full rate: let the rate fall
            if self._steered and plateau.reached(look.elbo, look.error):
                return Status.CONVERGED
            if self._out_of_time(self._settings.cooldown_steps):
                return Status.TIME_LIMIT
        return Status.STEP_LIMIT

    def _anneal(self, status: Status) -> Status:
        """Let the learning rate fall to zero."""
        self._state = self._state._replace(cooldown=self._state.step)
        end = int(self._state.step) + self._settings.cooldown_steps
        while int(self._state.step) < end:
            if self._out_of_time(0):
                return Status.TIME_LIMIT
            self._advance(end)
        return status

    def _advance(self, end: int | None = None) -> Look:
        began = time.perf_counter()
        skipped = int(self._state.skipped)
        self._state, self._trained, seen = compiled_chunk(
            self._state, self._trained, self._target, self._settings, self._step_key
        )
        if not self._looks:
            self._start = self._best = (self._start[0], self._look_before(seen))
        look = self._look(seen)
        self._chunk_seconds = time.perf_counter() - began
        step = int(self._state.step)
        self._looks.append(look)
        self._look_steps.append(step)
        stalled = int(self._state.skipped) - skipped > STALLED * self._settings.chunk
        if look.elbo >= self._best[1].elbo:
            self._best = (self._trained, look)
        if self._steered and (stalled or look.elbo < self._best[1].elbo - COLLAPSE):
            self._returns += 1
            self._return_to_best()
        self._progress.update(step, end or self._budget.steps, look.elbo)
        return look

    def _look(self, seen: Seen) -> Look:
        """At the chunk's own draws, fresh ones where they are few; with minibatches they have to do."""
        if self._target.subsampled:
            return Look.at(np.asarray(seen.log_weights, float).ravel())
        look = look_back(seen)
        return self._look_closely(self._trained) if look is None else look

    def _look_before(self, seen: Seen) -> Look:
        """At the start as the opening of the first chunk saw it, or closely where that tells too little."""
        own = np.asarray(seen.own)[:OPENING]
        if self._target.subsampled or not self._fresh or own.sum() < ROUGHLY:
            return self._look_closely(self._start[0])
        return Look.at(np.asarray(seen.log_weights, float)[:OPENING][own])

    def _look_closely(self, trained: Trained) -> Look:
        """At fresh draws on the full data, the same noise every time."""
        model = eqx.tree_at(lambda t: t.params, self._target, trained.params)
        return look_at(trained.guide, model, self._look_key)

    def _return_to_best(self) -> None:
        """Go on from the best look, fresh optimiser, half the rate: training has broken the guide."""
        self._trained = self._best[0]
        fresh = compiled_start(self._trained, self._settings)
        self._state = self._state._replace(
            flat=fresh.flat, optimizer=fresh.optimizer, damping=0.5 * self._state.damping
        )

    def _out_of_time(self, steps_left: int) -> bool:
        if self._budget.deadline is None:
            return False
        left = steps_left / self._settings.chunk * self._chunk_seconds
        return time.perf_counter() + left >= self._budget.deadline

    def _outcome(self, status: Status) -> Outcome:
        trained = self._kept() if self._steered and self._looks else self._trained
        if 2 * int(self._state.skipped) > int(self._state.step):
            status = Status.DIVERGED
        elif trained is self._start[0] and status is not Status.INTERRUPTED:
            status = Status.WARM_START
        return Outcome(
            trained.guide,
            trained.params,
            status,
            int(self._state.step),
            int(self._state.skipped),
            np.array([look.elbo for look in self._looks]),
            np.array(self._look_steps, int),
            self._left_behind(trained),
        )

    def _kept(self) -> Trained:
        """The annealed guide, unless an earlier look or the start was better."""
        trained, look = self._trained, self._looks[-1]
        best, best_look = self._best
        noise = 3 * np.hypot(look.error, best_look.error)
        if look.elbo < best_look.elbo - max(noise, TOLERANCE):
            trained, look = best, best_look
        if trained is self._start[0] or self._better_than_start(trained, look):
            return trained
        return self._start[0]

    def _better_than_start(self, trained: Trained, look: Look) -> bool:
        """By the looks on the way where they leave no doubt, else by close ones."""
        start = self._start[1]
        if self._target.subsampled:
            return look.elbo >= start.elbo
        if look.elbo - start.elbo > 3 * np.hypot(look.error, start.error):
            return True
        return self._look_closely(trained).elbo >= self._look_closely(self._start[0]).elbo

    def _left_behind(self, trained: Trained) -> State:
        """Where to go on from: the last state, or a fresh optimiser where an earlier guide was kept."""
        if trained is self._trained:
            return self._state
        fresh = compiled_start(trained, self._settings)
        return self._state._replace(flat=fresh.flat, optimizer=fresh.optimizer)


def _resumed(state: State) -> State:
    """`state` at the full learning rate."""
    return state._replace(cooldown=np.asarray(np.iinfo(np.int32).max, np.int32))
