"""Disks fill up, files change, processes die: nothing that existed is damaged, and the message helps."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dmvi
from dmvi.cli._output import write_draws, written_whole
from dmvi.posterior import Posterior
from dmvi.posterior._container import read, write
from dmvi.targets._rows import NpyColumn, open_rows
from tests.posterior.gaussians import ScaledGaussian, a_run, gaussian_target

ROOT = Path(__file__).parents[1]


def a_posterior(shift: float = 0.0) -> Posterior:
    return Posterior(gaussian_target(), ScaledGaussian(shift=shift), a_run(), jax.random.key(0))


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace", "fdopen"])
def test_a_full_disk_leaves_the_old_fit(tmp_path, monkeypatch, call):
    path = a_posterior().save(tmp_path / "fit.dmvi", n=10)
    before = path.read_bytes()
    monkeypatch.setattr(os, call, full)
    with pytest.raises(dmvi.InputError, match=r"No space left.*is unchanged.*Make room"):
        a_posterior(0.5).save(path, n=10)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert dmvi.load(path).draws == 10


def test_a_file_that_may_not_grow_leaves_the_old_one(tmp_path):
    """The kernel itself refuses: files of this process may not exceed 10,000 bytes."""
    path = tmp_path / "file.dmvi"
    write(path, {"a": np.arange(3.0)}, {})
    before = path.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        with pytest.raises(dmvi.InputError, match="too large"):
            write(path, {"a": np.arange(1e5)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_may_not_be_written_to(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.mkstemp", refused)
    with pytest.raises(dmvi.InputError, match="Permission denied"):
        a_posterior().save(tmp_path / "fit.dmvi", n=10)


def test_permissions_stay_and_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "fit.dmvi", tmp_path / "fit.dmvi"
    a_posterior().save(file, n=10)
    file.chmod(0o600)
    link.symlink_to(file)
    a_posterior(0.5).save(link, n=10)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    assert dmvi.load(file).draws == 10


def test_a_fit_that_cannot_be_written_where_it_should_is_written_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    path, replace = tmp_path / "fit.dmvi", os.replace
    path.write_bytes(b"old")

    def full_here(source, target):
        if Path(target).parent == tmp_path:
            full()
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_here)
    with pytest.raises(dmvi.InputError, match=r"fit.dmvi' could not be written.*unchanged.*not lost") as told:
        write_draws(a_posterior(), path, draws=10, seed=0, force=True)
    assert path.read_bytes() == b"old"
    (kept,) = (tmp_path / "spare").iterdir()
    assert str(kept) in str(told.value)
    assert str(path) in str(told.value)
    assert dmvi.load(kept).draws == 10


def test_the_command_line_keeps_what_it_would_replace(tmp_path):
    path = tmp_path / "draws.npz"
    path.write_bytes(b"old")

    def write_half():
        with written_whole(path, force=True) as partial:
            partial.write_bytes(b"half")
            full()

    with pytest.raises(dmvi.InputError, match=r"No space left.*unchanged"):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_does_not_end_training(tmp_path, monkeypatch):
    def fit(folder):
        return dmvi.fit(
            lambda x: -0.5 * x**2, init=0.0, guide="full-rank", steps=32, progress=False,
            checkpoint=folder, checkpoint_every=0.0,
        )  # fmt: skip

    undisturbed = fit(tmp_path / "a")
    monkeypatch.setattr(os, "fsync", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        disturbed = fit(tmp_path / "b")
    assert any("training goes on" in str(warning.message) for warning in caught)
    np.testing.assert_array_equal(undisturbed.sample(10)["x"], disturbed.sample(10)["x"])


WRITER = """
import sys, numpy as np
from pathlib import Path
from dmvi.posterior._container import write
i = 0
while True:
    write(Path(sys.argv[1]), {"a": np.full(200_000, float(i)), "b": np.full(200_000, float(i))}, {"i": i})
    i += 1
    print(i, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    path = tmp_path / "file.dmvi"
    rng = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=ROOT, env=_environment()
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.wait()
        arrays, record = read(path)
        assert np.all(arrays["a"] == record["i"])
        assert np.all(arrays["b"] == record["i"])


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}


@pytest.mark.parametrize("change", ["longer", "shorter", "other", "gone"])
def test_a_data_file_that_changes_is_noticed(tmp_path, change):
    path = tmp_path / "y.npy"
    np.save(path, np.arange(1000.0))
    rows, _ = open_rows({"y": str(path)})
    rows.draw(np.random.default_rng(0), 10)
    time.sleep(0.02)
    if change == "gone":
        path.unlink()
    else:
        np.save(
            path, {"longer": np.arange(2000.0), "shorter": np.arange(10.0), "other": np.ones(1000)}[change]
        )
    with pytest.raises(dmvi.InputError, match="is gone" if change == "gone" else "has changed"):
        rows.draw(np.random.default_rng(1), 10)


def test_training_on_a_file_that_changes_ends_with_the_reason(tmp_path, monkeypatch):
    np.save(tmp_path / "y.npy", np.random.default_rng(0).normal(size=500))
    reads = []
    get = NpyColumn.__getitem__

    def counted(self, index):
        reads.append(None)
        if len(reads) == 300:
            np.save(tmp_path / "y.npy", np.zeros(3))
        return get(self, index)

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    monkeypatch.setattr(NpyColumn, "__getitem__", counted)
    monkeypatch.setattr("dmvi._start.NOTHING_TO_GAIN", -1.0)  # else this Gaussian would not be trained
    with pytest.raises(dmvi.InputError, match="has changed while"):
        dmvi.fit(
            model,
            {"y": str(tmp_path / "y.npy")},
            batch_size=50,
            guide="mean-field",
            steps=400,
            progress=False,
        )


def test_too_little_memory_is_told(monkeypatch):
    def exhausted(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")

    monkeypatch.setattr("dmvi._fit.train", exhausted)
    with pytest.raises(MemoryError, match="fewer particles"):
        dmvi.fit(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(2), progress=False)
