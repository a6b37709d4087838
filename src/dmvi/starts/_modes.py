r"""Separate modes: found by widening rounds of searches, weighed by importance sampling.

Most posteriors have one mode that matters, and for them a handful of further searches is all this costs.
Where searches end in several modes, far apart and of comparable evidence by Laplace's estimate, rounds of
many searches run side by side on the device until a round finds nothing new.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.special import logsumexp

from dmvi._compile import compiled
from dmvi._random import seed_of
from dmvi.guides import Affine, Gaussian, anchored, base_log_prob
from dmvi.starts._laplace import LARGEST_SD, Mode, Surface, laplace, scale_from_precision
from dmvi.targets import Target

LARGEST_DIM = 64  # a search needs a Hessian at every step
SPREADS = (2.0, 8.0, 32.0, 128.0)  # sds around the best mode from which searches begin
PROBES = 2  # searches at each spread but the first, before anything is known
SEARCHES = 1024  # in a round
ROUNDS = 8
ITERATIONS = 50
STATIONARY = 0.01  # largest g^T H^-1 g at a mode
SAME = 1.0  # sds within which two modes are one
SEPARATE = 5.0  # sds between modes that one Gaussian with a flow cannot serve well
NEGLIGIBLE = 7.0  # nats of Laplace's evidence below the best at which a mode is left out
MARGIN = 0.25  # of the range of the modes found, by which the next round looks beyond it
MOST = 64
DRAWS = 500  # of each component, to weigh it
BALANCING = 100


class Modes(NamedTuple):
    """Gaussians of separate modes, stacked, their weights, and the ELBO of their mixture."""

    affines: Affine
    log_weights: Float[Array, " modes"]
    elbo: float


def separate_modes(
    target: Target, surface: Surface, searched: list[Mode], *, key: PRNGKeyArray
) -> Modes | None:
    """The mixture of the modes that matter, or None where one Gaussian is what a guide should start from.

    Args:
        target: what to approximate.
        surface: its derivatives on the host.
        searched: modes that searches have found already, in any order and with repetitions.
        key: random key.
    """
    if target.dim > LARGEST_DIM or target.subsampled:
        return None
    known = _distinct(_proper(surface, searched))
    if not known or known[0].log_evidence < max(mode.log_evidence for mode in searched) - NEGLIGIBLE:
        return None  # what dominates is no mode with a Gaussian around it
    rng = np.random.default_rng(seed_of(key))
    starts = _around(known[0], SPREADS[1:] * PROBES, rng)
    known = _distinct(known + _proper(surface, [laplace(surface, start) for start in starts]))
    if not _separate(known):
        return None
    known = _all_modes(target, surface, known, rng)
    return _weighed(target, known[:MOST], key)


def _all_modes(target: Target, surface: Surface, known: list[Mode], rng: np.random.Generator) -> list[Mode]:
    """Rounds of searches: first around the best mode, then over the range of all, until nothing is new."""
    starts = _around(known[0], SPREADS * (SEARCHES // len(SPREADS)), rng)
    for round_number in range(ROUNDS):
        before = len(known)
        known = _distinct(known + _climbed(target, surface, starts, known))
        if round_number > 0 and len(known) == before:
            break
        places = np.stack([mode.loc for mode in known])
        low, high = places.min(axis=0), places.max(axis=0)
        margin = MARGIN * (high - low) + SPREADS[0] * _sds(known[0])
        starts = rng.uniform(low - margin, high + margin, size=(SEARCHES, target.dim))
    return known


def _climbed(target: Target, surface: Surface, starts: np.ndarray, known: list[Mode]) -> list[Mode]:
    """Modes that a round of searches ends in, those it knows left out before they are looked at closely."""
    ends, values = _climb(target, jnp.asarray(starts.astype(surface.dtype)))
    ends, values = np.asarray(ends, float), np.asarray(values, float)
    found: list[Mode] = []
    for i in np.argsort(-np.where(np.isfinite(values), values, -np.inf)):
        if not np.isfinite(values[i]) or not np.isfinite(ends[i]).all():
            break
        if any(_distance(ends[i], mode) < SAME for mode in (*known, *found)):
            continue
        found += _proper(surface, [laplace(surface, ends[i])])
    return found


@compiled
def _climb(target: Target, starts: Float[Array, "n dim"]) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
    """Damped Newton steps uphill, curvatures by absolute value, side by side."""

    def one(x):
        def iterate(_, state):
            x, value, damping = state
            gradient, hessian = jax.grad(target.log_density)(x), jax.hessian(target.log_density)(x)
            curvatures, vectors = jnp.linalg.eigh(hessian)
            step = vectors @ ((vectors.T @ gradient) / jnp.maximum(jnp.abs(curvatures), LARGEST_SD**-2))
            trial = x + damping * step
            reached = target.log_density(trial)
            better = reached >= value
            x, value = jnp.where(better, trial, x), jnp.where(better, reached, value)
            return x, value, jnp.where(better, jnp.minimum(2 * damping, 1.0), 0.25 * damping)

        x, value, _ = jax.lax.fori_loop(
            0, ITERATIONS, iterate, (x, target.log_density(x), jnp.ones((), x.dtype))
        )
        return x, value

    return jax.vmap(one)(starts)


def _proper(surface: Surface, modes: list[Mode]) -> list[Mode]:
    """Those that are maxima with a Gaussian around them: no flat or rising direction, no slope left."""
    kept = []
    for mode in modes:
        if not np.isfinite(mode.log_evidence):
            continue
        curvatures, vectors = np.linalg.eigh(mode.precision)
        if curvatures[0] <= LARGEST_SD**-2:
            continue
        slope = vectors.T @ surface.value_and_gradient(mode.loc)[1]
        if np.sum(slope**2 / curvatures) < STATIONARY:
            kept.append(mode)
    return kept


def _distinct(modes: list[Mode]) -> list[Mode]:
    """Modes without repetitions and without those of negligible evidence, best first."""
    kept: list[Mode] = []
    for mode in sorted(modes, key=lambda mode: -mode.log_evidence):
        if kept and mode.log_evidence < kept[0].log_evidence - NEGLIGIBLE:
            break
        if all(_distance(mode.loc, other) >= SAME for other in kept):
            kept.append(mode)
    return kept


def _separate(modes: list[Mode]) -> bool:
    """Whether two of the modes are far apart as both see it."""
    return any(
        min(_distance(a.loc, b), _distance(b.loc, a)) > SEPARATE
        for i, a in enumerate(modes)
        for b in modes[:i]
    )


def _distance(x: np.ndarray, mode: Mode) -> float:
    """How many sds of the mode's Gaussian x is away from it."""
    return float(np.sqrt(max((x - mode.loc) @ mode.precision @ (x - mode.loc), 0.0)))


