"""Draws, resampling, summary and ArviZ on a target whose posterior is known."""

import dataclasses
import importlib.util

import jax
import numpy as np
import pytest
from arviz_stats.loo import loo
from arviz_stats.summary import summary as arviz_summary
from scipy.stats import kstest, norm

from dmvi._errors import InputError
from dmvi.posterior import Posterior, Verdict
from dmvi.posterior._summary import summarise
from tests.posterior.gaussians import SCALES, Y_SCALE, ScaledGaussian, Y, a_run, gaussian_target


def fitted(stretch: float = 1.0, shift: float = 0.0, target=None) -> Posterior:
    guide = ScaledGaussian(stretch, shift)
    return Posterior(target or gaussian_target(), guide, a_run(), jax.random.key(5))


@pytest.fixture(scope="module")
def exact() -> Posterior:
    return fitted()


def test_draws_are_constrained_complete_and_in_the_models_order(exact):
    draws = exact.sample(20_000)
    assert list(draws) == ["a", "s", "b"]
    assert {name: value.shape for name, value in draws.items()} == {
        "a": (20_000,),
        "s": (20_000, 2),
        "b": (20_000,),
    }
    assert np.all(draws["s"] > 0)
    np.testing.assert_array_equal(draws["b"], 2 * draws["a"])
    assert kstest(draws["a"], norm(0, SCALES[0]).cdf).pvalue > 1e-3
    assert kstest(np.log(draws["s"][:, 1]), norm(0, SCALES[2]).cdf).pvalue > 1e-3


def test_seeds_decide_and_fewer_draws_are_a_part_of_more(exact):
    first, again, other = exact.sample(100), exact.sample(100), exact.sample(100, seed=1)
    np.testing.assert_array_equal(first["a"], again["a"])
    assert not np.any(first["a"] == other["a"])
    np.testing.assert_array_equal(exact.sample(5000)["a"][:100], first["a"])


def test_another_number_of_draws_compiles_nothing():
    traces = 0
    target = gaussian_target()
    constrain = target._constrain

    def counting(xi, params):
        nonlocal traces
        traces += 1
        return constrain(xi, params)

    posterior = fitted(target=dataclasses.replace(target, _constrain=counting))
    posterior.sample(10)
    before = traces
    for n in (1, 999, 4000, 4001, 20_000):
        posterior.sample(n, seed=n)
        posterior.sample(n, resample=True)
    assert traces == before


@pytest.mark.parametrize("stretch", [0.75, 1.3])
def test_resampling_corrects_a_guide_of_the_wrong_scale(stretch):
    posterior = fitted(stretch, shift=0.1)
    raw, corrected = posterior.sample(10_000), posterior.sample(10_000, resample=True)
    assert raw["a"].std() == pytest.approx(stretch * SCALES[0], rel=0.03)
    assert corrected["a"].std() == pytest.approx(SCALES[0], rel=0.03)
    assert np.log(corrected["s"]).std(axis=0) == pytest.approx(SCALES[1:], rel=0.06)
    assert corrected["a"].mean() == pytest.approx(0.0, abs=0.04)
    assert abs(raw["a"].mean()) > 0.06


def test_resampling_an_exact_guide_repeats_no_draw(exact):
    draws = exact.sample(4000, resample=True)["a"]
    assert len(np.unique(draws)) > 3990
    np.testing.assert_array_equal(draws, exact.sample(4000, resample=True)["a"])


def test_sites_are_chosen_and_misspelt_ones_named(exact):
    assert list(exact.sample(3, sites=["b", "a"])) == ["b", "a"]
    with pytest.raises(InputError, match="tau"):
        exact.sample(3, sites=["tau"])
    with pytest.raises(InputError, match="list of names"):
        exact.sample(3, sites="a")


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "10"])
def test_the_number_of_draws_is_checked(exact, n):
    with pytest.raises(InputError, match="number of draws"):
        exact.unconstrained(n)


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, None])
def test_the_seed_is_checked(exact, seed):
    with pytest.raises(InputError, match="seed"):
        exact.unconstrained(10, seed=seed)


def test_a_guide_of_another_dimension_is_refused():
    with pytest.raises(InputError, match="dimension 3"):
        Posterior(gaussian_target(), ScaledGaussian(dim=2), a_run(), jax.random.key(0))


def test_params_are_constrained(exact):
    np.testing.assert_allclose(exact.params["psi"], np.exp(0.7), rtol=1e-6)


