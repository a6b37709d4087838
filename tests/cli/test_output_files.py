"""Files are written whole or not at all."""

import dataclasses
import os

import jax
import numpy as np
import pytest

from dmvi._errors import InputError
from dmvi.cli._output import check_file, write_draws, written_whole
from dmvi.posterior import Posterior
from tests.posterior.gaussians import ScaledGaussian, a_run, gaussian_target


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("full disk"), KeyboardInterrupt()])
def test_a_failure_half_way_leaves_what_was_there(tmp_path, force, error):
    path = tmp_path / "fit.npz"
    if force:
        path.write_text("old")

    def write():
        with written_whole(path, force) as partial:
            partial.write_text("half")
            assert not path.exists() or path.read_text() == "old"
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == (["fit.npz"] if force else [])
    assert not force or path.read_text() == "old"


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_left_alone_and_nothing_is_lost(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    path = tmp_path / "fit.npz"

    def write():
        with written_whole(path, force=False) as partial:
            partial.write_text("new")
            path.write_text("somebody else's")

    with pytest.raises(InputError, match="left alone"):
        write()
    assert path.read_text() == "somebody else's"
    (other,) = (p for p in tmp_path.iterdir() if p != path)
    assert other.read_text() == "new"
    assert other.suffix == ".npz"


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("force", [True, False])
def test_a_whole_file_is_all_that_remains(tmp_path, monkeypatch, links, force):
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    path = tmp_path / "fit.npz"
    with written_whole(path, force) as partial:
        partial.write_text("new")
    assert os.listdir(tmp_path) == ["fit.npz"]
    assert path.read_text() == "new"


def _no_links(source, destination):
    raise OSError(95, "Operation not supported")


def test_checking_leaves_nothing_behind(tmp_path):
    check_file(tmp_path / "fit.npz", force=False)
    assert os.listdir(tmp_path) == []


def test_sites_of_any_name_can_be_written(tmp_path):
    target = dataclasses.replace(
        gaussian_target(), _constrain=lambda xi, params: {"file": xi[0], "scope/a": xi[1], "self": xi[2]}
    )
    posterior = Posterior(target, ScaledGaussian(), a_run(), jax.random.key(0))
    write_draws(posterior, tmp_path / "fit.npz", draws=20, seed=0, force=False)
    with np.load(tmp_path / "fit.npz", allow_pickle=False) as file:
        assert set(file.files) == {"file", "scope/a", "self", "dmvi.json"}
        assert file["file"].shape == (20,)
