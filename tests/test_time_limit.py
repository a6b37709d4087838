"""time_limit and Ctrl-C hold for the whole of a fit."""

import math
import os
import signal
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

import dmvi
import dmvi._fit
import dmvi._train
from dmvi import Status
from dmvi._interrupt import Interrupt
from dmvi._start import Start
from dmvi.guides import anchored
from dmvi.posterior import Posterior
from tests.training.test_time import StopAt

DIM = 2


class Slow:
    """A Gaussian whose every evaluation takes so many seconds."""

    def __init__(self, seconds: float):
        self.seconds, self.calls = seconds, 0

    def __call__(self, x):
        self.calls += len(x)
        time.sleep(self.seconds * len(x))
        return -0.5 * np.sum(x**2, axis=1) - 0.1 * x[:, 0] ** 4, -x - np.eye(DIM)[:1] * 0.4 * x[:, :1] ** 3


def quick_start(recipe, target, keys, line, control_variates, clock, interrupt):
    """In place of the warm start, which keeps the time by itself."""
    affine = anchored(jnp.zeros(DIM), jnp.ones(DIM), full=False)
    return Start(recipe.build(affine, key=keys[1]), "laplace", target)


def fitted(density, **options):
    target = dmvi.Target.from_value_and_grad(density, dim=DIM)
    chosen = {"guide": "mean-field", "progress": False, "steps": 400, **options}
    return dmvi.fit(target, **chosen)


@pytest.fixture
def _at_once(monkeypatch):
    monkeypatch.setattr(dmvi._train, "begin", quick_start)


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("seconds", [5e-4, 2e-2])
def test_a_fit_and_its_diagnostics_end_within_the_limit(seconds):
    """Where a step costs 16 ms it trains, where it costs 640 ms it keeps the start; both are judged."""
    limit, density = 8.0, Slow(seconds)
    began = time.perf_counter()
    posterior = fitted(density, time_limit=limit)
    found = posterior.diagnostics
    assert time.perf_counter() - began <= 1.1 * limit + 3
    assert found.status is Status.TIME_LIMIT
    assert (found.steps > 0) == (seconds < 1e-3)
    assert found.draws < 20_000
    assert found.draws * seconds < limit
    assert len(posterior.log_weights) == found.draws
    assert found.gradients <= density.calls
    stages = posterior.run.stage_seconds
    assert sum(stages.values()) == pytest.approx(posterior.run.seconds)


@pytest.mark.usefixtures("_at_once")
def test_whenever_it_is_asked_to_stop_a_fit_gives_a_posterior(monkeypatch):
    made = []

    def interrupt(number):
        def make():
            made.append(StopAt(number))
            return made[-1]

        monkeypatch.setattr(dmvi._fit, "Interrupt", make)

    density = Slow(0.0)
    interrupt(math.inf)
    whole = fitted(density, time_limit=1000.0)
    assert whole._known is not None
    questions = made[-1].questions
    for number in (1, 4, questions // 2, questions):
        interrupt(number)
        found = fitted(density, time_limit=1000.0)
        assert (found._known is None) or number == questions
        assert np.isfinite(found.sample(10)["x"]).all()
        assert (found.run.status is Status.INTERRUPTED) == (found.run.steps < whole.run.steps)


def press():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("_at_once")
def test_ctrl_c_in_training():
    density = Slow(1e-4)

    def pressing(x):
        if density.calls < 5000 <= density.calls + len(x):
            press()
        return density(x)

    found = fitted(pressing, steps=100_000)
    assert found.run.status is Status.INTERRUPTED
    assert 0 < found.run.steps < 10_000
    calls = density.calls
    time.sleep(0.5)
    assert density.calls == calls  # nothing goes on computing
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_at_once")
def test_ctrl_c_in_the_diagnostics(monkeypatch):
    judge = Posterior.judge_within

    def pressed(self, clock, stop):
        timer = threading.Timer(0.5, press)
        timer.start()
        judge(self, clock, stop)
        timer.join()

    monkeypatch.setattr(Posterior, "judge_within", pressed)
    found = fitted(Slow(2e-4), steps=640, time_limit=60.0)
    assert found.run.status is not Status.INTERRUPTED
    assert found._known is None


@pytest.mark.usefixtures("_at_once")
def test_the_second_ctrl_c_ends_at_once():
    density = Slow(1e-4)

    def pressing(x):
        if density.calls > 5000:
            press()
        return density(x)

    with pytest.raises(KeyboardInterrupt):
        fitted(pressing, steps=100_000)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_warm_start_gives_what_it_has(monkeypatch):
    def begin(*choices):
        press()
        time.sleep(0.1)
        return quick_start(*choices)

    monkeypatch.setattr(dmvi._train, "begin", begin)
    posterior = fitted(Slow(0.0))
    assert posterior.diagnostics.status is Status.INTERRUPTED
    assert posterior.diagnostics.steps == 0


def test_ctrl_c_twice_in_the_warm_start_is_an_interruption(monkeypatch):
    def begin(*_):
        press()
        time.sleep(0.1)
        press()
        time.sleep(0.1)

    monkeypatch.setattr(dmvi._train, "begin", begin)
    with pytest.raises(KeyboardInterrupt):
        fitted(Slow(0.0))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert Interrupt().asked is False
