"""Drivers in many dimensions, where the strengths of coordinates are summed over some of the others."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from dmvi.diffusion._drivers import Drivers, DriverSettings, Links

DIM, DRAWS = 300, 2000


def scaled_by_two(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws of N(0, I) and scores that say: coordinates 7 and 11 set the scales of all others."""
    u = rng.normal(size=(DRAWS, DIM))
    r = 0.3 * u * (u[:, [7]] + 0.5 * u[:, [11]]) + 0.1 * rng.normal(size=u.shape)
    return u, r


def test_what_drives_many_is_seen_in_some_of_them():
    u, r = (jnp.asarray(each) for each in scaled_by_two(np.random.default_rng(0)))
    few = DriverSettings(every_row=100, rows=40)
    drivers = Drivers.none(DIM, 4, few).measured(u, r)
    np.testing.assert_array_equal(drivers.strongest[:2], [7, 11])
    whole, some = Links(u, r, DriverSettings()).strengths(), Links(u, r, few).strengths()
    # The sum over 40 of 300 rows, all alike.
    np.testing.assert_allclose(some[7] / whole[7], 40 / DIM, rtol=0.1)


def test_up_to_a_dimension_all_are_looked_at():
    u, r = (jnp.asarray(each) for each in scaled_by_two(np.random.default_rng(1)))
    settings = DriverSettings(every_row=DIM)
    fewer = dataclasses.replace(settings, rows=3)
    np.testing.assert_array_equal(Links(u, r, settings).strengths(), Links(u, r, fewer).strengths())
