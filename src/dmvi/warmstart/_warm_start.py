"""The Gaussian a guide starts from, and with it the coordinates its optimiser sees."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._clock import Clock
from dmvi._interrupt import Interrupt
from dmvi._random import children
from dmvi.guides import Affine, AnyAffine, anchored
from dmvi.targets import Target
from dmvi.training import Progress
from dmvi.warmstart._candidates import Candidates, find_candidates
from dmvi.warmstart._climb import Climber, Reached
from dmvi.warmstart._effort import EffortSettings, device, effort_of
from dmvi.warmstart._laplace import Mode, Surface
from dmvi.warmstart._modes import LARGEST_DIM, modes_apart, proper, separate_modes
from dmvi.warmstart._symmetries import symmetry_of
from dmvi.warmstart._threads import small_matrices
from dmvi.warmstart._weighed import Modes, in_all_labellings
from dmvi.warmstart._whitening import triangle


class WarmStart(NamedTuple):
    """Whitened coordinates, the name of the start that gave them and generative parameters on the way.

    `modes` are there where a mixture of Gaussians, one for each of several separate modes, is better.
    `visited` are modes that searches ended in, for the verdict: any guide has to have some draws near them.
    `gradients` of the log-density were evaluated; one took `gradient_seconds`
    of many side by side. `elbo` is that of one Gaussian, as the last draws told it.
    """

    affine: AnyAffine
    name: str
    params: dict[str, Array]
    modes: Modes | None = None
    visited: Float[np.ndarray, "modes rows dim"] | None = None
    gradients: int = 0
    elbo: float = -np.inf
    gradient_seconds: float = 0.0


def warm_start(
    target: Target,
    *,
    full: bool,
    key: PRNGKeyArray,
    progress: Progress,
    mixes: bool = False,
    roughly: bool = False,
    clock: Clock | None = None,
    interrupt: Interrupt | None = None,
) -> WarmStart:
    """The best Gaussian by natural gradients from Laplace at a few modes, Pathfinder's, the prior and others.

    Args:
        target: what to approximate.
        full: full-rank or mean-field.
        key: random key.
        progress: told of the stage.
        mixes: whether a mixture is of use, so that separate modes are looked for.
        roughly: whether a mean field near its plateau is enough, as a better Gaussian goes on from it.
        clock: of the fit.
        interrupt: asked between programs whether to end with the best so far.
    """
    progress.note("warm start")
    clock, interrupt, bounds = clock or Clock(), interrupt or Interrupt(), EffortSettings()
    start_key, fit_key = children(key, 2)
    searching = clock.within(clock.share(bounds.searching))
    surface = Surface(target, stop=lambda: interrupt.asked or searching.over)
    effort = effort_of(surface, clock, bounds)
    with small_matrices(surface):
        found = find_candidates(
            target, surface, effort, start_key, lambda text: progress.note(f"warm start: {text}")
        )
    climbing = clock.within(clock.share(bounds.climbing))
    climber = Climber(target, effort, fit_key, progress, lambda: interrupt.asked or climbing.over)
    reached = climber.roughly(found) if roughly else climber.best_of(found, full=full)
    loc, scale = reached.loc, (triangle(reached.scale) if full else np.abs(reached.scale))
    affine = anchored(device(loc), device(scale), full=full)
    start = WarmStart(affine, reached.name, reached.params, elbo=reached.elbo)
    searching = clock.within(clock.share(bounds.searching))
    if not target.params and not surface.stop():
        start = _with_what_was_found(start, target, surface, found, reached, climber, mixes=mixes, key=key)
    return start._replace(
        gradients=surface.gradients + climber.gradients, gradient_seconds=climber.gradient_seconds
    )


def _with_what_was_found(
    start: WarmStart,
    target: Target,
    surface: Surface,
    found: Candidates,
    reached: Reached,
    climber: Climber,
    *,
    mixes: bool,
    key: PRNGKeyArray,
) -> WarmStart:
    """With the modes that searches ended in, and with a mixture where that is better."""
    with small_matrices(surface):
        known = [] if target.subsampled else proper(surface, found.modes)
        start = start._replace(visited=modes_apart(known))
        if mixes:
            start = _with_modes(start, target, surface, found.modes, known, single=reached.elbo, key=key)
    if start.visited is not None and not (mixes and target.dim <= LARGEST_DIM):
        start = start._replace(visited=climber.fitted(start.visited))
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


def cold_start(target: Target) -> WarmStart:
    """The target's own coordinates, for guides that begin from nothing else."""
    zeros = np.zeros(target.dim, jnp.result_type(float))
    affine = anchored(jnp.asarray(zeros), jnp.asarray(zeros + 1), full=False)
    return WarmStart(affine, "none", target.params)
