"""dmvi fit: what it checks, prints, writes and answers; fits are replaced by a known posterior."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import dmvi
from dmvi._errors import InputError
from dmvi._run import Status
from dmvi.cli._app import app
from dmvi.posterior import Posterior
from tests.posterior.gaussians import ScaledGaussian, a_run, gaussian_target

MODEL = """
import numpyro, numpyro.distributions as dist
from helper import SCALE

def regression(y, x):
    a = numpyro.sample("a", dist.Normal(0, SCALE))
    numpyro.sample("y", dist.Normal(a * x, 1.0), obs=y)

def broken(y):
    return y + undefined_name

not_a_function = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, a module it imports and its data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text("SCALE = 2.0\n")
    (tmp_path / "data.json").write_text('{"y": [1.0, 2.0], "x": [0.5, 1.5]}')
    return tmp_path


class FakeFit:
    """Stands in for dmvi.fit: remembers its arguments and returns a posterior of a known verdict."""

    def __init__(self):
        self.stretch = 1.0
        self.status = Status.CONVERGED
        self.error: BaseException | None = None
        self.arguments: dict = {}
        self.calls = 0

    def __call__(self, model, **arguments) -> Posterior:
        self.calls += 1
        self.arguments = {"model": model, **arguments}
        if self.error is not None:
            raise self.error
        if model.__name__ == "broken":
            model(y=1.0)
        return Posterior(
            gaussian_target(), ScaledGaussian(self.stretch), a_run(self.status), jax.random.key(0)
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeFit:
    fake = FakeFit()
    monkeypatch.setattr("dmvi.cli._fit.fit", fake)
    return fake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def mistake(fake: FakeFit, *arguments: str) -> str:
    """Run a command that has to fail before training with code 2, and return its message."""
    result = run("fit", *arguments)
    assert result.exit_code == 2, result.output
    assert fake.calls == 0
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_a_fit_prints_verdict_and_summary_and_passes_its_options_on(folder, fake):
    result = run(
        "fit", "model.py:regression", "--data", "data.json", "--guide", "full-rank", "--seed", "7",
        "--steps", "100", "--particles", "16", "--time-limit", "2.5",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Trust these draws")
    assert "median" in result.stdout
    given = fake.arguments
    assert given["model"].__name__ == "regression"
    assert set(given["data"]) == {"x", "y"}
    np.testing.assert_array_equal(given["data"]["y"], [1.0, 2.0])
    assert {
        name: given[name] for name in ("guide", "seed", "steps", "particles", "time_limit", "progress")
    } == {
        "guide": "full-rank",
        "seed": 7,
        "steps": 100,
        "particles": 16,
        "time_limit": 2.5,
        "progress": True,
    }


def test_quiet_leaves_the_verdict_alone(folder, fake):
    result = run("fit", "model.py:regression", "--data", "data.json", "--quiet")
    assert result.exit_code == 0
    assert "median" not in result.stdout
    assert result.stdout.startswith("Trust")
    assert fake.arguments["progress"] is False


@pytest.mark.parametrize(("stretch", "code"), [(1.0, 0), (1.3, 0), (0.25, 3)])
def test_the_exit_code_follows_the_verdict(folder, fake, stretch, code):
    fake.stretch = stretch
    assert run("fit", "model.py:regression", "--quiet").exit_code == code


def test_draws_and_diagnostics_are_written(folder, fake):
    result = run("fit", "model.py:regression", "--out", "fit.npz", "--draws", "300", "--seed", "2")
    assert result.exit_code == 0, result.output
    assert set(os.listdir(folder)) - {"__pycache__"} == {"data.json", "fit.npz", "helper.py", "model.py"}
    with np.load("fit.npz", allow_pickle=False) as file:
        assert file["s"].shape == (300, 2)
        record = json.loads(str(file["dmvi.json"]))
        np.testing.assert_array_equal(file["b"], 2 * file["a"])
    assert record["verdict"] == "TRUST"
    assert record["diagnostics"]["draws"] == 20_000


def test_written_draws_are_resampled_when_the_verdict_says_so(folder, fake):
    fake.stretch = 1.3
    assert run("fit", "model.py:regression", "--out", "fit.npz").exit_code == 0
    with np.load("fit.npz") as file:
        assert file["a"].std() == pytest.approx(1.0, rel=0.05)
        assert json.loads(str(file["dmvi.json"]))["resampled"] is True


def test_netcdf_is_written_for_arviz(folder, fake):
    xr = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4" if importlib.util.find_spec("netCDF4") else "h5netcdf")
    assert run("fit", "model.py:regression", "--out", "fit.nc", "--draws", "50").exit_code == 0
    with xr.open_datatree("fit.nc") as tree:
        assert set(tree.children) == {"posterior", "observed_data", "log_likelihood", "sample_stats"}
        assert json.loads(tree.attrs["dmvi.json"])["verdict"] == "TRUST"


def test_netcdf_without_a_library_is_refused_before_training(folder, fake, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "netCDF4" in mistake(fake, "model.py:regression", "--out", "fit.nc")


def test_nothing_is_overwritten_without_force(folder, fake):
    (folder / "fit.npz").write_text("precious")
    assert "--force" in mistake(fake, "model.py:regression", "--out", "fit.npz")
    assert (folder / "fit.npz").read_text() == "precious"
    assert run("fit", "model.py:regression", "--out", "fit.npz", "--force").exit_code == 0
    assert np.load("fit.npz")["a"].shape == (4000,)


@pytest.mark.parametrize(
    ("out", "word"),
    [("fit.txt", ".npz"), ("fit", ".npz"), ("missing/fit.npz", "missing"), ("folder.npz", "folder")],
)
def test_bad_output_paths_are_refused_before_training(folder, fake, out, word):
    (folder / "folder.npz").mkdir()
    assert word in mistake(fake, "model.py:regression", "--out", out)


def test_a_folder_that_cannot_be_written_is_refused_before_training(folder, fake, monkeypatch):
    def refuse(self, exist_ok):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    assert "Permission denied" in mistake(fake, "model.py:regression", "--out", "fit.npz")


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("model.py", "FILE.py:NAME"),
        ("model:regression", "FILE.py:NAME"),
        ("model.py:", "FILE.py:NAME"),
        ("nowhere.py:regression", "nowhere.py"),
        ("model.py:regresion", "regression, broken"),
        ("model.py:not_a_function", "regression, broken"),
    ],
)
def test_bad_models_are_refused_before_training(folder, fake, model, word):
    assert word in mistake(fake, model)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\ndef f(:\n", ("line 2", "syntax")),
        ("x = 1\nimport no_such_library\n", ("line 2", "no_such_library")),
        ("\n\n1 / 0\n", ("line 3", "ZeroDivisionError")),
        ("import sys; sys.exit(4)\n", ("ended Python", "4")),
        ("x = 1\n", ("no functions",)),
    ],
)
def test_files_that_do_not_run_are_explained_without_a_traceback(folder, fake, code, words):
    (folder / "bad.py").write_text(code)
    message = mistake(fake, "bad.py:f")
    assert all(word in message for word in words), message


