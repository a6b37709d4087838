"""Roots of small smooth maps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ITERATIONS = 100
LENGTHENED = 2.0  # after a step that came nearer, up to Newton's own
SHORTENED = 0.25  # after one that did not, and was not taken
SHORTEST = 1e-6


def newton_root(
    residual: Callable[[Array], tuple[Array, Array]], start: Float[Array, " n"]
) -> Float[Array, " n"]:
    r"""x with residual(x) = 0 by damped Newton steps; not a number where none is found.

        x <- x - lambda J^-1 f   if that makes |f| smaller; lambda grows after such a step, else shrinks

    -J^-1 f is a direction in which |f| falls wherever J is regular, so that short enough steps come nearer.
    Derivatives are those of the root itself, dx = -J^-1 df, whatever steps led there.

    Args:
        residual: gives the residual f and its Jacobian J at a point.
        start: where to begin.
    """

    def solve_tangent(linear, right):
        return jnp.linalg.solve(jax.jacfwd(linear)(right), right)

    return jax.lax.custom_root(
        lambda x: residual(x)[0], start, lambda _, x: _search(residual, x), solve_tangent
    )


def _search(residual: Callable[[Array], tuple[Array, Array]], start: Float[Array, " n"]) -> Array:
    """Where the damped steps end, once |f| is rounding, steps have become SHORTEST or their number is up."""
    rounding = float(jnp.finfo(start.dtype).eps)

    def size(x: Array, value: Array) -> Array:
        """|f| against the size of what it is the difference of."""
        return jnp.linalg.norm(value) / (1 + jnp.linalg.norm(x) + jnp.linalg.norm(start))

    def searching(carry):
        x, value, _, length, count = carry
        return (count < ITERATIONS) & (length > SHORTEST) & (size(x, value) > rounding)

    def step(carry):
        x, value, jacobian, length, count = carry
        trial = x - length * jnp.linalg.solve(jacobian, value)
        there = (trial, *residual(trial))
        nearer = jnp.linalg.norm(there[1]) < jnp.linalg.norm(value)  # false where it is not a number
        taken = (jnp.where(nearer, new, old) for new, old in zip(there, carry[:3], strict=True))
        length = jnp.where(nearer, jnp.minimum(LENGTHENED * length, 1.0), SHORTENED * length)
        return (*taken, length, count + 1)

    begun = (start, *residual(start), jnp.ones((), start.dtype), 0)
    x, value, *_ = jax.lax.while_loop(searching, step, begun)
    return jnp.where(size(x, value) < rounding**0.5, x, jnp.nan)
