"""One optimiser step and chunks of them, compiled once per fit."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from dmvi.guides._guide import Guide, trainable
from dmvi.objectives._objective import Objective
from dmvi.targets._target import Batch, Target
from dmvi.training._mesh import PARTICLES, ROWS, spread

WARM_UP = 100
RETREAT = 0.3  # share of its bends that a guide loses where one of its own draws shows that it folds


class Trained(NamedTuple):
    """What the optimiser moves: the guide and the target's generative parameters."""

    guide: Guide
    params: dict[str, Array]

    def flat(self) -> Float[Array, " size"]:
        """Every trainable number in one vector: one array keeps the optimiser's program small."""
        return ravel_pytree(eqx.filter(self, trainable(self)))[0]

    def straighter(self, share: float) -> "Trained":
        """With the guide's bends taken back by a share."""
        return self._replace(guide=self.guide.straighter(share))

    def with_flat(self, flat: Float[Array, " size"]) -> "Trained":
        """This guide and these parameters at other values of what is trainable."""
        moving, fixed = eqx.partition(self, trainable(self))
        return eqx.combine(ravel_pytree(moving)[1](flat), fixed)


class State(NamedTuple):
    """Everything a step changes.

    Attributes:
        flat: trainable numbers.
        optimizer: Optax state.
        step: steps taken.
        skipped: updates left out because they were not finite.
        cooldown: step at which the learning rate begins to fall.
        end: step at which it has fallen to zero.
        damping: factor of the learning rate, halved each time training went wrong.
        memory: what the objective carries along.
    """

    flat: Float[Array, " size"]
    optimizer: Any
    step: Int[Array, ""]
    skipped: Int[Array, ""]
    cooldown: Int[Array, ""]
    end: Int[Array, ""]
    damping: Float[Array, ""]
    memory: Any


class Seen(NamedTuple):
    """Log-weights of a chunk's draws, and which draws are the guide's own, at the step they were made."""

    log_weights: Float[Array, "chunk particles"]
    own: Bool[Array, "chunk particles"]


class Settings(eqx.Module):
    """How to train: all static, so a fit compiles one program.

    Attributes:
        objective: loss to minimise.
        optimizer: Optax transformation at its full learning rate.
        particles: draws per step.
        chunk: most steps between two looks of the host.
        cooldown_steps: longest fall of the learning rate to zero at the end.
        mesh: devices over which particles and rows are spread; None for one.
    """

    objective: Objective
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    particles: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    cooldown_steps: int = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True, default=None)

    def paced(self, pace: float) -> "Settings":
        """With all updates scaled; the optimiser's state is the same."""
        if pace == 1:
            return self
        return dataclasses.replace(self, optimizer=optax.chain(self.optimizer, optax.scale(pace)))


def default_optimizer(learning_rate: float) -> optax.GradientTransformation:
    """Adam with Nesterov's look ahead, on gradients clipped to norm 10."""
    return optax.chain(optax.clip_by_global_norm(10.0), optax.nadam(learning_rate))


def initial_state(trained: Trained, settings: Settings) -> State:
    """The state before the first step."""
    flat = trained.flat()
    zero = jnp.zeros((), jnp.int32)
    never = jnp.full((), jnp.iinfo(jnp.int32).max, jnp.int32)
    memory = settings.objective.memory(trained.guide.dim)
    damping = jnp.ones((), flat.dtype)
    return State(flat, settings.optimizer.init(flat), zero, zero, never, never, damping, memory)


def run_chunk(
    state: State,
    trained: Trained,
    target: Target,
    settings: Settings,
    key: PRNGKeyArray,
    batches: Batch = None,
) -> tuple[State, Seen]:
    """`settings.chunk` steps under `lax.scan`, and what their draws showed.

    Args:
        state: where to go on.
        trained: gives the structure and everything that is not trained.
        target: what to approximate.
        settings: how to train.
        key: the fit's own; a step's key is folded from its number, so results do not depend on chunks.
        batches: the minibatch of each step, stacked; None lets the target draw its own.
    """
    return jax.lax.scan(
        lambda state, batch: _step(state, trained, target, settings, key, batch),
        state,
        batches,
        length=settings.chunk,
    )


