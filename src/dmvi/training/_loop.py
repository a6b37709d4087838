"""The loop: chunks on the device, decisions on the host between them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from dmvi._interrupt import Interrupt
from dmvi._random import children
from dmvi._team import ALONE, Message, Team
from dmvi.guides._guide import Guide
from dmvi.targets._target import Target
from dmvi.training._chunks import STOPPED, Chunks, Outcome, compiled_start, filled, leaves_of, told
from dmvi.training._course import Budget, Course, Kept
from dmvi.training._look import ENOUGH, Effort, Look, look_at, look_back, look_draws
from dmvi.training._pace import Pace
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
        stop: asked between programs whether to end with the best so far.
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
        stop: Interrupt | None = None,
    ):
        self._target, self._settings, self._progress = target, settings, progress
        step_key, self._look_key = children(key, 2)
        self._chunks = Chunks(target, settings, step_key, team)
        self._team = team
        self._trained = Trained(guide, target.params)
        self._state = compiled_start(self._trained, settings) if state is None else state
        self._fresh = state is None
        self._watch, self._stop = watch, stop or Interrupt()
        self._clock, self._timing = budget.clock, budget.timing
        self._pace = Pace(budget.timing, budget.clock)
        self._gradients = 0  # evaluations, those of looks at fresh draws included
        self._effort: Effort | None = None  # of looks at fresh draws, once the cost of one is known
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
            self._course.begin_in_time()
            while not self._course.done and not self._stop.asked:
                self._advance()
        except KeyboardInterrupt:
            if self._stop.twice:
                raise
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
        began, compiling = self._clock.seconds, self._pace.compiling
        before, skipped = (self._state, self._trained), int(self._state.skipped)
        cooldown, end = (jnp.asarray(step, jnp.int32) for step in (self._course.cooldown, self._course.end))
        state = self._state._replace(cooldown=cooldown, end=end)
        self._state, self._trained, seen = self._chunks.run(
            state, self._trained, self._pace, self._clock, self._goal
        )
        step, skipped = int(self._state.step), int(self._state.skipped) - skipped
        taken = len(seen.own)
        self._gradients += taken * self._settings.particles
        whole = 0 < taken == self._course.goal(step - taken)
        if self._course.done or (not whole and np.sum(seen.own[taken // 2 :]) < ROUGHLY):
            self._state, self._trained = before  # too little to see what it has led to
            self._course.end_in_time()
            return
        if not self._course.looks:
            self._course.open(self._look_before(seen))
        look = self._look(seen)
        seconds = self._clock.seconds - began - (self._pace.compiling - compiling)
        if self._course.record(Kept(self._trained, look), step, skipped, seconds):
            self._return_to_best()
        self._progress.update(step, self._course.limit, look.elbo + self._target.offset, look.gap)
        if not self._stop.asked:  # a chunk cut short would be saved, and another result gone on from
            self._watch(self)

    def _goal(self, done: int) -> int:
        """Steps after which the chunk ends, of which some are done; none where training ends at once."""
        begin = int(self._course.recorded)
        if self._effort is None and self._pace.seconds is not None:
            self._course.plan(self._pace, begin + done)
            self._effort = self._affordable_looks(self._pace.seconds / self._settings.particles)
        return 0 if self._stop.asked else self._course.goal(begin)

    def _affordable_looks(self, seconds: float) -> Effort:
        """What a look at fresh draws may take where one of them takes so many seconds."""
        timing, longest = self._timing, self._timing.program_seconds
        draws = most = look_draws(self._target)
        if seconds * most > self._clock.share(timing.look_share):
            draws = max(int(self._clock.share(timing.look_share) / seconds), timing.fewest_looked)
        return Effort(min(draws, most), seconds, longest)

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
        self._gradients = int(self._state.step) * self._settings.particles

    def _look(self, seen: Seen) -> Look:
        """At the chunk's own draws, fresh ones where they are few or have been weighed on batches."""
        enough = ENOUGH if self._effort is None else min(ENOUGH, self._effort.draws)
        look = None if self._target.subsampled else look_back(seen, enough)
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
        effort = Effort(look_draws(self._target)) if self._effort is None else self._effort
        return look_at(trained.guide, model, self._look_key, effort, self._goes_on)

    def _goes_on(self, draws: int) -> bool:
        """Whether there is time for another program, after one of so many draws."""
        self._gradients += draws
        return not self._stop.asked and not self._clock.over

    def _return_to_best(self) -> None:
        """Go on from the best look, fresh optimiser, half the rate: training has broken the guide."""
        self._trained = self._course.best.guide
        fresh = compiled_start(self._trained, self._settings)
        self._state = self._state._replace(
            flat=fresh.flat, optimizer=fresh.optimizer, damping=0.5 * self._state.damping
        )

    def _outcome(self) -> Outcome:
        course, step, skipped = self._course, int(self._state.step), int(self._state.skipped)
        last = self._trained if bool(jnp.all(jnp.isfinite(self._state.flat))) else course.best.guide
        trained = course.chosen(last, None if self._target.subsampled else self._look_closely)
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
            self._gradients,
            0.0 if self._pace.seconds is None else self._pace.seconds / self._settings.particles,
        )

    def _left_behind(self, trained: Trained) -> State:
        """Where to go on from: the last state, or a fresh optimiser where an earlier guide was kept."""
        if trained is self._trained:
            return self._state
        fresh = compiled_start(trained, self._settings)
        return self._state._replace(flat=fresh.flat, optimizer=fresh.optimizer)
