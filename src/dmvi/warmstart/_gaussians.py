r"""A mixture of many Gaussians, fitted by reverse KL: for posteriors whose modes overlap.

    q = sum_k w_k g_k,   g_k = N(m_k, S_k S_k^T)

Where modes are far apart each has a Gaussian of its own (`dmvi.warmstart._modes`). Where they touch, as in
mixtures whose components overlap, Laplace's Gaussians at the modes describe little of what lies between, and
one flow does not bend around all of it. Here m_k and S_k begin at the modes, move by the path gradient of
the ELBO of the whole mixture, whose density is known, and w_k follow by balancing importance weights.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._random import children, seed_of
from dmvi.guides import Affine, GaussianGuide, Mixture, Symmetry, anchored, mixture
from dmvi.objectives import PathELBO
from dmvi.targets import Target
from dmvi.training import Settings, Trained, default_optimizer, initial_state, run_chunk
from dmvi.warmstart._laplace import Mode, Surface, scale_from_precision
from dmvi.warmstart._modes import (
    LARGEST_DIM,
    MOST,
    all_modes,
    known_modes,
    one_of_each,
)
from dmvi.warmstart._symmetries import symmetry_of
from dmvi.warmstart._threads import small_matrices
from dmvi.warmstart._weighed import Cloud, Modes, cloud_of, gaussians_of

FEWEST_MODES = 2
HOPELESS = 25.0  # nats below the guide there is, from which modes with Laplace's Gaussians do not matter
WORSE = 2.0  # nats below it after a stage of training, from which no further ones are tried
GAINED = 0.3  # nats that training a network on each Gaussian can be expected to gain
IDLE = 0.1  # share of the mean weight below which a Gaussian is moved to where mass is lacking
STAGES = 4
STAGE_STEPS = 800
PARTICLES = 4 * MOST
LEARNING_RATE = 1e-2

SETTINGS = Settings(
    PathELBO(),
    default_optimizer(LEARNING_RATE),
    PARTICLES,
    chunk=STAGE_STEPS,
    cooldown_steps=STAGE_STEPS // 2,
)


def overlapping_modes(
    target: Target,
    visited: Float[np.ndarray, "modes rows dim"] | None,
    *,
    single: float,
    deadline: float,
    key: PRNGKeyArray,
) -> Modes | None:
    """MOST Gaussians over the modes of a target and what lies between; None where these are much worse.

    Args:
        target: what to approximate.
        visited: modes that the warm start has found.
        single: ELBO of the guide that there is.
        deadline: time of the clock (`time.perf_counter`) at which to give up.
        key: random key.
    """
    if visited is None or target.dim > LARGEST_DIM or target.subsampled or target.params:
        return None
    search_key, first_key, fill_key, *stage_keys = children(key, 3 + 2 * STAGES)
    surface, symmetry = Surface(target), symmetry_of(target, visited)
    with small_matrices(surface):
        rng = np.random.default_rng(seed_of(search_key))
        surface.begin_at(np.stack([mode[0] + mode[1:] @ rng.standard_normal(target.dim) for mode in visited]))
        modes = known_modes(surface, [mode[0] for mode in visited])
        if len(modes) < FEWEST_MODES:
            return None
        modes = one_of_each(surface, symmetry, modes)
        if gaussians_of(target, modes, symmetry, first_key).elbo < single - HOPELESS:
            return None
        modes = all_modes(target, surface, modes, symmetry, rng, deadline)
    if time.perf_counter() > deadline:
        return None
    rng = np.random.default_rng(seed_of(fill_key))
    loc, scale, log_weights = _filled(modes, rng)
    cloud = cloud_of(target, loc, scale, symmetry, first_key)
    log_weights = cloud.balanced(log_weights)
    for train_key, weigh_key in zip(stage_keys[::2], stage_keys[1::2], strict=True):
        if time.perf_counter() > deadline or not np.isfinite(log_weights).all():
            return None
        loc, scale, log_weights = _moved(cloud, loc, scale, log_weights, rng)
        affines = _improved(
            *(jnp.asarray(part, surface.dtype) for part in (loc, scale, log_weights)),
            symmetry,
            target,
            train_key,
        )
        loc, scale = np.asarray(affines.anchor.value), np.asarray(affines.anchor_scale.value)
        if not (np.isfinite(loc).all() and np.isfinite(scale).all()):
            return None
        cloud = cloud_of(target, loc, scale, symmetry, weigh_key)
        log_weights = cloud.balanced(log_weights)
        if not cloud.elbo(log_weights) > single - WORSE:
            return None
    return cloud.modes(log_weights) if cloud.elbo(log_weights) > single - GAINED else None


def _moved(
    cloud: Cloud, loc: np.ndarray, scale: np.ndarray, log_weights: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The Gaussians, those of next to no weight moved to where the mixture lacks mass."""
    idle = np.flatnonzero(log_weights < np.log(IDLE / MOST))
    origin, places = cloud.lacking(log_weights, idle.size, rng)
    loc, scale, log_weights = loc.copy(), scale.copy(), log_weights.copy()
    loc[idle], scale[idle], log_weights[idle] = places, scale[origin], np.log(IDLE / MOST)
    return loc, scale, log_weights


def _filled(modes: list[Mode], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """MOST Gaussians: those of the modes, and copies of them moved to one of their own draws."""
    scales = [scale_from_precision(mode.precision, full=True) for mode in modes]
    origin = [*range(len(modes)), *rng.integers(len(modes), size=MOST - len(modes))]
    moved = [
        modes[i].loc + (number >= len(modes)) * scales[i] @ rng.standard_normal(modes[i].loc.size)
        for number, i in enumerate(origin)
    ]
    evidence = np.array([modes[i].log_evidence for i in origin])
    return np.stack(moved), np.stack([scales[i] for i in origin]), evidence


@compiled
def _improved(
    loc: Float[Array, "modes dim"],
    scale: Float[Array, "modes dim dim"],
    log_weights: Float[Array, " modes"],
    symmetry: Symmetry | None,
    target: Target,
    key: PRNGKeyArray,
) -> Affine:
    """One stage of training, which ends annealed, rebased on what it found."""
    affines = jax.vmap(lambda loc, scale: anchored(loc, scale, full=True))(loc, scale)
    every = jnp.ones(log_weights.shape, bool)
    recipe = GaussianGuide(full_rank=True)
    guide = mixture(recipe, affines, log_weights, every, symmetry=symmetry, key=key)
    trained = _annealed(Trained(guide, target.params), target, key).guide
    assert isinstance(trained, Mixture)
    return jax.vmap(lambda affine: affine.rebased())(eqx.filter(trained.components.affine, eqx.is_array))


def _annealed(start: Trained, target: Target, key: PRNGKeyArray) -> Trained:
    """One chunk of training that ends annealed."""
    state = initial_state(start, SETTINGS)
    cooldown, end = (
        jnp.asarray(n, jnp.int32) for n in (SETTINGS.chunk - SETTINGS.cooldown_steps, SETTINGS.chunk)
    )
    state, _ = run_chunk(state._replace(cooldown=cooldown, end=end), start, target, SETTINGS, key)
    return start.with_flat(state.flat)
