r"""Warm starts of many targets of one family, all on the device and side by side.

For each target, as `warm_start` does for one: modes by damped Newton steps from the best of random starts,

    x' = x + (H + lambda I)^-1 g,   g = grad log pi,  H = -grad^2 log pi,

lambda smaller after a step that climbs and larger after one that does not; Laplace's Gaussian at the two
modes of most evidence and two broad Gaussians climb by natural gradients; the best by ELBO is the start.
All modes that searches end in are handed on, so that a verdict can tell when a guide has missed one.
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
from dmvi.targets import Target
from dmvi.warmstart._candidates import NARROW, WIDE
from dmvi.warmstart._laplace import FLAT, Mode, curvatures_of, units_of
from dmvi.warmstart._modes import STATIONARY, modes_apart
from dmvi.warmstart._natural import NaturalGradients, annealed_rates, begin, steps_of

TRIED_STARTS = 32
SEARCHES = 8
NEWTON_STEPS = 40
SAME = 1e-2  # nats of evidence below which two modes count as one
START_NAMES = ("gaussian-vi", "gaussian-vi", "laplace", "laplace")  # of the candidates, in order


class ManySettings(NamedTuple):
    """How Gaussians of many targets climb, all in one program and so for a fixed time.

    Attributes:
        draws: of a step, at least.
        draws_per_dimension: of a step, where that is more; Stein's matrix has dim^2 entries.
        steps: at the full rate; what has not arrived by then, training takes on.
        steps_with_params: where generative parameters move along, whose steps have no natural length.
        annealed: steps after them, at falling rates.
        at_once: draws whose gradients are computed together.
    """

    draws: int = 128
    draws_per_dimension: int = 4
    steps: int = 48
    steps_with_params: int = 300
    annealed: int = 24
    at_once: int = 64


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
    start_key, climb_key = jr.split(key)
    loc, scale, searched = _candidates(target, start_key, full=full)
    affines, params, elbos = jax.vmap(lambda loc, scale: _climbed(target, loc, scale, climb_key))(loc, scale)
    winner = jnp.argmax(jnp.where(jnp.isfinite(elbos), elbos, -jnp.inf))
    affine, params = jax.tree.map(lambda leaf: leaf[winner], (affines, params))
    return WarmStarts(affine, params, winner, elbos[winner], searched)


def _climbed(
    target: Target, loc: Float[Array, " dim"], scale: Array, key: PRNGKeyArray
) -> tuple[AnyAffine, dict[str, Array], Float[Array, ""]]:
    """The Gaussian that natural gradients lead to, its parameters and its ELBO."""
    settings, bounds = NaturalGradients(), ManySettings()
    draws = max(bounds.draws, bounds.draws_per_dimension * target.dim)
    draws += -draws % (2 * bounds.at_once)
    steps = bounds.steps_with_params if target.params else bounds.steps
    flat = jnp.full(steps, settings.largest_rate, loc.dtype)
    rates = jnp.concatenate([flat, annealed_rates(bounds.annealed).astype(loc.dtype)])
    fit, _ = steps_of(
        begin(loc, scale, target.params, settings), target, rates, key, draws, bounds.at_once, settings
    )
    best = fit.best
    if scale.ndim == 1:
        return anchored(best.loc, jnp.abs(best.scale), full=False), best.params, best.elbo
    return anchored(best.loc, _triangle(best.scale), full=True), best.params, best.elbo


def _triangle(scale: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """The lower triangle T of positive diagonal with T T^T = S S^T, on the device."""
    lower = jnp.linalg.qr(scale.T, mode="r").T
    return lower * jnp.where(jnp.diagonal(lower) < 0, -1.0, 1.0)[None, :]


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
    narrow, wide = (jnp.full(target.dim, scale, starts.dtype) for scale in (NARROW, WIDE))
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
    return _triangle(root)
