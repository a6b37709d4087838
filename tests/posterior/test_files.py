"""Files: draws after loading equal draws before, and no damaged file is ever taken for a fit."""

import dataclasses
import hashlib
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dmvi
from dmvi._errors import InputError
from dmvi.posterior import FileError, Posterior, StoredPosterior
from dmvi.posterior._container import VERSION, read, write
from tests.posterior.gaussians import ScaledGaussian, a_run, gaussian_target
from tests.posterior.models import DATA, constant, diffusion_fit, line


@pytest.fixture(scope="module")
def fit() -> Posterior:
    return diffusion_fit()


@pytest.fixture(scope="module")
def path(fit, tmp_path_factory) -> Path:
    return fit.save(tmp_path_factory.mktemp("files") / "fit.dmvi", n=200)


@pytest.fixture(scope="module")
def stored(path) -> StoredPosterior:
    return dmvi.load(path)


@pytest.fixture(scope="module")
def loaded(path) -> Posterior:
    return dmvi.load(path, line, data=DATA)


def same(one: dict, other: dict) -> bool:
    return list(one) == list(other) and all(
        one[k].dtype == other[k].dtype and np.array_equal(one[k], other[k], equal_nan=True) for k in one
    )


@pytest.mark.parametrize("resample", [False, True])
def test_draws_after_loading_equal_draws_before_bit_for_bit(fit, loaded, resample):
    assert same(fit.sample(500, seed=7, resample=resample), loaded.sample(500, seed=7, resample=resample))
    assert same(fit.predictive(seed=7, n=50), loaded.predictive(seed=7, n=50))


def test_without_the_model_draws_diagnostics_and_settings_are_there(fit, stored):
    assert same(fit.sample(200), stored.sample())
    assert same(fit.sample(200, resample=True), stored.sample(resample=True))
    np.testing.assert_array_equal(fit.unconstrained(200), stored.unconstrained())
    np.testing.assert_array_equal(fit.log_weights, stored.log_weights)
    assert stored.diagnostics == fit.diagnostics
    assert stored.judgement == fit.judgement
    assert repr(stored) == repr(fit)
    assert stored.run.settings == fit.run.settings
    assert stored.run.settings["guide"]["steps"] == 2
    assert stored.summary().to_dict() == fit.summary(200).to_dict()
    assert same(dict(stored.observed), dict(fit.observed))
    tree = stored.to_arviz()
    assert {"posterior", "posterior_predictive", "log_likelihood", "observed_data"} <= set(tree.children)


def test_the_work_of_a_fit_is_kept(fit, stored, path, tmp_path):
    """Its gradients and the seconds of its stages; files that do not know them are read as before."""
    run = fit.run
    assert fit.diagnostics.gradients == run.gradients >= run.steps * run.settings["particles"]
    assert sum(run.stage_seconds.values()) == pytest.approx(run.seconds)
    assert run.gradient_seconds > 0
    for name in ("gradients", "gradient_seconds", "stage_seconds"):
        assert getattr(stored.run, name) == getattr(run, name)
    assert f"{run.gradients:,} evaluations" in repr(fit)
    arrays, record = read(path)
    for name in ("gradients", "gradient_seconds", "stage_seconds"):
        del record["run"][name]
    del record["diagnostics"]["gradients"]
    older = dmvi.load(write(tmp_path / "older.dmvi", arrays, record) or tmp_path / "older.dmvi")
    assert (older.run.gradients, older.diagnostics.gradients, dict(older.run.stage_seconds)) == (0, 0, {})
    assert "not counted" in repr(older)
    record["run"] |= {"gradients": -1, "gradient_seconds": 0.0, "stage_seconds": {}}
    write(tmp_path / "odd.dmvi", arrays, record)
    with pytest.raises(FileError, match="below zero"):
        dmvi.load(tmp_path / "odd.dmvi")


def test_fewer_stored_draws_are_the_first_and_more_or_others_are_refused(stored):
    np.testing.assert_array_equal(stored.sample(5)["a"], stored.sample()["a"][:5])
    with pytest.raises(InputError, match="200"):
        stored.sample(201)
    with pytest.raises(InputError, match="seed 0"):
        stored.sample(5, seed=1)


def test_diagnostics_are_not_made_again(loaded, fit):
    assert loaded.diagnostics == fit.diagnostics
    np.testing.assert_array_equal(loaded.run.history, fit.run.history)


def test_training_goes_on_as_if_it_had_never_been_interrupted(fit, loaded):
    here = dmvi.resume(fit, steps=32, progress=False)
    there = dmvi.resume(loaded, steps=32, progress=False)
    assert fit.run.steps < here.run.steps <= fit.run.steps + 32
    assert here.run.history_steps[-1] == here.run.steps
    assert len(here.run.history) > len(fit.run.history)
    assert np.array_equal(here.run.history, there.run.history)
    assert same(here.sample(100), there.sample(100))
    # The fit is exact and its error next to nothing; that of the other estimate is not.
    error = np.hypot(fit.diagnostics.elbo_se, here.diagnostics.elbo_se)
    assert here.diagnostics.elbo > fit.diagnostics.elbo - 5 * error


