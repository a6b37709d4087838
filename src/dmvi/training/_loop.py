"""The loop: chunks on the device, decisions on the host between them."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from dmvi._random import children
from dmvi._team import ALONE, Message, Team
from dmvi.guides._guide import Guide
from dmvi.targets._target import Target
from dmvi.training._chunks import STOPPED, Chunks, Outcome, compiled_start, filled, leaves_of, told
from dmvi.training._course import Budget, Course, Kept
from dmvi.training._look import Look, look_at, look_back
from dmvi.training._progress import Progress
from dmvi.training._state import Seen, Settings, State, Trained

OPENING = 8  # steps that hardly move the guide yet, so that their draws tell what it was like before
ROUGHLY = 60  # draws from which they do


class Snapshot(NamedTuple):
    """A training run between two chunks: everything it needs to go on exactly as if it had never stopped."""

    arrays: dict[str, np.ndarray]
    record: dict[str, Any]


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
        snapshot: where this very run was interrupted; then `guide` gives no more than the structure.
        watch: called after every chunk.
        team: the processes over whose devices training is spread; this one leads, the others `follow`.
        settled: a look at the guide that leaves nothing to gain, so that it is kept as it is.
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
        snapshot: Snapshot | None = None,
        watch: Callable[["Trainer"], None] = lambda trainer: None,
        team: Team = ALONE,
        settled: Look | None = None,
    ):
        self._target, self._settings, self._progress = target, settings, progress
        step_key, self._look_key = children(key, 2)
        self._chunks = Chunks(target, settings, step_key, team)
        self._team = team
        self._trained = Trained(guide, target.params)
        self._state = compiled_start(self._trained, settings) if state is None else state
        self._fresh = state is None
        self._watch = watch
        # What the start is like the first chunk will tell.
        unseen = Kept(self._trained, Look(-np.inf, 0.0))
        self._course = Course(unseen, int(self._state.step), settings, budget)
        if snapshot is not None:
            self._recall(snapshot)
        elif settled is not None:
            self._course.settle(settled, int(self._state.step))

    def run(self) -> Outcome:
        """Train to a plateau or a limit, anneal, and give back the best."""
        try:
            if self._course.done:
                self._watch(self)
            with contextlib.suppress(KeyboardInterrupt):
                while not self._course.done:
                    self._advance()
        except SystemExit:  # of `watch`, between two chunks, so that the others can hear of it
            self._team.hear(Message(STOPPED))
            raise
        finally:
            self._chunks.close()
        outcome = self._outcome()
        if not self._team.alone:
            self._team.hear(told(outcome))
        return outcome

    def _advance(self) -> None:
        """One chunk, a look at what it has led to, and the consequences."""
        began = time.perf_counter()
        skipped = int(self._state.skipped)
        cooldown, end = (jnp.asarray(step, jnp.int32) for step in (self._course.cooldown, self._course.end))
        state = self._state._replace(cooldown=cooldown, end=end)
        self._state, self._trained, seen = self._chunks.run(state, self._trained)
        if not self._course.looks:
            self._course.open(self._look_before(seen))
        look = self._look(seen)
        step, skipped = int(self._state.step), int(self._state.skipped) - skipped
        seconds = time.perf_counter() - began
        if self._course.record(Kept(self._trained, look), step, skipped, seconds):
            self._return_to_best()
        self._progress.update(step, self._course.limit, look.elbo + self._target.offset, look.gap)
        self._watch(self)

    @property
    def done(self) -> bool:
        """Whether training has come to its end."""
        return self._course.done

    def snapshot(self) -> Snapshot:
        """Where the run stands."""
        arrays, record = self._course.memory()
        trees = {
            "trained": self._trained,
            "start": self._course.start.guide,
            "best": self._course.best.guide,
            "state": self._state,
        }
        for name, tree in trees.items():
            arrays |= leaves_of(tree, name)
        arrays["look_key"] = np.asarray(jr.key_data(self._look_key))
        return Snapshot(arrays, record)

    def _recall(self, snapshot: Snapshot) -> None:
        arrays = snapshot.arrays
        start, best = filled(self._trained, arrays, "start"), filled(self._trained, arrays, "best")
        self._trained, self._state = (
            filled(self._trained, arrays, "trained"),
            filled(self._state, arrays, "state"),
        )
        self._look_key = jr.wrap_key_data(jnp.asarray(arrays["look_key"]), impl=jr.key_impl(self._look_key))
        self._course.recall(arrays, snapshot.record, start, best)

    def _look(self, seen: Seen) -> Look:
        """At the chunk's own draws, fresh ones where they are few or have been weighed on batches."""
        look = None if self._target.subsampled else look_back(seen)
        return self._look_closely(self._trained) if look is None else look

    def _look_before(self, seen: Seen) -> Look:
        """At the start as the opening of the first chunk saw it, or closely where that tells too little."""
        own = np.asarray(seen.own)[:OPENING]
        if self._target.subsampled or not self._fresh or own.sum() < ROUGHLY:
            return self._look_closely(self._course.start.guide)
        return Look.at(np.asarray(seen.log_weights, float)[:OPENING][own])

    def _look_closely(self, trained: Trained) -> Look:
        """At fresh draws on the full data, or a large part of it, the same noise every time."""
        model = eqx.tree_at(lambda t: t.params, self._target, trained.params)
        return look_at(trained.guide, model, self._look_key)

    def _return_to_best(self) -> None:
        """Go on from the best look, fresh optimiser, half the rate: training has broken the guide."""
        self._trained = self._course.best.guide
        fresh = compiled_start(self._trained, self._settings)
        self._state = self._state._replace(
            flat=fresh.flat, optimizer=fresh.optimizer, damping=0.5 * self._state.damping
        )

    def _outcome(self) -> Outcome:
        course, step, skipped = self._course, int(self._state.step), int(self._state.skipped)
        trained = course.chosen(self._trained, None if self._target.subsampled else self._look_closely)
        return Outcome(
            trained.guide,
            trained.params,
            course.reason(trained, step, skipped),
            step,
            skipped,
            np.array([look.elbo for look in course.looks]),
            np.array(course.look_steps, int),
            course.gap(trained),
            self._left_behind(trained),
        )

    def _left_behind(self, trained: Trained) -> State:
        """Where to go on from: the last state, or a fresh optimiser where an earlier guide was kept."""
        if trained is self._trained:
            return self._state
        fresh = compiled_start(trained, self._settings)
        return self._state._replace(flat=fresh.flat, optimizer=fresh.optimizer)
