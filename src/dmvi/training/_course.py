"""The decisions of one training run, made on the host between chunks of steps."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dmvi._run import Status
from dmvi.training._look import Look
from dmvi.training._state import Settings
from dmvi.training._stopping import PATIENCE, TOLERANCE, Plateau

COLLAPSE = 10.0  # nats below the best look at which training is taken back to it
STALLED = 0.5  # share of a chunk's updates skipped at which it is taken back too
MAX_RETURNS = 3
CLOSE = 1e-3  # nats between log evidence and ELBO at which nothing is left to gain
ANNEALING = 32_000  # steps of annealing for each nat between them, as far as the settings allow
SHORTEST = 0.3  # share of the longest annealing below which none is
NEVER = np.iinfo(np.int32).max


class Budget(NamedTuple):
    """How long training may go on: steps, of which the last ones anneal, and a clock time."""

    steps: int
    deadline: float | None


class Kept(NamedTuple):
    """A guide in whatever form the caller keeps it, and the look at it."""

    guide: Any
    look: Look


class Course:
    """Full learning rate to a plateau or a limit, annealing, and the choice of what to give back.

    Args:
        start: the guide before the first step.
        step: number of that step.
        settings: how to train.
        budget: how long.
    """

    def __init__(self, start: Kept, step: int, settings: Settings, budget: Budget):
        self._settings, self._budget = settings, budget
        self.steered = settings.objective.caution is None  # by the ELBO of looks
        self.start = self.best = start
        self.looks: list[Look] = []
        self.look_steps: list[int] = []
        self.returns = 0
        self.status: Status | None = None  # None while exploring
        self.cooldown = NEVER  # step at which annealing begins
        self.end = NEVER  # step at which it ends
        self.done = False
        self._plateau = Plateau()
        self._chunk_seconds = 0.0
        self._go_on(step)

    def open(self, look: Look) -> None:
        """Note what the start is like, before the first chunk is recorded."""
        self.start = self.best = Kept(self.start.guide, look)

    def settle(self, look: Look, step: int) -> None:
        """End before the first chunk with what there is."""
        self.open(look)
        self.looks, self.look_steps = [look], [step]
        self.status, self.done = Status.SETTLED, True
        self.cooldown = self.end = step

    @property
    def limit(self) -> int:
        """Step at which training ends as far as is known now."""
        return self._budget.steps if self.status is None else self.end

    def record(self, kept: Kept, step: int, skipped: int, seconds: float) -> bool:
        """Note what a chunk has led to; True where training has broken the guide and must go back to `best`.

        Args:
            kept: the guide after the chunk.
            step: steps done.
            skipped: updates of the chunk that were left out.
            seconds: how long the chunk took.
        """
        look, self._chunk_seconds = kept.look, seconds
        self.looks.append(look)
        self.look_steps.append(step)
        if look.elbo >= self.best.look.elbo:
            self.best = kept
        stalled = skipped > STALLED * self._settings.chunk
        broken = self.steered and (stalled or look.elbo < self.best.look.elbo - COLLAPSE)
        self.returns += broken
        if self.status is None:
            self.status = self._reason_to_anneal(look)
            if self.status is not None:
                self._anneal(step)
        elif self.steered:
            self.end = min(self.end, step + self._worthwhile())
        self._go_on(step)
        if self.steered and look.gap < CLOSE and np.isfinite(look.elbo):
            self.status, self.done = Status.CONVERGED, True
            self.cooldown, self.end = min(self.cooldown, step), step
        return broken

    def _reason_to_anneal(self, look: Look) -> Status | None:
        if self.returns > MAX_RETURNS:
            return Status.STEP_LIMIT  # too wild for the full rate: let the rate fall
        if self.steered and self._plateau.reached(look.elbo, look.error):
            return Status.CONVERGED
        return Status.TIME_LIMIT if self._out_of_time(self._cooldown_steps()) else None

    def _go_on(self, step: int) -> None:
        """Begin to anneal when only that fits in the budget; end when it is over."""
        left = self._budget.steps - step
        if self.status is None and self._settings.chunk + self._cooldown_steps() > left:
            self.status = Status.STEP_LIMIT
            self._anneal(step)
        if self.status is not None and self._out_of_time(0):
            self.status, self.done = Status.TIME_LIMIT, True
        self.done = self.done or step >= self.end

    def _anneal(self, step: int) -> None:
        """Let the rate fall from here on, as far as the budget goes."""
        left = max(self._budget.steps - step, 0)
        self.cooldown, self.end = step, step + min(self._cooldown_steps(), left)

    def _cooldown_steps(self) -> int:
        """Steps over which the rate would fall now."""
        longest = self._settings.cooldown_steps
        if not self.steered or not self.looks:
            return longest
        return min(longest, max(self._worthwhile(), self._in_chunks(SHORTEST * longest)))

    def _worthwhile(self) -> int:
        """Steps of annealing for what is left to gain by it, in whole chunks.

        What noise costs falls with the rate, and is at most the gap that is left. Where that is small, most
        of a long fall would be spent on the last hundredth of a nat.
        """
        gap = float(np.mean([look.gap for look in self.looks[-PATIENCE:]]))
        return self._in_chunks(min(ANNEALING * gap, self._settings.cooldown_steps))

    def _in_chunks(self, steps: float) -> int:
        """Whole chunks of so many steps at least, up to rounding."""
        return math.ceil(steps / self._settings.chunk - 1e-6) * self._settings.chunk

    def _out_of_time(self, steps_left: int) -> bool:
        if self._budget.deadline is None:
            return False
        left = steps_left / self._settings.chunk * self._chunk_seconds
        return time.perf_counter() + left >= self._budget.deadline

    def memory(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that was decided and seen, but for the guides, as arrays and plain values."""
        plateau = self._plateau
        arrays = {
            "looks": np.array(self.looks, float).reshape(-1, len(Look._fields)),
            "look_steps": np.array(self.look_steps, np.int64),
            "kept": np.array([self.start.look, self.best.look], float),
            "plateau": np.array([plateau.elbos, plateau.errors], float),
        }
        record = {
            "returns": int(self.returns),
            "status": None if self.status is None else self.status.name,
            "cooldown": int(self.cooldown),
            "end": int(self.end),
            "done": bool(self.done),
            "best_is_start": self.best is self.start,
        }
        return arrays, record

    def recall(
        self, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any], start: Any, best: Any
    ) -> None:
        """The inverse of `memory`, given the guides."""
        looks = [Look(*map(float, look)) for look in arrays["kept"]]
        self.start = Kept(start, looks[0])
        self.best = self.start if record["best_is_start"] else Kept(best, looks[1])
        self.looks = [Look(*map(float, look)) for look in arrays["looks"]]
        self.look_steps = [int(step) for step in arrays["look_steps"]]
        self._plateau = Plateau(*(list(map(float, values)) for values in arrays["plateau"]))
        self.returns, self.done = record["returns"], record["done"]
        self.cooldown, self.end = record["cooldown"], record["end"]
        self.status = None if record["status"] is None else Status[record["status"]]

    def chosen(self, last: Any, closely: Callable[[Any], Look] | None = None) -> Any:
        """The annealed guide, unless an earlier look or the start was better.

        Args:
            last: the annealed guide.
            closely: a closer look at a guide, for when the looks so far leave in doubt whether the start was
                better; None where there is none.
        """
        if not self.steered:
            return last
        if not self.looks:
            return self.best.guide
        guide, look = last, self.looks[-1]
        noise = 3 * np.hypot(look.error, self.best.look.error)
        if look.elbo < self.best.look.elbo - max(noise, TOLERANCE):
            guide, look = self.best
        if guide is self.start.guide or self._better_than_start(guide, look, closely):
            return guide
        return self.start.guide

    def _better_than_start(self, guide: Any, look: Look, closely: Callable[[Any], Look] | None) -> bool:
        start = self.start.look
        if closely is None:
            return look.elbo >= start.elbo
        if look.elbo - start.elbo > 3 * np.hypot(look.error, start.error):
            return True
        return closely(guide).elbo >= closely(self.start.guide).elbo

    def gap(self, guide: Any) -> float:
        """What the look at what was chosen showed; infinite where there was none."""
        looks = {id(self.start.guide): self.start.look, id(self.best.guide): self.best.look}
        look = looks.get(id(guide), self.looks[-1] if self.looks else self.start.look)
        return look.gap if np.isfinite(look.elbo) else np.inf

    def reason(self, guide: Any, step: int, skipped: int) -> Status:
        """Why training ended, given what was chosen."""
        if 2 * skipped > step:
            return Status.DIVERGED
        status = self.status if self.done and self.status is not None else Status.INTERRUPTED
        if guide is not self.start.guide or status in (Status.INTERRUPTED, Status.SETTLED):
            return status
        return Status.WARM_START
