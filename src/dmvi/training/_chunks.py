"""Chunks of steps, run by one process or by several that one of them leads."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dmvi._clock import Clock
from dmvi._compile import compiled
from dmvi._errors import InputError
from dmvi._random import children, seed_of
from dmvi._run import Status
from dmvi._team import Message, Team
from dmvi.guides._guide import Guide
from dmvi.targets._target import Batch, Target
from dmvi.training._feed import Feed
from dmvi.training._mesh import everywhere, gathered
from dmvi.training._pace import Pace
from dmvi.training._state import Seen, Settings, State, Trained, initial_state, run_steps

CHUNK, ENDED, STOPPED = "chunk", "training ended", "training stopped"  # words of the leading process
STOPPED_STATUS = 143  # of a process that SIGTERM has ended

compiled_start = compiled(initial_state)


@compiled
def compiled_chunk(
    state: State,
    trained: Trained,
    target: Target,
    settings: Settings,
    key: PRNGKeyArray,
    batches: Batch,
    part: tuple[Any, Any],
) -> tuple[State, Trained, Seen]:
    """A part of a chunk of steps and what it has trained."""
    state, seen = run_steps(state, trained, target, settings, key, batches, part)
    return everywhere((state, trained.with_flat(state.flat), seen), settings.mesh)


class Outcome(NamedTuple):
    """What training gives back.

    `gap` is log Z - ELBO as far as a look showed it, `gradients` how often the model's gradient, or its
    density alone, was evaluated, and `gradient_seconds` how long one took, zero where that was not measured.
    """

    guide: Guide
    params: dict[str, Array]
    status: Status
    steps: int
    skipped: int
    history: np.ndarray
    history_steps: np.ndarray
    gap: float
    state: State
    gradients: int = 0
    gradient_seconds: float = 0.0


class Chunks:
    """Runs chunks of steps; in a team, this process leads the others through them.

    Args:
        target: what to approximate.
        settings: how to train.
        key: of the steps.
        team: the processes over whose devices the steps are spread.
    """

    def __init__(self, target: Target, settings: Settings, key: PRNGKeyArray, team: Team):
        self._target, self._settings, self._key, self._team = target, settings, key, team
        self._batches: Batch = None
        self._feed = Feed(target.stream, settings.chunk, seed_of(key)[-1], settings.mesh)

    def run(
        self, state: State, trained: Trained, pace: Pace, clock: Clock, goal: Callable[[int], int]
    ) -> tuple[State, Trained, Seen]:
        """One chunk from a state on, in programs as long as the pace allows.

        Args:
            state: where to go on.
            trained: what to go on with.
            pace: told how long the programs take.
            clock: by which.
            goal: from the steps done in this chunk to those after which it ends; asked before each program.

        Returns:
            The state, what was trained, and what the draws of each step showed.
        """
        done, parts = 0, []
        while (left := goal(done) - done) > 0:
            count = pace.steps(left)
            began = clock.seconds
            state, trained, seen = self.part(state, trained, done, count)
            parts.append(jax.tree.map(lambda rows, count=count: np.asarray(rows)[:count], seen))
            pace.note(count, clock.seconds - began)
            done += count
        none = jnp.zeros((0, self._settings.particles))
        parts = parts or [Seen(none, none.astype(bool))]
        return state, trained, jax.tree.map(lambda *rows: np.concatenate(rows), *parts)

    def part(self, state: State, trained: Trained, begin: int, count: int) -> tuple[State, Trained, Seen]:
        """So many steps of a chunk of which some are done."""
        if self._team.leads and not self._team.alone:
            arrays = leaves_of(state, "state") | leaves_of(trained, "trained")
            self._team.hear(Message(CHUNK, arrays, {"begin": begin, "count": count}))
        if begin == 0:
            self._batches = self._feed.take(int(state.step))
        part = jnp.asarray(begin, jnp.int32), jnp.asarray(count, jnp.int32)
        with self._team.together():
            found = compiled_chunk(
                state, trained, self._target, self._settings, self._key, self._batches, part
            )
            return gathered(found, self._settings.mesh)

    def close(self) -> None:
        """No more chunks are wanted."""
        self._feed.close()


def follow(guide: Guide, target: Target, settings: Settings, *, key: PRNGKeyArray, team: Team) -> Outcome:
    """What a `Trainer` does in the processes that do not lead: the chunks it asks for, until it has ended.

    Args:
        guide: of the structure that is trained; the numbers come from the leading process.
        target: as there.
        settings: as there.
        key: as there.
        team: this process among the others.
    """
    trained = Trained(guide, target.params)
    state = compiled_start(trained, settings)
    chunks = Chunks(target, settings, children(key, 2)[0], team)

    def chunk(asked: Message) -> None:
        own = filled(state, asked.arrays, "state"), filled(trained, asked.arrays, "trained")
        chunks.part(*own, asked.record["begin"], asked.record["count"])

    try:
        last = team.serve({CHUNK: chunk})
    finally:
        chunks.close()
    if last.word != ENDED:
        raise SystemExit(STOPPED_STATUS)
    found = filled(trained, last.arrays, "trained")
    return Outcome(
        found.guide,
        found.params,
        Status[last.record["status"]],
        last.record["steps"],
        last.record["skipped"],
        last.arrays["history"],
        last.arrays["history_steps"],
        last.record["gap"],
        filled(state, last.arrays, "state"),
        last.record["gradients"],
        last.record["gradient_seconds"],
    )


def told(outcome: Outcome) -> Message:
    """How training has ended, for those who follow."""
    arrays = leaves_of(Trained(outcome.guide, outcome.params), "trained") | leaves_of(outcome.state, "state")
    arrays |= {"history": outcome.history, "history_steps": outcome.history_steps}
    record = {"status": outcome.status.name, "steps": outcome.steps, "skipped": outcome.skipped}
    record |= {"gap": outcome.gap, "gradients": outcome.gradients}
    record["gradient_seconds"] = outcome.gradient_seconds
    return Message(ENDED, arrays, record)


def leaves_of(tree: Any, name: str) -> dict[str, np.ndarray]:
    """The arrays of a tree, in order, as name/0, name/1, ..."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return {f"{name}/{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


def filled(tree: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
    """`tree` with its arrays, in order, replaced by those called name/0, name/1, ..."""
    old, rest = eqx.partition(tree, eqx.is_array)
    leaves, structure = jax.tree.flatten(old)
    new = [arrays[f"{name}/{i}"] for i in range(len(leaves))]
    if [(leaf.shape, leaf.dtype) for leaf in leaves] != [(leaf.shape, leaf.dtype) for leaf in new]:
        raise InputError("the checkpoint holds arrays of other shapes than this fit's.")
    return eqx.combine(jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in new]), rest)
