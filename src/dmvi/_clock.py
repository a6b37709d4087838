"""The seconds of one fit, which all of its stages share."""

import math
import time
from collections.abc import Callable


class Clock:
    """How long a fit has run, and how long it may go on.

    Args:
        limit: seconds for the whole fit; None for no limit.
        now: what tells the time, in seconds.
        used: seconds that an interrupted run of the same fit has taken already.
    """

    def __init__(
        self, limit: float | None = None, now: Callable[[], float] = time.perf_counter, used: float = 0.0
    ):
        self.limit = math.inf if limit is None else limit
        self._now = now
        self._began = now() - used

    @property
    def seconds(self) -> float:
        """Since the fit began, with those of an interrupted run."""
        return self._now() - self._began

    @property
    def left(self) -> float:
        """Seconds up to the limit, at least zero; infinite without one."""
        return max(0.0, self.limit - self.seconds)

    @property
    def over(self) -> bool:
        """Whether the limit has been reached."""
        return self.seconds >= self.limit

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self.limit)

    @property
    def deadline(self) -> float:
        """The time at which the limit is reached, as `now` tells it."""
        return self._began + self.limit

    def share(self, fraction: float) -> float:
        """Seconds of a fraction of what is left; infinite without a limit."""
        return fraction * self.left

    def within(self, seconds: float) -> "Clock":
        """The same clock for a part of the fit that has to end so many seconds from now, or at the limit."""
        return self._until(min(self.limit, self.seconds + seconds))

    def reserving(self, seconds: float) -> "Clock":
        """The same clock with a limit that comes so many seconds earlier, which later stages need."""
        return self._until(self.limit - seconds)

    def after(self, used: float) -> "Clock":
        """The same clock where an interrupted run has taken so many seconds more."""
        other = self._until(self.limit)
        other._began = self._began - used
        return other

    def _until(self, limit: float) -> "Clock":
        other = Clock(limit, self._now)
        other._began = self._began
        return other