def run_steps(
    state: State,
    trained: Trained,
    target: Target,
    settings: Settings,
    key: PRNGKeyArray,
    batches: Batch,
    part: tuple[Int[Array, ""], Int[Array, ""]],
) -> tuple[State, Seen]:
    """A part of the steps of `run_chunk`: one program for all lengths, with the same result bit for bit.

    Args:
        state: where to go on.
        trained: as for `run_chunk`.
        target: as for `run_chunk`.
        settings: as for `run_chunk`.
        key: as for `run_chunk`.
        batches: those of the whole chunk.
        part: the number of the first step in the chunk, and how many there are.

    Returns:
        The state, and what the draws showed in as many rows as there were steps, those after them empty.
    """
    shape = (settings.chunk, settings.particles)
    begin, steps = part

    def one(i: Int[Array, ""], carry: tuple[State, Seen]) -> tuple[State, Seen]:
        state, seen = carry
        batch = None if batches is None else jax.tree.map(lambda batch: batch[begin + i], batches)
        state, now = _step(state, trained, target, settings, key, batch)
        return state, jax.tree.map(lambda rows, row: rows.at[i].set(row.astype(rows.dtype)), seen, now)

    seen = Seen(jnp.zeros(shape), jnp.zeros(shape, bool))
    return jax.lax.fori_loop(0, steps, one, (state, seen))


def _step(
    state: State, trained: Trained, target: Target, settings: Settings, key: PRNGKeyArray, batch: Batch
) -> tuple[State, Seen]:
    keys = jr.split(jr.fold_in(key, state.step), settings.particles + 1)
    batch = spread(target.draw_batch(keys[-1]) if batch is None else batch, settings.mesh, ROWS)
    particle_keys = spread(keys[:-1], settings.mesh, PARTICLES)

    def loss(flat):
        now = trained.with_flat(flat)
        model = eqx.tree_at(lambda t: t.params, target, now.params)
        found = settings.objective(now.guide, model, particle_keys, batch, state.memory)
        seen = Seen(found.log_weights, found.own)
        return found.loss, jax.lax.stop_gradient((seen, found.folded, found.memory))

    (value, (seen, folded, memory)), gradient = jax.value_and_grad(loss, has_aux=True)(state.flat)
    updates, optimizer = settings.optimizer.update(gradient, state.optimizer, state.flat)
    assert isinstance(updates, jax.Array)  # one flat vector in, one out
    usable = jnp.all(jnp.isfinite(updates)) & jnp.isfinite(value)
    straighter = trained.with_flat(state.flat).straighter(RETREAT).flat()
    flat, optimizer, memory = jax.tree.map(
        lambda new, old: jnp.where(usable, new, old),
        (state.flat + _rate(state) * updates, optimizer, memory),
        (jnp.where(folded, straighter, state.flat), state.optimizer, state.memory),
    )
    skipped = state.skipped + jnp.where(usable, 0, 1)
    state = state._replace(
        flat=flat, optimizer=optimizer, step=state.step + 1, skipped=skipped, memory=memory
    )
    return state, seen


def _rate(state: State) -> Float[Array, ""]:
    """Fraction of the full learning rate: linear warm-up, flat, then linear to zero; all damped.

    What noise costs in ELBO is in proportion to the rate: so the last hundredth of a nat comes late, and no
    steps are left over after it.
    """
    dtype = state.flat.dtype
    warm_up = jnp.minimum(1.0, (state.step + 1).astype(dtype) / WARM_UP)
    length = jnp.maximum(state.end - state.cooldown, 1).astype(dtype)
    progress = jnp.clip((state.step - state.cooldown).astype(dtype) / length, 0.0, 1.0)
    return state.damping * warm_up * (1 - progress)
