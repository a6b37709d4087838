r"""Warm starts of many targets of one family, all on the device and side by side.

For each target, as `warm_start` does for one: modes by damped Newton steps from the best of random starts,

    x' = x + (H + lambda I)^-1 g,   g = grad log pi,  H = -grad^2 log pi,

lambda smaller after a step that climbs and larger after one that does not; Laplace's Gaussian at the two
modes of most evidence and two broad Gaussians are improved by Gaussian VI; the best by ELBO is improved
again. All modes that searches end in are handed on, so that a verdict can tell when a guide has missed one.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from dmvi._compile import compiled
from dmvi.guides import AnyAffine, anchored
from dmvi.objectives import PathELBO
from dmvi.targets import Target
from dmvi.training import Settings, default_optimizer
from dmvi.warmstart._laplace import FLAT, Mode, curvatures_of, units_of
from dmvi.warmstart._modes import STATIONARY, modes_apart
from dmvi.warmstart._warm_start import BROAD_SCALES, LEARNING_RATE, PARTICLES, improved

TRIED_STARTS = 32
SEARCHES = 8
NEWTON_STEPS = 40
SAME = 1e-2  # nats of evidence below which two modes count as one
START_NAMES = ("gaussian-vi", "gaussian-vi", "laplace", "laplace")  # of the candidates, in order


def _settings(steps: int) -> Settings:
    return Settings(PathELBO(), default_optimizer(LEARNING_RATE), PARTICLES, steps, steps // 2)


FIRST, SECOND = _settings(400), _settings(800)


class Searched(NamedTuple):
    """Where searches ended, the precision there and Laplace's log evidence: minus infinity at no mode."""

    loc: Float[Array, "*targets searches dim"]
    precision: Float[Array, "*targets searches dim dim"]
    log_evidence: Float[Array, "*targets searches"]


class WarmStarts(NamedTuple):
    """Whitened coordinates, generative parameters, which candidate won, and where searches ended, stacked."""

    affine: AnyAffine
    params: dict[str, Array]
    candidate: Int[Array, " targets"]
    elbo: Float[Array, " targets"]
    searched: Searched | None


@compiled
def warm_starts(targets: Target, keys: PRNGKeyArray, full: bool) -> WarmStarts:
    """The warm start of each of several targets, whose arrays are stacked.

    Args:
        targets: a `Target` with a leading axis on every array.
        keys: one key per target.
        full: full-rank or mean-field.
    """
    return eqx.filter_vmap(lambda target, key: _warm_start(target, key, full=full))(targets, keys)


def _warm_start(target: Target, key: PRNGKeyArray, *, full: bool) -> WarmStarts:
    start_key, first_key, second_key = jr.split(key, 3)
    loc, scale, searched = _candidates(target, start_key, full=full)
    affines = jax.vmap(lambda loc, scale: anchored(loc, scale, full=full))(loc, scale)
    stage = jax.vmap(lambda affine: improved(affine, target.params, target, first_key, FIRST))
    affines, params, elbos = stage(affines)
    winner = jnp.argmax(jnp.where(jnp.isfinite(elbos), elbos, -jnp.inf))
    affine, params = jax.tree.map(lambda leaf: leaf[winner], (affines, params))
    affine, params, elbo = improved(affine, params, target, second_key, SECOND)
    return WarmStarts(affine, params, winner, elbo, searched)


def visited_by(searched: Searched) -> list[Float[np.ndarray, "modes rows dim"] | None]:
    """For each target the distinct modes that its searches ended in; None where all ended in one."""
    parts = (np.asarray(part, float) for part in searched)
    every = ([Mode(*one) for one in zip(*each, strict=True)] for each in zip(*parts, strict=True))
    return [modes_apart([mode for mode in modes if np.isfinite(mode.log_evidence)]) for modes in every]


