"""Gaussians to begin from, and every mode found on the way.

No start is best everywhere: the mode of a hierarchy is useless or infinite, a broad Gaussian loses its way
where several optima compete, and a prior helps where the data say little.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._random import children, seed_of
from dmvi.targets import Target
from dmvi.warmstart._effort import Effort, EffortSettings
from dmvi.warmstart._laplace import Mode, Surface, climb, laplace, scale_from_precision
from dmvi.warmstart._lookout import lookout
from dmvi.warmstart._pathfinder import pathfinder
from dmvi.warmstart._prior import prior_gaussian

TRIED_STARTS = 32
SLOPES = 4  # of these, at which slopes are looked at
FINALISTS = 8  # searches, by Laplace's evidence after them, that go on to the end
SPREAD = 2.0  # sd of further points from which modes are sought
MODES = 2  # modes kept, by Laplace's evidence
NARROW, WIDE = 0.3, 1.0  # sds of broad Gaussians
AT_A_POINT = 0.1  # sd of a Gaussian at a point of a search
HESSIANS = 200  # dimensions up to which many Hessians are looked at


class Candidate(NamedTuple):
    """A Gaussian N(loc, scale scale^T) to begin from; a scale of one axis is a diagonal."""

    name: str
    loc: np.ndarray
    scale: np.ndarray


class Candidates(NamedTuple):
    """What to begin from.

    Attributes:
        fields: mean fields.
        full: Gaussians of full covariance.
        modes: that searches ended in.
        more: further mean fields at single starts, which tell whether climbs end in different places.
    """

    fields: list[Candidate]
    full: list[Candidate]
    modes: list[Mode]
    more: tuple[Candidate, ...] = ()


def find_candidates(
    target: Target,
    surface: Surface,
    effort: Effort,
    key: PRNGKeyArray,
    say: Callable[[str], None] = lambda text: None,
) -> Candidates:
    """Broad Gaussians at random starts, the prior, Pathfinder's and Laplace's at a few modes.

    Args:
        target: what to approximate.
        surface: its derivatives on the host.
        effort: how much to search.
        key: random key.
        say: told of what takes a while.
    """
    start_key, prior_key = children(key, 2)
    starts = ranked_starts(target, surface, start_key)
    surface.begin_at(starts[:SLOPES])
    fields = [
        Candidate("gaussian-vi", starts[0], np.full(target.dim, NARROW)),
        Candidate("gaussian-vi", starts.mean(axis=0), np.full(target.dim, WIDE)),
    ]
    prior = prior_gaussian(target, prior_key)
    if prior is not None:
        fields.append(Candidate("prior", *prior))
    if surface.stop():
        return Candidates(fields, [], [])
    say("searches for modes")
    if target.dim > HESSIANS:
        more = [Candidate("gaussian-vi", start, np.full(target.dim, NARROW)) for start in starts[1:3]]
        return Candidates(fields + more + _on_the_way(surface, starts[0]), [], [])
    rng = np.random.default_rng(seed_of(key))
    full = []
    found = pathfinder(surface, starts, rng)
    if found is not None:
        full.append(Candidate("pathfinder", found.loc, scale_from_precision(found.precision, full=True)))
    modes = _search(target, surface, starts, effort, rng, jr.fold_in(key, 2))
    best = _distinct(modes)
    for mode in (best + best[:1] * MODES)[:MODES]:
        full.append(Candidate("laplace", mode.loc, scale_from_precision(mode.precision, full=True)))
    more = [Candidate("gaussian-vi", start, np.full(target.dim, NARROW)) for start in starts[1:]]
    return Candidates(fields, full, modes, tuple(more[: effort.fields]))


def _on_the_way(surface: Surface, start: np.ndarray) -> list[Candidate]:
    """Points of the way to a mode, in dimensions in which each Hessian on it would take long."""
    way = [start]
    mode, _ = climb(surface, start, EffortSettings().iterations, way)
    points = [way[len(way) // 2], mode]
    return [Candidate("search", point, np.full(surface.dim, AT_A_POINT)) for point in points]


def _search(
    target: Target,
    surface: Surface,
    starts: Float[np.ndarray, "starts dim"],
    effort: Effort,
    rng: np.random.Generator,
    key: PRNGKeyArray,
) -> list[Mode]:
    """What searches end in, best evidence first.

    Modes are many in mixtures: half of the searches begin where the model's starts lie, half further out.
    """
    near = starts[: max(effort.searches // 2, 1)]
    far = near[0] + SPREAD * rng.standard_normal(near.shape)
    modes: list[Mode] = []
    for start in (*near, *far):
        if modes and surface.stop():
            break
        modes.append(laplace(surface, start, EffortSettings().iterations))
    for mode in _distinct(sorted(modes, key=_rank))[: min(FINALISTS, effort.searches)]:
        if surface.stop():
            break
        modes.append(laplace(surface, mode.loc))
    if not surface.stop():
        best = min(modes, key=_rank)
        modes += [laplace(surface, start) for start in lookout(target, surface, best, key)]
    return sorted(modes, key=_rank)


def _rank(mode: Mode) -> float:
    """Best evidence first."""
    return -mode.log_evidence


def _distinct(modes: list[Mode]) -> list[Mode]:
    """The modes without repetitions."""
    kept: list[Mode] = []
    for mode in modes:
        if all(abs(mode.log_evidence - other.log_evidence) > 1e-2 for other in kept):
            kept.append(mode)
    return kept


def ranked_starts(target: Target, surface: Surface, key: PRNGKeyArray) -> Float[np.ndarray, "starts dim"]:
    """Random starting points, best density first."""
    starts = np.asarray(_starts(target, key), float)
    values = []
    for start in starts:
        values.append(surface.value_and_gradient(start)[0])
        if surface.stop():
            break
    starts = starts[: len(values)]
    return starts[np.argsort([-value if np.isfinite(value) else np.inf for value in values])]


@compiled
def _starts(target: Target, key: PRNGKeyArray) -> Float[Array, "starts dim"]:
    return jax.lax.map(target.start, jr.split(key, TRIED_STARTS))
