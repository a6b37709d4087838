"""How long jobs take, in seconds of one core: measured once, stated before a run, corrected as it goes."""

from collections.abc import Iterable

from dmvi.paper._cells import Job
from dmvi.paper._methods import METHODS
from dmvi.paper._published import BATCH, Recipe

STARTING = 8.0  # a process and its imports
COMPILING = {"gaussian": 4.0, "flow": 6.0, "diffusion": 10.0}
# Of one replicate's step: milliseconds, for a diffusion those of each evaluation of its network.
STEP = {"gaussian": 0.01, "flow": 0.07, "diffusion": 0.017}
AFTER = {"gaussian": 1.0, "flow": 2.0, "diffusion": 1.0}  # draws, weights and scores of one replicate
FIT = {
    "exact": 0.5,
    "nuts": 14.0,
    "diffusion": 11.0,
    "chain": 18.0,
    "advi": 5.0,
    "full-rank": 6.5,
    "nfvi": 10.0,
}
LARGE = 2.0  # factor of fits to a thousand rows
MIXTURE = 2.0  # factor of fits to the mixture
MODES = 9.0  # and of those that look for all of its modes, at any size
AGREEMENT, AGREEMENT_LARGE = 4.0, 13.0  # and of chains of NUTS to it, which take long to agree


def expected_seconds(job: Job) -> float:
    """Seconds of one core that a job is expected to take."""
    recipe = METHODS[job.method].published
    if recipe is None:
        large = job.n > 500
        factor = LARGE if large else 1.0
        if job.model == "mixture" and job.method == "nuts":
            factor *= AGREEMENT_LARGE if large else AGREEMENT
        elif job.model == "mixture":
            factor = MODES if job.method == "diffusion" else factor * MIXTURE
        return len(job.replicates) * FIT[job.method] * factor
    steps = job.epochs * -(-job.n // BATCH)
    each = 1e-3 * steps * STEP[recipe.kind] * _evaluations(recipe) + AFTER[recipe.kind]
    return COMPILING[recipe.kind] + len(job.replicates) * each


def _evaluations(recipe: Recipe) -> int:
    """Evaluations of the network in a step: those of a draw and one of the loss."""
    return recipe.steps + 1 if recipe.kind == "diffusion" else 1


def total_seconds(jobs: Iterable[Job]) -> float:
    """Seconds of one core that jobs are expected to take together."""
    return sum(expected_seconds(job) for job in jobs)


def spoken(seconds: float) -> str:
    """A duration as one says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
