"""Batches of a model's own plates: corrected at a point they stay unbiased and lose their noise."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dmvi
from dmvi import _start
from dmvi._start import anchor_of, anchored, with_control_variates
from dmvi.targets import CONTROL_VARIATES, Anchor, corrected, corrected_at, from_numpyro, on_all_rows
from dmvi.targets._control_variates import _anchors, slope_noise

X = np.random.default_rng(0).normal(size=6)
Y = np.random.default_rng(1).normal(size=6)
XI = jnp.array([0.7, -0.3])
POINT = np.array([0.4, -0.1])


def scaled(x, y, batch=2):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(2.0))
    with numpyro.plate("n", len(y), subsample_size=batch) as index:
        numpyro.sample("y", dist.Normal(slope * x[index], tau), obs=y[index])
        numpyro.factor("extra", -jnp.abs(x[index]) * slope**2)


def regression(x, y, batch=2):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("n", len(y), subsample_size=batch) as index:
        numpyro.sample("y", dist.Normal(beta[0] + beta[1] * x[index], 1.0), obs=y[index])


def crossed(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(2.0))
    column = numpyro.plate("column", 3, subsample_size=2, dim=-1)
    row = numpyro.plate("row", 2, subsample_size=1, dim=-2)
    with column, row:
        numpyro.sample("y", dist.Normal(mu, tau), obs=numpyro.subsample(y, event_dim=0))


def all_batches(size, count):
    return np.array(list(itertools.combinations(range(size), count)))


def batches_of(name):
    if name == "one plate":
        return from_numpyro(scaled, (X, Y)), {"n": all_batches(6, 2)}
    rows, columns = all_batches(2, 1), all_batches(3, 2)
    grid = {"row": np.repeat(rows, len(columns), 0), "column": np.tile(columns, (len(rows), 1))}
    return from_numpyro(crossed, (Y.reshape(2, 3),)), grid


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("plates", ["one plate", "crossed plates"])
def test_the_mean_over_all_batches_is_the_full_density(plates, order):
    """Value and slope, to rounding, far from the point too."""
    target, batches = batches_of(plates)
    estimate = corrected_at(target, _anchors(target, POINT, CONTROL_VARIATES)[order - 1])
    for xi in (XI, jnp.array([-2.0, 1.0])):
        of_batch = jax.value_and_grad(estimate.log_density)
        values, slopes = jax.jit(jax.vmap(lambda batch, xi=xi, of=of_batch: of(xi, batch)))(batches)
        value, slope = jax.value_and_grad(target.log_density)(xi)
        np.testing.assert_allclose(values.mean(), value, rtol=2e-5)
        np.testing.assert_allclose(slopes.mean(axis=0), slope, rtol=2e-4, atol=2e-4)
        assert float(estimate.log_density(xi)) == pytest.approx(float(value), rel=1e-6)


def noise_at(target, distance):
    draws = np.tile(POINT + distance, (200, 1))
    return slope_noise(target, draws, np.ones(2)) ** 0.5


@pytest.mark.parametrize("order", [1, 2])
def test_the_noise_of_the_slope_falls_with_the_order(order):
    """An expansion of order n leaves terms of order n + 1, whose slopes are of order n in the distance."""
    target = from_numpyro(scaled, (X, Y))
    estimate = corrected_at(target, _anchors(target, POINT, CONTROL_VARIATES)[order - 1])
    far, near = noise_at(estimate, 0.1), noise_at(estimate, 0.05)
    assert np.log2(far / near) == pytest.approx(order, abs=0.25)
    assert far < 0.5 * noise_at(target, 0.1)


def test_a_quadratic_log_likelihood_leaves_no_noise_at_all():
    target = from_numpyro(regression, (X, Y))
    draws = np.random.default_rng(2).normal(size=(64, 2))
    exact = corrected(target, POINT, draws)
    assert exact.anchor.curvature is not None
    assert slope_noise(exact, draws, np.ones(2)) < 1e-8 * slope_noise(target, draws, np.ones(2))


def test_the_first_order_is_enough_where_the_second_would_cost_too_much():
    target = from_numpyro(regression, (X, Y))
    draws = POINT + 0.01 * np.random.default_rng(2).normal(size=(64, 2))
    settings = dataclasses.replace(CONTROL_VARIATES, second_order_dim=1)
    assert corrected(target, POINT, draws, settings).anchor.curvature is None


def test_no_correction_where_it_would_make_the_noise_worse():
    """Far off, an expansion of exp(-2 log tau) is wilder than the batches themselves."""
    target = from_numpyro(scaled, (X, Y))
    draws = np.array([0.4, 4.0]) + 0.1 * np.random.default_rng(2).normal(size=(64, 2))
    assert corrected(target, np.array([0.4, -4.0]), draws) is target


def test_no_correction_with_parameters_or_without_batches():
    def learned(x, y):
        numpyro.param("shift", jnp.zeros(()))
        regression(x, y)

    draws = np.zeros((4, 2))
    for target in (
        from_numpyro(learned, (X, Y)),
        from_numpyro(regression, (X, Y), {"batch": 6}),
        on_all_rows(from_numpyro(regression, (X, Y))),
    ):
        assert corrected(target, POINT, draws) is target


def test_an_anchor_survives_being_told():
    target = from_numpyro(regression, (X, Y))
    estimate = corrected(target, POINT, np.random.default_rng(2).normal(size=(64, 2)))
    rows = anchor_of(estimate)["anchor"]
    again = anchored(target, rows, 0.0)
    batch = {"n": jnp.array([4, 1])}
    assert float(again.log_density(XI, batch)) == float(estimate.log_density(XI, batch))
    first = Anchor(POINT, -3.0, XI)
    assert Anchor.of(first.rows()).curvature is None
    assert Anchor.of(first.rows()).value == -3.0


MANY = np.random.default_rng(3).normal(1.5, 0.7, 2000)


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y), subsample_size=100) as index:
        numpyro.sample("y", dist.Normal(mu, tau), obs=y[index])


@pytest.fixture
def trained_on_batches(monkeypatch):
    """As where rows are too many for the warm start to see all of them."""
    monkeypatch.setattr(_start, "NOTHING_TO_GAIN", -1.0)
    few = dataclasses.replace(CONTROL_VARIATES, rows_of_the_start=0)
    monkeypatch.setattr(_start, "CONTROL_VARIATES", few)


def normal_and_skewed(y):
    """Beside what the rows tell, a coordinate that no Gaussian fits, so that there is something to train."""
    normal(y)
    numpyro.sample("free", dist.Gamma(1.0, 1.0))


def test_a_fit_on_batches_of_its_own(trained_on_batches):
    guide = dmvi.DiffusionGuide(steps=2)
    posterior = dmvi.fit(normal_and_skewed, {"y": MANY}, guide=guide, steps=800, progress=False)
    found = posterior.diagnostics
    assert found.gap < 0.01
    assert (found.rows_of_a_step, found.rows) == (100, 2000)
    # Looks are at all rows.
    assert found.history[-1] == pytest.approx(found.elbo, abs=0.02)
    # A fit that comes from a file finds the same correction again.
    target = from_numpyro(normal_and_skewed, (), {"y": MANY})
    again = with_control_variates(target, posterior.guide.affine)
    np.testing.assert_array_equal(again.anchor.rows(), posterior.target.anchor.rows())
    plain = dmvi.fit(
        normal_and_skewed, {"y": MANY}, guide=guide, steps=800, progress=False, control_variates=False
    )
    assert plain.target.anchor is None
    assert plain.diagnostics.gap > 5 * found.gap


def test_a_start_on_all_rows_leaves_nothing_to_gain():
    posterior = dmvi.fit(normal, {"y": MANY}, progress=False)
    assert posterior.diagnostics.gap < 0.005
    assert posterior.diagnostics.steps == 0
