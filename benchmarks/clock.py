"""A default fit whose looks are noted as they are made."""

import time
from collections.abc import Callable
from typing import NamedTuple

import dmvi
from dmvi import _fit
from dmvi.training import Silent


class Seen(NamedTuple):
    """One look: when it was made, after how many steps, and what it showed."""

    moment: float
    step: int
    elbo: float
    gap: float


class Clock(Silent):
    """Notes when each look was made and what it showed."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.looks: list[Seen] = []

    def update(self, step: int, total: int, elbo: float, gap: float) -> None:
        """Called at every look."""
        self.looks.append(Seen(time.perf_counter(), step, elbo, gap))


def timed(fit: Callable[[], dmvi.Posterior]) -> tuple[dmvi.Posterior, Clock]:
    """What a call of `dmvi.fit` gives, and its looks."""
    clock, shown = Clock(), _fit.progress_for
    _fit.progress_for = lambda show: clock
    try:
        return fit(), clock
    finally:
        _fit.progress_for = shown
