"""A training within a time limit, by a clock that tests move, and one that is asked to stop."""

import math

import jax
import jax.random as jr
import numpy as np
import pytest

from dmvi import Status
from dmvi._clock import Clock
from dmvi._interrupt import Interrupt
from dmvi.objectives import CoveringELBO
from dmvi.training import Budget, Outcome, Pace, Settings, Silent, Timing, Trainer, default_optimizer
from dmvi.training._chunks import Chunks
from tests.guides.registry import target, untrained
from tests.test_clock import Hands

CHUNK, COOLDOWN, STEPS, PARTICLES = 50, 200, 800, 16
SETTINGS = Settings(CoveringELBO(), default_optimizer(2e-2), PARTICLES, CHUNK, COOLDOWN)
COMPILING = 3.0


def test_pace_tells_compiling_from_steps_and_keeps_programs_short():
    hands = Hands()
    pace = Pace(Timing(program_seconds=1.0, program_share=0.05, tried=4), Clock(100.0, hands))
    assert pace.steps(50) == 1
    pace.note(1, 3.1)
    assert (pace.seconds, pace.steps(49), pace.steps(2)) == (None, 4, 2)
    pace.note(4, 0.4)
    assert pace.seconds == pytest.approx(0.1)
    assert pace.compiling == pytest.approx(3.0)
    assert (pace.steps(49), pace.steps(7)) == (10, 7)
    hands.at += 90.0  # of the ten seconds left a program may take half a second
    assert pace.steps(49) == 5
    hands.at += 10.0
    assert pace.steps(49) == 1


@pytest.fixture
def costly(monkeypatch):
    """Lets steps and the first program take time on a clock of the test."""
    hands, cost = Hands(), {"step": 0.0}
    part, programs = Chunks.part, []

    def timed(self, state, trained, begin, count):
        hands.at += count * cost["step"] + (0.0 if programs else COMPILING)
        programs.append(count)
        return part(self, state, trained, begin, count)

    monkeypatch.setattr(Chunks, "part", timed)

    def train(step: float, limit: float | None, *, draws: int = 0, stop: Interrupt | None = None) -> Outcome:
        cost["step"] = step
        budget = Budget(STEPS, Clock(limit, hands), draws)
        began = hands.at
        trainer = Trainer(
            untrained("projected"),
            target("funnel"),
            SETTINGS,
            budget,
            key=jr.key(0),
            progress=Silent(),
            stop=stop,
        )
        found = trainer.run()
        train.seconds = hands.at - began
        train.programs = list(programs)
        return found

    return train


def test_slow_steps_are_cut_into_short_programs_with_the_same_result(costly):
    slow = costly(0.125, None)
    assert costly.seconds == COMPILING + 0.125 * slow.steps
    assert max(costly.programs) == 8
    assert slow.gradient_seconds == pytest.approx(0.125 / PARTICLES)
    quick = costly(1e-6, None)
    assert max(costly.programs) == CHUNK
    np.testing.assert_array_equal(slow.history, quick.history)
    for left, right in zip(jax.tree.leaves(slow.guide), jax.tree.leaves(quick.guide), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("limit", [25.0, 40.0])
def test_a_shorter_training_is_divided_as_a_whole_one(costly, limit):
    """It anneals in time, and leaves time for the draws that are weighed after it."""
    found = costly(0.1, limit)
    assert costly.seconds <= limit
    assert costly.seconds > 0.6 * limit
    assert found.status in (Status.TIME_LIMIT, Status.CONVERGED)
    assert found.history[-1] > found.history[0]
    assert np.all(np.diff(found.history_steps) < CHUNK)  # more looks than whole chunks would give
    assert found.gradients >= found.steps * PARTICLES
    costly(0.1, limit, draws=10_000)
    kept = Timing().later_share * (limit - COMPILING - 0.5)
    assert 0.4 * limit < costly.seconds <= limit - kept + Timing().program_seconds


def test_too_few_steps_are_not_begun(costly):
    found = costly(1.0, 60.0)
    assert (found.status, found.steps) == (Status.TIME_LIMIT, 0)
    assert costly.seconds < 10.0
    assert found.gradients == 5 * PARTICLES
    start = untrained("projected")
    for left, right in zip(jax.tree.leaves(found.guide), jax.tree.leaves(start), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_training_that_the_warm_start_shows_too_slow_compiles_nothing(costly):
    for seconds, limit in ((1.0, 60.0), (0.0, 4.0)):
        budget = Budget(STEPS, Clock(limit, Hands()), gradient_seconds=seconds)
        trainer = Trainer(
            untrained("projected"), target("funnel"), SETTINGS, budget, key=jr.key(0), progress=Silent()
        )
        found = trainer.run()
        assert (found.status, found.steps, found.gradients) == (Status.TIME_LIMIT, 0, 0)


class StopAt(Interrupt):
    """Asks for an end at the n-th question."""

    def __init__(self, number: float = math.inf):
        super().__init__()
        self.number, self.questions = number, 0

    @property
    def asked(self):
        self.questions += 1
        return self.questions >= self.number


def test_a_training_asked_to_stop_gives_the_best_so_far(costly):
    patient = StopAt()
    whole = costly(0.1, None, stop=patient)
    assert patient.questions > 20
    start = jax.tree.leaves(untrained("projected"))
    for number in (1, 2, 3, 4, 5, 12, patient.questions // 2):
        found = costly(0.1, None, stop=StopAt(number))
        assert found.status is Status.INTERRUPTED
        assert found.steps < whole.steps
        done = max(len(found.history) - 1, 0)  # the last look may be at a part of a chunk
        np.testing.assert_array_equal(found.history[:done], whole.history[:done])
        moved = any(
            not np.array_equal(*pair) for pair in zip(jax.tree.leaves(found.guide), start, strict=True)
        )
        assert moved == (len(found.history) > 0)
