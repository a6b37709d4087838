"""Figures: the estimates they draw, their panels, and that they leave global state alone."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

from dmvi._errors import InputError
from dmvi.posterior import plot_marginals, plot_plane
from dmvi.posterior._plots import _density, _grid, _regions


@pytest.fixture(scope="module")
def draws() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {
        method: {name: scale * rng.normal(size=3000) for name in ("x", "y", "z")}
        for method, scale in (("diffusion", 1.0), ("mean-field", 0.5), ("NUTS", 1.0))
    }


def test_the_drawn_density_is_that_of_the_draws():
    values = np.random.default_rng(1).normal(2.0, 3.0, size=20_000)
    grid = _grid(values)
    density = _density(values, grid)
    np.testing.assert_allclose(density, norm.pdf(grid, 2.0, 3.0), atol=0.006)
    assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1.0, abs=0.01)


def test_stray_and_constant_draws_do_not_break_the_density():
    grid = np.linspace(-1, 1, 256)
    assert np.all(np.isfinite(_density(np.array([0.0, 0.1, 1e30]), grid)))
    assert np.all(np.isfinite(_density(np.zeros(100), grid)))


def test_outlined_regions_hold_their_share_of_the_draws():
    rng = np.random.default_rng(2)
    x = rng.normal(size=20_000)
    y = 0.5 * x**2 + 0.5 * rng.normal(size=20_000)
    regions = _regions(x, y)
    fresh_x = rng.normal(size=20_000)
    fresh_y = 0.5 * fresh_x**2 + 0.5 * rng.normal(size=20_000)
    i = np.clip(np.searchsorted(regions.x, fresh_x), 0, 255)
    j = np.clip(np.searchsorted(regions.y, fresh_y), 0, 255)
    for level, share in zip(regions.levels, (0.99, 0.9, 0.5), strict=True):
        assert np.mean(regions.density[j, i] > level) == pytest.approx(share, abs=0.02)


def test_marginals_have_a_panel_for_each_variable_and_a_line_for_each_method(draws):
    figure = plot_marginals(draws, reference="NUTS", columns=2)
    panels = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_xlabel() for ax in panels] == ["x", "y", "z"]
    assert all(len(ax.lines) == 2 for ax in panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["NUTS", "diffusion", "mean-field"]
    colours = {line.get_color() for line in panels[0].lines}
    styles = {line.get_linestyle() for line in panels[0].lines}
    assert (len(colours), len(styles)) == (2, 2), "methods differ in colour and in style"


def test_the_plane_has_a_panel_for_each_method_the_reference_first(draws):
    figure = plot_plane(draws, x="x", y="z", reference="NUTS")
    assert [ax.get_title() for ax in figure.axes] == ["NUTS", "diffusion", "mean-field"]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("x", "z")
    assert len({ax.get_xlim() for ax in figure.axes}) == 1
    np.testing.assert_array_equal(figure.axes[2].lines[0].get_xdata(), draws["mean-field"]["x"])


def test_unknown_names_are_refused(draws):
    with pytest.raises(InputError, match="HMC"):
        plot_marginals(draws, reference="HMC")
    with pytest.raises(InputError, match="'w'"):
        plot_plane(draws, x="x", y="w", reference="NUTS")
    with pytest.raises(InputError, match="lacks"):
        plot_marginals({**draws, "other": {"x": np.zeros(3)}}, reference="NUTS")


def test_figures_are_made_without_pyplot():
    code = (
        "import sys, numpy as np, dmvi.posterior as p; "
        "d = {'a': {'x': np.arange(9.0), 'y': np.arange(9.0) ** 2}}; "
        "p.plot_marginals(d, reference='a'); p.plot_plane(d, x='x', y='y', reference='a'); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
