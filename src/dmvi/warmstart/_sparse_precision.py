r"""Gaussian VI in thousands of dimensions, where the Hessian of log pi is sparse.

The best Gaussian N(mu, P^-1) has P = E_q[-Hessian] and E_q[gradient] = 0. Natural gradients go there,

    P <- (1 - rho) P + rho mean(-H),   mu <- mu + rho P^-1 mean(gradient),

the Hessian at a few draws of q and the slope at many. P has the pattern of H, so that its root is sparse
(`_elimination`). rho grows after a step that kept the ELBO, and halves with a return to the last good state
after one that did not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._random import children, seed_of
from dmvi.guides import SparseAffine, SparseScale, sparse_anchored
from dmvi.targets._target import Target
from dmvi.training import Progress
from dmvi.warmstart._elimination import DISSECTION, Elimination, Root
from dmvi.warmstart._sparsity import SparseHessian, hessian_products, sparse_hessian


@dataclass(frozen=True)
class SparseSteps:
    """How the Gaussian is improved.

    Attributes:
        draws: of one program, in antithetic pairs.
        batches: programs whose draws make one mean gradient.
        hessians: draws at which the Hessian is made for one step. With two the search may end far too low
            where scales are unknown: 300 nats in a state space of 389 coordinates.
        rate: first rho. Where P is that of a mean field, half of it goes at the first step.
        largest: rho at most; noise of the Hessian passes to P unless some of the old stays.
        growth: of rho after a good step.
        shrinkage: of rho where the precision would not be positive definite.
        least: share of rho to which it is shrunk at most.
        noise: standard errors by which an ELBO may be lower and still count as kept.
        gain: nats that count as a gain, if they are beyond noise too.
        patience: steps without a gain after which rho may be no more than a share `calm` of what it might be.
        calm: less rho is less noise in the precision.
        smallest: what rho might be at most when a plateau ends the search.
        iterations: at most.
    """

    draws: int = 64
    batches: int = 4
    hessians: int = 8
    rate: float = 0.5
    largest: float = 0.9
    growth: float = 1.2
    shrinkage: float = 0.6
    least: float = 1e-4
    noise: float = 3.0
    gain: float = 0.05
    patience: int = 8
    calm: float = 0.3
    smallest: float = 0.1
    iterations: int = 150


SPARSE_STEPS = SparseSteps()


class Draws(NamedTuple):
    """What one program's draws show."""

    xi: Float[Array, "draws dim"]
    log_weights: Float[Array, " draws"]  # log pi - log q; NaN where not finite
    slope: Float[Array, " dim"]  # sum over finite draws


class State(NamedTuple):
    """A Gaussian with precision `entries` + amount c c^T."""

    loc: Float[np.ndarray, " dim"]
    entries: Float[np.ndarray, " entries"]
    amount: float
    root: Root


class SparseGaussian(NamedTuple):
    """A Gaussian, its ELBO, and how often the model's gradient was evaluated for it."""

    affine: SparseAffine
    elbo: float
    gradients: int


class Seen(NamedTuple):
    """The ELBO of a Gaussian, its standard error, the mean slope, and points of finite density."""

    elbo: float
    error: float
    slope: Float[np.ndarray, " dim"]
    xi: Float[np.ndarray, "points dim"]


def sparse_gaussian(
    target: Target,
    start: tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]],
    *,
    key: PRNGKeyArray,
    seconds_left: Callable[[], float],
    progress: Progress,
    settings: SparseSteps = SPARSE_STEPS,
) -> SparseGaussian | None:
    """The best Gaussian whose precision has the pattern of the Hessian; None where that is not sparse.

    Args:
        target: what to approximate.
        start: location and sds to begin from, those of a mean field.
        key: random key.
        seconds_left: asked between programs; at zero the best so far is kept.
        progress: told of the stage.
        settings: how steps are made.
    """
    if target.subsampled or target.params or target._hessian is not None:
        return None
    progress.note("sparse Gaussian")
    pattern_key, fit_key = children(key, 2)
    loc, sd = start
    if not (np.isfinite(loc).all() and np.isfinite(sd).all()) or seconds_left() <= 0:
        return None
    rng = np.random.default_rng(seed_of(pattern_key))
    points = loc + sd * np.array([1.0, -1.0, 0.5])[:, None] * rng.standard_normal((3, target.dim))
    hessian = sparse_hessian(hessian_products(target), points, rng)
    if hessian is None or seconds_left() <= 0:
        return None
    return _Search(target, hessian, settings).best(loc, sd, fit_key, seconds_left)


