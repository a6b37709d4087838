"""Interrupted fits: the same call again ends as if nothing had happened, or says why it cannot."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import dmvi
from dmvi._checkpoint import FILE
from dmvi.training import _loop

ROOT = Path(__file__).parents[1]
STEPS = 320
# A fit in a process of its own, which writes what it found at its end.
SCRIPT = """
import sys, numpy as np, jax, jax.numpy as jnp, dmvi

def funnel(x):
    return -0.5 * (x[0] / 1.5) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - x[0]

def main(folder, out, steps, every):
    fitted = dmvi.fit(
        funnel, init=jnp.zeros(3), seed=3, steps=int(steps), progress=False,
        checkpoint=folder or None, checkpoint_every=float(every),
    )
    leaves = jax.tree.leaves((fitted.guide, fitted.training))
    leaves = [np.asarray(leaf) for leaf in leaves if hasattr(leaf, "dtype")]
    np.savez(
        out, *leaves, history=fitted.run.history, history_steps=fitted.run.history_steps,
        draws=fitted.sample(50)["x"], status=fitted.run.status.name,
    )

main(*sys.argv[1:])
"""


def start(folder: Path | str, out: Path, steps: int = STEPS, every: float = 0.0) -> subprocess.Popen:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", SCRIPT, str(folder), str(out), str(steps), str(every)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def run(folder: Path | str, out: Path, steps: int = STEPS) -> dict[str, np.ndarray]:
    process = start(folder, out, steps)
    error = process.communicate(timeout=600)[1]
    assert process.returncode == 0, error
    return dict(np.load(out))


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 300) -> None:
    """Until the first checkpoint is there."""
    end = time.monotonic() + seconds
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run("", tmp_path_factory.mktemp("undisturbed") / "fit.npz")


def test_a_killed_fit_goes_on_bit_for_bit(undisturbed, tmp_path):
    folder, out = tmp_path / "saved", tmp_path / "fit.npz"
    process = start(folder, out)
    wait_for(folder / FILE, process)
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert_same(run(folder, out), undisturbed)


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path):
    """SIGKILL at 20 random moments, warm start and compilation included."""
    steps, kills, generator = 3600, 0, random.Random(0)
    began = time.monotonic()
    whole = run("", tmp_path / "whole.npz", steps)
    seconds = time.monotonic() - began
    folder, out = tmp_path / "saved", tmp_path / "fit.npz"
    while kills < 20:
        process = start(folder, out, steps)
        try:
            process.wait(timeout=generator.uniform(0.2, 0.9) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.wait()
        if process.returncode == 0:  # it came to its end between two kills: begin another
            assert_same(dict(np.load(out)), whole)
            (folder / FILE).unlink()
    assert_same(run(folder, out, steps), whole)


def quartic(shift: float):
    """No Gaussian, so that a Gaussian guide has to be trained to the last step."""
    return lambda x: -0.25 * jnp.sum((x - shift) ** 4)


@pytest.fixture
def saved(tmp_path):
    """A finished checkpoint of a small fit."""
    fit_small(tmp_path)
    return tmp_path


def fit_small(folder, model=None, *, init=None, **changed):
    choices = {"guide": "full-rank", "steps": 32, "seed": 1, **changed}
    model = quartic(0.5) if model is None else model
    point = jnp.zeros(2) if init is None else init
    return dmvi.fit(model, init=point, progress=False, checkpoint=folder, **choices)


def test_sigterm_saves_and_ends_the_process(tmp_path, monkeypatch):
    looks, look_at = [], _loop.look_at

    def signalled(*asked):
        looks.append(None)
        if len(looks) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return look_at(*asked)

    whole = fit_small(None)
    with monkeypatch.context() as patch:
        patch.setattr(_loop, "look_at", signalled)
        with pytest.raises(SystemExit) as ended:
            fit_small(tmp_path, checkpoint_every=1e9)
    assert ended.value.code == 128 + signal.SIGTERM
    assert len(looks) == 4  # the one before training and three chunks
    again = fit_small(tmp_path)
    np.testing.assert_array_equal(again.run.history, whole.run.history)
    np.testing.assert_array_equal(again.sample(20)["x"], whole.sample(20)["x"])
    finished = fit_small(tmp_path)  # a finished fit is given back as it was
    np.testing.assert_array_equal(finished.sample(20)["x"], whole.sample(20)["x"])
    assert (finished.run.status, finished.run.steps) == (whole.run.status, whole.run.steps)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"steps": 48}, "steps was 32, and is 48"),
        ({"seed": 2}, "seed was 1, and is 2"),
        ({"guide": "mean-field"}, "guide was"),
        ({"init": jnp.zeros(3)}, "other variables"),
        ({"model": quartic(0.6)}, "log-density has other values"),
        ({"init": jnp.ones(2)}, "init was"),
        ({"objective": dmvi.objectives.PathELBO()}, "objective was"),
    ],
)
def test_a_checkpoint_of_another_call_is_refused(saved, changed, reason):
    with pytest.raises(dmvi.InputError, match=reason):
        fit_small(saved, **changed)


def test_a_checkpoint_of_another_version_is_refused(saved, monkeypatch):
    monkeypatch.setattr("dmvi._checkpoint.library_versions", lambda: {"jax": "0.0.1"})
    with pytest.raises(dmvi.InputError, match=r"made with jax .*, this is 0\.0\.1"):
        fit_small(saved)


def test_a_damaged_checkpoint_is_refused(saved):
    path = saved / FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(dmvi.InputError, match="no intact file"):
        fit_small(saved)


@pytest.mark.parametrize(
    "wrong", [{"checkpoint": 3}, {"checkpoint_every": -1.0}, {"checkpoint_every": "often"}]
)
def test_wrong_choices_are_refused(wrong, tmp_path):
    choices = {"checkpoint": tmp_path, **wrong}
    with pytest.raises(dmvi.InputError, match="checkpoint"):
        dmvi.fit(quartic(0.0), init=jnp.zeros(2), progress=False, **choices)


def test_no_handler_of_signals_is_left_behind(saved):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
