"""Rounding errors of a log-density, told from its own values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmvi.posterior import Verdict
from dmvi.posterior._draws import Draws
from dmvi.posterior._rounding import rounding_error
from dmvi.posterior._verdict import judge
from dmvi.targets import from_log_density
from tests.posterior.gaussians import ScaledGaussian
from tests.posterior.test_verdict import GOOD


def error_of(log_density, dim: int) -> float:
    target = from_log_density(log_density, init=jnp.zeros(dim))
    xi = np.random.default_rng(0).standard_normal((64, dim)).astype(jnp.result_type(float))
    return rounding_error(Draws(target, ScaledGaussian(1.0)), xi)


@pytest.mark.parametrize("dim", [1, 3, 30])
@pytest.mark.parametrize("bits", [20, 22])
def test_a_large_constant_rounds_as_far_as_its_last_bit(dim, bits):
    """Numbers between 2^bits and twice that are 2^(bits - 23) apart: errors uniform over as much."""
    found = error_of(lambda x: 1.5 * 2.0**bits - 0.5 * jnp.sum(x**2), dim)
    assert found == pytest.approx(2.0 ** (bits - 23) / np.sqrt(12), rel=0.6)


def funnel(x):
    return -0.5 * (x[0] / 3) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (len(x) - 1) * x[0]


@pytest.mark.parametrize("log_density", [lambda x: -0.5 * jnp.sum(x**2), funnel, lambda x: -jnp.sum(x**4)])
def test_what_is_curved_is_not_taken_for_rounding(log_density):
    assert error_of(log_density, 10) < 2e-3


def test_nothing_is_rounded_in_double_precision():
    with jax.enable_x64(True):
        assert error_of(lambda x: 1.5 * 2.0**22 - 0.5 * jnp.sum(x**2), 3) == 0.0


def test_the_verdict_asks_for_double_precision():
    judgement = judge(dataclasses.replace(GOOD, rounding=0.3))
    assert judgement.verdict is Verdict.TRUST  # weights that say so hold errors of this size already
    assert any("jax_enable_x64" in reason for reason in judgement.reasons)
    assert not any("jax_enable_x64" in reason for reason in judge(GOOD).reasons)
