"""dmvi fit --distributed: two real processes over loopback."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dmvi.cli._app import app
from dmvi.cli._exits import Exit

ROOT = Path(__file__).parents[2]
MODEL = """
import numpyro, numpyro.distributions as dist

def regression(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)
"""
ROWS = 60
MINUTE = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", x.sum(1) + rng.normal(size=ROWS))
    (folder / "model.py").write_text(MODEL)
    (folder / "files.json").write_text(json.dumps({"x": "x.npy", "y": "y.npy"}))
    return folder


def command(folder: Path, out: str, *more: str) -> list[str]:
    named = [f"{folder / 'model.py'}:regression", "--data", str(folder / "files.json")]
    training = ["--batch-size", "20", "--steps", "64", "--particles", "8"]
    return ["fit", *named, *training, "--out", str(folder / out), "--quiet", *more]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder: Path, out: str, *more: str) -> list[subprocess.Popen]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    together = ["--distributed", "--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2"]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "dmvi", *command(folder, out, *more, *together, "--process-id", str(i))],
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]


def finish(processes: list[subprocess.Popen]) -> list[str]:
    told = [process.communicate(timeout=600) for process in processes]
    codes = [process.returncode for process in processes]
    assert set(codes) <= {Exit.FINE, Exit.DO_NOT_TRUST}, told
    assert codes[0] == codes[1]
    return [out for out, _ in told]


def results(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        record = json.loads(str(file["dmvi.json"]))
        assert not record["resampled"]  # what is chosen out of draws may change with their last digit
        record = record["diagnostics"]
        return {
            "beta": file["beta"],
            "history": np.array(record["history"]),
            "log_evidence": np.array(record["log_evidence"]),
        }


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-3, err_msg=name)


def test_two_processes_give_what_one_gives(folder):
    processes = start(folder, "two.npz")
    alone = CliRunner().invoke(app, command(folder, "one.npz"))
    assert alone.exit_code in (Exit.FINE, Exit.DO_NOT_TRUST), alone.output
    printed = finish(processes)
    assert_close(results(folder / "two.npz"), results(folder / "one.npz"))
    assert "log evidence" in printed[0]
    assert "log evidence" not in printed[1]  # process 0 alone prints and writes


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_stops_the_others_and_the_fit_goes_on_later(folder, victim):
    saved = folder / f"saved{victim}"
    finish(start(folder, f"undisturbed{victim}.npz"))
    more = ["--checkpoint", str(saved), "--checkpoint-every", "0"]
    processes = start(folder, f"killed{victim}.npz", *more)
    while not list(saved.glob("*.dmvi")):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)
    processes[victim].kill()
    other = processes[1 - victim]
    complaint = other.communicate(timeout=MINUTE)[1]
    processes[victim].communicate(timeout=MINUTE)
    assert other.returncode not in (Exit.FINE, Exit.DO_NOT_TRUST)
    assert "error: process" in complaint
    assert "Start all processes again with the same command" in complaint
    assert not (folder / f"killed{victim}.npz").exists()
    finish(start(folder, f"killed{victim}.npz", *more))
    assert_close(results(folder / f"killed{victim}.npz"), results(folder / f"undisturbed{victim}.npz"))


def test_what_belongs_to_distributed_fits_is_refused_without_it(folder):
    refused = CliRunner().invoke(app, command(folder, "refused.npz", "--processes", "2"))
    assert refused.exit_code == Exit.MISTAKE
    assert "--distributed" in refused.output


def test_processes_that_cannot_be_found_are_an_error_before_anything_else(folder):
    done = subprocess.run(
        [sys.executable, "-m", "dmvi", *command(folder, "refused.npz", "--distributed")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.MISTAKE, done.stderr
    assert "--coordinator HOST:PORT" in done.stderr
