"""Rounding errors of a log-density, told from its own values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmvi.posterior import Diagnostics, Posterior, Verdict
from dmvi.posterior._draws import Draws
from dmvi.posterior._rounding import rounding_error
from dmvi.posterior._verdict import judge
from dmvi.targets import from_log_density
from tests.posterior.gaussians import ScaledGaussian, a_run, gaussian_target
from tests.posterior.test_verdict import GOOD


def error_of(log_density, dim: int) -> float:
    target = from_log_density(log_density, init=jnp.zeros(dim))
    xi = np.random.default_rng(0).standard_normal((64, dim)).astype(jnp.result_type(float))
    return rounding_error(Draws(target, ScaledGaussian(1.0)), xi)


@pytest.mark.parametrize("dim", [1, 3, 30])
@pytest.mark.parametrize("bits", [20, 22])
def test_a_large_constant_rounds_as_far_as_its_last_bit(dim, bits):
    """Numbers between 2^bits and twice that are 2^(bits - 23) apart: errors uniform over as much.

    Where that is far more than a density of one dimension changes along a line, some of it is not seen.
    """
    found = error_of(lambda x: 1.5 * 2.0**bits - 0.5 * jnp.sum(x**2), dim)
    size = 2.0 ** (bits - 23) / np.sqrt(12)
    assert 0.4 * size < found < 1.6 * size


def funnel(x):
    return -0.5 * (x[0] / 3) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (len(x) - 1) * x[0]


@pytest.mark.parametrize(
    ("log_density", "dim"),
    [
        (lambda x: -0.5 * jnp.sum(x**2), 10),
        (funnel, 10),
        (lambda x: -jnp.sum(x**4), 10),
        (lambda x: -jnp.sum(jnp.abs(x)), 1),
        (lambda x: -jnp.sum(jnp.abs(x)), 100),
        (lambda x: -jnp.sum(jnp.log1p(x**2)), 1),
        (lambda x: -jnp.sum(jnp.log1p(x**2)), 50),
    ],
)
def test_what_is_curved_or_kinked_is_not_taken_for_rounding(log_density, dim):
    assert error_of(log_density, dim) < 0.03


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_nor_is_the_saddle_between_two_modes(dim):
    target = from_log_density(
        lambda x: jnp.logaddexp(-0.5 * jnp.sum((x - 5) ** 2), -0.5 * jnp.sum((x + 5) ** 2)),
        init=jnp.zeros(dim),
    )
    rng = np.random.default_rng(0)
    xi = rng.standard_normal((64, dim)) + 5 * rng.choice([-1, 1], size=(64, 1))
    assert rounding_error(Draws(target, ScaledGaussian(1.0)), xi.astype(np.float32)) < 0.03


def test_diagnostics_tell_it_and_records_without_it_are_read():
    target = gaussian_target()
    shifted = dataclasses.replace(
        target, _log_density=lambda xi, params, batch: target.log_density(xi) + 1.5 * 2.0**22
    )
    found = Posterior(shifted, ScaledGaussian(1.0), a_run(), jax.random.key(1)).diagnostics
    assert 0.05 < found.rounding < 0.3
    record = found.to_dict()
    assert Diagnostics.from_dict(record).rounding == found.rounding
    del record["rounding"]
    assert Diagnostics.from_dict(record).rounding == 0.0


def test_nothing_is_rounded_in_double_precision():
    with jax.enable_x64(True):
        assert error_of(lambda x: 1.5 * 2.0**22 - 0.5 * jnp.sum(x**2), 3) == 0.0


def test_the_verdict_asks_for_double_precision():
    judgement = judge(dataclasses.replace(GOOD, rounding=0.3))
    assert judgement.verdict is Verdict.TRUST  # weights that say so hold errors of this size already
    assert any("jax_enable_x64" in reason for reason in judgement.reasons)
    assert not any("jax_enable_x64" in reason for reason in judge(GOOD).reasons)
