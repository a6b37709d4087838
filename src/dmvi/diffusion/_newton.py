"""Roots of small smooth maps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ITERATIONS = 50
LONGEST_STEP = 1.0


def newton_root(
    residual: Callable[[Array], tuple[Array, Array]], start: Float[Array, " n"]
) -> Float[Array, " n"]:
    """x with residual(x) = 0 by Newton's method, no step longer than LONGEST_STEP.

    Args:
        residual: gives the residual and its Jacobian at a point.
        start: where to begin; flows move points by a few units, so a bounded step gets anywhere needed.
    """

    def iterate(_, x):
        value, jacobian = residual(x)
        step = jnp.linalg.solve(jacobian, value)
        return x - step * LONGEST_STEP * jax.lax.rsqrt(jnp.maximum(jnp.sum(step**2), LONGEST_STEP**2))

    return jax.lax.fori_loop(0, ITERATIONS, iterate, start)
