"""calibrate(): simulated, fitted, ranked."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
import dataclasses
import itertools
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dmvi
from dmvi._calibrate import LOG_JOINT
from dmvi.calibration import Calibration
from dmvi.targets import as_target, read_simulator, seen_twice
from tests.cli.test_fit_command import folder as folder
from tests.cli.test_fit_command import run
from tests.targets.models import SIGMA, Y, eight_schools

QUICK = {"guide": "full-rank", "steps": 90, "progress": False}


def correlated(x, y=None):
    """Two weights of almost one predictor: the posterior is a narrow ridge."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.deterministic("total", w.sum())
    numpyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


X = np.stack([np.ones(6), 1 + 0.1 * np.linspace(-1, 1, 6)], axis=1)


@pytest.fixture(scope="module")
def exact():
    return dmvi.calibrate(correlated, {"x": X, "y": (6,)}, n=64, **QUICK)


def test_exact_fits_are_calibrated(exact):
    assert exact.calibrated, exact
    assert exact.datasets == 64
    assert exact.sites == {"w": ("w[0]", "w[1]"), "total": ("total",), LOG_JOINT: (LOG_JOINT,)}


def test_mean_field_is_not():
    found = dmvi.calibrate(correlated, {"x": X, "y": (6,)}, n=64, **{**QUICK, "guide": "mean-field"})
    verdicts = {verdict.site: verdict for verdict in found.verdicts}
    assert verdicts["w"].words.startswith("too narrow")
    assert found.coverage()["w[0]"] < 0.7


ONE = np.array([0.3, -0.2, 0.8, 0.1, 0.5, 0.9])


@pytest.mark.slow
def test_around_one_data_set():
    found = dmvi.calibrate(correlated, {"x": X, "y": ONE}, near=True, n=40, **QUICK)
    assert found.near
    assert found.calibrated, found


@pytest.mark.slow
def test_truths_of_a_posterior_that_is_too_narrow_show():
    narrow = dmvi.fit(correlated, {"x": X, "y": ONE}, guide="mean-field", steps=90, progress=False)
    assert not dmvi.calibrate(correlated, {"x": X, "y": ONE}, near=narrow, n=100, **QUICK).calibrated


def test_a_simulator_of_a_log_density():
    def simulate(key):
        a, b = jax.random.split(key)
        mu = 2.0 * jax.random.normal(a)
        return {"mu": mu}, mu + jax.random.normal(b, (5,))

    def log_density(point, y):
        return -0.5 * (point["mu"] / 2) ** 2 - 0.5 * jnp.sum((y - point["mu"]) ** 2)

    found = dmvi.calibrate(log_density, simulate, init={"mu": 0.0}, n=24, **QUICK)
    assert list(found.ranks) == ["mu", LOG_JOINT]
    assert found.calibrated


def test_simulated_data_have_the_models_moments():
    simulator = read_simulator(eight_schools, {"sigma": SIGMA, "y": Y})
    assert simulator.arguments == {"y": "y"}
    truth, data = simulator.simulate(jax.random.split(jax.random.key(0), 4000))
    assert set(truth) == {"mu", "tau", "theta", "effect"}
    assert truth["mu"].std() == pytest.approx(5.0, rel=0.05)
    assert (data["y"] - truth["theta"]).std(axis=0) == pytest.approx(SIGMA, rel=0.06)
    assert truth["effect"] == pytest.approx(truth["theta"] - truth["mu"][:, None], abs=1e-4)


def test_a_model_seen_twice_adds_the_likelihood():
    both = as_target(
        seen_twice(eight_schools, {"y": "again"}), data={"sigma": SIGMA, "y": Y, "again": Y[::-1].copy()}
    )
    once = as_target(eight_schools, data={"sigma": SIGMA, "y": Y})
    other = as_target(eight_schools, data={"sigma": SIGMA, "y": Y[::-1].copy()})
    xi = jnp.linspace(-1, 1, 10)
    expected = once.log_density(xi) + jnp.sum(other.log_likelihood(xi)["y"])
    assert both.log_density(xi) == pytest.approx(float(expected), rel=1e-6)


def factor_model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("extra", -mu)
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def transformed_model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=jnp.log(y))


def improper_model(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, 1).expand([len(y)]).to_event(1), obs=y)


def learned_model(y):
    scale = numpyro.param("scale", 1.0)
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), scale), obs=y)


