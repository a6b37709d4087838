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
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from scipy.special import logsumexp

from dmvi._compile import compiled
from dmvi._random import children, seed_of
from dmvi.guides import Affine, Gaussian, anchored, base_log_prob
from dmvi.starts._laplace import LARGEST_SD, Mode, Surface, laplace, scale_from_precision
from dmvi.targets import Target

LARGEST_DIM = 64  # a search needs a Hessian at every step
SPREADS = (2.0, 8.0, 32.0, 128.0)  # sds around the best mode from which searches begin
PROBES = 2  # searches at each spread but the first, before anything is known
SEARCHES = 2048  # in a round, over the dimension: a search costs as much as its Hessians
FEWEST_SEARCHES = 64
ROUNDS = 8
ITERATIONS = 30
STATIONARY = 0.01  # largest g^T H^-1 g at a mode
SAME = 1.0  # sds within which two modes are one
SEPARATE = 5.0  # sds between modes that one Gaussian with a flow cannot serve well
BARRIER = 8.0  # nats between them: what is lower, one flow crosses
WAYPOINTS = 8  # on either half of the way
NEGLIGIBLE = 7.0  # nats of Laplace's evidence below the best at which a mode is left out
MARGIN = 0.25  # of the range of the modes found, by which the next round looks beyond it
SLACK = 1.0  # nats by which training may be expected to raise a mixture's ELBO more than one Gaussian's
MOST = 64
MOST_VISITED = 16  # modes whose neighbourhood the verdict looks at
DRAWS = 1000  # of each component, to weigh it
BALANCING = 50
FITTINGS = 4
EVEN = 0.97  # effective share of a component's draws above which moments cannot better it
EXACT = 0.99  # and above which nothing can


class Modes(NamedTuple):
    """Gaussians of separate modes.

    Attributes:
        affines: the Gaussians, stacked.
        log_weights: their weights.
        unfinished: which of them are not yet right as they are.
        elbo: of their mixture.
    """

    affines: Affine
    log_weights: Float[Array, " modes"]
    unfinished: Bool[Array, " modes"]
    elbo: float


def separate_modes(
    target: Target, surface: Surface, searched: list[Mode], *, single: float, key: PRNGKeyArray
) -> Modes | None:
    """The mixture of the modes that matter, or None where one Gaussian is what a guide should start from.

    Args:
        target: what to approximate.
        surface: its derivatives on the host.
        searched: modes that searches have found already, in any order and with repetitions.
        single: ELBO of the best single Gaussian; modes matter only if a mixture of them is no worse.
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
    if not _separate(surface, known):
        return None
    # Modes of a hierarchy, say, are no match for a Gaussian fitted to all of it. A few are enough to tell;
    # the others could add the logarithm of how many more they are.
    if _weighed(target, known[:4], key).elbo + np.log(max(len(known) / 4, 1)) < single - SLACK:
        return None
    modes = _weighed(target, _all_modes(target, surface, known, rng)[:MOST], key)
    return None if modes.elbo < single - SLACK else modes


def known_modes(surface: Surface, places: list[np.ndarray]) -> list[Mode]:
    """The distinct modes at some places, best first."""
    return _distinct(_proper(surface, [laplace(surface, place) for place in places]))


def all_modes(
    target: Target, surface: Surface, known: list[Mode], key: PRNGKeyArray, rounds: int
) -> list[Mode]:
    """Modes that matter, best first, looked for from those that are known in so many rounds at most."""
    return _all_modes(target, surface, known, np.random.default_rng(seed_of(key)), rounds)[:MOST]


def gaussians_of(target: Target, modes: list[Mode], key: PRNGKeyArray) -> Modes:
    """The mixture of the modes' Gaussians, as they are."""
    scales = np.stack([scale_from_precision(mode.precision, full=True) for mode in modes])
    evidences = np.array([mode.log_evidence for mode in modes])
    return weighed_gaussians(target, np.stack([mode.loc for mode in modes]), scales, evidences, key)


def weighed_gaussians(
    target: Target, loc: np.ndarray, scale: np.ndarray, log_weights: np.ndarray, key: PRNGKeyArray
) -> Modes:
    """The mixture of some Gaussians, its weights balanced on draws of each."""
    cloud = _cloud(target, loc, scale, key)
    return cloud.modes(cloud.balanced(log_weights))


def visited_modes(surface: Surface, searched: list[Mode]) -> Float[np.ndarray, "modes rows dim"] | None:
    """Places and scales of the distinct modes that searches ended in; None where all ended in one."""
    known = _distinct(_proper(surface, searched))[:MOST_VISITED]
    if len(known) < 2:
        return None
    scales = [scale_from_precision(mode.precision, full=True) for mode in known]
    return np.stack([np.vstack([mode.loc, scale]) for mode, scale in zip(known, scales, strict=True)])


