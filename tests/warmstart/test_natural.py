"""Natural gradients against Stein's identity and closed forms of the best Gaussian."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from dmvi.guides import anchored
from dmvi.targets import Target, as_target, from_log_density
from dmvi.warmstart._natural import (
    Fit,
    NaturalGradients,
    Step,
    _inverse_root,
    _slopes,
    _whitened,
    again,
    annealed_rates,
    begin,
    moments,
    natural_steps,
)

SETTINGS = NaturalGradients()
UNCUT = NaturalGradients(outlier=float("inf"))


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def target_of(log_density: Callable[[Any], Any], dim: int) -> Target:
    return from_log_density(log_density, init=jnp.zeros(dim))


def stacked(*fits: Fit) -> Fit:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *fits)


def run(target: Target, fits: Fit, rates, *, draws=512, settings=SETTINGS, frame=None) -> tuple[Fit, Step]:
    return natural_steps(fits, target, jnp.asarray(rates, float), jr.key(1), draws, 64, settings, frame)


def climbed(target: Target, scale, *, steps=60, annealed=0, draws=512, settings=SETTINGS, frame=None):
    """The Gaussian after steps at the largest rate and some at falling rates, and what the last ones saw."""
    start = begin(jnp.zeros(target.dim), jnp.asarray(scale, float), target.params, settings)
    rates = np.full(steps, settings.largest_rate)
    fits, seen = run(target, stacked(start), rates, draws=draws, settings=settings, frame=frame)
    if annealed:
        fits = jax.vmap(lambda fit: again(fit, settings))(fits)
        rates = jnp.minimum(annealed_rates(annealed), settings.largest_rate)
        fits, seen = run(target, fits, rates, draws=draws, settings=settings, frame=frame)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], (fits, seen))


def correlated_gaussian(dim: int, spread: float) -> tuple[Target, np.ndarray, np.ndarray]:
    """sds from 10^-spread to 10^spread along random axes: condition 10^(4 spread)."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    precision = rotation @ np.diag(np.logspace(-2 * spread, 2 * spread, dim)) @ rotation.T
    mean = rng.normal(size=dim)
    centre, matrix = jnp.asarray(mean), jnp.asarray(precision)
    return target_of(lambda x: -0.5 * (x - centre) @ matrix @ (x - centre), dim), mean, precision


# The moments