def test_what_cannot_go_on_says_why(fit, stored):
    with pytest.raises(InputError, match="with its model"):
        dmvi.resume(stored)
    with pytest.raises(InputError, match="state"):
        dmvi.resume(Posterior(fit.target, fit.guide, fit.run, fit.key))
    with pytest.raises(InputError, match="optimizer or objective"):
        dmvi.resume(fit, objective=dmvi.objectives.PathELBO())
    with pytest.raises(InputError, match="steps"):
        dmvi.resume(fit, steps=0)
    for pace in ("fast", -1.0, float("inf"), True):
        run = dataclasses.replace(fit.run, settings={**fit.run.settings, "pace": pace})
        told = Posterior(fit.target, fit.guide, run, fit.key, training=fit.training)
        with pytest.raises(InputError, match="positive number for 'pace'"):
            dmvi.resume(told)


def test_another_model_or_other_data_are_refused(path):
    with pytest.raises(InputError, match="coordinates a, b"):
        dmvi.load(path, constant, data=DATA)
    with pytest.raises(InputError, match="log-density of this model"):
        dmvi.load(path, line, data=DATA | {"y": DATA["y"] + 0.5})
    with pytest.raises(InputError, match="pass the model"):
        dmvi.load(path, data=DATA)  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match="other arrays"):
        dmvi.load(path, line, data=DATA, guide=dmvi.DiffusionGuide(steps=3))


def test_a_guide_of_ones_own_needs_its_recipe(tmp_path):
    posterior = Posterior(gaussian_target(), ScaledGaussian(), a_run(), jax.random.key(0))
    path = posterior.save(tmp_path / "own.dmvi", n=30)
    assert dmvi.load(path).sample()["s"].shape == (30, 2)
    with pytest.raises(InputError, match="recipe"):
        dmvi.load(path, gaussian_target())


def test_saving_twice_gives_the_same_arrays_and_leaves_nothing_else(fit, path, tmp_path):
    again = fit.save(tmp_path / "again.dmvi", n=200)
    assert os.listdir(tmp_path) == ["again.dmvi"]
    assert same(read(path).arrays, read(again).arrays)


def test_a_failure_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "fit.dmvi"
    write(path, {"a": np.arange(3)}, {"b": 1})
    before = path.read_bytes()

    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space"):
        write(path, {"a": np.arange(4)}, {"b": 2})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["fit.dmvi"]


def test_only_numbers_are_stored(tmp_path):
    with pytest.raises(InputError, match="only numbers"):
        write(tmp_path / "fit.dmvi", {"a": np.array([None])}, {})


