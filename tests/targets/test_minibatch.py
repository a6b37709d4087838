"""Subsampled plates: the scaled density is unbiased, and without a batch the data are full."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import norm

from dmvi.targets import from_numpyro
from dmvi.targets._subsets import draw_without_replacement

X = np.random.default_rng(0).normal(size=6)
Y = np.random.default_rng(1).normal(size=6)


def regression(x, y, batch=2):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("n", len(y), subsample_size=batch) as index:
        numpyro.deterministic("line", slope * x[index])
        numpyro.sample("y", dist.Normal(slope * x[index], 1.0), obs=y[index])
        numpyro.factor("extra", -jnp.abs(x[index]) * slope**2)


def full_log_density(slope):
    factor = -np.abs(X).sum() * slope**2
    return norm.logpdf(slope, 0, 2) + norm.logpdf(Y, slope * X).sum() + factor


def all_batches(size, count):
    return np.array(list(itertools.combinations(range(size), count)))


def test_full_data_without_a_batch():
    target = from_numpyro(regression, (X,), {"y": Y})
    assert target.subsampled
    assert target.data_size == 6
    xi = jnp.array([0.7])
    np.testing.assert_allclose(jax.jit(target.log_density)(xi), full_log_density(0.7), rtol=1e-5)
    np.testing.assert_array_equal(target.observed["y"], Y.astype(np.float32))
    np.testing.assert_allclose(jax.jit(target.constrain)(xi)["line"], 0.7 * X, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(target.log_likelihood)(xi)["y"], norm.logpdf(Y, 0.7 * X), rtol=1e-5)
    assert target.dims == {"slope": (), "line": ("n",), "y": ("n",)}


def test_mean_over_all_batches_is_the_full_density():
    target = from_numpyro(regression, (X, Y))
    batches = all_batches(6, 2)
    xi = jnp.array([0.7])
    values = jax.jit(jax.vmap(lambda index: target.log_density(xi, {"n": index})))(batches)
    np.testing.assert_allclose(values.mean(), full_log_density(0.7), rtol=1e-5)
    i, j = batches[3]
    single = sum(norm.logpdf(Y[k], 0.7 * X[k]) - abs(X[k]) * 0.49 for k in (i, j))
    np.testing.assert_allclose(values[3], norm.logpdf(0.7, 0, 2) + 3 * single, rtol=1e-5)


def test_gradient_is_unbiased():
    target = from_numpyro(regression, (X, Y))
    gradient = jax.grad(target.log_density)
    values = jax.jit(jax.vmap(lambda index: gradient(jnp.array([0.7]), {"n": index})))(all_batches(6, 2))
    expected = -0.7 / 4 + np.sum((Y - 0.7 * X) * X) - 1.4 * np.abs(X).sum()
    np.testing.assert_allclose(values.mean(0), [expected], rtol=1e-5)


def test_nested_subsampled_plates_and_numpyro_subsample():
    y = np.random.default_rng(2).normal(size=(3, 4))

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with (
            numpyro.plate("column", 4, subsample_size=2, dim=-1),
            numpyro.plate("row", 3, subsample_size=1, dim=-2),
        ):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=numpyro.subsample(y, event_dim=0))

    target = from_numpyro(model, (y,))
    rows, columns = all_batches(3, 1), all_batches(4, 2)
    grid = {"row": np.repeat(rows, len(columns), 0), "column": np.tile(columns, (len(rows), 1))}
    values = jax.jit(jax.vmap(lambda batch: target.log_density(jnp.array([0.3]), batch)))(grid)
    expected = norm.logpdf(0.3) + norm.logpdf(y, 0.3).sum()
    np.testing.assert_allclose(values.mean(), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(target.log_density)(jnp.array([0.3])), expected, rtol=1e-5)
    batch = jax.jit(target.draw_batch)(jax.random.key(0))
    assert {name: index.shape for name, index in batch.items()} == {"row": (1,), "column": (2,)}


def test_full_subsample_is_no_subsample():
    target = from_numpyro(regression, (X, Y), {"batch": 6})
    assert not target.subsampled
    assert target.draw_batch(jax.random.key(0)) is None


def test_one_batch_serves_every_use_of_a_plate():
    """A plate entered twice sees the same indices, so x and y of a batch belong together."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("n", 6, subsample_size=3):
            first = numpyro.subsample(y, event_dim=0)
        with numpyro.plate("n", 6, subsample_size=3):
            second = numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal(mu + first - second, 1.0), obs=second)

    target = from_numpyro(model, (Y,))
    index = np.array([4, 0, 5])
    value = jax.jit(target.log_density)(jnp.array([0.2]), {"n": index})
    np.testing.assert_allclose(value, norm.logpdf(0.2) + 2 * norm.logpdf(Y[index], 0.2).sum(), rtol=1e-5)


def test_draws_without_replacement_are_uniform_over_subsets():
    keys = jax.random.split(jax.random.key(3), 20_000)
    draws = np.sort(jax.jit(jax.vmap(lambda key: draw_without_replacement(key, 5, 3)))(keys), axis=1)
    subsets, counts = np.unique(draws, axis=0, return_counts=True)
    np.testing.assert_array_equal(subsets, all_batches(5, 3))
    expected = len(keys) / math.comb(5, 3)
    chi_squared = np.sum((counts - expected) ** 2 / expected)
    assert chi_squared < 21.7  # 99 percent point at 9 degrees of freedom


def test_params_of_the_plate_are_subsampled_with_it():
    """A numpyro.param per data point, with event_dim, follows the batch."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("n", 6, subsample_size=2) as index:
            shift = numpyro.param("shift", jnp.arange(6.0), event_dim=0)
            numpyro.sample("y", dist.Normal(mu + shift, 1.0), obs=y[index])

    target = from_numpyro(model, (Y,))
    assert target.params["shift"].shape == (6,)
    values = jax.jit(jax.vmap(lambda index: target.log_density(jnp.array([0.2]), {"n": index})))(
        all_batches(6, 2)
    )
    expected = norm.logpdf(0.2) + norm.logpdf(Y, 0.2 + np.arange(6)).sum()
    np.testing.assert_allclose(values.mean(), expected, rtol=1e-5)
    np.testing.assert_allclose(target.constrained_params()["shift"], np.arange(6.0))
