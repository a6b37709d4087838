"""Inversion of small smooth maps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

NEWTON_STEPS = 40
HALVINGS = 6


def newton_inverse(
    function: Callable[[Array], Array], image: Float[Array, " n"], start: Float[Array, " n"]
) -> Float[Array, " n"]:
    """x with function(x) = image, by Newton's method with a halved step where it overshoots.

    Each step tries 1, 1/2, 1/4, ... of the Newton direction and keeps the smallest residual, the
    stay-put choice included, so the residual never grows.
    """

    def residual(x):
        return function(x) - image

    def iterate(_, x):
        now = residual(x)
        direction = jnp.linalg.solve(jax.jacfwd(residual)(x), now)
        fractions = jnp.append(0.5 ** jnp.arange(HALVINGS, dtype=x.dtype), jnp.zeros((), x.dtype))
        tried = x - fractions[:, None] * direction
        sizes = jnp.sum(jax.vmap(residual)(tried) ** 2, axis=-1)
        best = tried[jnp.argmin(jnp.where(jnp.isfinite(sizes), sizes, jnp.inf))]
        return jnp.where(jnp.isfinite(best), best, x)

    return jax.lax.fori_loop(0, NEWTON_STEPS, iterate, start)
