"""The decisions of one training run, made on the host between chunks of steps."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dmvi._clock import Clock
from dmvi._run import Status
from dmvi.training._look import Look
from dmvi.training._pace import Pace, Timing
from dmvi.training._state import Settings
from dmvi.training._stopping import PATIENCE, TOLERANCE, Plateau

COLLAPSE = 10.0  # nats below the best look at which training is taken back to it
STALLED = 0.5  # share of a chunk's updates skipped at which it is taken back too
MAX_RETURNS = 3
CLOSE = 1e-3  # nats between log evidence and ELBO at which nothing is left to gain
ANNEALING = 32_000  # steps of annealing for each nat between them, as far as the settings allow
SHORTEST = 0.3  # share of the longest annealing below which none is
NEVER = int(np.iinfo(np.int32).max)
_SAID_OF_THE_START_TOO = (Status.INTERRUPTED, Status.SETTLED, Status.TIME_LIMIT)


class Budget(NamedTuple):
    """How long training may go on.

    Attributes:
        steps: most steps, of which the last ones anneal.
        clock: of the whole fit.
        later_draws: draws that are weighed after training, for which time is kept.
        gradient_seconds: that one gradient took in the warm start; zero where that is not known.
        timing: how a time limit is kept.
    """

    steps: int
    clock: Clock = Clock()
    later_draws: int = 0
    gradient_seconds: float = 0.0
    timing: Timing = Timing()


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
        self._settings, self._budget, self._clock = settings, budget, budget.clock
        self._begun = self.recorded = step
        self.chunk, self._longest = settings.chunk, settings.cooldown_steps  # shorter where time is short
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
        self._pace = 0.0  # seconds of a step, looks included
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

    def plan(self, pace: Pace, step: int) -> None:
        """Fit training into the time that is left, once the cost of a step is known.

        What comes after training has its share kept. The steps for which there is time are divided as those
        of a whole training would be; where they are too few to lead anywhere, the start is kept.
        """
        if not self._budget.clock.limited or pace.seconds is None:
            return
        timing, left = self._budget.timing, self._budget.clock.left
        later = timing.later_programs * pace.compiling
        later += self._budget.later_draws * pace.seconds / self._settings.particles
        self._clock = self._budget.clock.reserving(min(later, timing.later_share * left))
        self._pace = pace.seconds
        whole = self._budget.steps - self._begun
        steps = step - self._begun + self._affordable()
        if steps < min(timing.fewest_steps, whole):
            self._leave(step)
            return
        share = min(1.0, steps / whole)
        shortest = min(timing.shortest_chunk, self._settings.chunk)
        self.chunk = max(shortest, round(share * self._settings.chunk))
        self._longest = round(share * self._settings.cooldown_steps)

    def begin_in_time(self) -> None:
        """Keep the start where there is clearly no time for a training that leads anywhere."""
        budget, timing = self._budget, self._budget.timing
        if self.done or not budget.clock.limited:
            return
        step_seconds = budget.gradient_seconds * self._settings.particles / timing.doubt
        left, fewest = budget.clock.left, min(timing.fewest_steps, budget.steps - self._begun)
        if left < max(timing.fewest_seconds, fewest * step_seconds):
            self._leave(self.recorded)

    def _leave(self, step: int) -> None:
        self.status, self.done = Status.TIME_LIMIT, True
        self.cooldown = self.end = step

    def goal(self, step: int) -> int:
        """Steps of the chunk that begins at a step; none where training is over."""
        return 0 if self.done or self._clock.over else max(1, min(self.chunk, self.limit - step))

    def end_in_time(self) -> None:
        """End with what was recorded where there is no time for more."""
        if self._clock.over and not self.done:
            self.status, self.done = Status.TIME_LIMIT, True

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
        look, steps = kept.look, step - self.recorded
        self.recorded, self._pace = step, seconds / max(steps, 1)
        self.looks.append(look)
        self.look_steps.append(step)
        if np.isfinite(look.worth) and look.worth >= self.best.look.worth:
            self.best = kept
        stalled = skipped > STALLED * steps
        broken = self.steered and (stalled or look.worth < self.best.look.worth - COLLAPSE)
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
        quiet = self.chunk == self._settings.chunk or look.error <= self._budget.timing.quiet
        if self.steered and self._plateau.reached(look.elbo, look.error) and quiet:
            return Status.CONVERGED
        return None

    def _go_on(self, step: int) -> None:
        """Begin to anneal when only that fits in the budget; end when it is over."""
        left, in_time = self._budget.steps - step, self._affordable()
        if self.status is None and self.chunk + self._cooldown_steps() > min(left, in_time):
            self.status = Status.TIME_LIMIT if in_time < left else Status.STEP_LIMIT
            self._anneal(step)
        elif self.status is not None:
            self.end = min(self.end, step + in_time)
        if self.status is not None and self._clock.over:
            self.status, self.done = Status.TIME_LIMIT, True
        self.done = self.done or step >= self.end

    def _anneal(self, step: int) -> None:
        """Let the rate fall from here on, as far as the budget goes."""
        left = max(min(self._budget.steps - step, self._affordable()), 0)
        self.cooldown, self.end = step, step + min(self._cooldown_steps(), left)

    def _affordable(self) -> int:
        """Steps for which there is time."""
        left = self._clock.left
        return NEVER if left > NEVER * self._pace else int(left / max(self._pace, 1 / NEVER))

    def _cooldown_steps(self) -> int:
        """Steps over which the rate would fall now."""
        if not self.steered or not self.looks:
            return self._longest
        return min(self._longest, max(self._worthwhile(), self._in_chunks(SHORTEST * self._longest)))

    def _worthwhile(self) -> int:
        """Steps of annealing for what is left to gain by it, in whole chunks.

        What noise costs falls with the rate, and is at most the gap that is left. Where that is small, most
        of a long fall would be spent on the last hundredth of a nat.
        """
        gap = float(np.mean([look.gap for look in self.looks[-PATIENCE:]]))
        return self._in_chunks(min(ANNEALING * gap, self._longest))

    def _in_chunks(self, steps: float) -> int:
        """Whole chunks of so many steps at least, up to rounding."""
        return math.ceil(steps / self.chunk - 1e-6) * self.chunk

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
            "chunk": int(self.chunk),
            "longest": int(self._longest),
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
        self.chunk, self._longest = record["chunk"], record["longest"]
        self.recorded = self.look_steps[-1] if self.look_steps else self.recorded
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
        look, best = self.looks[-1], self.best
        # What one draw has made uncertain by far is no reason to prefer it.
        noise = 3 * np.hypot(min(look.error, best.look.error), best.look.error)
        found = [best]
        if np.isfinite(look.elbo) and look.worth >= best.look.worth - max(noise, TOLERANCE):
            found = [Kept(last, look), best]
        for kept in found:
            if kept.guide is self.start.guide or self._better_than_start(kept.guide, kept.look, closely):
                return kept.guide
        return self.start.guide

    def _better_than_start(self, guide: Any, look: Look, closely: Callable[[Any], Look] | None) -> bool:
        start = self.start.look
        if closely is None:
            return look.worth >= start.worth and np.isfinite(look.worth)
        if np.isfinite(look.elbo) and look.worth - start.worth > 3 * np.hypot(look.error, start.error):
            return True
        found = closely(guide).worth
        return bool(np.isfinite(found)) and found >= closely(self.start.guide).worth

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
        if guide is not self.start.guide or status in _SAID_OF_THE_START_TOO:
            return status
        return Status.WARM_START
