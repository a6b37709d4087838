r"""Separate modes: found by widening rounds of searches, weighed by importance sampling.

Most posteriors have one mode that matters, and for them a handful of further searches is all this costs.
Where searches end in several modes, far apart and of comparable evidence by Laplace's estimate, rounds of
many searches run side by side on the device until a round finds nothing new.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._random import seed_of
from dmvi.guides import Symmetry
from dmvi.targets import Target
from dmvi.warmstart._laplace import (
    FLAT,
    Mode,
    Surface,
    curvatures_of,
    laplace,
    scale_from_precision,
)
from dmvi.warmstart._symmetries import images_of, nearest_images
from dmvi.warmstart._weighed import Modes, fitted_gaussians

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
AT_ONCE = 2**28  # numbers that searches side by side may form, which bounds the memory
MOST_VISITED = 16  # modes whose neighbourhood the verdict looks at


def separate_modes(
    target: Target,
    surface: Surface,
    searched: list[Mode],
    symmetry: Symmetry | None,
    *,
    single: float,
    key: PRNGKeyArray,
) -> tuple[Modes | None, list[Mode]]:
    """The mixture of the modes that matter, and all modes that were found on the way.

    No mixture where one Gaussian is what a guide should start from; a verdict has to know the modes then.

    Args:
        target: what to approximate.
        surface: its derivatives on the host.
        searched: modes that searches have found already, in any order and with repetitions.
        symmetry: permutations that leave the target as it is.
        single: ELBO of the best single Gaussian; modes matter only if a mixture of them is no worse.
        key: random key.
    """
    if target.dim > LARGEST_DIM or target.subsampled:
        return None, []
    known = _distinct(proper(surface, searched))
    if not known or known[0].log_evidence < max(mode.log_evidence for mode in searched) - NEGLIGIBLE:
        return None, []  # what dominates is no mode with a Gaussian around it
    rng = np.random.default_rng(seed_of(key))
    starts = _around(known[0], SPREADS[1:] * PROBES, rng)
    known = _distinct(known + proper(surface, [laplace(surface, start) for start in starts]))
    if not _separate(surface, known + _mirrored(surface, symmetry, known[0])):
        return None, known
    known = one_of_each(surface, symmetry, known)
    # Modes of a hierarchy, say, are no match for a Gaussian fitted to all of it. A few are enough to tell;
    # the others could add the logarithm of how many more they are.
    few = fitted_gaussians(target, known[:4], symmetry, key)
    if few.elbo + np.log(max(len(known) / 4, 1)) < single - SLACK:
        return None, known
    known = all_modes(target, surface, known, symmetry, rng)
    modes = fitted_gaussians(target, known, symmetry, key)
    return (None if modes.elbo < single - SLACK else modes), known


def known_modes(surface: Surface, places: list[np.ndarray]) -> list[Mode]:
    """The distinct modes at some places, best first."""
    return _distinct(proper(surface, [laplace(surface, place) for place in places]))


def one_of_each(surface: Surface, symmetry: Symmetry | None, modes: list[Mode]) -> list[Mode]:
    """Modes of which none is the image of another, best first, each near the best of all."""
    if symmetry is None:
        return modes
    places = np.stack([mode.loc for mode in modes])
    nearest = nearest_images(symmetry, places, modes[0])
    return _distinct(proper(surface, [laplace(surface, place) for place in nearest])) or modes


def modes_apart(modes: list[Mode]) -> Float[np.ndarray, "modes rows dim"] | None:
    """Places and scales of those that are distinct; None where there are not two."""
    known = _distinct(modes)[:MOST_VISITED]
    if len(known) < 2:
        return None
    scales = [scale_from_precision(mode.precision, full=True) for mode in known]
    return np.stack([np.vstack([mode.loc, scale]) for mode, scale in zip(known, scales, strict=True)])


def all_modes(
    target: Target,
    surface: Surface,
    known: list[Mode],
    symmetry: Symmetry | None,
    rng: np.random.Generator,
    deadline: float = np.inf,
) -> list[Mode]:
    """Modes that matter, best first, by rounds of searches until nothing is new or rounds or time are over.

    The first is around the best of those that are known, the next over the range of all.
    """
    count = max(SEARCHES // target.dim, FEWEST_SEARCHES)
    starts = _around(known[0], SPREADS * (count // len(SPREADS)), rng)
    for round_number in range(ROUNDS):
        if time.perf_counter() > deadline:
            break
        before = len(known)
        known = _distinct(known + _climbed(target, surface, starts, known, symmetry))
        if round_number > 0 and len(known) == before:
            break
        places = np.stack([mode.loc for mode in known])
        if symmetry is not None:
            places = np.concatenate(images_of(symmetry, places))
        low, high = places.min(axis=0), places.max(axis=0)
        margin = MARGIN * (high - low) + SPREADS[0] * _sds(known[0])
        starts = rng.uniform(low - margin, high + margin, size=(len(starts), target.dim))
    return known[:MOST]


def _climbed(
    target: Target, surface: Surface, starts: np.ndarray, known: list[Mode], symmetry: Symmetry | None
) -> list[Mode]:
    """Modes that a round of searches ends in, those it knows left out before they are looked at closely."""
    # A Hessian forms the numbers of a gradient once for each coordinate.
    at_once = int(np.clip(AT_ONCE // (surface.numbers() * (target.dim + 1)), 1, len(starts)))
    ends, evidences = _climb(target, jnp.asarray(starts.astype(surface.dtype)), at_once)
    evidences = np.asarray(evidences, float)
    ends = nearest_images(symmetry, np.asarray(ends, float), known[0])
    found: list[Mode] = []
    for i in np.argsort(-evidences):
        if not evidences[i] > known[0].log_evidence - NEGLIGIBLE:
            break
        if all(_distance(ends[i], mode) >= SAME for mode in (*known, *found)):
            found += proper(surface, [laplace(surface, ends[i])])
    return found


@compiled
def _climb(
    target: Target, starts: Float[Array, "n dim"], at_once: int
) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
    """Damped Newton steps uphill side by side: where they end, and Laplace's evidence there.

    Curvatures enter steps by their absolute value. Minus infinity where the end is no mode.
    """

    def model(x):
        """Value, slopes and curvatures along the eigenvectors of the Hessian, and these; units."""
        value, gradient = jax.value_and_grad(target.log_density)(x)
        units, curvatures, vectors = curvatures_of(-target.hessian(x))
        return value, vectors.T @ (gradient / units), curvatures, vectors, units

    def one(x):
        def iterate(_, state):
            x, damping = state
            value, slopes, curvatures, vectors, units = model(x)
            bends = jnp.maximum(jnp.abs(curvatures), FLAT)
            trial = x + damping * (vectors @ (slopes / bends)) / units
            better = target.log_density(trial) >= value
            damping = jnp.where(better, jnp.minimum(2 * damping, 1.0), 0.25 * damping)
            return jnp.where(better, trial, x), damping

        x, _ = jax.lax.fori_loop(0, ITERATIONS, iterate, (x, jnp.ones((), x.dtype)))
        value, slopes, curvatures, _, units = model(x)
        safe = jnp.maximum(curvatures, FLAT)
        mode = jnp.all(curvatures > FLAT) & (jnp.sum(slopes**2 / safe) < SAME)
        evidence = value - 0.5 * jnp.sum(jnp.log(safe / (2 * jnp.pi))) - jnp.sum(jnp.log(units))
        return x, jnp.where(mode & jnp.isfinite(evidence), evidence, -jnp.inf)

    return jax.lax.map(one, starts, batch_size=at_once)


def proper(surface: Surface, modes: list[Mode]) -> list[Mode]:
    """Those that are maxima with a Gaussian around them: no flat or rising direction, no slope left."""
    kept = []
    for mode in modes:
        if not np.isfinite(mode.log_evidence):
            continue
        units, curvatures, vectors = curvatures_of(mode.precision)
        if curvatures[0] <= FLAT:
            continue
        slope = vectors.T @ (surface.value_and_gradient(mode.loc)[1] / units)
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


def _mirrored(surface: Surface, symmetry: Symmetry | None, mode: Mode) -> list[Mode]:
    """The modes at the images of a mode."""
    if symmetry is None:
        return []
    return [laplace(surface, image) for image in images_of(symmetry, mode.loc[None])[0, 1:]]


def _separate(surface: Surface, modes: list[Mode]) -> bool:
    """Whether a mode is far from the best, with a barrier on the straight way between.

    How far, is the geometric mean of what both see: a narrow mode is a long way from a wide one beside it.
    """
    best = modes[0]
    return any(
        np.sqrt(_distance(best.loc, mode) * _distance(mode.loc, best)) > SEPARATE
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
