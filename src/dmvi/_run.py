"""What happened during a fit: the record that training hands to the posterior."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float


class Status(enum.Enum):
    """Why training ended; each value is the sentence shown to the user."""

    CONVERGED = "the ELBO reached a plateau"
    STEP_LIMIT = "the step limit was reached before a plateau"
    TIME_LIMIT = "the time limit was reached before a plateau"
    INTERRUPTED = "training was interrupted; the best fit so far was kept"
    DIVERGED = "too many updates were not finite; the best fit so far was kept"
    WARM_START = "training did not improve on the warm start, which was kept"
    SETTLED = "the warm start left training nothing to gain and was kept"


def no_modes() -> Float[np.ndarray, "modes rows dim"]:
    """What stands for `visited` where searches did not end in several modes."""
    return np.zeros((0, 1, 0))


@dataclass(frozen=True)
class Run:
    """Record of one fit.

    Attributes:
        status: why training ended.
        steps: optimiser steps of the guide that were run.
        seconds: wall time of the fit, compilation and warm start included.
        skipped: updates left out because they were not finite.
        history: smoothed training ELBO, one value per chunk of steps.
        history_steps: step at which each value of `history` ends.
        warm_start: name of the start that won ("laplace", "mean-field", "full-rank").
        guide_name: name of the guide ("diffusion", "chain", "full-rank", "mean-field").
        seed: seed of the fit.
        settings: how the fit was made, in values that JSON can hold.
        visited: separate modes that the warm start's searches ended in, where there were several: the place
            of each, and below it the scale S of its Gaussian N(place, S S^T).
        gradients: evaluations of the model's gradient, or of its density alone, by warm start and training.
        gradient_seconds: how long one took in training; zero where that is not known.
        stage_seconds: wall time of the stages, by name.
    """

    status: Status
    steps: int
    seconds: float
    skipped: int
    history: np.ndarray
    history_steps: np.ndarray
    warm_start: str
    guide_name: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    visited: Float[np.ndarray, "modes rows dim"] = field(default_factory=no_modes)
    gradients: int = 0
    gradient_seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
