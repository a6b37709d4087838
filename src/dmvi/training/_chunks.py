"""Chunks of steps, run by one process or by several that one of them leads."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._errors import InputError
from dmvi._random import children, seed_of
from dmvi._run import Status
from dmvi._team import Message, Team
from dmvi.guides._guide import Guide
from dmvi.targets._target import Batch, Target
from dmvi.training._feed import Feed
from dmvi.training._mesh import everywhere, gathered
from dmvi.training._state import Seen, Settings, State, Trained, initial_state, run_chunk

CHUNK, ENDED, STOPPED = "chunk", "training ended", "training stopped"  # words of the leading process
STOPPED_STATUS = 143  # of a process that SIGTERM has ended

compiled_start = compiled(initial_state)


@compiled
def compiled_chunk(
    state: State, trained: Trained, target: Target, settings: Settings, key: PRNGKeyArray, batches: Batch
) -> tuple[State, Trained, Seen]:
    """A chunk of steps and what it has trained."""
    state, seen = run_chunk(state, trained, target, settings, key, batches)
    return everywhere((state, trained.with_flat(state.flat), seen), settings.mesh)


class Outcome(NamedTuple):
    """What training gives back; `gap` is log Z - ELBO as far as a look showed it."""

    guide: Guide
    params: dict[str, Array]
    status: Status
    steps: int
    skipped: int
    history: np.ndarray
    history_steps: np.ndarray
    gap: float
    state: State


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
        self._feed = Feed(target.stream, settings.chunk, seed_of(key)[-1], settings.mesh)

    def run(self, state: State, trained: Trained) -> tuple[State, Trained, Seen]:
        """One chunk from a state on."""
        if self._team.leads and not self._team.alone:
            self._team.hear(Message(CHUNK, leaves_of(state, "state") | leaves_of(trained, "trained")))
        batches = self._feed.take(int(state.step))
        with self._team.together():
            found = compiled_chunk(state, trained, self._target, self._settings, self._key, batches)
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
        chunks.run(filled(state, asked.arrays, "state"), filled(trained, asked.arrays, "trained"))

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
    )


def told(outcome: Outcome) -> Message:
    """How training has ended, for those who follow."""
    arrays = leaves_of(Trained(outcome.guide, outcome.params), "trained") | leaves_of(outcome.state, "state")
    arrays |= {"history": outcome.history, "history_steps": outcome.history_steps}
    record = {"status": outcome.status.name, "steps": outcome.steps, "skipped": outcome.skipped}
    record["gap"] = outcome.gap
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
