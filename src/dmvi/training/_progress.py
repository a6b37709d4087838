"""The live line shown while training."""

import abc
import math
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text


class Progress(abc.ABC):
    """Told what training does; shows it or not."""

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """A stage without steps of its own has begun."""

    def stage(self, name: str, *, elbo: float = -math.inf, left: float = math.inf) -> None:
        """A stage goes on: its best ELBO so far and the seconds left, where these are known."""
        parts = [name, f"ELBO {elbo:.3f}" if math.isfinite(elbo) else ""]
        parts.append(f"time left {left:.0f} s" if math.isfinite(left) else "")
        self.note("  ".join(part for part in parts if part))

    @abc.abstractmethod
    def remark(self, text: str) -> None:
        """Something to know that stays, whatever comes next."""

    @abc.abstractmethod
    def update(self, step: int, total: int, elbo: float, gap: float) -> None:
        """`step` of at most `total` steps are done at a smoothed ELBO, `gap` nats below the log evidence.

        The gap is NaN where draws do not show it.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Training is over."""


class Silent(Progress):
    """Shows nothing."""

    def note(self, text):
        pass

    def remark(self, text):
        pass

    def update(self, step, total, elbo, gap):
        pass

    def close(self):
        pass


class Line(Progress):
    """One line on the terminal: step, smoothed ELBO, gap to the evidence, time left at the present speed."""

    def __init__(self):
        from rich.console import Console  # takes a tenth of a second to import
        from rich.live import Live

        # stderr keeps the line out of redirected results; without a terminal only the last line is printed.
        self._live = Live(console=Console(file=sys.stderr), refresh_per_second=8, transient=False)
        self._live.start()
        self._first: tuple[int, float] | None = None

    def note(self, text):
        self._show(f"dmvi  {text}")

    def remark(self, text):
        self._live.console.print(_plain(f"dmvi  {text}"))

    def update(self, step, total, elbo, gap):
        now = time.perf_counter()
        if self._first is None:
            self._first = (step, now)
        first_step, first_time = self._first
        left = "estimating"
        if step > first_step:
            left = f"{(total - step) * (now - first_time) / (step - first_step):.0f} s"
        short = "" if math.isnan(gap) else f"  gap {gap:.3f}"
        self._show(f"dmvi  step {step}/{total}  ELBO {elbo:.3f}{short}  time left {left}")

    def close(self):
        self._live.stop()

    def _show(self, text: str) -> None:
        self._live.update(_plain(text))


def _plain(text: str) -> "Text":
    """Text in which square brackets mean nothing."""
    from rich.text import Text

    return Text(text)


def progress_for(show: bool) -> Progress:
    """The live line, or silence."""
    return Line() if show else Silent()
