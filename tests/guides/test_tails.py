"""Noise with tails: its density, its score, and when the tails move."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from dmvi.guides._guide import Frozen
from dmvi.guides._tails import MAX_TAIL, MAX_TAIL_CHANGE, TailedNoise

TAILS = (1.0, 1.3, 2.0)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def noise(*tails: float) -> TailedNoise:
    return TailedNoise(Frozen(jnp.asarray(tails)))


@pytest.mark.parametrize("tail", TAILS)
def test_density_integrates_to_one(tail):
    density = jax.jit(lambda z: jnp.exp(noise(tail).log_prob(z[None])))
    # In z = sinh x, so that the far tail is within reach of quadrature.
    value, _ = scipy.integrate.quad(
        lambda x: float(density(jnp.sinh(x))) * np.cosh(x), -12, 12, epsabs=1e-10, limit=200
    )
    np.testing.assert_allclose(value, 1.0, atol=1e-8)


def test_log_prob_is_that_of_independent_coordinates():
    z = jnp.asarray([0.3, -1.2, 5.0])
    parts = [noise(tail).log_prob(z[i : i + 1]) for i, tail in enumerate(TAILS)]
    np.testing.assert_allclose(noise(*TAILS).log_prob(z), np.sum(parts), rtol=1e-12)


def test_unit_tail_is_the_normal():
    z = np.random.default_rng(0).normal(size=5)
    np.testing.assert_allclose(
        noise(*[1.0] * 5).log_prob(jnp.asarray(z)), scipy.stats.norm.logpdf(z).sum(), rtol=1e-12
    )
    np.testing.assert_allclose(noise(*[1.0] * 5).score(jnp.asarray(z)), -z, rtol=1e-10)


def test_score_is_the_gradient_of_log_prob():
    made = noise(*TAILS)
    z = jnp.asarray(np.random.default_rng(1).normal(size=(50, 3)) * 4)
    np.testing.assert_allclose(
        jax.vmap(made.score)(z), jax.vmap(jax.grad(made.log_prob))(z), rtol=1e-9, atol=1e-12
    )


def test_samples_follow_the_density():
    """Kolmogorov-Smirnov against the distribution function, Phi(sinh(arsinh(z) / t))."""
    samples = np.asarray(jax.vmap(noise(*TAILS).sample)(jr.split(jr.key(0), 5000)))
    for i, tail in enumerate(TAILS):
        result = scipy.stats.kstest(
            samples[:, i], lambda z, t=tail: scipy.stats.norm.cdf(np.sinh(np.arcsinh(z) / t))
        )
        assert result.pvalue > 1e-3


def test_tail_two_is_exponential():
    """-log p(z) grows linearly: its slope halves for no doubling of z, while the normal's doubles."""
    far = jnp.asarray([1e4])
    ratio = noise(2.0).score(2 * far) / noise(2.0).score(far)
    np.testing.assert_allclose(ratio, 1.0, atol=0.01)


def weighed(tails_now, tails_wanted, n=20_000, seed=0):
    """Draws of the present noise and their weights towards the wanted one."""
    now, wanted = noise(*tails_now), noise(*tails_wanted)
    z = jax.vmap(now.sample)(jr.split(jr.key(seed), n))
    log_weights = jax.vmap(wanted.log_prob)(z) - jax.vmap(now.log_prob)(z)
    return now, np.asarray(z), np.asarray(log_weights)


def test_refit_moves_only_the_heavy_coordinate():
    now, z, log_weights = weighed((1.0, 1.0, 1.0), (1.0, 1.1, 1.0))
    tails = np.asarray(now.refitted(z, log_weights).tails)
    assert tails[0] == 1.0
    assert tails[2] == 1.0
    assert 1.04 < tails[1] <= 1.0 + MAX_TAIL_CHANGE


def test_repeated_refits_end_near_the_wanted_tails():
    now, wanted = noise(1.0, 1.0), (1.2, 1.0)
    for seed in range(8):
        now, z, log_weights = weighed(tuple(np.asarray(now.tails)), wanted, seed=seed)
        now = now.refitted(z, log_weights)
    assert abs(now.tails[0] - wanted[0]) < 0.1
    assert now.tails[1] == 1.0


def test_refit_comes_back_down():
    now, z, log_weights = weighed((1.5,), (1.3,))
    assert 1.0 <= float(now.refitted(z, log_weights).tails[0]) < 1.5


@pytest.mark.parametrize("seed", range(5))
def test_tails_stay_exactly_one_without_evidence(seed):
    """Equal weights, weights of pure noise, and one draw that outweighs all others prove nothing."""
    z = np.random.default_rng(seed).normal(size=(4000, 3))
    rng = np.random.default_rng(seed + 100)
    outlier = np.zeros(4000)
    outlier[np.argmax(np.abs(z[:, 0]))] = 30.0
    for log_weights in (np.zeros(4000), rng.normal(size=4000), outlier):
        np.testing.assert_array_equal(noise(1.0, 1.0, 1.0).refitted(z, log_weights).tails, 1.0)


def test_refit_is_bounded():
    now, z, log_weights = weighed((1.0,), (1.4,))
    once = float(now.refitted(z, log_weights).tails[0])
    assert once <= 1.0 + MAX_TAIL_CHANGE + 1e-12
    at_top, z, log_weights = weighed((MAX_TAIL,), (MAX_TAIL + 0.4,))
    assert float(at_top.refitted(z, log_weights).tails[0]) <= MAX_TAIL


def test_refit_of_no_draws_changes_nothing():
    """All weights of a chunk may have been thrown out as not finite."""
    tails = noise(1.2, 1.0).refitted(np.zeros((0, 2)), np.zeros(0)).tails
    np.testing.assert_allclose(tails, [1.2, 1.0])
