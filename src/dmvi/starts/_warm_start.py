"""The Gaussian a guide starts from, and with it the coordinates its optimiser sees."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.guides import Affine, Gaussian, anchored
from dmvi.objectives import PathELBO
from dmvi.starts._laplace import maximum, precision_at, scale_from_precision
from dmvi.targets import Target
from dmvi.training import Progress, Settings, Trained, default_optimizer, initial_state, run_chunk

OPTIMA = 3  # starting points of the search for a mode
TRIED_STARTS = 20
BROAD_SCALE = 0.3
STAGES = 2
STAGE_STEPS = 1000
PARTICLES = 32
LEARNING_RATE = 1e-2
WEIGHED = 1000

SETTINGS = Settings(
    PathELBO(), default_optimizer(LEARNING_RATE), PARTICLES, chunk=STAGE_STEPS, cooldown_steps=STAGE_STEPS // 2
)


class WarmStart(NamedTuple):
    """Whitened coordinates, the name of the start that gave them and generative parameters on the way."""

    affine: Affine
    name: str
    params: dict[str, Array]


def warm_start(target: Target, *, full: bool, key: PRNGKeyArray, progress: Progress) -> WarmStart:
    """The best Gaussian among Laplace at a mode and Gaussian VI from a broad start.

    Both are improved by Gaussian VI with the path gradient, twice, the second time in the coordinates
    the first has whitened; the better by fresh-draw ELBO wins. Neither start is best everywhere: the
    mode of a hierarchy is useless, and gradients crawl in ill-conditioned regressions.

    Args:
        target: what to approximate.
        full: full-rank or mean-field.
        key: random key.
        progress: told of the stage.
    """
    progress.note("warm start")
    start_key, fit_key, weigh_key = jr.split(key, 3)
    names, affines = _candidates(target, start_key, full=full)
    # One program fits all candidates side by side, and both stages.
    affine = jax.tree.map(lambda *leaves: jnp.stack(leaves), *affines)
    params = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(names)), target.params)
    for stage_key in jr.split(fit_key, STAGES):
        affine, params = _gaussian_vi(affine, params, target, stage_key)
    elbos = np.asarray(_elbos(affine, params, target, weigh_key))
    winner = int(np.argmax(np.where(np.isfinite(elbos), elbos, -np.inf)))
    best, best_params = jax.tree.map(lambda leaf: leaf[winner], (affine, params))
    return WarmStart(best, names[winner], best_params)


def _candidates(target: Target, key: PRNGKeyArray, *, full: bool) -> tuple[list[str], list[Affine]]:
    starts = _ranked_starts(target, key)
    modes = [maximum(target, start) for start in starts[:OPTIMA]]
    mode = max(modes, key=lambda found: found[1])[0]
    precision = precision_at(target, mode, starts.dtype)
    broad = jnp.full(target.dim, BROAD_SCALE, starts.dtype)
    scale = np.diag(np.asarray(broad, float)) if full else np.asarray(broad, float)
    found = [("gaussian-vi", starts[0], scale)]
    if precision is not None:
        found.append(("laplace", mode, scale_from_precision(precision, full=full)))
    else:
        found.append(("mode", mode, scale))
    affines = [
        anchored(jnp.asarray(loc, starts.dtype), jnp.asarray(scale, starts.dtype), full=full)
        for _, loc, scale in found
    ]
    return [name for name, _, _ in found], affines


@eqx.filter_jit
def _ranked_starts(target: Target, key: PRNGKeyArray) -> Float[Array, "starts dim"]:
    """Random starting points, best density first."""
    starts = jax.vmap(target.start)(jr.split(key, TRIED_STARTS))
    values = jax.vmap(target.log_density)(starts)
    return starts[jnp.argsort(-jnp.where(jnp.isfinite(values), values, -jnp.inf))]


@eqx.filter_jit
def _gaussian_vi(affine: Affine, params: dict, target: Target, key: PRNGKeyArray):
    """One stage of Gaussian VI for stacked candidates, rebased on what it found."""

    def one(affine: Affine, params: dict):
        model = eqx.tree_at(lambda t: t.params, target, params)
        start = Trained(Gaussian(affine, affine.dim), params)
        state = initial_state(start, SETTINGS)
        state = state._replace(cooldown=jnp.asarray(STAGE_STEPS - SETTINGS.cooldown_steps, jnp.int32))
        end = start.with_flat(run_chunk(state, start, model, SETTINGS, key)[0].flat)
        return end.guide.affine.rebased(), end.params

    return jax.vmap(one)(affine, params)


@eqx.filter_jit
def _elbos(affine: Affine, params: dict, target: Target, key: PRNGKeyArray) -> Float[Array, " candidates"]:
    def one(affine: Affine, params: dict):
        guide = Gaussian(affine, affine.dim)
        model = eqx.tree_at(lambda t: t.params, target, params)

        def log_weight(key):
            draw = guide.draw(key)
            return model.log_density(draw.xi) - draw.log_q

        return jnp.mean(jax.vmap(log_weight)(jr.split(key, WEIGHED)))

    return jax.vmap(one)(affine, params)
