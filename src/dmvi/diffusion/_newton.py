"""Roots of small smooth maps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ITERATIONS = 100
LENGTHENED = 2.0  # after a step that came nearer, up to Newton's own
SHORTENED = 0.25  # after one that did not, and was not taken


def newton_root(
    residual: Callable[[Array], tuple[Array, Array]], start: Float[Array, " n"]
) -> Float[Array, " n"]:
    r"""x with residual(x) = 0 by damped Newton steps.

        x <- x - lambda J^-1 f   if that makes |f| smaller; lambda grows after such a step, else shrinks

    -J^-1 f is a direction in which |f| falls wherever J is regular, so short enough steps always come
    nearer, and where the map never folds they end at its root.

    Args:
        residual: gives the residual f and its Jacobian J at a point.
        start: where to begin.
    """

    def iterate(_, carry):
        x, value, jacobian, length = carry
        trial = x - length * jnp.linalg.solve(jacobian, value)
        there, slope = residual(trial)
        nearer = jnp.sum(there**2) < jnp.sum(value**2)  # false where it is not a number
        taken = [jnp.where(nearer, new, old) for new, old in zip((trial, there, slope), carry, strict=False)]
        return (*taken, jnp.where(nearer, jnp.minimum(LENGTHENED * length, 1.0), SHORTENED * length))

    carry = (start, *residual(start), jnp.ones((), start.dtype))
    return jax.lax.fori_loop(0, ITERATIONS, iterate, carry)[0]
