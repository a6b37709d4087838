"""One optimiser step and chunks of them, compiled once per fit."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from dmvi.guides._guide import Guide
from dmvi.objectives._objective import Objective
from dmvi.targets._target import Target

WARM_UP = 100


class Trained(NamedTuple):
    """What the optimiser moves: the guide and the target's generative parameters."""

    guide: Guide
    params: dict[str, Array]


class State(NamedTuple):
    """Everything a step changes.

    Attributes:
        trained: guide and generative parameters.
        optimizer: Optax state.
        step: steps taken.
        skipped: updates left out because they were not finite.
        cooldown: step at which the learning rate begins to fall.
    """

    trained: Trained
    optimizer: Any
    step: Int[Array, ""]
    skipped: Int[Array, ""]
    cooldown: Int[Array, ""]


class Settings(eqx.Module):
    """How to train: all static, so a fit compiles one program.

    Attributes:
        objective: loss to minimise.
        optimizer: Optax transformation at its full learning rate.
        particles: draws per step.
        chunk: steps between two looks of the host.
        cooldown_steps: length of the fall of the learning rate to zero at the end.
    """

    objective: Objective
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    particles: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    cooldown_steps: int = eqx.field(static=True)


def default_optimizer(learning_rate: float) -> optax.GradientTransformation:
    """Adam on gradients clipped to norm 10."""
    return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(learning_rate))


def initial_state(guide: Guide, target: Target, settings: Settings) -> State:
    """The state before the first step."""
    trained = Trained(guide, target.params)
    optimizer = settings.optimizer.init(eqx.filter(trained, eqx.is_inexact_array))
    zero = jnp.zeros((), jnp.int32)
    return State(trained, optimizer, zero, zero, jnp.full((), jnp.iinfo(jnp.int32).max, jnp.int32))


def run_chunk(
    state: State, target: Target, settings: Settings, key: PRNGKeyArray
) -> tuple[State, Float[Array, " chunk"]]:
    """`settings.chunk` steps under `lax.scan`; also the ELBO estimate of every step.

    `key` is the fit's own: a step's key is folded from its number, so results do not depend on chunks.
    """
    arrays, static = eqx.partition(state, eqx.is_array)

    def body(arrays, _):
        state, elbo = _step(eqx.combine(arrays, static), target, settings, key)
        return eqx.filter(state, eqx.is_array), elbo

    arrays, elbos = jax.lax.scan(body, arrays, None, length=settings.chunk)
    return eqx.combine(arrays, static), elbos


def _step(state: State, target: Target, settings: Settings, key: PRNGKeyArray) -> tuple[State, Array]:
    draw_key, batch_key = jr.split(jr.fold_in(key, state.step))
    keys = jr.split(draw_key, settings.particles)
    batch = target.draw_batch(batch_key)

    def loss(trained: Trained):
        model = eqx.tree_at(lambda t: t.params, target, trained.params)
        return settings.objective(trained.guide, model, keys, batch)

    (_, elbo), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(state.trained)
    weights = eqx.filter(state.trained, eqx.is_inexact_array)
    updates, optimizer = settings.optimizer.update(gradient, state.optimizer, weights)
    rate = _rate(state, settings)
    updates = jax.tree.map(lambda update: (rate * update).astype(update.dtype), updates)
    usable = _all_finite(updates)
    trained = _choose(usable, eqx.apply_updates(state.trained, updates), state.trained)
    optimizer = _choose(usable, optimizer, state.optimizer)
    skipped = state.skipped + jnp.where(usable, 0, 1)
    return State(trained, optimizer, state.step + 1, skipped, state.cooldown), elbo


def _rate(state: State, settings: Settings) -> Float[Array, ""]:
    """Fraction of the full learning rate: linear warm-up, flat, then a half-cosine to zero."""
    warm_up = jnp.minimum(1.0, (state.step + 1) / WARM_UP)
    progress = jnp.clip((state.step - state.cooldown) / settings.cooldown_steps, 0.0, 1.0)
    return warm_up * 0.5 * (1 + jnp.cos(jnp.pi * progress))


def _all_finite(tree: Any) -> Bool[Array, ""]:
    sums = [jnp.sum(leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.isfinite(jnp.stack([total.astype(jnp.result_type(float)) for total in sums])))


def _choose(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(
        lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, new, old
    )