def _candidates(target: Target, key: PRNGKeyArray, *, full: bool) -> tuple[Array, Array, Searched]:
    """Locations and scales to begin from, in the order of START_NAMES, and all that was found."""
    starts = jax.vmap(target.start)(jr.split(key, TRIED_STARTS))
    values = jax.vmap(target.log_density)(starts)
    starts = starts[jnp.argsort(jnp.where(jnp.isfinite(values), -values, jnp.inf))]
    (modes, precisions, evidences), proper = jax.vmap(lambda start: _mode(target, start))(starts[:SEARCHES])
    best = jnp.argmax(evidences)
    other = jnp.argmax(jnp.where(evidences < evidences[best] - SAME, evidences, -jnp.inf))
    kept = jnp.stack([best, other])
    loc = jnp.concatenate([jnp.stack([starts[0], jnp.mean(starts, axis=0)]), modes[kept]])
    narrow, wide = (jnp.full(target.dim, scale, starts.dtype) for scale in BROAD_SCALES)
    broad = jnp.stack([jnp.diag(narrow), jnp.diag(wide)] if full else [narrow, wide])
    scales = jax.vmap(lambda precision: scale_of(precision, full=full))(precisions[kept])
    searched = Searched(modes, precisions, jnp.where(proper, evidences, -jnp.inf))
    return loc, jnp.concatenate([broad, scales]), searched


def _mode(target: Target, start: Float[Array, " dim"]) -> tuple[tuple[Array, Array, Array], Bool[Array, ""]]:
    """Where Newton's steps lead, the precision there and Laplace's log evidence; whether that is a mode.

    The start itself with unit curvature, at evidence zero, stands in where a search leaves the finite.
    """
    x = climb(target, start)
    (value, gradient), precision = jax.value_and_grad(target.log_density)(x), -target.hessian(x)
    usable = jnp.isfinite(value) & jnp.all(jnp.isfinite(precision))
    precision = jnp.where(usable, 0.5 * (precision + precision.T), jnp.eye(target.dim, dtype=x.dtype))
    units, curvatures, vectors = curvatures_of(precision)
    safe = jnp.maximum(curvatures, FLAT)
    evidence = value - 0.5 * jnp.sum(jnp.log(safe / (2 * jnp.pi))) - jnp.sum(jnp.log(units))
    stationary = jnp.sum((vectors.T @ (gradient / units)) ** 2 / safe) < STATIONARY
    proper = usable & (curvatures[0] > FLAT) & stationary
    return (jnp.where(usable, x, start), precision, jnp.where(usable, evidence, -jnp.inf)), proper


def climb(target: Target, start: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """NEWTON_STEPS damped Newton steps uphill; a step that does not climb is not taken."""
    # In coordinates of large scale curvatures are small everywhere.
    unit = jnp.diag(units_of(jnp.abs(jnp.diagonal(target.hessian(start)))) ** 2).astype(start.dtype)

    def step(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, value, damping = carry
        slope, precision = jax.grad(target.log_density)(x), -target.hessian(x)
        # Not a number where the damped matrix is not positive: then the step is not taken.
        factor = jnp.linalg.cholesky(precision + damping * unit)
        trial = x + jax.scipy.linalg.cho_solve((factor, True), slope)
        there = target.log_density(trial)
        better = jnp.all(jnp.isfinite(trial)) & (there > value)
        damping = jnp.clip(jnp.where(better, damping / 5, damping * 8), 1e-6, 1e10)
        return jnp.where(better, trial, x), jnp.where(better, there, value), damping

    value = target.log_density(start)
    value = jnp.where(jnp.isfinite(value), value, -jnp.inf)
    return jax.lax.fori_loop(0, NEWTON_STEPS, step, (start, value, jnp.ones_like(value)))[0]


def scale_of(precision: Float[Array, "dim dim"], *, full: bool) -> Array:
    """As `scale_from_precision`, on the device."""
    if not full:
        diagonal = jnp.diagonal(precision)
        return jax.lax.rsqrt(jnp.maximum(diagonal, FLAT * units_of(diagonal) ** 2))
    units, values, vectors = curvatures_of(precision)
    root = vectors * jax.lax.rsqrt(jnp.maximum(values, FLAT))[None, :] / units[:, None]
    triangle = jnp.linalg.qr(root.T, mode="r").T
    signs = jnp.where(jnp.diagonal(triangle) < 0, -1.0, 1.0)
    return triangle * signs[None, :]
