"""The DataTree: groups, dimensions, coordinates, and what ArviZ does with it."""

import numpy as np
import pytest
from arviz_stats.loo import loo
from arviz_stats.summary import summary

from dmvi._errors import InputError
from tests.posterior.models import X, Y, quick_fit


@pytest.fixture(scope="module")
def tree():
    return quick_fit("line").to_arviz(1000, coords={"point": list("abcdef")})


def test_every_group_is_there_with_its_dimensions(tree):
    assert set(tree.children) == {
        "posterior",
        "posterior_predictive",
        "log_likelihood",
        "sample_stats",
        "observed_data",
        "constant_data",
    }
    assert tree["posterior"]["mean"].dims == ("chain", "draw", "point")
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "point")
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "point")
    assert tree["observed_data"]["y"].dims == ("point",)
    assert tree["constant_data"]["x"].dims == ("point",)
    assert list(tree["posterior"]["point"].values) == list("abcdef")
    np.testing.assert_allclose(tree["constant_data"]["x"].values, X, rtol=1e-6)


def test_the_weights_of_sample_stats_average_to_the_evidence(tree):
    log_w = tree["sample_stats"]["log_weight"].values[0]
    posterior = quick_fit("line")
    expected = posterior.diagnostics.log_evidence
    assert np.log(np.mean(np.exp(log_w - expected))) == pytest.approx(0.0, abs=0.02)
    lp = tree["sample_stats"]["lp"].values[0]
    np.testing.assert_allclose(log_w, lp - tree["sample_stats"]["log_q"].values[0], rtol=1e-5, atol=1e-5)


def test_loo_and_summary_run(tree):
    assert loo(tree).n_data_points == len(Y)  # pyright: ignore[reportAttributeAccessIssue]
    table = summary(tree, var_names=["a", "b"])
    assert list(table.index) == ["a", "b"]


def test_user_names_win_and_wrong_ones_are_refused():
    posterior = quick_fit("line")
    tree = posterior.to_arviz(
        50, dims={"mean": ["time"]}, coords={"time": np.arange(6) + 2000}, predictive=False
    )
    assert tree["posterior"]["mean"].dims == ("chain", "draw", "time")
    assert tree["posterior"]["mean"].coords["time"].values[0] == 2000
    assert "posterior_predictive" not in tree.children
    with pytest.raises(InputError, match="6 labels"):
        posterior.to_arviz(50, coords={"point": ["a"]})
    with pytest.raises(InputError, match="'city'"):
        posterior.to_arviz(50, coords={"city": ["a"]})
    with pytest.raises(InputError, match="'nothing'"):
        posterior.to_arviz(50, dims={"nothing": ["a"]})
    with pytest.raises(InputError, match="at most 1"):
        posterior.to_arviz(50, dims={"mean": ["a", "b"]})


def test_netcdf_gives_back_every_group(tree, tmp_path):
    xr = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    tree.to_netcdf(tmp_path / "fit.nc")
    with xr.open_datatree(tmp_path / "fit.nc") as back:
        assert set(back.children) == set(tree.children)
        for group in tree.children:
            for name, values in tree[group].data_vars.items():
                np.testing.assert_array_equal(back[group][name].values, values.values)
        assert list(back["posterior"]["point"].values) == list("abcdef")
        assert loo(back).n_data_points == len(Y)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("plot", ["plot_dist", "plot_forest", "plot_ppc_dist"])
def test_arviz_plots_take_it(tree, plot):
    plots = pytest.importorskip("arviz_plots")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    getattr(plots, plot)(tree, backend="matplotlib")