def _around(mode: Mode, spreads: tuple[float, ...], rng: np.random.Generator) -> Float[np.ndarray, "n dim"]:
    """One point for each spread, so many sds from the mode."""
    scale = scale_from_precision(mode.precision, full=True)
    return mode.loc + np.array(spreads)[:, None] * (
        rng.standard_normal((len(spreads), mode.loc.size)) @ scale.T
    )


def _sds(mode: Mode) -> np.ndarray:
    scale = scale_from_precision(mode.precision, full=True)
    return np.sqrt(np.sum(scale**2, axis=1))


def _weighed(target: Target, modes: list[Mode], key: PRNGKeyArray) -> Modes:
    r"""Weights of the Gaussians g_k that make their mixture fit best, from weighed draws of each.

    w_k <- w_k E_{g_k}[pi / sum_j w_j g_j] / Z: a step of expectation maximisation of the forward divergence.
    """
    dtype = jnp.result_type(float)
    stacked = [
        np.stack([mode.loc for mode in modes]),
        np.stack([scale_from_precision(mode.precision, full=True) for mode in modes]),
    ]
    affines, log_pi, log_g = _weigh(target, *(jnp.asarray(part.astype(dtype)) for part in stacked), key)
    log_pi, log_g = np.asarray(log_pi, float), np.asarray(log_g, float)
    log_pi = np.where(np.isfinite(log_pi), log_pi, -np.inf)
    log_weights = np.array([mode.log_evidence for mode in modes])
    log_weights -= logsumexp(log_weights)
    for _ in range(BALANCING):
        log_ratio = log_pi - logsumexp(log_weights[None, None] + log_g, axis=2)
        evidence = log_weights + logsumexp(log_ratio, axis=1)
        log_weights = evidence - logsumexp(evidence)
    log_ratio = log_pi - logsumexp(log_weights[None, None] + log_g, axis=2)
    elbo = float(np.exp(log_weights) @ np.mean(log_ratio, axis=1))
    return Modes(affines, jnp.asarray(log_weights.astype(dtype)), elbo)


@compiled
def _weigh(
    target: Target, loc: Float[Array, "modes dim"], scale: Float[Array, "modes dim dim"], key: PRNGKeyArray
) -> tuple[Affine, Float[Array, "modes draws"], Float[Array, "modes draws modes"]]:
    """The Gaussians, and log pi and every log g_k at draws of each."""
    affines = jax.vmap(lambda loc, scale: anchored(loc, scale, full=True))(loc, scale)

    def one(affine: Affine, key: PRNGKeyArray):
        xi = Gaussian(affine=affine, dim=target.dim).draw(key).xi
        return target.log_density(xi), base_log_prob(affines, xi)

    keys = jr.split(key, (loc.shape[0], DRAWS))
    log_pi, log_g = jax.vmap(jax.vmap(one, (None, 0)))(affines, keys)
    return affines, log_pi, log_g
