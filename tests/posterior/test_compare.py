"""Log Bayes factors and the sites that drive bad weights, where both are known."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import dmvi
from dmvi._errors import InputError
from dmvi._run import Status
from dmvi.posterior import Diagnostics, Posterior
from dmvi.posterior._drivers import Driver, drivers
from dmvi.posterior._verdict import judge
from tests.posterior.gaussians import ScaledGaussian, a_run, gaussian_target
from tests.posterior.models import X, Y, closed_form, quick_fit
from tests.posterior.test_verdict import GOOD


def test_the_log_bayes_factor_of_two_regressions_is_the_closed_form():
    line = closed_form(np.stack([np.ones_like(X), X], axis=1), Y)[2]
    constant = closed_form(np.ones((len(X), 1)), Y)[2]
    comparison = dmvi.compare({"line": quick_fit("line"), "constant": quick_fit("constant")})
    factor, error = comparison.log_bayes_factor("line", "constant")
    assert factor == pytest.approx(line - constant, abs=max(5 * error, 1e-3))
    assert error < 0.05
    best, other = comparison.rows
    assert best.log_bayes_factor == 0.0
    assert other.log_bayes_factor == pytest.approx(-abs(line - constant), abs=max(5 * error, 1e-3))
    assert f"{other.log_bayes_factor:.3f} +- {other.log_bayes_factor_se:.3f}" in repr(comparison)
    assert comparison.notes == ()


def test_comparing_warns_of_different_data_and_of_heavy_tails():
    narrow = Posterior(gaussian_target(), ScaledGaussian(0.25), a_run(), jax.random.key(0))
    other = dataclasses.replace(gaussian_target(), observed={"y": np.zeros(4)})
    exact = Posterior(other, ScaledGaussian(), a_run(), jax.random.key(0))
    text = repr(dmvi.compare({"narrow": narrow, "exact": exact}))
    assert "different data" in text
    assert "narrow *" in text


def test_errors_add_in_squares_and_comparing_needs_two():
    fits = {
        n: Posterior(gaussian_target(), ScaledGaussian(s), a_run(), jax.random.key(0))
        for n, s in (("a", 1.2), ("b", 1.3))
    }
    comparison = dmvi.compare(fits)
    a, b = fits["a"].diagnostics, fits["b"].diagnostics
    _, error = comparison.log_bayes_factor("a", "b")
    assert error == pytest.approx(np.hypot(a.log_evidence_se, b.log_evidence_se))
    assert comparison.log_bayes_factor("a", "a") == (0.0, 0.0)
    with pytest.raises(InputError, match="'c'"):
        comparison.log_bayes_factor("a", "c")
    for wrong in ({"a": fits["a"]}, [fits["a"], fits["b"]], {"a": 1, "b": 2}):
        with pytest.raises(InputError, match="two posteriors"):
            dmvi.compare(wrong)  # pyright: ignore[reportArgumentType]


def test_the_coordinate_whose_tail_is_missing_is_named():
    """p = N(0, I) and q too narrow in one coordinate: log w depends on that coordinate alone."""
    rng = np.random.default_rng(0)
    xi = rng.normal(size=(20_000, 6))
    xi[:, 4] *= 0.4
    log_w = 0.5 * xi[:, 4] ** 2 / 0.4**2 - 0.5 * xi[:, 4] ** 2
    found = drivers(xi, log_w, tuple("abcdef"))
    assert [driver.name for driver in found] == ["e"]
    assert found[0].pull == pytest.approx(0.5, abs=0.05), "the tail sits at both ends: half above, half below"


def test_a_one_sided_tail_pulls_nearly_all_the_way_and_scale_does_not_matter():
    rng = np.random.default_rng(1)
    xi = rng.normal(size=(20_000, 3))
    (driver,) = drivers(np.exp(3 * xi), 2 * xi[:, 1], ("x", "y", "z"))
    assert driver.name == "y"
    assert driver.pull > 0.95


def test_even_weights_and_constant_coordinates_have_no_driver():
    rng = np.random.default_rng(2)
    xi = np.concatenate([rng.normal(size=(20_000, 3)), np.zeros((20_000, 1))], axis=1)
    assert drivers(xi, rng.normal(size=20_000), ("x", "y", "z", "zero")) == ()


def test_the_verdict_names_the_site_to_reparameterise_and_the_guide_to_take():
    target = gaussian_target()
    base = target._log_density
    skewed = dataclasses.replace(
        target, _log_density=lambda xi, params, batch: base(xi, params, batch) + 0.5 * abs(xi[2]) * 1.2
    )
    posterior = Posterior(skewed, ScaledGaussian(0.4), a_run(), jax.random.key(0))
    assert posterior.diagnostics.drivers
    advice = " ".join(posterior.judgement.advice)
    assert f"reparameterise {posterior.diagnostics.drivers[0].name}" in advice
    assert "driven by" in repr(posterior)
    plain = dataclasses.replace(GOOD, ess=0.2, khat=1.2, guide="mean-field")
    assert any('guide="diffusion"' in step for step in judge(plain).advice)
    short = dataclasses.replace(plain, guide="diffusion", status=Status.STEP_LIMIT)
    assert "dmvi.resume" in judge(short).advice[0]


def test_diagnostics_survive_json():
    odd = dataclasses.replace(
        GOOD, khat=float("inf"), drivers=(Driver("tau", 0.7),), history=(-2.0, float("-inf"))
    )
    assert Diagnostics.from_dict(json.loads(json.dumps(odd.to_dict(), allow_nan=False))) == odd