@compiled
def _draws(scale: SparseScale, loc: Array, target: Target, key: PRNGKeyArray, pairs: int) -> Draws:
    z = jr.normal(key, (pairs, loc.shape[0]), loc.dtype)
    z = jnp.concatenate([z, -z])
    xi = loc + jax.vmap(scale)(z)
    value, slope = jax.vmap(jax.value_and_grad(target.log_density))(xi)
    finite = jnp.isfinite(value) & jnp.isfinite(slope).all(axis=1)
    log_q = -0.5 * (jnp.sum(z**2, axis=1) + loc.shape[0] * np.log(2 * np.pi)) - scale.log_det()
    log_weights = jnp.where(finite, value - log_q, jnp.nan)
    return Draws(xi, log_weights, jnp.sum(jnp.where(finite[:, None], slope, 0), axis=0))


@compiled
def _step(scale: SparseScale, slope: Array) -> tuple[Array, Array]:
    """P^-1 slope = S S^T slope, and its length in P's norm."""
    (whitened,) = jax.vjp(scale, jnp.zeros_like(slope))[1](slope)
    return scale(whitened), jnp.linalg.norm(whitened)


class _Search:
    """Natural gradients on the pattern of one Hessian."""

    def __init__(self, target: Target, hessian: SparseHessian, settings: SparseSteps):
        self._target, self._hessian, self._settings = target, hessian, settings
        pattern = hessian.pattern
        self._elimination = Elimination(pattern.rows, pattern.columns, target.dim, pattern.dense)
        self._dtype = np.dtype(jnp.result_type(float))
        self._gradients = 0

    def best(
        self, loc: np.ndarray, sd: np.ndarray, key: PRNGKeyArray, seconds_left: Callable[[], float]
    ) -> SparseGaussian | None:
        """The Gaussian of the best ELBO on the way from N(loc, sd^2); None where its root is not sparse.

        None, too, where no step was better than the start.
        """
        if self._elimination.fill > DISSECTION.fill:
            return None
        made, pattern = self._settings, self._hessian.pattern
        state = self._rooted(loc, np.where(pattern.rows == pattern.columns, sd[pattern.rows] ** -2, 0.0), 0.0)
        assert state is not None  # a diagonal
        seen = self._look(state, jr.fold_in(key, 0))
        best, best_seen, curvature, start = state, seen, None, state
        rate, most, since = made.rate, made.largest, 0
        for iteration in range(1, made.iterations):
            if curvature is None:
                curvature = self._curvature(seen)
            if curvature is None or seconds_left() <= 0:
                break
            trial = self._moved(state, seen, curvature, rate)
            if seconds_left() <= 0:
                break
            if trial is None:  # nor would these draws' curvature lead anywhere with less of it
                rate *= 0.5
                if rate < made.smallest**2:
                    break
                seen, curvature = self._look(state, jr.fold_in(key, iteration)), None
                continue
            found = self._look(trial, jr.fold_in(key, iteration))
            # A step gone wrong has an error as large as its loss, which must not excuse it.
            error = np.hypot(seen.error, min(seen.error, found.error))
            if not found.elbo > seen.elbo - made.noise * error:
                rate *= 0.5  # the state of before is tried again, with less of the new
                if rate < made.smallest**2:
                    break
                continue
            state, seen, curvature = trial, found, None
            since += 1
            if seen.elbo > best_seen.elbo:
                error = np.hypot(seen.error, best_seen.error)
                since = 0 if seen.elbo > best_seen.elbo + max(error, made.gain) else since
                best, best_seen = state, seen
            rate = min(most, rate * made.growth)
            if since >= made.patience:
                most, since = most * made.calm, 0
                rate = min(rate, most)
                if most < made.smallest:
                    break
        if best is start:
            return None
        scale = self._scale(best)
        affine = sparse_anchored(jnp.asarray(best.loc.astype(self._dtype)), scale)
        return SparseGaussian(affine, best_seen.elbo, self._gradients)

    def _rooted(self, loc: np.ndarray, entries: np.ndarray, amount: float) -> State | None:
        root = self._elimination.root(entries)
        return None if root is None else State(loc, entries, amount, root)

    def _scale(self, state: State) -> SparseScale:
        constant = self._hessian.pattern.constant
        dense = np.sqrt(state.amount) * constant[:, None] if constant.any() and state.amount else None
        if dense is None:
            dense = np.zeros((self._target.dim, 0))
        return self._elimination.scale(state.root, dense, self._dtype)

    def _moved(self, state: State, seen: Seen, curvature: np.ndarray, rate: float) -> State | None:
        """A step of size `rate`, or a smaller one where the precision would not be positive definite.

        Where it is only just so, one smaller still: from the edge no further step would lead anywhere.
        """
        largest, trial = rate, self._towards(state, curvature, rate)
        while trial is None and rate > self._settings.least * largest:
            rate *= self._settings.shrinkage
            trial = self._towards(state, curvature, rate)
        if rate < largest:
            rate *= self._settings.shrinkage
            trial = self._towards(state, curvature, rate)
        if trial is None:
            return None
        step, length = _step(self._scale(trial), jnp.asarray(seen.slope.astype(self._dtype)))
        shortened = min(rate, np.sqrt(self._target.dim) / max(float(length), 1e-9))
        moved = state.loc + shortened * np.asarray(step, float)
        return trial._replace(loc=moved) if np.isfinite(moved).all() else None

    def _towards(self, state: State, curvature: np.ndarray, rate: float) -> State | None:
        """The precision taken part of the way to the curvature; None where it is not positive definite."""
        entries = (1 - rate) * state.entries + rate * curvature
        return self._rooted(state.loc, entries, state.amount + rate * (1.0 - state.amount))

    def _look(self, state: State, key: PRNGKeyArray) -> Seen:
        """The ELBO and the mean slope from fresh draws."""
        made, scale = self._settings, self._scale(state)
        loc = jnp.asarray(state.loc.astype(self._dtype))
        pairs = made.draws // 2
        found = [_draws(scale, loc, self._target, k, pairs) for k in children(key, made.batches)]
        self._gradients += made.batches * made.draws
        weights = np.concatenate([np.asarray(some.log_weights, float) for some in found])
        finite = np.isfinite(weights)
        slope = np.sum([np.asarray(some.slope, float) for some in found], axis=0) / max(finite.sum(), 1)
        xi = np.asarray(found[0].xi, float)[finite[: made.draws]]
        if 2 * finite.sum() <= weights.size:
            return Seen(-np.inf, 0.0, slope, xi)
        pairs_of = weights.reshape(made.batches, 2, pairs).mean(axis=1)
        error = np.nanstd(pairs_of) / np.sqrt(np.isfinite(pairs_of).sum())
        return Seen(float(weights[finite].mean()), float(error), slope, xi)

    def _curvature(self, seen: Seen) -> np.ndarray | None:
        """The mean of -H over a few of the draws."""
        count = min(self._settings.hessians, len(seen.xi))
        if not count:
            return None
        self._gradients += 2 * count * self._hessian.cost  # a product takes about two gradients
        entries = np.mean([self._hessian.entries(xi) for xi in seen.xi[:count]], axis=0)
        return entries if np.isfinite(entries).all() else None
