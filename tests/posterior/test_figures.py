"""Figures of one fit: what they show, and that nothing overlaps or breaks at forty parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from dmvi._errors import InputError
from dmvi.guides import GaussianGuide, anchored
from dmvi.posterior import Posterior
from dmvi.posterior._checks import plot_predictive
from dmvi.posterior._forest import plot_forest
from dmvi.posterior._plots import label
from tests.posterior.gaussians import SCALES, ScaledGaussian, a_run, gaussian_target


@pytest.fixture(scope="module")
def fit() -> Posterior:
    return Posterior(gaussian_target(), ScaledGaussian(1.2), a_run(), jax.random.key(5))


def wide_fit(dim: int = 40) -> Posterior:
    """Forty coordinates of very different scales, and a guide that is too wide."""
    target = dataclasses.replace(
        gaussian_target(),
        dim=dim,
        names=tuple(f"a_rather_long_name_of_a_site[{i}]" for i in range(dim)),
        dims={},
        observed={},
        _log_density=lambda xi, params, batch: jnp.sum(-0.5 * xi**2),
        _constrain=lambda xi, params: {
            "a_rather_long_name_of_a_site": xi * jnp.logspace(-4, 4, dim, dtype=xi.dtype)
        },
        _log_likelihood=lambda xi, params: {},
    )

    wide = GaussianGuide(full_rank=False).build(
        anchored(jnp.zeros(dim), 1.05 * jnp.ones(dim), full=False), key=jax.random.key(0)
    )
    return Posterior(target, wide, a_run(), jax.random.key(0))


@pytest.fixture(scope="module")
def wide() -> Posterior:
    return wide_fit()


def on_axis(figure) -> list[tuple[str, str]]:
    """Overlaps of labels that are really drawn: ticks outside their axis are not."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found, boxes = [], []
    for ax in figure.axes:
        if not ax.get_visible():
            continue
        texts = [ax.title, ax.xaxis.label, ax.yaxis.label]
        for axis, low, high in ((ax.xaxis, *ax.get_xlim()), (ax.yaxis, *sorted(ax.get_ylim()))):
            # Half a pixel of a tick can lie outside through rounding; those are not drawn.
            for tick in axis.get_major_ticks():
                if low <= tick.get_loc() <= high and tick.label1.get_visible():
                    texts.append(tick.label1)
        boxes += [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text().strip()]
    for i, (one, a) in enumerate(boxes):
        found += [(one, other) for other, b in boxes[i + 1 :] if a.padded(-0.5).overlaps(b.padded(-0.5))]
    return found


@pytest.mark.parametrize("plot", ["history", "marginals", "pairs", "weights", "forest", "diffusion"])
def test_no_labels_overlap_at_forty_parameters(wide, plot):
    figure = getattr(wide, f"plot_{plot}")()
    assert on_axis(figure) == []


def test_the_history_shows_the_looks_the_end_and_its_reason(fit):
    (ax,) = fit.plot_history().axes
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), fit.run.history_steps)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), fit.run.history)
    assert "plateau" in ax.get_title()
    words = " ".join(text.get_text() for text in ax.figure.legends[0].get_texts())
    assert "stopped at step 2,000" in words
    assert ax.get_ylabel() == "nats"


def test_weights_show_their_effective_share_and_khat(fit):
    left, right = fit.plot_weights().axes
    assert f"{fit.diagnostics.ess:.3f}" in left.get_title()
    assert f"{fit.diagnostics.khat:.2f}" in right.get_title()
    heaviest = np.exp(np.max(fit.log_weights) - fit.diagnostics.log_evidence)
    assert np.max(np.asarray(right.lines[0].get_ydata(), float)) == pytest.approx(heaviest)