def _all_modes(
    target: Target, surface: Surface, known: list[Mode], rng: np.random.Generator, rounds: int = ROUNDS
) -> list[Mode]:
    """Rounds of searches: first around the best mode, then over the range of all, until nothing is new."""
    count = max(SEARCHES // target.dim, FEWEST_SEARCHES)
    starts = _around(known[0], SPREADS * (count // len(SPREADS)), rng)
    for round_number in range(rounds):
        before = len(known)
        known = _distinct(known + _climbed(target, surface, starts, known))
        if round_number > 0 and len(known) == before:
            break
        places = np.stack([mode.loc for mode in known])
        low, high = places.min(axis=0), places.max(axis=0)
        margin = MARGIN * (high - low) + SPREADS[0] * _sds(known[0])
        starts = rng.uniform(low - margin, high + margin, size=(len(starts), target.dim))
    return known


def _climbed(target: Target, surface: Surface, starts: np.ndarray, known: list[Mode]) -> list[Mode]:
    """Modes that a round of searches ends in, those it knows left out before they are looked at closely."""
    ends, evidences = _climb(target, jnp.asarray(starts.astype(surface.dtype)))
    ends, evidences = np.asarray(ends, float), np.asarray(evidences, float)
    found: list[Mode] = []
    for i in np.argsort(-evidences):
        if not evidences[i] > known[0].log_evidence - NEGLIGIBLE:
            break
        if all(_distance(ends[i], mode) >= SAME for mode in (*known, *found)):
            found += _proper(surface, [laplace(surface, ends[i])])
    return found


@compiled
def _climb(target: Target, starts: Float[Array, "n dim"]) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
    """Damped Newton steps uphill side by side: where they end, and Laplace's evidence there.

    Curvatures enter steps by their absolute value. Minus infinity where the end is no mode.
    """

    def model(x):
        """Value, slopes and curvatures along the eigenvectors of the Hessian, and these."""
        value, gradient = jax.value_and_grad(target.log_density)(x)
        curvatures, vectors = jnp.linalg.eigh(-target.hessian(x))
        return value, vectors.T @ gradient, curvatures, vectors

    def one(x):
        def iterate(_, state):
            x, damping = state
            value, slopes, curvatures, vectors = model(x)
            trial = x + damping * vectors @ (slopes / jnp.maximum(jnp.abs(curvatures), LARGEST_SD**-2))
            better = target.log_density(trial) >= value
            damping = jnp.where(better, jnp.minimum(2 * damping, 1.0), 0.25 * damping)
            return jnp.where(better, trial, x), damping

        x, _ = jax.lax.fori_loop(0, ITERATIONS, iterate, (x, jnp.ones((), x.dtype)))
        value, slopes, curvatures, _ = model(x)
        safe = jnp.maximum(curvatures, LARGEST_SD**-2)
        mode = jnp.all(curvatures > LARGEST_SD**-2) & (jnp.sum(slopes**2 / safe) < SAME)
        evidence = value - 0.5 * jnp.sum(jnp.log(safe / (2 * jnp.pi)))
        return x, jnp.where(mode & jnp.isfinite(evidence), evidence, -jnp.inf)

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


def _separate(surface: Surface, modes: list[Mode]) -> bool:
    """Whether a mode is far from the best, as both see it, with a barrier on the straight way between."""
    best = modes[0]
    return any(
        min(_distance(best.loc, mode), _distance(mode.loc, best)) > SEPARATE
        and _barrier(surface, best.loc, mode.loc) > BARRIER
        for mode in modes[1:]
    )


def _barrier(surface: Surface, start: np.ndarray, end: np.ndarray) -> float:
    """How far log pi falls on the straight way, below the lower of its ends."""
    shares = np.linspace(0.0, 1.0, 2 * WAYPOINTS + 1)
    values = [surface.value_and_gradient(start + share * (end - start))[0] for share in shares]
    return min(values[0], values[-1]) - min(values)


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
    """The mixture of the modes' Gaussians; those that do not fit well are fitted to weighed draws."""
    loc = np.stack([mode.loc for mode in modes])
    scale = np.stack([scale_from_precision(mode.precision, full=True) for mode in modes])
    log_weights = np.array([mode.log_evidence for mode in modes])
    best = None
    for round_key in children(key, FITTINGS):
        cloud = _cloud(target, loc, scale, round_key)
        log_weights = cloud.balanced(log_weights)
        elbo = cloud.elbo(log_weights)
        if best is None or elbo > best.elbo:
            best = cloud.modes(log_weights)
        loc, scale, changed = cloud.fitted(log_weights, loc, scale)
        if not changed:
            break
    assert best is not None
    return best


def _cloud(target: Target, loc: np.ndarray, scale: np.ndarray, key: PRNGKeyArray) -> "Cloud":
    dtype = jnp.result_type(float)
    affines, xi, log_pi, log_g = _draw(
        target, jnp.asarray(loc.astype(dtype)), jnp.asarray(scale.astype(dtype)), key
    )
    log_pi = np.asarray(log_pi, float)
    return Cloud(
        affines,
        np.asarray(xi, float),
        np.where(np.isfinite(log_pi), log_pi, -np.inf),
        np.asarray(log_g, float),
    )


@compiled
def _draw(
    target: Target, loc: Float[Array, "modes dim"], scale: Float[Array, "modes dim dim"], key: PRNGKeyArray
) -> tuple[Affine, Array, Array, Array]:
    """The Gaussians, draws of each, and log pi and every log g_k there."""
    affines = jax.vmap(lambda loc, scale: anchored(loc, scale, full=True))(loc, scale)

    def one(affine: Affine, key: PRNGKeyArray):
        xi = Gaussian(affine=affine, dim=target.dim).draw(key).xi
        return xi, target.log_density(xi), base_log_prob(affines, xi)

    keys = jr.split(key, (loc.shape[0], DRAWS))
    return affines, *jax.vmap(jax.vmap(one, (None, 0)))(affines, keys)


class Cloud(NamedTuple):
    r"""Draws of Gaussians g_k, and what is known there.

    One step of expectation maximisation of the forward divergence of sum_k w_k g_k from pi / Z gives each
    draw of g_j the weight w_j pi / (Z sum_i w_i g_i), shared out by r(k | xi) = w_k g_k / sum_i w_i g_i.
    """

    affines: Affine
    xi: Float[np.ndarray, "modes draws dim"]
    log_pi: Float[np.ndarray, "modes draws"]
    log_g: Float[np.ndarray, "modes draws modes"]

    def _log_ratio(self, log_weights: np.ndarray) -> Float[np.ndarray, "modes draws"]:
        """log pi - log sum_k w_k g_k."""
        return self.log_pi - logsumexp(log_weights[None, None] + self.log_g, axis=2)

    def balanced(self, log_weights: np.ndarray) -> Float[np.ndarray, " modes"]:
        """The weights at which w_k = w_k E_{g_k}[pi / sum_i w_i g_i] / Z, by repeating just that."""
        for _ in range(BALANCING):
            evidence = log_weights + logsumexp(self._log_ratio(log_weights - logsumexp(log_weights)), axis=1)
            log_weights = evidence - logsumexp(evidence)
        return log_weights

    def modes(self, log_weights: np.ndarray) -> Modes:
        """The mixture with these weights."""
        return Modes(
            self.affines,
            jnp.asarray(log_weights.astype(self.affines.loc.dtype)),
            jnp.asarray(self.ess(log_weights) < EXACT),
            self.elbo(log_weights),
        )

    def elbo(self, log_weights: np.ndarray) -> float:
        """sum_k w_k E_{g_k}[log pi - log sum_i w_i g_i]."""
        return float(np.exp(log_weights) @ np.mean(self._log_ratio(log_weights), axis=1))

    def ess(self, log_weights: np.ndarray) -> Float[np.ndarray, " modes"]:
        """Effective share of the draws of each."""
        log_ratio = self._log_ratio(log_weights)
        return np.exp(2 * logsumexp(log_ratio, axis=1) - logsumexp(2 * log_ratio, axis=1)) / DRAWS

    def fitted(
        self, log_weights: np.ndarray, loc: np.ndarray, scale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, bool]:
        """Means and scales with those of uneven weights moved to the moments of their share of the draws.

        Even weights say that a Gaussian is right already, and then moments of a few draws are not as good.
        """
        log_ratio = self._log_ratio(log_weights)
        joint = log_weights[None, None] + self.log_g
        responsibility = np.exp(joint - logsumexp(joint, axis=2, keepdims=True))
        weights = np.exp(log_weights[:, None] + log_ratio - np.max(log_ratio))
        loc, scale, uneven = loc.copy(), scale.copy(), np.flatnonzero(self.ess(log_weights) < EVEN)
        for k in uneven:
            share = weights * responsibility[:, :, k]
            share = share / share.sum()
            loc[k] = np.einsum("jn,jnd->d", share, self.xi)
            centred = self.xi - loc[k]
            covariance = np.einsum("jn,jnd,jne->de", share, centred, centred)
            scale[k] = np.linalg.cholesky(covariance + 1e-6 * np.diag(np.diagonal(covariance)))
        return loc, scale, uneven.size > 0