def repacked(path: Path, to: Path, **members: bytes) -> Path:
    """A copy of a file with some members replaced, all checksums made right again by its author."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest", None) or contents["manifest.json"])
    for name, content in members.items():
        (key,) = (k for k, entry in manifest["arrays"].items() if k == name)
        manifest["arrays"][key]["sha256"] = hashlib.sha256(content).hexdigest()
        contents[manifest["arrays"][key]["file"]] = content
    contents["manifest.json"] = json.dumps(manifest).encode()
    contents["manifest.sha256"] = hashlib.sha256(contents["manifest.json"]).hexdigest().encode()
    with zipfile.ZipFile(to, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return to


def manifest_of(path: Path) -> dict:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("manifest.json"))


def test_a_newer_version_is_named(path, tmp_path):
    manifest = manifest_of(path) | {"version": VERSION + 1}
    newer = repacked(path, tmp_path / "newer.dmvi", manifest=json.dumps(manifest).encode())
    with pytest.raises(FileError, match="Upgrade dmvi"):
        dmvi.load(newer)


def test_hostile_arrays_are_refused(path, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match="xi"):
        dmvi.load(repacked(path, tmp_path / "a.dmvi", xi=buffer.getvalue()))
    with pytest.raises(FileError):
        dmvi.load(repacked(path, tmp_path / "b.dmvi", xi=pickle.dumps(Bomb())))
    huge = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9999), }"
    with pytest.raises(FileError, match="does not fit its bytes"):
        dmvi.load(repacked(path, tmp_path / "c.dmvi", xi=huge.ljust(127) + b"\n"))
    assert not (tmp_path / "exploded").exists()


def test_compressed_members_double_names_and_huge_recipes_are_refused(path, tmp_path):
    bomb = tmp_path / "bomb.dmvi"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * 50_000_000)
    assert bomb.stat().st_size < 100_000
    with pytest.raises(FileError, match="compressed"):
        dmvi.load(bomb)
    manifest = manifest_of(path)
    manifest["record"]["run"]["settings"]["guide"]["steps"] = 10**9
    big = repacked(path, tmp_path / "big.dmvi", manifest=json.dumps(manifest).encode())
    with pytest.raises(InputError, match="steps=1000000000"):
        dmvi.load(big, line, data=DATA)
    manifest["record"]["run"]["settings"]["guide"] = {"type": "os.system", "command": "true"}
    strange = repacked(path, tmp_path / "strange.dmvi", manifest=json.dumps(manifest).encode())
    with pytest.raises(InputError, match="recipe"):
        dmvi.load(strange, line, data=DATA)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip", b"[" * 100_000, b"\x00" * 4096])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "x.dmvi").write_bytes(content)
    with pytest.raises(FileError, match="no intact file"):
        dmvi.load(tmp_path / "x.dmvi")
    with pytest.raises(FileError, match="no file"):
        dmvi.load(tmp_path / "missing.dmvi")


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """One of the ways in which files go wrong."""
    changed = bytearray(content)
    place = int(rng.integers(len(changed)))
    kind = rng.integers(6)
    if kind == 0:
        return bytes(changed[:place])
    if kind == 1:
        changed[place] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        end = min(place + int(rng.integers(1, 200)), len(changed))
        changed[place:end] = rng.bytes(end - place)
    elif kind == 3:
        del changed[place : place + int(rng.integers(1, 200))]
    elif kind == 4:
        changed[place:place] = rng.bytes(int(rng.integers(1, 200)))
    else:  # the end, where zip keeps its directory
        place = len(changed) - 1 - int(rng.integers(min(2000, len(changed))))
        changed[place] = int(rng.integers(256))
    return bytes(changed)


def mutated_record(manifest: dict, rng: np.random.Generator) -> dict:
    """A value somewhere in the manifest replaced, as an author with the right checksums could do."""
    node, values = manifest, [None, -1, 1e308, "x", [], {}, True, 10**30, "NaN"]
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[int(rng.integers(len(keys)))]
        child = node[key]
        if not isinstance(child, dict | list) or not child or rng.random() < 0.2:
            node[key] = values[int(rng.integers(len(values)))]
            return manifest
        node = child


def test_two_hundred_mutated_files_give_clean_errors_or_intact_results(fit, path, tmp_path):
    rng = np.random.default_rng(0)
    content, whole = path.read_bytes(), fit.sample(200)
    refused = 0
    for i in range(200):
        bad = tmp_path / "bad.dmvi"
        bad.write_bytes(mutated(content, rng))
        try:
            found = dmvi.load(bad)
        except InputError:
            refused += 1
        else:
            assert same(found.sample(), whole), i
            assert found.diagnostics == fit.diagnostics, i
    assert 100 < refused <= 200


def test_two_hundred_mutated_records_give_clean_errors_or_readable_results(path, tmp_path):
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(200):
        manifest = mutated_record(manifest_of(path), rng)
        bad = tmp_path / "bad.dmvi"
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(bad, "w") as archive:
            for name in old.namelist():
                if not name.startswith("manifest"):
                    archive.writestr(name, old.read(name))
            encoded = json.dumps(manifest).encode()
            archive.writestr("manifest.json", encoded)
            archive.writestr("manifest.sha256", hashlib.sha256(encoded).hexdigest())
        try:
            found = dmvi.load(bad)
        except InputError:
            refused += 1
        else:
            assert repr(found)
            assert found.summary().rows
    assert refused > 50


def test_a_log_density_can_be_loaded_too(tmp_path):
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    recipe = dmvi.GaussianGuide(full_rank=False)
    fit = dmvi.fit(log_density, init=jnp.zeros(2), guide=recipe, steps=16, progress=False)
    path = fit.save(tmp_path / "density.dmvi", n=50)
    loaded = dmvi.load(path, log_density, init=jnp.zeros(2))
    assert same(fit.sample(100, seed=3), loaded.sample(100, seed=3))
    assert dmvi.load(path).data_digest is None


def test_a_base_whose_triangle_is_in_another_order_comes_back(tmp_path):
    """In many coordinates those that others hang on come first: here one in the middle."""

    def log_density(x):
        shared = x[40]
        return -0.5 * shared**2 - 0.5 * jnp.sum((x - shared) ** 2) - 0.1 * jnp.sum(x**2)

    guide = dmvi.DiffusionGuide(steps=2, network=dmvi.Projected(rank=2, width=8))
    made = dmvi.fit(log_density, init=jnp.zeros(66), guide=guide, steps=5, progress=False)
    order = made.guide.affine.order  # pyright: ignore[reportAttributeAccessIssue]
    assert order[0] == 40
    again = dmvi.load(made.save(tmp_path / "fit.dmvi", n=100), log_density, init=jnp.zeros(66))
    assert isinstance(again, Posterior)
    np.testing.assert_array_equal(again.guide.affine.order, order)  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_array_equal(again.sample(3, seed=1)["x"], made.sample(3, seed=1)["x"])