def test_marginals_and_pairs_set_the_guide_beside_the_corrected_draws(fit):
    figure = fit.plot_marginals(["a"])
    (ax,) = (ax for ax in figure.axes if ax.get_visible())
    spread = ax.lines[0].get_xdata()[np.argmax(ax.lines[0].get_ydata())]
    assert abs(spread) < 0.5
    pairs = fit.plot_pairs(["a", "s[1]"], n=2000)
    assert len(pairs.axes) == 3
    points = pairs.axes[1].lines[0]
    np.testing.assert_array_equal(points.get_xdata(), fit.sample(2000)["a"][:1500])
    with pytest.raises(InputError, match="unknown"):
        fit.plot_pairs(["a", "tau"])


def test_pairs_show_six_of_forty_and_marginals_all(wide):
    assert len(wide.plot_pairs().axes) == 6 * 7 / 2
    assert sum(ax.get_visible() for ax in wide.plot_marginals().axes) == 40


def test_forest_shows_the_quantiles_and_parts_scales():
    rng = np.random.default_rng(0)
    draws = {"mu": rng.normal(size=4000), "big": 5000 + 300 * rng.normal(size=(4000, 2))}
    figure = plot_forest(draws)
    first, second = figure.axes
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["mu"]
    assert [tick.get_text() for tick in second.get_yticklabels()] == ["big[0]", "big[1]"]
    (median,) = np.asarray(first.lines[0].get_xdata(), float)
    assert median == pytest.approx(np.median(draws["mu"]))


def test_predictive_checks_of_few_many_and_counted_observations():
    rng = np.random.default_rng(1)
    observed = {
        "few": rng.normal(size=8),
        "many": rng.normal(size=(30, 10)),
        "counts": rng.poisson(3.0, size=200),
    }
    predicted = {
        "few": rng.normal(size=(300, 8)),
        "many": rng.normal(size=(300, 30, 10)),
        "counts": rng.poisson(3.0, size=(300, 200)),
    }
    figure = plot_predictive(observed, predicted)
    few, many, counts = (ax for ax in figure.axes if ax.get_visible())
    np.testing.assert_array_equal(few.lines[1].get_ydata(), observed["few"])
    assert len(many.lines) == 51
    figure.canvas.draw()
    heights = np.array([bar.get_window_extent().height for bar in counts.patches])
    values = np.unique(np.concatenate([observed["counts"], predicted["counts"].ravel()]))
    shares = [np.mean(observed["counts"] == value) for value in values]
    np.testing.assert_allclose(heights / heights.sum(), shares, atol=1e-6)
    gaps = observed | {"few": np.where(np.arange(8) < 4, np.nan, observed["few"])}
    assert "inside" in plot_predictive(gaps, predicted).axes[0].get_title()
    with pytest.raises(InputError, match="no predictive draws"):
        plot_predictive({}, {})


def test_the_way_ends_in_the_draws_and_is_animated(fit, tmp_path):
    stages = fit.stages(500)
    assert stages.shape == (2, 500, 3)
    np.testing.assert_allclose(stages[0].std(axis=0), 1.0, rtol=0.15)
    np.testing.assert_allclose(stages[1].std(axis=0), 1.2 * SCALES, rtol=0.15)
    figure = fit.plot_diffusion("a", "s[1]", n=300, gif=tmp_path / "way.gif")
    assert [ax.get_title() for ax in figure.axes] == ["noise", "posterior"]
    with Image.open(tmp_path / "way.gif") as animation:
        assert getattr(animation, "n_frames", 1) > 10
        assert animation.format == "GIF"
    with pytest.raises(InputError, match="'tau'"):
        fit.plot_diffusion("tau")
    with pytest.raises(InputError, match="twice"):
        fit.plot_diffusion("a", "a")
    with pytest.raises(InputError, match=r"\.gif"):
        fit.plot_diffusion(gif=tmp_path / "way.png")


def test_names_are_not_taken_for_mathematics():
    assert label("a$b$") == r"a\$b\$"
    assert len(label("x" * 100)) == 27


def test_weights_that_are_not_finite_are_drawn_all_the_same():
    hopeless = Posterior(gaussian_target(holes=0.9), ScaledGaussian(), a_run(), jax.random.key(0))
    hopeless.plot_weights()
    hopeless.plot_history()
