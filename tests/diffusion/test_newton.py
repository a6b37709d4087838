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
    """Stretched a hundredfold on one side, the second coordinate moved by the first."""
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


@pytest.mark.parametrize("start", [2.0, 30.0])
def test_derivatives_are_those_of_the_root(start):
    """x^3 + x = t has dx/dt = 1 / (3 x^2 + 1), also where the search begins at the root 2 of t = 10."""

    def root(t):
        def residual(x):
            return x**3 + x - t, jnp.diag(3 * x**2 + 1)

        return newton_root(residual, jnp.full(1, start))[0]

    with jax.enable_x64(True):
        for derivative in (jax.grad(root), jax.jacfwd(root)):
            np.testing.assert_allclose(derivative(10.0), 1 / 13, rtol=1e-10)


def test_no_root_is_not_a_number():
    assert np.isnan(newton_root(lambda x: (x**2 + 1, jnp.diag(2 * x)), jnp.ones(1))).all()