def lagged_model(y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    before = jnp.concatenate([jnp.zeros(1), y[:-1]])
    numpyro.sample("y", dist.Normal(slope * before, 1).to_event(1), obs=y)


def scaled_model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.handlers.scale(scale=2.0):
        numpyro.sample("y", dist.Normal(mu, 1).expand([3]).to_event(1), obs=y)


def test_a_posterior_of_other_data_is_refused():
    other = dmvi.fit(correlated, {"x": X, "y": ONE + 1}, **{**QUICK, "steps": 20})
    with pytest.raises(dmvi.InputError, match="of other data"):
        dmvi.calibrate(correlated, {"x": X, "y": ONE}, near=other, n=20, **QUICK)


def signed(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.deterministic("positive", mu > 0)
    numpyro.deterministic("one", jnp.ones(()))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def test_ties_are_broken_evenly_and_what_never_varies_is_left_out():
    found = dmvi.calibrate(signed, {"y": np.zeros(())}, n=100, **QUICK)
    assert set(found.sites) == {"mu", "positive", LOG_JOINT}
    assert found.calibrated, found


def test_a_simulator_s_truth_shows_the_joint_density_too():
    simulator = read_simulator(correlated, {"x": X, "y": (6,)})

    def simulate(key):
        truth, data = simulator.simulate(key[None])
        return {"w": truth["w"][0]}, {"y": data["y"][0]}

    found = dmvi.calibrate(correlated, simulate, shared={"x": X}, n=20, **QUICK)
    assert set(found.sites) == {"w", LOG_JOINT}


@pytest.mark.parametrize(
    ("model", "data", "changes", "message"),
    [
        (factor_model, {"y": np.ones(3)}, {}, "factor"),
        (transformed_model, {"y": np.ones(3)}, {}, "give a simulator"),
        (improper_model, {"y": np.ones(3)}, {}, "near=True"),
        (learned_model, {"y": np.ones(3)}, {}, "learned parameter"),
        (correlated, {"x": X}, {}, "observes nothing"),
        (correlated, 3, {}, "dict"),
        (correlated, {"x": X, "y": (6,)}, {"n": 3}, "at least 10"),
        (correlated, {"x": X, "y": (6,)}, {"level": 95}, "probability"),
        (correlated, {"x": X, "y": (6,)}, {"init": 0.0}, "simulator"),
        (correlated, lambda key: 3, {}, "two things"),
        (lagged_model, {"y": np.linspace(0, 1, 5)}, {}, "lags of y"),
        (scaled_model, {"y": np.ones(3)}, {}, "the scale of 'y'"),
        (correlated, {"x": X, "y": (6,)}, {"near": True}, "only a shape"),
        (correlated, {"x": X, "y": ONE}, {"near": 1}, "near must be"),
        (correlated, {"x": X, "y": ONE}, {"near": True, "init": 0.0}, "leave out"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(model, data, changes, message):
    with pytest.raises(dmvi.InputError, match=message):
        dmvi.calibrate(model, data, **{"n": 20, **QUICK, **changes})


@pytest.fixture
def one_fit(monkeypatch):
    """Takes the place of every fit, without its work; `ends` says how those of some data sets end."""
    data = {"x": X, "y": np.zeros(6)}
    base = dmvi.fit(correlated, data, guide="full-rank", steps=20, progress=False)
    ends, asked = {}, []

    def fitted(*_, seed, **settings):
        asked.append(settings)
        end = ends.get(seed, dmvi.Status.CONVERGED)
        if isinstance(end, BaseException):
            raise end
        if isinstance(end, float):
            time.sleep(end)
            end = dmvi.Status.TIME_LIMIT
        run = dataclasses.replace(base.run, status=end)
        return dmvi.Posterior(
            base.target, base.guide, run, base.key, judged=(base.diagnostics, base.log_weights)
        )

    monkeypatch.setattr("dmvi._calibrate.fit", fitted)
    monkeypatch.setattr("jax.clear_caches", lambda: None)
    return ends, asked


def one_by_one(**settings):
    return dmvi.calibrate(correlated, {"x": X, "y": (6,)}, n=20, one_by_one=True, progress=False, **settings)


@pytest.mark.parametrize("end", [dmvi.Status.INTERRUPTED, KeyboardInterrupt()])
def test_ctrl_c_in_one_of_many_fits_ends_them_all_and_keeps_their_ranks(one_fit, end):
    ends, asked = one_fit
    ends[12] = end
    found = one_by_one()
    assert len(asked) == 13
    assert (found.datasets, found.left_over, found.failed, found.cut_short) == (12, 8, 0, 0)
    assert "8 more were not come to" in repr(found)
    ends[9] = end
    with pytest.raises(KeyboardInterrupt):
        one_by_one()


def test_ctrl_c_between_two_fits_leaves_none_half_counted(one_fit, monkeypatch):
    ranked = []

    def interrupted(*arguments):
        ranked.append(arguments)
        if len(ranked) == 3 * 11 + 2:  # of three ranks of a data set
            raise KeyboardInterrupt
        return np.zeros((), int) if np.ndim(arguments[0]) == 0 else np.zeros(2, int)

    monkeypatch.setattr("dmvi._calibrate.rank_of", interrupted)
    found = one_by_one()
    assert {len(ranks) for ranks in found.ranks.values()} == {11}


def test_the_time_limit_is_that_of_all_fits_together(one_fit):
    ends, asked = one_fit
    ends[11] = 60.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", lambda seconds: patch.setattr("time.perf_counter", lambda: np.inf))
        found = one_by_one(time_limit=1000.0)
    limits = [settings["time_limit"] for settings in asked]
    assert len(limits) == 12
    assert all(after < before <= 1000 for before, after in itertools.pairwise(limits))
    assert (found.datasets, found.left_over) == (11, 9)
    with pytest.raises(dmvi.InputError, match=r"only 0 of 20 .* Give more time"):
        one_by_one(time_limit=1e-9)


def sometimes_undefined(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.deterministic("root", jnp.sqrt(mu))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def test_what_is_not_a_number_is_told_instead_of_ranked():
    with pytest.raises(dmvi.InputError, match="'root' is not a number in"):
        dmvi.calibrate(sometimes_undefined, {"y": np.zeros(())}, n=20, **QUICK)


def test_a_density_that_is_not_a_number_is_told(one_fit, monkeypatch):
    found = one_by_one()
    assert found.failed == 0

    def joint(study, i, truth, sites):
        values = np.zeros(len(sites["total"]))
        return np.zeros(()), np.where(i == 3, np.nan, values)

    monkeypatch.setattr("dmvi._calibrate._joint", joint)
    found = one_by_one()
    assert (found.datasets, found.failed) == (19, 1)
    assert found.reason == f"{LOG_JOINT!r} is not a number in draws of the fit."
    assert found.reason in repr(found)
    assert found.to_dict()["reason"] == found.reason


@pytest.mark.usefixtures("folder")
def test_the_command_prints_and_writes():
    result = run(
        *("calibrate", "model.py:regression", "--data", "data.json", "--n", "40", "--guide", "full-rank"),
        *("--steps", "60", "--out", "found"),
    )
    assert result.exit_code == 0, result.output
    assert "No sign of miscalibration" in result.output
    assert (Path("found") / "ecdf.png").stat().st_size > 1000
    assert set(json.loads((Path("found") / "calibration.json").read_text())["p_values"]) == {"a", LOG_JOINT}
    assert run("calibrate", "model.py:regression", "--data", "data.json", "--out", "found").exit_code == 2
    assert run("calibrate", "model.py:regression").exit_code == 2


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("place", ["ranks", "figures"])
def test_ranks_are_not_lost_where_the_disk_is_full(place, tmp_path, monkeypatch):
    ranks = np.random.default_rng(0).integers(0, 1000, 50)
    found = Calibration(ranks={"a": ranks}, sites={"a": ("a",)}, draws=999)
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    monkeypatch.setattr("dmvi.cli._calibrate.calibrate", lambda *_, **__: found)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    def full_here(path, *arguments, **settings):
        return write(path, *arguments, **settings) if path.parent.name == "spare" else full()

    write = Path.write_text
    if place == "ranks":
        monkeypatch.setattr(Path, "write_text", full_here)
    else:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    result = run("calibrate", "model.py:regression", "--data", "data.json", "--out", "found")
    assert result.exit_code == 2, result.output
    assert "No sign of miscalibration" in result.stdout
    assert "No space left on device" in result.stderr
    (kept,) = (tmp_path / "spare").iterdir() if place == "ranks" else [Path("found") / "calibration.json"]
    assert json.loads(kept.read_text())["ranks"]["a"] == ranks.tolist()
    assert ("not lost: it is in" in result.stderr) == (place == "ranks")


@pytest.mark.usefixtures("folder")
def test_the_command_fits_one_by_one_and_draws_as_advised(monkeypatch):
    asked = {}

    def calibrated(*_, **settings):
        asked.update(settings)
        raise dmvi.InputError("enough")

    monkeypatch.setattr("dmvi.cli._calibrate.calibrate", calibrated)
    for flags, resample in (((), False), (("--one-by-one",), None)):
        assert run("calibrate", "model.py:regression", "--data", "data.json", *flags).exit_code == 2
        assert (asked["one_by_one"], asked["resample"]) == (bool(flags), resample)
