"""In few dimensions a look at the density finds modes whose basins are tiny."""

import dataclasses

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from dmvi.starts._laplace import Mode, Surface, laplace
from dmvi.starts._lookout import KEPT, SPREADS, lookout
from dmvi.targets import from_log_density

PLACE, WIDTH = 3.0, 0.02


def spike_beside_a_hill(x):
    """Half of the mass in a mode a fiftieth as wide as the other."""
    parts = [
        -0.5 * jnp.sum((x - place) ** 2) / width**2 - x.size * jnp.log(width)
        for place, width in ((0.0, 1.0), (PLACE, WIDTH))
    ]
    return logsumexp(jnp.stack(parts))


def hill(dim: int) -> Mode:
    return Mode(np.zeros(dim), np.eye(dim), 0.0)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_spike_is_found(dim):
    target = from_log_density(spike_beside_a_hill, jnp.zeros(dim))
    surface = Surface(target)
    starts = lookout(target, hill(dim), jr.key(0))
    assert starts.shape == (len(SPREADS) * KEPT, dim)
    ends = np.array([laplace(surface, start).loc for start in starts])
    assert np.any(np.all(np.abs(ends - PLACE) < WIDTH, axis=1))
    near = np.random.default_rng(0).normal(scale=2.0, size=(38, dim))
    by_chance = np.array([laplace(surface, start).loc for start in near])
    assert not np.any(np.all(np.abs(by_chance - PLACE) < WIDTH, axis=1)) or dim == 1


def test_many_dimensions_are_not_looked_at():
    target = from_log_density(spike_beside_a_hill, jnp.zeros(4))
    assert lookout(target, hill(4), jr.key(0)).shape == (0, 4)


def test_much_data_is_looked_at_in_fewer_places():
    """As many draws as fit in the budget, and at least those that are kept; none that is not finite."""
    target = from_log_density(lambda x: jnp.where(x[0] > 0, -x[0], jnp.nan), jnp.zeros(1))
    large = dataclasses.replace(target, data_size=10**9)
    assert lookout(large, hill(1), jr.key(0)).shape == (len(SPREADS) * KEPT, 1)
    assert np.all(lookout(target, hill(1), jr.key(0)) > 0)
