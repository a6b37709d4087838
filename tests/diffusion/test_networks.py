"""What is taken as a score network, and what is not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi import InputError
from dmvi.diffusion import MLP, Projected, as_score_network
from dmvi.guides import DiffusionGuide
from tests.guides.registry import Network, pair

NETWORKS = {
    "mlp": lambda: MLP(width=8),
    "mlp, layer norm": lambda: MLP(width=8, depth=1, layer_norm=True, dropout=0.1),
    "module": lambda: Network(3, key=jr.key(0)),
    "pair": lambda: pair(3),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_zero_at_the_start(name):
    """r(u, t) = 0 exactly, whatever the network returns by itself; and its gradient is not."""
    network = as_score_network(NETWORKS[name](), 3, key=jr.key(0))
    u = jnp.asarray([0.3, -2.0, 1.0])
    np.testing.assert_array_equal(network(u, jnp.asarray(0.5)), 0)
    gradients = eqx.filter_grad(lambda network: jnp.sum(network(u, jnp.asarray(0.5))))(network)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradients)) > 1e-3


BAD_NETWORKS = {
    "a number": 3,
    "a name": "mlp",
    "a function": lambda u, t: u,
    "a pair the wrong way round": (lambda params, u, t: u, {}),
    "too few outputs": ({}, lambda params, u, t: u[:2]),
    "a matrix": ({}, lambda params, u, t: jnp.outer(u, u)),
    "two results": ({}, lambda params, u, t: (u, u)),
    "no time": ({}, lambda params, u: u),
    "an error inside": ({"w": jnp.zeros((3, 4))}, lambda params, u, t: params["w"] @ u),
}


@pytest.mark.parametrize("name", BAD_NETWORKS)
def test_bad_networks(name):
    with pytest.raises(InputError, match="network"):
        as_score_network(BAD_NETWORKS[name], 3, key=jr.key(0))


BAD_NUMBERS = [
    (MLP, {"width": 0}),
    (MLP, {"depth": 0}),
    (MLP, {"dropout": 1.0}),
    (MLP, {"dropout": -0.1}),
    (MLP, {"width": 8.5}),
    (MLP, {"width": "64"}),
    (Projected, {"rank": 0}),
    (Projected, {"scale_rank": -1}),
    (Projected, {"width": 0}),
    (Projected, {"rank": 1.5}),
    (Projected, {"width": "64"}),
    (DiffusionGuide, {"steps": 0}),
    (DiffusionGuide, {"steps": 2.5}),
    (DiffusionGuide, {"steps": "4"}),
    (DiffusionGuide, {"order": 0}),
    (DiffusionGuide, {"order": 4, "network": MLP()}),
    (DiffusionGuide, {"order": 2, "network": Projected()}),
]


@pytest.mark.parametrize(("recipe", "options"), BAD_NUMBERS)
def test_bad_numbers(recipe, options):
    with pytest.raises(InputError):
        recipe(**options)