def test_summary_gives_the_numbers_of_its_draws(exact):
    summary = exact.summary(2000, seed=4)
    draws = exact.sample(2000, seed=4)
    assert [row.name for row in summary.rows] == ["a", "s[0]", "s[1]", "b"]
    row = summary.to_dict()["s[1]"]
    values = draws["s"][:, 1].astype(np.float64)
    expected = [values.mean(), values.std(ddof=1), *np.quantile(values, (0.05, 0.5, 0.95))]
    np.testing.assert_allclose([row[c] for c in ("mean", "sd", "5%", "median", "95%")], expected, rtol=1e-6)
    lines = repr(summary).splitlines()
    assert lines[0].split() == ["mean", "sd", "5%", "median", "95%"]
    assert len({len(line) for line in lines[:-1]}) == 1, "columns are aligned"


def test_summary_resamples_when_the_verdict_says_so(exact):
    wide = fitted(1.3)
    assert exact.verdict is Verdict.TRUST
    assert not exact.summary().resampled
    assert wide.verdict is Verdict.RESAMPLE
    assert wide.summary().resampled
    assert wide.summary().to_dict()["a"]["sd"] == pytest.approx(SCALES[0], rel=0.06)
    assert wide.summary(resample=False).to_dict()["a"]["sd"] == pytest.approx(1.3 * SCALES[0], rel=0.06)
    assert "resampled" in repr(wide.summary())


def test_a_long_summary_is_cut_when_printed_only():
    summary = summarise({"x": np.random.default_rng(0).normal(size=(50, 1000))}, resampled=False)
    assert len(summary.rows) == 1000
    assert len(repr(summary).splitlines()) < 80
    assert "more in .rows" in repr(summary)


def test_arviz_groups_and_names_of_dimensions(exact):
    tree = exact.to_arviz(500, seed=2)
    assert set(tree.children) == {"posterior", "observed_data", "log_likelihood", "sample_stats"}
    assert tree["posterior"]["s"].dims == ("chain", "draw", "group")
    assert tree["posterior"]["a"].shape == (1, 500)
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "obs")
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, Y)
    a = tree["posterior"]["a"].values[0]
    np.testing.assert_array_equal(a, exact.sample(500, seed=2)["a"])
    np.testing.assert_allclose(
        tree["log_likelihood"]["y"].values[0], norm.logpdf(Y[None], a[:, None], Y_SCALE), rtol=1e-4, atol=1e-5
    )
    assert "log_likelihood" not in exact.to_arviz(50, log_likelihood=False).children


def test_arviz_loo_gives_the_closed_form(exact):
    """elpd_i = -log E[1 / p(y_i | a)]; E[exp(c (y - a)^2)] = exp(c y^2 / (1 - 2c)) / sqrt(1 - 2c)."""
    tree = exact.to_arviz(4000)
    c = 1 / (2 * Y_SCALE**2)
    expected = norm.logpdf(0, 0, Y_SCALE) - c * Y**2 / (1 - 2 * c) + 0.5 * np.log(1 - 2 * c)
    elpd = loo(tree).elpd  # pyright: ignore[reportAttributeAccessIssue]
    assert elpd == pytest.approx(expected.sum(), abs=0.03)
    assert len(arviz_summary(tree)) == 4


@pytest.mark.parametrize(
    "dims",
    [
        {},
        {"s": ("y",), "y": ("s",)},  # plates named like sites
        {"s": ("group",), "y": ("group",)},  # one plate name, two lengths
        {"a": ("group",), "y": ("obs", "more")},  # more names than axes
    ],
)
def test_arviz_survives_awkward_names_of_dimensions(dims):
    tree = fitted(target=gaussian_target(dims=dims)).to_arviz(50)
    assert tree["posterior"]["s"].shape == (1, 50, 2)
    assert tree["log_likelihood"]["y"].shape == (1, 50, 4)


def test_arviz_renames_scoped_sites_and_leaves_out_empty_groups():
    target = gaussian_target()
    scoped = dataclasses.replace(
        target,
        observed={},
        dims={},
        _constrain=lambda xi, params: {"scope/a": xi[0]},
        _log_likelihood=lambda xi, params: {},
    )
    tree = fitted(target=scoped).to_arviz(50)
    assert set(tree.children) == {"posterior", "sample_stats"}
    assert list(tree["posterior"].data_vars) == ["scope.a"]


def test_arviz_tree_can_be_written_and_read(exact, tmp_path):
    xr = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4" if importlib.util.find_spec("netCDF4") else "h5netcdf")
    exact.to_arviz(50).to_netcdf(tmp_path / "fit.nc")
    with xr.open_datatree(tmp_path / "fit.nc") as tree:
        assert tree["posterior"].attrs["inference_library"] == "dmvi"
        np.testing.assert_array_equal(tree["posterior"]["a"].values[0], exact.sample(50)["a"])
