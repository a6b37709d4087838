"""Where training begins: the warm start and the guide on it, in one process or told to several."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from dmvi._clock import Clock
from dmvi._interrupt import Interrupt
from dmvi._recipes import describe_base, guide_from
from dmvi._team import Message, Team
from dmvi.guides import Affine, AnyAffine, GaussianGuide, Guide, GuideRecipe, mixture
from dmvi.objectives import Weighed
from dmvi.posterior import Draws
from dmvi.targets import (
    CONTROL_VARIATES,
    Anchor,
    Derivatives,
    Target,
    anchored_at,
    corrected,
    corrected_at,
    on_all_rows,
)
from dmvi.training import Look, Progress, filled, leaves_of, look_draws
from dmvi.warmstart import (
    DENSE_DIMENSION,
    WarmStart,
    cold_start,
    high_dimensional_start,
    streamed_start,
    warm_start,
    whitened_locally,
    with_drivers,
)

STARTED = "training starts"
CHECKED = 64  # draws of the start that are weighed on all rows
AS_THEY_STAND = 64  # dimensions up to which coordinates are whitened in their own order
TRAINED_PAIRS = 600  # dimensions up to which a full triangle of the base is trained
NOTHING_TO_GAIN = 0.005  # nats between log evidence and ELBO below which training is left out


class Start(NamedTuple):
    """What training begins with.

    Attributes:
        guide: the guide before the first step.
        name: of the warm start that won.
        target: the target at its first parameters, with control variates where it has them.
        visited: separate modes that the warm start's searches ended in, for the verdict.
        weighed: draws of the guide on all rows, where they show that training has nothing to gain.
        gradients: how often the warm start evaluated the model's gradient; zero where that was not counted.
        gradient_seconds: how long one took, side by side as in training; zero where that is not known.
    """

    guide: Guide
    name: str
    target: Target
    visited: Float[np.ndarray, "modes rows dim"] | None = None
    weighed: Weighed | None = None
    gradients: int = 0
    gradient_seconds: float = 0.0

    @property
    def look(self) -> Look | None:
        """At these draws."""
        return None if self.weighed is None else Look.at(self.weighed.log_w - self.target.offset)


def begin(
    recipe: GuideRecipe,
    target: Target,
    keys: list[PRNGKeyArray],
    line: Progress,
    control_variates: bool,
    clock: Clock | None = None,
    interrupt: Interrupt | None = None,
) -> Start:
    """The recipe's guide on the warm start's Gaussian, or one on each of several."""
    clock, interrupt = clock or Clock(), interrupt or Interrupt()
    start, target = _warm(recipe, target, keys[0], line, control_variates, clock, interrupt)
    target = eqx.tree_at(lambda t: t.params, target, start.params)
    if start.modes is None:
        if control_variates and recipe.warm:
            target = with_control_variates(target, start.affine)
        affine = _kept_local(recipe, start.affine)
        guide, gradients = _with_drivers(recipe.build(affine, key=keys[1]), target, keys[1], line)
        gradients += start.gradients
        found = Start(guide, start.name, target, start.visited, None, gradients, start.gradient_seconds)
        return _weighed(found, keys[0], line) if target.subsampled and not target.params else found
    modes = start.modes
    guide = mixture(
        recipe, modes.affines, modes.log_weights, modes.unfinished, symmetry=modes.symmetry, key=keys[1]
    )
    return Start(guide, start.name, target, start.visited, None, start.gradients, start.gradient_seconds)


def _with_drivers(guide: Guide, target: Target, key: PRNGKeyArray, line: Progress) -> tuple[Guide, int]:
    """The guide with the drivers that its Gaussian shows, and the gradients that took."""
    if not guide.wants_drivers or target.stream is not None:
        return guide, 0
    line.note("which coordinates drive which")
    return with_drivers(guide, target, jr.fold_in(key, 1))


def _kept_local(recipe: GuideRecipe, affine: AnyAffine) -> AnyAffine:
    """Coordinates that keep what is local local, where there are many.

    A guide that is its Gaussian and nothing else trains all of it.
    """
    if isinstance(recipe, GaussianGuide) or affine.dim <= AS_THEY_STAND or not isinstance(affine, Affine):
        return affine
    return whitened_locally(affine, full=affine.dim <= TRAINED_PAIRS)


def _weighed(start: Start, key: PRNGKeyArray, line: Progress) -> Start:
    """The start with its weights, where these are as even as training could make them.

    On many rows a posterior is all but Gaussian, and Laplace's approximation all but exact; then steps on
    noisy batches could only lead away from it. The diagnostics then judge the guide by other draws.
    """
    line.note("a look at the warm start on all rows")
    draws = CHECKED if start.target.stream is not None else look_draws(start.target)
    weighed = Draws(start.target, start.guide).weigh(jr.fold_in(key, CHECKED), draws)
    return start._replace(weighed=weighed) if Look.at(weighed.log_w).gap < NOTHING_TO_GAIN else start


def _warm(
    recipe: GuideRecipe,
    target: Target,
    key: PRNGKeyArray,
    line: Progress,
    control_variates: bool,
    clock: Clock,
    interrupt: Interrupt,
) -> tuple[WarmStart, Target]:
    """A base of low rank in high dimension, unless a mean field was asked for."""
    full = recipe.name != "mean-field"
    if not recipe.warm:
        return cold_start(target), target
    if target.stream is not None:
        return streamed_start(target, full=full, key=key, progress=line, control_variates=control_variates)
    few = target.subsampled and (target.data_size or 0) <= CONTROL_VARIATES.rows_of_the_start
    seen = on_all_rows(target) if few else target
    if full and target.dim > DENSE_DIMENSION:
        return high_dimensional_start(seen, key=key, progress=line, clock=clock, interrupt=interrupt), target
    start = warm_start(
        seen, full=full, key=key, progress=line, mixes=recipe.mixes, clock=clock, interrupt=interrupt
    )
    return start, target


def with_control_variates(target: Target, affine: AnyAffine) -> Target:
    """The target with batches of its own corrected at the place of the warm start, where that helps."""
    if not target.subsampled:
        return target
    start = affine.untrained()
    noise = np.random.default_rng(0).standard_normal((CONTROL_VARIATES.draws, target.dim))
    draws = jax.vmap(start)(jnp.asarray(noise, jnp.result_type(float)))
    return corrected(target, np.asarray(start.anchor.value), np.asarray(draws), CONTROL_VARIATES)


def tell(start: Start, team: Team) -> None:
    """Let the other processes begin too."""
    if team.alone:
        return
    arrays = leaves_of(start.target.params, "params") | anchor_of(start.target)
    record = {"base": describe_base(start.guide), "name": start.name, "offset": start.target.offset}
    team.hear(Message(STARTED, arrays, record))


def hear(recipe: GuideRecipe, target: Target, team: Team) -> Start:
    """What the leading process begins with, whose passes over the rows are shared until then."""
    told = team.hear() if target.stream is None else target.stream.serve()
    params = filled(target.params, told.arrays, "params")
    target = eqx.tree_at(lambda t: t.params, target, params)
    if "anchor" in told.arrays:
        target = anchored(target, told.arrays["anchor"], told.record["offset"])
    return Start(guide_from(recipe, told.record["base"], target.dim), told.record["name"], target)


def anchor_of(target: Target) -> dict[str, np.ndarray]:
    """Mode, slope and Hessian of the control variates of a target, where it has them, one below the other."""
    if target.anchor is not None:
        return {"anchor": target.anchor.rows()}
    if target.stream is None or "mode" not in target.data:
        return {}
    data = target.data
    curvature = [data["curvature"]] if "curvature" in data else []
    return {"anchor": np.vstack([data["mode"], data["slope"], *curvature])}


def anchored(target: Target, anchor: np.ndarray, offset: float) -> Target:
    """The inverse of `anchor_of`."""
    if target.stream is None:
        return corrected_at(target, Anchor.of(anchor))
    curvature = anchor[2:] if len(anchor) > 2 else None
    return anchored_at(target, anchor[0], Derivatives(offset, anchor[1], curvature))
