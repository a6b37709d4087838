"""Training of many guides side by side: one compiled program advances all, each keeps its own course."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._random import children
from dmvi._run import Status
from dmvi.targets._target import Target
from dmvi.training._course import Budget, Course, Kept
from dmvi.training._look import Look
from dmvi.training._state import Seen, Settings, State, Trained, initial_state, run_chunk

LOOK_DRAWS = 1000


class LaneOutcome(NamedTuple):
    """What the training of one lane gives back.

    Attributes:
        flat: trainable numbers chosen.
        look: the look at them.
        status: why training ended.
        steps: steps taken.
        skipped: updates left out.
        history: ELBO of each look.
        history_steps: step of each look.
        state: arrays of the state training left behind.
        gradients: evaluations of the gradient, or of the density alone in looks.
    """

    flat: Float[np.ndarray, " size"]
    look: Look
    status: Status
    steps: int
    skipped: int
    history: np.ndarray
    history_steps: np.ndarray
    state: list[np.ndarray]
    gradients: int = 0


@compiled
def lanes_start(trained: Trained, settings: Settings) -> State:
    """The state of every lane before its first step."""
    return eqx.filter_vmap(lambda trained: initial_state(trained, settings))(trained)


@compiled
def lanes_chunk(
    states: State, trained: Trained, targets: Target, settings: Settings, keys: PRNGKeyArray
) -> tuple[State, Seen]:
    """A chunk of steps in every lane."""

    def one(state, trained, target, key):
        trained = trained.with_flat(state.flat)
        return run_chunk(state, trained, target, settings, key)

    return eqx.filter_vmap(one)(states, trained, targets, keys)


@compiled
def lanes_look(
    flats: Any, trained: Trained, targets: Target, keys: PRNGKeyArray, draws: int
) -> Float[Array, "lanes draws"]:
    """Log-weights of fresh draws in every lane, at trainable numbers `flats`, an array of lanes x size."""

    def one(flat, trained, target, key):
        now = trained.with_flat(flat)
        model = eqx.tree_at(lambda t: t.params, target, now.params)

        def weigh(key):
            draw = now.guide.draw(key)
            return model.log_density(draw.xi) - draw.log_q

        return jax.vmap(weigh)(jr.split(key, draws))

    return eqx.filter_vmap(one)(flats, trained, targets, keys)


@compiled
def lanes_with_flat(trained: Trained, flats: Any) -> Trained:
    """Guides and parameters at given trainable numbers."""
    return eqx.filter_vmap(lambda trained, flat: trained.with_flat(flat))(trained, flats)


class Lanes:
    """Guides in training side by side.

    Args:
        trained: the guides and generative parameters, every array with a leading axis.
        targets: their targets, likewise.
        settings: how to train, the same for all.
        budget: how long, the same for all.
        keys: one key per lane.
        begin: trainable numbers to begin from; None for those of `trained`. Whatever they are, a result is
            never worse than `trained`.
        watch: called after every chunk with the steps done and the limit.
    """

    def __init__(
        self,
        trained: Trained,
        targets: Target,
        settings: Settings,
        budget: Budget,
        keys: list[PRNGKeyArray],
        *,
        begin: Float[np.ndarray, "lanes size"] | None = None,
        watch: Callable[[int, int], None] = lambda step, limit: None,
    ):
        self._trained, self._targets, self._settings, self._watch = trained, targets, settings, watch
        self._step_keys, self._look_keys = zip(*(children(key, 2) for key in keys), strict=True)
        self._looked = 0
        self.interrupted = False
        self._states = jax.tree.map(np.array, lanes_start(trained, settings))
        own = self._states.flat.copy()
        looks = self._look(own)
        self._courses = [Course(Kept(own[i], look), 0, settings, budget) for i, look in enumerate(looks)]
        if begin is not None:
            self._begin(begin)

    def _begin(self, flats: np.ndarray) -> None:
        """Begin elsewhere in the lanes where that is better."""
        for i, (course, look) in enumerate(zip(self._courses, self._look(flats), strict=True)):
            if look.elbo > course.start.look.elbo:
                course.best = Kept(flats[i].copy(), look)
                self._states.flat[i] = flats[i]

    def run(self) -> list[LaneOutcome]:
        """Train until every lane has come to its end, or to Ctrl-C, which keeps the best so far."""
        outcomes: list[LaneOutcome | None] = [None] * len(self._courses)
        try:
            while True:
                for i, course in enumerate(self._courses):
                    if course.done and outcomes[i] is None:
                        outcomes[i] = self._outcome(i)
                if all(course.done for course in self._courses):
                    break
                self._advance()
        except KeyboardInterrupt:
            self.interrupted = True
        return [self._outcome(i) if outcome is None else outcome for i, outcome in enumerate(outcomes)]

    def untrained(self) -> list[LaneOutcome]:
        """What there is before the first step."""
        self.interrupted = True
        return [self._outcome(i) for i in range(len(self._courses))]

    def _advance(self) -> None:
        began = time.perf_counter()
        before = self._states.skipped
        cooldowns, ends = np.array([(course.cooldown, course.end) for course in self._courses], np.int32).T
        states, seen = lanes_chunk(
            self._states._replace(cooldown=cooldowns, end=ends),
            self._trained,
            self._targets,
            self._settings,
            jax.numpy.stack(self._step_keys),
        )
        self._states = jax.tree.map(np.array, states)
        looks = self._look(self._states.flat, np.asarray(seen.log_weights, float))
        seconds = time.perf_counter() - began
        fresh: State | None = None
        for i, (course, look) in enumerate(zip(self._courses, looks, strict=True)):
            if course.done:
                continue
            step, skipped = int(self._states.step[i]), int(self._states.skipped[i] - before[i])
            if course.record(Kept(self._states.flat[i].copy(), look), step, skipped, seconds):
                fresh = lanes_start(self._trained, self._settings) if fresh is None else fresh
                self._return(i, fresh)
        self._watch(
            min(int(self._states.step[i]) for i in range(len(looks))),
            max(course.limit for course in self._courses),
        )

    def _return(self, i: int, fresh: State) -> None:
        """Lane i goes on from its best look with a fresh optimiser at half the rate."""
        self._states.flat[i] = self._courses[i].best.guide
        self._states.damping[i] *= 0.5
        for mine, new in zip(
            jax.tree.leaves(self._states.optimizer), jax.tree.leaves(fresh.optimizer), strict=True
        ):
            mine[i] = np.asarray(new[i])

    def _look(self, flats: np.ndarray, log_weights: np.ndarray | None = None) -> list[Look]:
        """Fresh draws on the full data; with minibatches the training draws have to do."""
        if self._targets.subsampled and log_weights is not None:
            return [Look.at(lane.ravel()) for lane in log_weights]
        self._looked += 1
        keys = jax.vmap(lambda key: jr.fold_in(key, self._looked))(jax.numpy.stack(self._look_keys))
        found = np.asarray(lanes_look(flats, self._trained, self._targets, keys, LOOK_DRAWS), float)
        return [Look.at(lane) for lane in found]

    def _outcome(self, i: int) -> LaneOutcome:
        course = self._courses[i]
        step, skipped = int(self._states.step[i]), int(self._states.skipped[i])
        last = self._states.flat[i].copy()
        # Of a chunk that was cut short nothing is known.
        flat = course.chosen(last) if course.done or not course.steered else course.best.guide
        look = next(
            (kept.look for kept in (course.start, course.best) if kept.guide is flat),
            course.looks[-1] if course.looks else course.start.look,
        )
        state = self._states._replace(flat=self._states.flat.copy())
        state.flat[i] = flat
        return LaneOutcome(
            flat,
            look,
            course.reason(flat, step, skipped),
            step,
            skipped,
            np.array([look.elbo for look in course.looks]),
            np.array(course.look_steps, int),
            [leaf[i].copy() for leaf in jax.tree.leaves(state)],
            step * self._settings.particles + self._looked * LOOK_DRAWS,
        )
