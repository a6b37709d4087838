"""Gaussians on the way to a mode."""

import jax.numpy as jnp
import numpy as np

from dmvi.targets import from_log_density
from dmvi.warmstart._laplace import Surface, laplace
from dmvi.warmstart._pathfinder import pathfinder


def surface_of(log_density, dim):
    return Surface(from_log_density(log_density, init=jnp.zeros(dim)))


def test_a_gaussian_is_found_from_anywhere():
    """The first step of Newton's is exact, and so is the ELBO: log Z up to the error of a few draws."""
    precision = np.array([[2.0, 0.5], [0.5, 1.0]])
    mean = np.array([3.0, -1.0])
    surface = surface_of(lambda x: -0.5 * (x - mean) @ precision @ (x - mean), 2)
    found = pathfinder(surface, np.array([[10.0, 10.0], [-5.0, 0.0]]), np.random.default_rng(0))
    assert found is not None
    np.testing.assert_allclose(found.loc, mean, atol=1e-4)
    np.testing.assert_allclose(found.precision, precision, atol=1e-4)
    np.testing.assert_allclose(found.elbo, -0.5 * np.log(np.linalg.det(precision)), atol=1e-3)


def funnel(x):
    return -0.5 * (x[0] / 2) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-2 * x[0]) - 8 * x[0]


def test_on_the_way_to_a_useless_mode_there_are_better_places():
    """The mode of a funnel lies deep in its neck, where there is next to no mass."""
    surface = surface_of(funnel, 9)
    starts = np.random.default_rng(1).uniform(-2, 2, (4, 9))
    found = pathfinder(surface, starts, np.random.default_rng(0))
    assert found is not None
    mode = laplace(surface, starts[0])
    assert mode.loc[0] < -5
    assert found.loc[0] > mode.loc[0] + 2
    assert np.isfinite(found.elbo)


def test_where_nothing_is_finite_there_is_none():
    surface = surface_of(lambda x: jnp.where(jnp.all(x == 0), 0.0, jnp.nan) * jnp.sum(x), 2)
    assert pathfinder(surface, np.ones((2, 2)), np.random.default_rng(0)) is None
