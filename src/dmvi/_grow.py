"""The first training is a pilot; a guide that it shows too small grows and goes on."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from dmvi._choice import CHOICE
from dmvi._clock import Clock
from dmvi._random import children
from dmvi._run import Status
from dmvi._start import Start
from dmvi.guides import LARGEST_GROWN, Guide, GuideRecipe, LowRankAffine, Mixture, SparseAffine, mixture
from dmvi.targets import Target
from dmvi.training import Outcome, Progress
from dmvi.warmstart import overlapping_modes

GAP_OF_MANY = 0.5  # the same where a guide has too many coordinates to grow: weights of less can be mended
LARGEST_GAP = 5.0  # nats; what leaves more there is not mended by more of the same
MANY = 500  # coordinates up to which a second training of the same guide takes no minutes
GAP = 0.1  # nats between log evidence and ELBO, after training, from which the guide is too small
GAP_OF_LABELLINGS = 0.03  # the same where labels may change places, and modes that overlap are to be expected
FEWEST_STEPS = 1000  # after fewer a gap says more of training than of the guide
LONGEST_PILOT = 120.0  # seconds; a second training takes several times as long
MORE_PARTICLES = 4  # factor: what a small guide left is seen through less noise
ENOUGH_PARTICLES = 128  # that it does not go beyond
SHARED = 0.3  # factor of the learning rate where many Gaussians share the draws of a step


def more_particles(particles: int) -> int:
    """Those of the second training: a multiple, so that devices still divide it."""
    return particles * max(1, min(MORE_PARTICLES, ENOUGH_PARTICLES // particles))


class Pilot(NamedTuple):
    """What is kept of the first training once the guide has grown.

    Attributes:
        history: its looks' ELBOs.
        history_steps: the steps after which they were taken.
        skipped: updates left out.
        gap: nats it left.
        status: why it ended.
        gradients: evaluations it took.
    """

    history: np.ndarray
    history_steps: np.ndarray
    skipped: int
    gap: float
    status: Status
    gradients: int = 0

    @classmethod
    def of(cls, outcome: Outcome) -> "Pilot":
        """What there is to keep of it."""
        kept = outcome.history, outcome.history_steps, outcome.skipped, outcome.gap, outcome.status
        return cls(*kept, outcome.gradients)

    @property
    def steps(self) -> int:
        """How many it took."""
        return int(self.history_steps[-1])

    def memory(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """As arrays and plain values."""
        arrays = {"pilot_history": self.history, "pilot_steps": self.history_steps}
        record = {"skipped": int(self.skipped), "gap": float(self.gap), "status": self.status.name}
        return arrays, {**record, "gradients": int(self.gradients)}

    @classmethod
    def recalled(cls, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any]) -> "Pilot":
        """The inverse of `memory`."""
        history, steps = arrays["pilot_history"], arrays["pilot_steps"]
        status = Status[record["status"]]
        return cls(history, steps, record["skipped"], record["gap"], status, record["gradients"])

    def then(self, outcome: Outcome) -> Outcome:
        """Both trainings as one."""
        unchanged = outcome.status is Status.WARM_START
        return outcome._replace(
            status=self.status if unchanged else outcome.status,
            steps=self.steps + outcome.steps,
            skipped=self.skipped + outcome.skipped,
            gradients=self.gradients + outcome.gradients,
            history=np.concatenate([self.history, outcome.history]),
            history_steps=np.concatenate([self.history_steps, self.steps + outcome.history_steps]),
        )


class Grown(NamedTuple):
    """A larger guide to go on with, its recipe, and the pilot that asked for it.

    `pace` is a factor of the learning rate; below one the guide does not begin where the pilot's ended.
    """

    recipe: GuideRecipe
    start: Start
    pilot: Pilot
    pace: float = 1.0


def grown(
    recipe: GuideRecipe,
    start: Start,
    outcome: Outcome,
    *,
    particles: int,
    seconds: float,
    clock: Clock,
    key: PRNGKeyArray,
    progress: Progress,
) -> Grown | None:
    """A larger guide where the first training left a gap; None where that is small or nothing would help.

    A guide of too many coordinates to grow is trained on as it is, with more particles. Where the warm
    start's searches ended in several modes it may be a guide on each of many Gaussians.

    Args:
        recipe: of the first guide.
        start: what its training began with.
        outcome: how its training ended.
        particles: draws of its steps.
        seconds: how long it took.
        clock: of the fit.
        key: random key.
        progress: told of what takes a while.
    """
    if seconds > min(LONGEST_PILOT, clock.left):
        return None
    ended = outcome.status in (Status.CONVERGED, Status.STEP_LIMIT) and outcome.steps >= FEWEST_STEPS
    guide = outcome.guide
    labelled = isinstance(guide, Mixture) and guide.symmetry is not None
    large = outcome.gap > (GAP_OF_LABELLINGS if labelled else GAP)
    if not ended or not large or not _has_weights(start.target):
        return None
    # A mixture over separate modes has a guide on each already; one of a few labellings may need more.
    if recipe.mixes and (labelled or not isinstance(guide, Mixture)):
        if start.visited is not None:
            progress.note(f"{outcome.gap:.2g} nats were left and there are several modes; Gaussians for them")
        several = _on_many_gaussians(recipe, start, outcome, clock.deadline, jr.fold_in(key, 2))
        if several is not None:
            return several
    larger = larger_guide(recipe, guide, jr.fold_in(key, 1))
    if larger is None:
        again = GAP_OF_MANY < outcome.gap < LARGEST_GAP and more_particles(particles) > particles
        again = again and guide.dim <= MANY and not isinstance(guide, Mixture)
        larger = (recipe, guide) if again else None
    return larger and Grown(larger[0], start._replace(guide=larger[1]), Pilot.of(outcome))


def larger_guide(recipe: GuideRecipe, guide: Guide, key: PRNGKeyArray) -> tuple[GuideRecipe, Guide] | None:
    """A larger guide that begins as this one; of one in several labellings, the guide they share grows."""
    if not isinstance(guide, Mixture):
        return recipe.grown(guide, key=key)
    if guide.log_weights.value.shape[0] > 1:
        return None
    alone = recipe.grown(
        jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, guide.components), key=key
    )
    if alone is None:
        return None
    stacked = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, alone[1])
    return alone[0], eqx.tree_at(lambda mixture: mixture.components, guide, stacked)


def _on_many_gaussians(
    recipe: GuideRecipe, start: Start, outcome: Outcome, deadline: float, key: PRNGKeyArray
) -> Grown | None:
    """The guide on each of many Gaussians, where these alone come near what the first training led to."""
    fit_key, build_key = children(key, 2)
    best = float(np.max(outcome.history))
    modes = overlapping_modes(start.target, start.visited, single=best, deadline=deadline, key=fit_key)
    if modes is None:
        return None
    guide = mixture(
        recipe, modes.affines, modes.log_weights, modes.unfinished, symmetry=modes.symmetry, key=build_key
    )
    name = modes.title.replace("mode", "gaussian")
    return Grown(recipe, start._replace(guide=guide, name=name), Pilot.of(outcome), pace=SHARED)


def _has_weights(target: Target) -> bool:
    """Whether weights in training are those of the posterior: not on batches, nor with params to learn."""
    return not (target.subsampled or target.params)


def chosen(start: Start, pilot: Pilot | None) -> str:
    """One line on what "auto" has chosen and why."""
    guide, dim = start.guide, start.guide.dim
    network = "projected and triangular" if dim <= CHOICE.few else "projected and sparsely bent"
    if isinstance(guide, Mixture):
        modes = guide.log_weights.value.shape[0]
        why = "searches ended in several modes"
        if pilot is not None:
            why = f"there are several modes and {pilot.gap:.2g} nats were left"
        base = "one Gaussian" if modes == 1 else f"each of {modes} Gaussians"
        if guide.symmetry is not None:
            base += f" and its images in {guide.symmetry.order} labellings"
        return f"a {network} diffusion on {base}, as {why}"
    affine = getattr(guide, "affine", None)
    base = "a full covariance"
    if isinstance(affine, LowRankAffine):
        base = "a diagonal and a few directions"
    if isinstance(affine, SparseAffine):
        base = "a sparse precision"
    text = f"a {network} diffusion on {base}, for {dim:,} dimensions"
    if start.target.subsampled:
        text += " and rows in batches"
    if pilot is None:
        return text
    how = "grown by triangular steps and" if dim <= LARGEST_GROWN else "trained on with more"
    return f"{text}; {how} particles, as {pilot.gap:.2g} nats were left"
