"""The Gaussian a guide starts from, and with it the coordinates its optimiser sees."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi._random import children, seed_of
from dmvi.guides import Affine, AnyAffine, Gaussian, anchored
from dmvi.objectives import PathELBO
from dmvi.targets import Target
from dmvi.training import (
    Progress,
    Seen,
    Settings,
    Trained,
    default_optimizer,
    initial_state,
    run_chunk,
)
from dmvi.warmstart._laplace import Mode, Surface, laplace, scale_from_precision
from dmvi.warmstart._lookout import lookout
from dmvi.warmstart._modes import LARGEST_DIM, modes_apart, proper, separate_modes
from dmvi.warmstart._pathfinder import pathfinder
from dmvi.warmstart._prior import prior_gaussian
from dmvi.warmstart._symmetries import symmetry_of
from dmvi.warmstart._threads import small_matrices
from dmvi.warmstart._weighed import Modes, in_all_labellings

TRIED_STARTS = 32
SLOPES = 4  # of these, at which slopes are looked at
SEARCHES = 32  # for modes
GLANCE = 30  # iterations of every search
FINALISTS = 8  # searches, by Laplace's evidence after them, that go on to the end
SPREAD = 2.0  # sd of further points from which modes are sought
MODES = 2  # modes kept, by Laplace's evidence
BROAD_SCALES = (0.3, 1.0)
STAGES = 2
STAGE_STEPS = 800
PARTICLES = 32
LEARNING_RATE = 1e-2
JUDGED_STEPS = 100  # last steps of a stage, at a vanishing learning rate, whose draws judge it

SETTINGS = Settings(
    PathELBO(),
    default_optimizer(LEARNING_RATE),
    PARTICLES,
    chunk=STAGE_STEPS,
    cooldown_steps=STAGE_STEPS // 2,
)


class WarmStart(NamedTuple):
    """Whitened coordinates, the name of the start that gave them and generative parameters on the way.

    `modes` are there where a mixture of Gaussians, one for each of several separate modes, is better.
    `visited` are modes that searches ended in, for the verdict: any guide has to have some draws near them.
    """

    affine: AnyAffine
    name: str
    params: dict[str, Array]
    modes: Modes | None = None
    visited: Float[np.ndarray, "modes rows dim"] | None = None


class Candidate(NamedTuple):
    """A Gaussian N(loc, scale scale^T) to begin from."""

    name: str
    loc: np.ndarray
    scale: np.ndarray  # lower triangle or diagonal


def warm_start(
    target: Target, *, full: bool, key: PRNGKeyArray, progress: Progress, mixes: bool = False
) -> WarmStart:
    """The best Gaussian among Laplace at a few modes, Pathfinder's, the prior and VI from broad starts.

    All are improved by Gaussian VI with the path gradient, twice, the second time in the coordinates
    the first has whitened; the best by ELBO wins. No start is best everywhere: the mode of a hierarchy
    is useless, and gradients crawl in ill-conditioned regressions.

    Args:
        target: what to approximate.
        full: full-rank or mean-field.
        key: random key.
        progress: told of the stage.
        mixes: whether a mixture is of use, so that separate modes are looked for.
    """
    progress.note("warm start")
    start_key, fit_key = children(key, 2)
    surface = Surface(target)
    with small_matrices(surface):
        candidates, searched = _candidates(target, surface, start_key, full=full)
    dtype = jnp.result_type(float)
    # One program fits all candidates side by side, and both stages.
    affine = _anchors(
        jnp.asarray(np.stack([candidate.loc for candidate in candidates]).astype(dtype)),
        jnp.asarray(np.stack([candidate.scale for candidate in candidates]).astype(dtype)),
        full,
    )
    params = jax.tree.map(lambda leaf: jnp.asarray(np.stack([leaf] * len(candidates))), target.params)
    elbos = np.full(len(candidates), -np.inf)
    for stage_key in children(fit_key, STAGES):
        affine, params, elbos = gaussian_vi(affine, params, target, stage_key)
    elbos = np.asarray(elbos)
    winner = int(np.argmax(np.where(np.isfinite(elbos), elbos, -np.inf)))
    best, best_params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[winner]), (affine, params))
    start = WarmStart(best, candidates[winner].name, best_params)
    if target.params:
        return start
    with small_matrices(surface):
        known = [] if target.subsampled else proper(surface, searched)
        start = start._replace(visited=modes_apart(known))
        if mixes:
            single = float(elbos[winner])
            start = _with_modes(start, target, surface, searched, known, single=single, key=key)
    if start.visited is not None and not (mixes and target.dim <= LARGEST_DIM):
        start = start._replace(visited=_fitted(start.visited, target, key))
    return start


def _with_modes(
    start: WarmStart,
    target: Target,
    surface: Surface,
    searched: list[Mode],
    known: list[Mode],
    *,
    single: float,
    key: PRNGKeyArray,
) -> WarmStart:
    """With Gaussians of separate modes, or with the images of the best Gaussian, where there are any.

    Either way it remembers the modes found on the way, beside those that are known.
    """
    symmetry = images = None
    if start.visited is not None and target.dim <= LARGEST_DIM:
        symmetry = symmetry_of(target, start.visited)
    if symmetry is not None:
        assert isinstance(start.affine, Affine)
        images = in_all_labellings(target, start.affine, symmetry, key)
        single = images.elbo
    modes, found = separate_modes(target, surface, searched, symmetry, single=single, key=key)
    start = start._replace(visited=modes_apart([*known, *found]))
    if modes is not None:
        return start._replace(name=modes.title, modes=modes)
    if images is not None:
        return start._replace(name=f"{start.name}, {images.title}", modes=images)
    return start


def _fitted(
    visited: Float[np.ndarray, "modes rows dim"], target: Target, key: PRNGKeyArray
) -> Float[np.ndarray, "modes rows dim"]:
    """Gaussians of modes after a stage of Gaussian VI each, which hold what is around them better.

    Where no guide will be fitted to each mode, these alone tell how much of the posterior is there. Around
    a skewed mode in a hundred dimensions next to no draw of Laplace's Gaussian is where the mass is.
    """
    dtype = jnp.result_type(float)
    affine = _anchors(jnp.asarray(visited[:, 0], dtype), jnp.asarray(visited[:, 1:], dtype), True)
    affine, _, _ = gaussian_vi(affine, target.params, target, key)
    assert isinstance(affine, Affine)
    found = np.concatenate([affine.anchor.value[:, None], affine.anchor_scale.value], axis=1).astype(float)
    finite = np.isfinite(found).all(axis=(1, 2), keepdims=True)
    return np.where(finite, found, visited)


def cold_start(target: Target) -> WarmStart:
    """The target's own coordinates, for guides that begin from nothing else."""
    zeros = np.zeros(target.dim, jnp.result_type(float))
    affine = anchored(jnp.asarray(zeros), jnp.asarray(zeros + 1), full=False)
    return WarmStart(affine, "none", target.params)