def quartic() -> tuple[Target, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """A density of fourth degree with couplings, and its mean Hessian under a Gaussian."""
    rng = np.random.default_rng(1)
    fourth, bend = np.array([0.3, 1.0, 0.1, 0.5]), 0.7
    linked = 0.3 * rng.normal(size=(4, 4))
    linked = linked + linked.T

    def log_density(x):
        return -jnp.sum(fourth * x**4) + 0.5 * x @ jnp.asarray(linked) @ x + bend * x[0] ** 2 * x[1]

    def mean_hessian(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        hessian = linked - np.diag(12 * fourth * (mean**2 + np.diagonal(covariance)))
        hessian[0, 0] += 2 * bend * mean[1]
        hessian[0, 1] += 2 * bend * mean[0]
        hessian[1, 0] += 2 * bend * mean[0]
        return hessian

    return target_of(log_density, 4), mean_hessian


def test_steins_identity():
    """E[r u^T] = I + S^T E[grad^2 log pi] S and E[r] = S^T E[grad log pi], within standard errors."""
    target, mean_hessian = quartic()
    rng = np.random.default_rng(2)
    mean, scale = 0.5 * rng.normal(size=4), np.eye(4) + 0.3 * rng.normal(size=(4, 4))
    fit = begin(jnp.asarray(mean), jnp.asarray(scale), {}, SETTINGS)
    half = 2**15
    u = jr.normal(jr.key(0), (half, 4))
    u = jnp.concatenate([u, -u])
    _, slopes, _ = jax.jit(lambda u: _slopes(fit, lambda x, _: target.log_density(x), u, 1000))(u)
    r = _whitened(fit.scale, slopes) + u
    usable = jnp.ones(len(u), bool)
    _, moment = moments(r, u, usable, np.inf, full=True)
    products = np.einsum("ni,nj->nij", r, u)
    products = 0.5 * (products[:half] + products[half:])
    error = products.std(axis=0) / np.sqrt(half)
    expected = np.eye(4) + scale.T @ mean_hessian(mean, scale @ scale.T) @ scale
    assert np.all(error < 0.1 * np.abs(expected).max())
    np.testing.assert_array_less(np.abs(moment - expected), 4.5 * error)
    assert np.abs(moment - moment.T).max() > 1e-6  # symmetric in the mean alone
    # The diagonal alone is that of the matrix, and a cut at six root mean squares changes little.
    _, diagonal = moments(r, u, usable, np.inf, full=False)
    np.testing.assert_allclose(diagonal, jnp.diagonal(moment), rtol=1e-10)
    cut_mean, cut = moments(r, u, usable, SETTINGS.outlier, full=True)
    np.testing.assert_allclose(cut, moment, atol=0.05 * np.abs(expected).max())
    np.testing.assert_allclose(cut_mean, r.mean(axis=0), atol=0.05 * np.abs(r).mean())


def test_unusable_draws_and_outliers_do_not_steer():
    rng = np.random.default_rng(0)
    r, u = rng.normal(size=(2, 400, 3))
    usable = np.arange(400) % 10 > 0
    spoilt = np.where(usable[:, None], r, np.nan)
    mean, moment = moments(jnp.asarray(spoilt), jnp.asarray(u), jnp.asarray(usable), 6.0, full=True)
    np.testing.assert_allclose(mean, r[usable].mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(moment, r[usable].T @ u[usable] / usable.sum(), rtol=1e-10)
    r[5] = 1e6
    far, _ = moments(jnp.asarray(r), jnp.asarray(u), jnp.ones(400, bool), 6.0, full=True)
    assert np.all(np.abs(far) < 0.5 * np.abs(r.mean(axis=0)))


# Where the steps end


def test_a_gaussian_of_condition_1e6_is_found_exactly():
    target, mean, precision = correlated_gaussian(6, 1.5)
    assert np.linalg.cond(precision) > 0.99e6
    fit, seen = climbed(target, np.eye(6))
    root = np.linalg.cholesky(precision)
    np.testing.assert_allclose(root.T @ fit.scale @ fit.scale.T @ root, np.eye(6), atol=1e-6)
    np.testing.assert_allclose(root.T @ (fit.loc - mean), 0, atol=1e-6)
    # An exact Gaussian has log Z for its ELBO, without noise.
    log_z = 3 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    np.testing.assert_allclose(seen.elbo[-1], log_z, atol=1e-8)
    assert seen.error[-1] < 1e-7


def test_the_mean_field_of_a_gaussian_has_the_conditional_sds():
    """ELBO = log Z - 1/2 [log det P - sum log P_ii] where P is the precision."""
    target, mean, precision = correlated_gaussian(5, 0.3)
    fit, seen = climbed(target, np.ones(5), annealed=80)
    np.testing.assert_allclose(fit.scale, np.diagonal(precision) ** -0.5, rtol=0.015)
    np.testing.assert_allclose((fit.loc - mean) / fit.scale, 0, atol=1e-3)
    elbo = 2.5 * np.log(2 * np.pi) - 0.5 * np.sum(np.log(np.diagonal(precision)))
    error = np.sqrt(np.sum(seen.error[-40:] ** 2)) / 40
    assert 0 < error < 0.02
    assert abs(seen.elbo[-40:].mean() - elbo) < 4 * error + 1e-3


@pytest.mark.parametrize("full", [True, False])
def test_the_best_gaussian_of_a_gamma_in_log_coordinates(full):
    """log pi = sum a x - exp x: 1 / s^2 = E[exp x] = exp(m + s^2 / 2) = a in each coordinate."""
    a = np.array([2.0, 5.0, 20.0])
    target = target_of(lambda x: jnp.sum(a * x - jnp.exp(x)), 3)
    fit, seen = climbed(target, np.eye(3) if full else np.ones(3), annealed=120, draws=1024, settings=UNCUT)
    covariance = fit.scale @ fit.scale.T if full else np.diag(fit.scale**2)
    np.testing.assert_allclose(covariance * np.sqrt(np.outer(a, a)), np.eye(3), atol=0.03)
    np.testing.assert_allclose((fit.loc - np.log(a) + 0.5 / a) * np.sqrt(a), 0, atol=0.02)
    elbo = np.sum(a * (np.log(a) - 0.5 / a) - a + 0.5 * np.log(2 * np.pi * np.e / a))
    error = np.sqrt(np.sum(seen.error[-60:] ** 2)) / 60
    assert 0 < error < 0.02
    assert abs(seen.elbo[-60:].mean() - elbo) < 4 * error + 2e-3


def test_a_diagonal_and_a_full_covariance_agree_where_nothing_is_correlated():
    sds, mean = np.array([0.01, 1.0, 30.0]), np.array([1.0, -2.0, 5.0])
    target = target_of(lambda x: -0.5 * jnp.sum(((x - mean) / sds) ** 2), 3)
    full, _ = climbed(target, np.eye(3))
    field, _ = climbed(target, np.ones(3))
    np.testing.assert_allclose(field.scale, sds, rtol=1e-6)
    np.testing.assert_allclose(full.scale @ full.scale.T, np.diag(sds**2), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose((full.loc - field.loc) / sds, 0, atol=1e-6)
    np.testing.assert_allclose(full.log_det, field.log_det, atol=1e-6)


def learning(y):
    """x ~ N(theta, 1), y ~ N(x, 1): the best theta is the mean of y, and q can be exact for any."""
    theta: Any = numpyro.param("theta", 0.0)
    with numpyro.plate("n", len(y)):
        x = numpyro.sample("x", dist.Normal(theta, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def test_parameters_move_to_their_optimum():
    y = np.array([0.5, 1.0, 2.1])
    target = as_target(learning, args=(y,))
    fit, _ = climbed(target, np.eye(3), steps=250, draws=32)
    (theta,) = fit.params.values()
    np.testing.assert_allclose(theta, y.mean(), atol=0.02)
    np.testing.assert_allclose(fit.loc, (y + y.mean()) / 2, atol=0.02)
    np.testing.assert_allclose(fit.scale @ fit.scale.T, 0.5 * np.eye(3), atol=1e-6)


# How they get there


@pytest.mark.parametrize("full", [True, False])
def test_from_far_too_wide_no_step_is_lost(full):
    """sds from 1e-3 to 1, begun at 1, half a unit from the mean: scale and mean close in side by side."""
    dim, rng = 20, np.random.default_rng(0)
    sds = np.logspace(-3, 0, dim)
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0] if full else np.eye(dim)
    precision = jnp.asarray(axes @ np.diag(sds**-2) @ axes.T)
    target = target_of(lambda x: -0.5 * x @ precision @ x, dim)
    fit = begin(jnp.full(dim, 0.5), jnp.eye(dim) if full else jnp.ones(dim), {}, SETTINGS)
    _, seen = run(target, stacked(fit), [0.7] * 40, draws=128)
    assert not seen.fell.any()
    log_z = 0.5 * dim * np.log(2 * np.pi) + np.log(sds).sum()
    assert np.abs(seen.elbo[0, -1] - log_z) < 1e-3


@pytest.mark.parametrize("full", [True, False])
def test_the_log_determinant_is_carried_along(full):
    target, _ = quartic()
    fit, _ = climbed(target, np.eye(4) if full else np.ones(4), steps=30, draws=128)
    matrix = fit.scale if full else np.diag(fit.scale)
    np.testing.assert_allclose(fit.log_det, np.linalg.slogdet(matrix)[1], rtol=1e-10)
    best = fit.best.scale if full else np.diag(fit.best.scale)
    np.testing.assert_allclose(fit.best.log_det, np.linalg.slogdet(best)[1], rtol=1e-10)


def test_a_step_that_loses_is_taken_back_at_half_the_rate():
    target, _, _ = correlated_gaussian(3, 0.5)
    here, there = jnp.zeros(3), jnp.ones(3)
    fit = begin(here, jnp.eye(3), target.params, SETTINGS)
    better = fit.best._replace(loc=there, scale=0.5 * jnp.eye(3), log_det=jnp.asarray(-3 * np.log(2.0)))
    lost = fit._replace(best=better._replace(elbo=jnp.asarray(1e6)))
    fits, seen = run(target, stacked(fit, lost), [0.7])
    assert not seen.fell[0, 0]
    assert seen.fell[1, 0]
    np.testing.assert_allclose(fits.rate, [min(1.2 * SETTINGS.rate, 0.7), 0.5 * SETTINGS.rate])
    np.testing.assert_array_equal(fits.loc[1], there)
    np.testing.assert_array_equal(fits.scale[1], 0.5 * jnp.eye(3))
    np.testing.assert_allclose(fits.log_det[1], -3 * np.log(2.0))
    np.testing.assert_array_equal(fits.best.elbo[1], 1e6)
    np.testing.assert_array_equal(fits.best.loc[0], here)
    np.testing.assert_allclose(fits.best.elbo[0], seen.elbo[0, 0])
    assert np.abs(fits.loc[0]).max() > 1e-3


def test_beside_a_wall_steps_are_lost_and_the_best_is_kept():
    """Stationary is E[r] = 0 and E[r u^T] = 0 with E[exp 2 x] = exp(2 m + 2 s^2)."""
    target = target_of(lambda x: jnp.sum(-0.5 * x**2 - jnp.exp(2 * x)), 2)
    fit = begin(jnp.full(2, 2.0), 3 * jnp.eye(2), {}, UNCUT)
    fits, seen = run(target, stacked(fit), [2.0] * 30, draws=128, settings=NaturalGradients(rate=2.0))
    assert seen.fell.any()
    best = np.maximum.accumulate(np.asarray(seen.elbo[0]))
    np.testing.assert_allclose(fits.best.elbo[0], best[-1])
    fits = jax.vmap(lambda fit: again(fit, UNCUT))(fits)
    fits, _ = run(target, fits, annealed_rates(80), draws=1024, settings=UNCUT)
    loc, scale = np.asarray(fits.loc[0]), np.asarray(fits.scale[0])
    covariance = scale @ scale.T
    mass = np.exp(2 * loc + 2 * np.diagonal(covariance))
    np.testing.assert_allclose(loc + 2 * mass, 0, atol=0.05)
    np.testing.assert_allclose(np.linalg.inv(covariance), np.diag(1 + 4 * mass), atol=0.1)


@pytest.mark.parametrize("full", [True, False])
def test_where_nothing_is_finite_it_looks_closer(full):
    """Half the scale with every step, at the rate as it was, until draws are finite; then to the optimum."""

    def log_density(x):
        return jnp.where(jnp.sum(x**2) < 1e-3, -0.5 * 1e6 * jnp.sum((x - 1e-3) ** 2), jnp.nan)

    target = target_of(log_density, 2)
    fit = begin(jnp.zeros(2), jnp.eye(2) if full else jnp.ones(2), {}, SETTINGS)
    narrow, seen = run(target, stacked(fit), [0.7] * 3)
    assert np.isneginf(seen.elbo).all()
    assert seen.fell.all()
    np.testing.assert_allclose(narrow.scale[0], fit.scale / 8)
    np.testing.assert_allclose(narrow.log_det[0], -6 * np.log(2.0))
    np.testing.assert_array_equal(narrow.loc[0], 0)
    np.testing.assert_array_equal(narrow.rate, SETTINGS.rate)
    found, seen = run(target, narrow, [0.7] * 40)
    assert np.isfinite(seen.elbo[0, -1])
    np.testing.assert_allclose(found.loc, 1e-3, rtol=1e-3)
    scale = found.scale[0] if full else jnp.diag(found.scale[0])
    np.testing.assert_allclose(scale @ scale.T, 1e-6 * np.eye(2), atol=1e-9)


def of_eigenvalues(values, seed: int = 0) -> np.ndarray:
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values),) * 2))[0]
    return rotation @ np.diag(values) @ rotation.T


def test_both_roads_to_an_inverse_root():
    inside = of_eigenvalues([0.45, 0.9, 1.3, 2.4])
    root, of_step, log_det = _inverse_root(jnp.asarray(inside), SETTINGS)
    np.testing.assert_array_equal(of_step, root)
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(inside), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(root)[1], rtol=1e-10)
    np.testing.assert_array_equal(np.tril(root, -1), 0)  # a Cholesky factor
    # Beside an eigenvalue that is cut the same block goes the other way, to the same.
    beside = np.block([[inside, np.zeros((4, 1))], [np.zeros((1, 4)), np.full((1, 1), 100.0)]])
    other, of_step, other_log_det = _inverse_root(jnp.asarray(beside), SETTINGS)
    assert np.abs(np.tril(other, -1)).max() > 0.1
    np.testing.assert_allclose((other @ other.T)[:4, :4], root @ root.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(of_step @ of_step.T, np.linalg.inv(beside), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other_log_det, log_det - 0.5 * np.log(SETTINGS.widest), rtol=1e-9)


@pytest.mark.parametrize("values", [[-3.0, 0.1, 1.0], [0.5, 1.0, 7.0], [-1.0, 1.0, 1e9]])
def test_eigenvalues_are_cut_at_their_bounds(values):
    root, of_step, log_det = _inverse_root(jnp.asarray(of_eigenvalues(values)), SETTINGS)
    cut = np.clip(values, SETTINGS.narrowest, SETTINGS.widest)
    np.testing.assert_allclose(root @ root.T, of_eigenvalues(1 / cut), atol=1e-6)
    sizes = np.maximum(np.abs(values), SETTINGS.narrowest)
    np.testing.assert_allclose(of_step @ of_step.T, of_eigenvalues(1 / sizes), atol=1e-6)
    np.testing.assert_allclose(log_det, -0.5 * np.log(cut).sum(), atol=1e-6)


def test_in_the_coordinates_of_a_frame_the_steps_are_the_same():
    """xi = a + T x: S and m in x are T S and a + T m in xi, and so is the ELBO."""
    target, _ = quartic()
    rng = np.random.default_rng(3)
    a, t = 0.3 * rng.normal(size=4), np.tril(0.2 * rng.normal(size=(4, 4)), -1) + np.diag([0.5, 1, 2, 0.7])
    frame = anchored(jnp.asarray(a), jnp.asarray(t), full=False)
    inside = begin(jnp.zeros(4), jnp.eye(4), {}, SETTINGS)
    outside = begin(jnp.asarray(a), jnp.asarray(t), {}, SETTINGS)
    in_frame, seen_in_frame = run(target, stacked(inside), [0.7] * 12, frame=frame)
    plain, seen = run(target, stacked(outside), [0.7] * 12)
    np.testing.assert_allclose(a + t @ in_frame.loc[0], plain.loc[0], rtol=1e-8, atol=1e-10)
    covariance = t @ in_frame.scale[0]
    np.testing.assert_allclose(
        covariance @ covariance.T, plain.scale[0] @ plain.scale[0].T, rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(seen_in_frame.elbo, seen.elbo, rtol=1e-9)
    np.testing.assert_array_equal(seen_in_frame.fell, seen.fell)


def test_side_by_side_as_alone():
    """Each with the same noise, and whatever the number of gradients computed together."""
    target, _ = quartic()
    one = begin(jnp.zeros(4), jnp.eye(4), {}, SETTINGS)
    two = begin(jnp.ones(4), 0.3 * jnp.eye(4), {}, SETTINGS)
    both, _ = run(target, stacked(one, two), [0.7] * 6, draws=128)
    for i, fit in enumerate((one, two)):
        alone, _ = natural_steps(stacked(fit), target, jnp.full(6, 0.7), jr.key(1), 128, 50, SETTINGS)
        for left, right in zip(jax.tree.leaves(both), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(left[i], right[0], rtol=1e-9, atol=1e-10)
