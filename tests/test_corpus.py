"""Files that once broke a reader, and fresh damage: each is read, or refused in words, at once."""

import random
from pathlib import Path

import numpy as np
import pytest

import dmvi
from benchmarks.fuzz import attempt, damaged, damaged_npz, data_seeds, read_fit, resigned
from dmvi.cli._data import read_data
from tests.test_faults import a_posterior

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_the_corpus_is_read_or_refused(path):
    assert attempt(dmvi.load if path.suffix == ".dmvi" else read_data, path) is None


@pytest.mark.parametrize("suffix", [".json", ".csv", ".npz"])
def test_damaged_data(tmp_path, suffix):
    rng, path = random.Random(1), tmp_path / f"file{suffix}"
    for _ in range(150):
        content = rng.choice(data_seeds()[suffix])
        inside = suffix == ".npz" and rng.random() < 0.5
        path.write_bytes(damaged_npz(content, rng) if inside else damaged(content, rng))
        assert attempt(read_data, path) is None


def test_damaged_fits(tmp_path):
    content = a_posterior().save(tmp_path / "fit.dmvi", n=5).read_bytes()
    rng, path = random.Random(2), tmp_path / "damaged.dmvi"
    for _ in range(40):
        path.write_bytes(damaged(content, rng) if rng.random() < 0.3 else resigned(content, rng))
        assert attempt(read_fit, path) is None


def test_an_archive_that_unpacks_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, y=np.zeros(100_000))
    assert read_data(path)["y"].shape == (100_000,)
    monkeypatch.setattr("dmvi.cli._data.LARGEST_UNPACKED", 1000)
    with pytest.raises(dmvi.InputError, match="would unpack to 800,128 bytes"):
        read_data(path)
