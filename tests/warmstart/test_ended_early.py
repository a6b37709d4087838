"""Warm starts that are ended early, by a clock or by the user: finite at every stage."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import dmvi
import dmvi._fit
from dmvi import Status
from dmvi._clock import Clock
from dmvi.targets import from_log_density
from dmvi.training import Silent
from dmvi.warmstart import high_dimensional_start, warm_start
from dmvi.warmstart._candidates import Candidate, Candidates
from dmvi.warmstart._climb import Climber
from dmvi.warmstart._effort import Effort
from tests.training.test_time import StopAt

EFFORT = Effort(draws=128, field_draws=64, at_once=32, steps=8, searches=4)


def bent(x):
    """A funnel in the first coordinate, a ridge in the others."""
    inner = jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) + (x.shape[0] - 1) * x[0]
    return -0.5 * (x[0] / 1.5) ** 2 - 0.5 * inner - 0.1 * x[1] ** 4


class Ticking:
    """A clock that goes on by itself whenever it is looked at."""

    def __init__(self, tick: float):
        self.tick, self.at = tick, 0.0

    def __call__(self):
        self.at += self.tick
        return self.at


def finite(start) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(start.affine))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dim", [3, 24])
def test_a_climb_ends_when_it_is_asked_to(dim, full):
    """After at most one more program of each start; what it has found is finite and no worse for longer."""
    target, before = from_log_density(bent, jnp.zeros(dim)), -1
    field, whole = (Candidate("", np.zeros(dim), scale) for scale in (np.ones(dim), np.eye(dim)))
    starts = Candidates([field] * 2, [whole] * 2, [])
    a_program = 4 * EFFORT.steps * EFFORT.draws  # for all starts
    for number in (1, 3, 6, 12, 24):
        asked = StopAt(number)
        climber = Climber(target, EFFORT, jr.key(0), Silent(), lambda asked=asked: asked.asked)
        reached = climber.best_of(starts, full=full)
        assert np.isfinite(reached.loc).all()
        assert np.isfinite(reached.scale).all()
        assert before <= climber.gradients <= (number + 3) * a_program
        before = climber.gradients


def test_a_warm_start_ends_in_time():
    """By a clock that goes on with every look at it."""
    target = from_log_density(bent, jnp.zeros(3))
    patient = warm_start(target, full=True, key=jr.key(0), progress=Silent())
    for tick in (40.0, 4.0, 0.4):
        hands = Ticking(tick)
        start = warm_start(
            target, full=True, key=jr.key(0), progress=Silent(), mixes=True, clock=Clock(100.0, hands)
        )
        assert finite(start)
        assert start.gradients < patient.gradients
        assert hands.at < 300.0 + 20 * tick


@pytest.mark.parametrize("full", [True, False])
def test_a_warm_start_asked_to_end_gives_a_finite_gaussian(full):
    target = from_log_density(bent, jnp.zeros(3))

    def started(asked: StopAt):
        return warm_start(target, full=full, key=jr.key(0), progress=Silent(), mixes=full, interrupt=asked)

    patient = StopAt()
    whole, gradients = started(patient), []
    assert patient.questions > 30
    stages = sorted({1, 2, 20, 34, patient.questions // 3, 2 * patient.questions // 3, patient.questions - 1})
    for number in stages:
        start = started(StopAt(number))
        assert finite(start)
        gradients.append(start.gradients)
    assert gradients[0] < 0.2 * whole.gradients
    assert all(early <= late for early, late in itertools.pairwise([*gradients, whole.gradients]))


def test_so_does_one_in_high_dimension():
    target = from_log_density(bent, jnp.zeros(12))
    patient = StopAt()
    high_dimensional_start(target, key=jr.key(0), progress=Silent(), interrupt=patient)
    for number in (1, patient.questions // 2, patient.questions - 8, patient.questions - 1):
        start = high_dimensional_start(target, key=jr.key(0), progress=Silent(), interrupt=StopAt(number))
        assert finite(start)


def test_a_fit_interrupted_in_its_warm_start_is_a_posterior(monkeypatch):
    for number in (1, 5, 40):
        monkeypatch.setattr(dmvi._fit, "Interrupt", lambda number=number: StopAt(number))
        target = from_log_density(bent, jnp.zeros(3))
        found = dmvi.fit(target, guide="full-rank", progress=False, steps=100)
        assert found.run.status is Status.INTERRUPTED
        assert found.run.steps == 0
        assert np.isfinite(found.sample(10)["x"]).all()


def test_the_same_start_for_the_same_seed():
    found = [
        warm_start(from_log_density(bent, jnp.zeros(3)), full=True, key=jr.key(3), progress=Silent())
        for _ in range(2)
    ]
    assert found[0].gradients == found[1].gradients
    for left, right in zip(*(jax.tree.leaves(start.affine) for start in found), strict=True):
        np.testing.assert_array_equal(left, right)
