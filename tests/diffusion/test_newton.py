"""Roots where plain Newton steps miss them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmvi.diffusion._newton import newton_root


def flat(x):
    """Steep at the origin and all but flat beside it: plain Newton steps go further and further away."""
    return jnp.arctan(5 * x) + 0.01 * x


def bent(x):
    """Two coordinates that stretch each other a hundredfold on one side."""
    return x + 100 * jax.nn.softplus(x - 3) + jnp.array([0.0, 0.5]) * jnp.sin(x[0])


@pytest.mark.parametrize("function", [flat, bent])
@pytest.mark.parametrize("root", [[0.0, 0.1], [-3.0, 40.0], [300.0, -5.0]])
def test_roots_near_and_far(function, root):
    with jax.enable_x64(True):
        root = jnp.asarray(root)
        image = function(root)

        def residual(x):
            return function(x) - image, jax.jacfwd(function)(x)

        found = jax.jit(lambda image: newton_root(residual, image))(image)
        np.testing.assert_allclose(found, root, atol=1e-7)