def test_an_error_inside_the_model_names_its_line(folder, fake):
    result = run("fit", "model.py:broken")
    assert result.exit_code == 2
    assert "model.py, line 10: NameError" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_models_folder_is_searched_only_while_it_runs(folder, fake):
    before = list(sys.path)
    assert run("fit", "model.py:regression").exit_code == 0
    assert sys.path == before
    assert "model" not in sys.modules


def exhausted(*_, **__):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")


@pytest.mark.parametrize("place", ["weigh", "summary"])
def test_too_little_memory_after_training_is_told_and_what_could_be_written_is(
    folder, fake, monkeypatch, place
):
    owner = "_draws.Draws.weigh" if place == "weigh" else "_posterior.Posterior.summary"
    monkeypatch.setattr(f"dmvi.posterior.{owner}", exhausted)
    result = run("fit", "model.py:regression", "--out", "fit.npz")
    assert result.exit_code == 2, result.output
    assert "training has ended, but there is not enough memory" in result.stderr
    assert "Traceback" not in result.stderr
    assert (folder / "fit.npz").exists() == (place == "summary")
    assert ("'fit.npz' is written" in result.stderr) == (place == "summary")
    assert ("Nothing was written" in result.stderr) == (place == "weigh")


def test_too_little_memory_anywhere_is_told(folder, fake):
    fake.error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")
    result = run("fit", "model.py:regression")
    assert result.exit_code == 2
    assert result.stderr == "error: there is not enough memory.\n"


def test_the_verdict_is_printed_where_the_file_cannot_be_written(folder, fake, monkeypatch):
    def full(*_, **__):
        raise InputError("the disk is full")

    monkeypatch.setattr("dmvi.cli._fit.write_draws", full)
    result = run("fit", "model.py:regression", "--out", "fit.npz")
    assert result.exit_code == 2
    assert result.stdout.startswith("Trust these draws")
    assert "wrote" not in result.stdout
    assert "the disk is full" in result.stderr