def _candidates(
    target: Target, surface: Surface, key: PRNGKeyArray, *, full: bool
) -> tuple[list[Candidate], list[Mode]]:
    """Gaussians to begin from, and every mode found on the way."""
    start_key, prior_key = children(key, 2)
    starts = ranked_starts(target, surface, start_key)
    surface.begin_at(starts[:SLOPES])
    narrow, wide = (np.full(target.dim, scale) for scale in BROAD_SCALES)
    candidates = [
        Candidate("gaussian-vi", starts[0], np.diag(narrow) if full else narrow),
        Candidate("gaussian-vi", starts.mean(axis=0), np.diag(wide) if full else wide),
    ]
    rng = np.random.default_rng(seed_of(key))
    found = pathfinder(surface, starts, rng)
    if found is not None:
        scale = scale_from_precision(found.precision, full=full)
        candidates.append(Candidate("pathfinder", found.loc, scale))
    prior = prior_gaussian(target, prior_key)
    if prior is not None:
        loc, scale = prior
        candidates.append(Candidate("prior", loc, np.diag(scale) if full else scale))
    # Modes are many in mixtures: half of the searches begin where the model's starts lie, half further out.
    near = starts[: SEARCHES // 2]
    far = near[0] + SPREAD * rng.standard_normal(near.shape)
    modes = sorted((laplace(surface, start, GLANCE) for start in (*near, *far)), key=_rank)
    modes = sorted(modes + [laplace(surface, mode.loc) for mode in _distinct(modes)[:FINALISTS]], key=_rank)
    modes += [laplace(surface, start) for start in lookout(target, surface, modes[0], jr.fold_in(key, 2))]
    modes = sorted(modes, key=_rank)
    best = _distinct(modes)
    for mode in (best + best[:1] * MODES)[:MODES]:
        candidates.append(Candidate("laplace", mode.loc, scale_from_precision(mode.precision, full=full)))
    return candidates, modes


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
    values = [surface.value_and_gradient(start)[0] for start in starts]
    return starts[np.argsort([-value if np.isfinite(value) else np.inf for value in values])]


@compiled
def _starts(target: Target, key: PRNGKeyArray) -> Float[Array, "starts dim"]:
    return jax.lax.map(target.start, jr.split(key, TRIED_STARTS))


@compiled
def _anchors(loc: Float[Array, "candidates dim"], scale: Array, full: bool) -> Affine:
    return jax.vmap(lambda loc, scale: anchored(loc, scale, full=full))(loc, scale)


@compiled
def gaussian_vi(
    affine: AnyAffine, params: dict[str, Array], target: Target, key: PRNGKeyArray
) -> tuple[AnyAffine, dict[str, Array], Float[Array, " candidates"]]:
    """One stage of Gaussian VI for stacked candidates, rebased on what it found, and their ELBOs."""
    return jax.vmap(lambda affine, params: improved(affine, params, target, key, SETTINGS))(affine, params)


def improved(
    affine: AnyAffine, params: dict[str, Array], target: Target, key: PRNGKeyArray, settings: Settings
) -> tuple[AnyAffine, dict[str, Array], Float[Array, ""]]:
    """One stage of Gaussian VI, a chunk that ends annealed, rebased on what it found, and its ELBO."""
    model = eqx.tree_at(lambda t: t.params, target, params)
    start = Trained(Gaussian(affine=affine, dim=affine.dim), params)
    trained, seen = annealed(start, model, settings, key)
    assert isinstance(trained.guide, Gaussian)
    return trained.guide.affine.rebased(), trained.params, jnp.mean(seen.log_weights[-JUDGED_STEPS:])


def annealed(start: Trained, target: Target, settings: Settings, key: PRNGKeyArray) -> tuple[Trained, Seen]:
    """One chunk of training that ends annealed, and what its draws showed."""
    state = initial_state(start, settings)
    cooldown, end = (
        jnp.asarray(n, jnp.int32) for n in (settings.chunk - settings.cooldown_steps, settings.chunk)
    )
    state, seen = run_chunk(state._replace(cooldown=cooldown, end=end), start, target, settings, key)
    return start.with_flat(state.flat), seen
