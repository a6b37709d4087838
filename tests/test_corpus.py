"""Files that once broke a reader, and fresh damage: each is read, or refused in words, at once."""

import hashlib
import io
import json
import random
import shutil
import time
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dmvi
from benchmarks import fuzz
from benchmarks.fuzz import attempt, damaged, damaged_npz, data_seeds, read_any, read_fit, resigned
from dmvi._recipes import guide_from
from dmvi.cli._data import read_data
from dmvi.guides import anchored, mixture
from dmvi.targets._rows import open_rows
from tests.test_faults import a_posterior

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_the_corpus_is_read_or_refused(path):
    if path.suffix == ".arrow":
        pytest.importorskip("pyarrow")
    assert attempt(dmvi.load if path.suffix == ".dmvi" else read_any, path) is None


def test_the_corpus_has_files_of_fits_and_of_rows():
    assert {".json", ".csv", ".npz", ".npy", ".arrow", ".dmvi"} <= {path.suffix for path in CORPUS}


def test_an_array_with_a_header_of_python_2_is_refused():
    with pytest.raises(dmvi.InputError, match="created on Python 2"):
        dmvi.load(CORPUS[0].parent / "header_of_python_2.dmvi")


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


def test_a_file_that_asks_for_too_much_memory_is_told_and_seen(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, y=np.zeros(2**23))
    failure = attempt(read_data, path, mebibytes=20)
    assert failure is not None
    assert "MemoryError, told as InputError" in failure
    assert "asks for more memory than there is" in failure
    assert attempt(read_data, path) is None


def test_what_does_not_end_is_stopped(tmp_path, monkeypatch):
    def endless(path):
        while True:
            time.process_time()

    monkeypatch.setattr(fuzz, "ENDLESS", 0.2)
    failure = attempt(endless, tmp_path)
    assert failure is not None
    assert "did not end" in failure


def test_an_archive_that_unpacks_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, y=np.zeros(100_000))
    assert read_data(path)["y"].shape == (100_000,)
    monkeypatch.setattr("dmvi.cli._data.LARGEST_UNPACKED", 1000)
    with pytest.raises(dmvi.InputError, match="would unpack to 800,128 bytes"):
        read_data(path)


def test_an_archive_of_many_small_members_that_unpack_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, *(np.zeros(20_000) for _ in range(50)))
    monkeypatch.setattr("dmvi.cli._data.LARGEST_UNPACKED", 1_000_000)
    with pytest.raises(dmvi.InputError, match="would unpack"):
        read_data(path)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".arrow"])
@pytest.mark.parametrize("content", [b"", b"no table", b"\x93NUMPY\x01\x00\x05\x00abc(d", b"PAR1" * 9])
def test_files_of_rows_that_are_none(tmp_path, suffix, content):
    if suffix != ".npy":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(content)
    with pytest.raises(dmvi.InputError, match="readable"):
        open_rows({"y": str(path)})


@pytest.mark.parametrize("shape", [(5, 0), (0, 2)])
def test_files_of_rows_without_numbers(tmp_path, shape):
    np.save(tmp_path / "y.npy", np.zeros(shape))
    with pytest.raises(dmvi.InputError, match="holds no numbers"):
        open_rows({"y": str(tmp_path / "y.npy")})


def test_an_archive_under_the_name_of_an_array(tmp_path):
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    (tmp_path / "y.npz").rename(tmp_path / "y.npy")
    with pytest.raises(dmvi.InputError, match="one array"):
        open_rows({"y": str(tmp_path / "y.npy")})