def test_errors_of_input_that_fit_finds_are_told_without_a_traceback(folder, fake):
    fake.error = InputError("no guide named 'flo'; did you mean 'flow'?")
    result = run("fit", "model.py:regression", "--guide", "flo")
    assert result.exit_code == 2
    assert "did you mean 'flow'" in result.stderr
    assert "Traceback" not in result.stderr


def test_faults_of_dmvi_keep_their_exception_and_code_one(folder, fake):
    fake.error = RuntimeError("a bug")
    result = run("fit", "model.py:regression")
    assert result.exit_code == 1
    assert result.exception is fake.error


def test_an_interrupt_before_there_is_a_fit_ends_with_130_and_no_file(folder, fake):
    fake.error = KeyboardInterrupt()
    result = run("fit", "model.py:regression", "--out", "fit.npz")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert not (folder / "fit.npz").exists()


def test_an_interrupted_fit_is_printed_and_written_all_the_same(folder, fake):
    fake.status = Status.INTERRUPTED
    result = run("fit", "model.py:regression", "--out", "fit.npz")
    assert result.exit_code == 0
    assert "interrupted" in result.stdout
    assert (folder / "fit.npz").exists()


@pytest.mark.parametrize(
    "option", [("--steps", "0"), ("--seed", "-1"), ("--draws", "many"), ("--colour", "red")]
)
def test_bad_options_are_usage_errors(folder, fake, option):
    assert option[0] in mistake(fake, "model.py:regression", *option)


def test_help_teaches():
    help_of_fit = run("fit", "--help").stdout
    words = (
        "dmvi fit model.py:eight_schools --data schools.json",
        "The file is run",
        "--force",
        "130",
        "not to trust",
    )
    flat = " ".join(help_of_fit.split())
    for word in words:
        assert word in flat, word
    assert "demo" in run("--help").stdout


def test_version():
    assert run("--version").stdout == f"dmvi {dmvi.__version__}\n"


def test_a_real_fit_from_file_to_file(folder):
    """y ~ N(a x, 1), a ~ N(0, 2): the posterior is N(m, v) with 1 / v = 1 / 4 + sum x^2 and m = v sum x y."""
    result = run(
        "fit", "model.py:regression", "--data", "data.json", "--guide", "mean-field", "--steps", "160",
        "--out", "fit.npz",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    x, y = np.array([0.5, 1.5]), np.array([1.0, 2.0])
    variance = 1 / (0.25 + np.sum(x**2))
    with np.load("fit.npz") as file:
        record = json.loads(str(file["dmvi.json"]))
        assert file["a"].mean() == pytest.approx(variance * np.sum(x * y), abs=0.05)
        assert file["a"].std() == pytest.approx(np.sqrt(variance), rel=0.1)
    covariance = np.eye(2) + 4 * np.outer(x, x)
    evidence = -0.5 * (y @ np.linalg.solve(covariance, y) + np.log(np.linalg.det(2 * np.pi * covariance)))
    assert record["diagnostics"]["log_evidence"] == pytest.approx(evidence, abs=0.01)
    assert record["seed"] == 0


@pytest.fixture
def interruptible():
    # A process that was started in the background ignores the signal; a user's does not.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def test_a_signal_while_the_model_is_traced_ends_with_130(folder, interruptible):
    (folder / "stop.py").write_text("import signal\ndef model():\n    signal.raise_signal(signal.SIGINT)\n")
    result = run("fit", "stop.py:model", "--quiet")
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--guide", "flo"), "full-rank"),
        (("--data", "wrong.json"), "'z'"),
        (("--time-limit", "0"), "time_limit"),
        (("--data", "gaps.json"), "NaN"),
    ],
)
def test_mistakes_that_only_the_fit_can_see(folder, arguments, word):
    (folder / "wrong.json").write_text('{"y": [1.0, 2.0], "z": [0.5, 1.5]}')
    (folder / "gaps.json").write_text('{"y": [1.0, NaN], "x": [0.5, 1.5]}')
    result = run("fit", "model.py:regression", "--data", "data.json", "--quiet", *arguments)
    assert result.exit_code == 2, result.output
    assert word in result.stderr
    assert "Traceback" not in result.stderr


def test_a_real_process_tells_a_mistake_in_one_line_on_standard_error(folder):
    command = [sys.executable, "-m", "dmvi", "fit", "model.py:regression", "--data", "nowhere.json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: there is no data file 'nowhere.json'")
    assert len(done.stderr.splitlines()) == 1
