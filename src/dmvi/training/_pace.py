"""How fast training goes, and how many steps one program may therefore take."""

from dataclasses import dataclass

from dmvi._clock import Clock


@dataclass(frozen=True)
class Timing:
    """How training keeps to a time limit, and how soon it answers Ctrl-C.

    Attributes:
        program_seconds: longest run of one program, as nothing is heard while it runs.
        program_share: the same as a share of the time that is left, by which training may run over.
        tried: steps of the second program, by which speed is measured; the first also compiles.
        fewest_seconds: with less time left training is not begun, since its program takes seconds to compile.
        fewest_steps: fewer are not begun, since the learning rate only begins to rise in so many.
        doubt: factor by which a step may be faster than the warm start's gradients let expect.
        shortest_chunk: steps from which the draws of a chunk tell something of its ELBO.
        quiet: largest standard error, in nats, of a look by which a training of shorter chunks may be seen to
            have reached its plateau; of few draws everything looks like one.
        look_share: share of the time left that one look at fresh draws may take.
        fewest_looked: draws that it takes nevertheless.
        later_share: largest share of the time left that is kept for what comes after training.
        later_programs: seconds of compiling after training, as a multiple of those of training.
    """

    program_seconds: float = 1.0
    program_share: float = 0.05
    tried: int = 4
    fewest_seconds: float = 5.0
    fewest_steps: int = 100
    doubt: float = 4.0
    shortest_chunk: int = 10
    quiet: float = 0.02
    look_share: float = 0.02
    fewest_looked: int = 100
    later_share: float = 0.3
    later_programs: float = 1.0


class Pace:
    """Seconds of a step, as the programs of a training have shown them.

    Attributes:
        seconds: of a step; None before a program has shown it.
        compiling: seconds that the first program took beside its steps; zero before that is known.
    """

    def __init__(self, timing: Timing, clock: Clock):
        self._timing, self._clock = timing, clock
        self._first: tuple[int, float] | None = None
        self._last = 0
        self.seconds: float | None = None
        self.compiling = 0.0

    def steps(self, left: int) -> int:
        """How many of the steps that are left the next program takes."""
        if self._first is None:
            return 1
        if self.seconds is None:
            return min(self._timing.tried, left)
        allowed = min(self._timing.program_seconds, self._clock.share(self._timing.program_share))
        return max(1, min(left, int(allowed / max(self.seconds, 1e-9))))

    def note(self, steps: int, seconds: float) -> None:
        """A program has taken so many steps in so many seconds."""
        if self._first is None:
            self._first = (steps, seconds)
            return
        if self.seconds is None or steps >= self._last:  # many steps tell more than few
            self.seconds, self._last = seconds / steps, steps
        first_steps, first_seconds = self._first
        self.compiling = max(0.0, first_seconds - first_steps * self.seconds)