def changed_fit(path: Path, change) -> None:
    """A fit with its manifest and members changed and signed anew."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    change(manifest, members)
    members["manifest.json"] = json.dumps(manifest).encode()
    members["manifest.sha256"] = hashlib.sha256(members["manifest.json"]).hexdigest().encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def parabola(x):
    return -0.5 * x**2


@pytest.fixture(scope="module")
def small_fit(tmp_path_factory):
    posterior = dmvi.fit(parabola, init=0.0, guide="full-rank", steps=10, progress=False)
    return posterior.save(tmp_path_factory.mktemp("fit") / "fit.dmvi", n=5)


def test_a_member_named_many_times_is_not_read_many_times(tmp_path):
    path = a_posterior().save(tmp_path / "fit.dmvi", n=5)

    def change(manifest, members):
        manifest["arrays"] |= {f"observed/{i}": manifest["arrays"]["xi"] for i in range(5)}

    changed_fit(path, change)
    with pytest.raises(dmvi.InputError, match="twice"):
        dmvi.load(path)


@pytest.mark.parametrize("name", ["log_pi", "log_q"])
def test_densities_of_other_draws_are_refused(tmp_path, name):
    path = a_posterior().save(tmp_path / "fit.dmvi", n=5)

    def change(manifest, members):
        buffer = io.BytesIO()
        np.save(buffer, np.zeros(3, np.float32))
        entry = manifest["arrays"][name]
        members[entry["file"]] = buffer.getvalue()
        entry["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()

    changed_fit(path, change)
    with pytest.raises(dmvi.InputError, match="densities"):
        dmvi.load(path)


def test_weights_driven_by_a_coordinate_that_there_is_not_are_refused(tmp_path):
    path = a_posterior().save(tmp_path / "fit.dmvi", n=5)

    def change(manifest, members):
        manifest["record"]["diagnostics"]["drivers"] = [["nowhere", 0.5]]

    changed_fit(path, change)
    with pytest.raises(dmvi.InputError, match="drive its weights"):
        dmvi.load(path)


def mlp(width, depth):
    return {"type": "MLP", "width": width, "depth": depth, "layer_norm": False, "dropout": 0.0}


TALL = {"type": "Stacked", "early": {"type": "Triangular", "width": 100_000}, "late": {"type": "Projected"}}


@pytest.mark.parametrize("modes", [0, 1000])
@pytest.mark.parametrize(
    "guide",
    [
        {"type": "DiffusionGuide", "network": mlp(100_000, 50)},  # 2 x 10^12 bytes
        {"type": "DiffusionGuide", "network": mlp(1, 100_000)},  # minutes for an outline
        {"type": "DiffusionGuide", "network": TALL, "steps": 100_000},
        {"type": "ChainGuide", "depth": 100_000},
        {"type": "FlowGuide", "layers": 100_000, "width": 100_000},
        {"type": "DiffusionGuide"},
    ],
)
def test_a_guide_larger_than_the_file_is_never_made(small_fit, tmp_path, guide, modes):
    path = Path(shutil.copy(small_fit, tmp_path / "fit.dmvi"))

    def change(manifest, members):
        settings = manifest["record"]["run"]["settings"]
        settings["guide"] = guide
        settings["base"]["modes"] = modes

    changed_fit(path, change)
    began = time.process_time()
    with pytest.raises(dmvi.InputError, match="other arrays"):
        dmvi.load(path, parabola, init=0.0)
    assert time.process_time() - began < 2


def test_a_mixture_of_many_guides_costs_no_more_than_one(tmp_path):
    """A file with arrays enough: its guide is outlined once, not a thousand times."""
    recipe, base = dmvi.DiffusionGuide(), {"modes": 1000, "full": 1, "rank": 0, "anchor": 2, "anchor_rank": 0}
    began = time.process_time()
    outline = eqx.filter_eval_shape(guide_from, recipe, base, 3)
    assert time.process_time() - began < 2
    affines = jax.vmap(lambda loc: anchored(loc, jnp.eye(3), full=True))(jnp.zeros((2, 3)))
    made = mixture(recipe, affines, jnp.zeros(2), jnp.zeros(2, bool), key=jax.random.key(0))
    found = [leaf.shape for leaf in jax.tree.leaves(outline)]
    assert found == [(1000, *leaf.shape[1:]) for leaf in jax.tree.leaves(made)]
