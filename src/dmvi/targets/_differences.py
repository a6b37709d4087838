r"""Second derivatives of densities that have first ones only, from differences of gradients.

    H e_j ~ [g(xi + h_j e_j) - g(xi - h_j e_j)] / (2 h_j),   h_j = h (1 + |xi_j|),

with an error of order h^2 from the fourth derivatives and of order eps / h from rounding: h = eps^(1/3) makes
both small. A model through `jax.experimental.ode.odeint`, or any other function with a `jax.custom_vjp` rule
of its own, has no other.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Density = Callable[[Array], Array]


def second_derivatives(log_density: Density, xi: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    """The Hessian at xi; by differences of gradients where JAX cannot differentiate twice."""
    if traceable(jax.hessian(log_density), xi):
        return jax.hessian(log_density)(xi)
    return from_gradients(jax.vmap(jax.grad(log_density)), xi, _step(xi.dtype))


def second_derivative_along(
    log_density: Density, xi: Float[Array, " dim"], v: Float[Array, " dim"]
) -> Float[Array, " dim"]:
    """The Hessian at xi times v; by the difference of two gradients where JAX cannot differentiate twice."""
    slope = jax.grad(log_density)
    if traceable(jax.hessian(log_density), xi):
        return jax.jvp(slope, (xi,), (v,))[1]
    longest = jnp.max(jnp.abs(v) / (1 + jnp.abs(xi)))
    h = _step(xi.dtype) / jnp.where(longest > 0, longest, 1.0)
    above, below = jax.vmap(slope)(jnp.stack([xi + h * v, xi - h * v]))
    return (above - below) / (2 * h)


def traceable(function: Callable, at: Array) -> bool:
    """Whether JAX has all the derivatives that a function asks for; nothing is computed.

    It is found in a trace of its own: what a failed one leaves behind in a program cannot be vectorised. The
    function has to vectorise the derivatives itself, as `jax.jacfwd` does: JAX refuses them no sooner.
    """
    try:
        jax.eval_shape(function, at)
    except (TypeError, ValueError, NotImplementedError):  # a rule for reverse mode only, or a bare callback
        return False
    return True


def from_gradients(gradients: Callable[[Any], Any], xi: Any, step: float) -> Any:
    """The Hessian at xi, symmetric, from gradients at 2 dim points, asked for in one call.

    Args:
        gradients: of points of shape (n, dim), arrays of NumPy or JAX as xi is.
        xi: where.
        step: h of the module's equation.
    """
    xp = jnp if isinstance(xi, jax.Array) else np
    steps = xp.diag(step * (1 + xp.abs(xi)))
    above, below = xi[None] + steps, xi[None] - steps
    slopes = gradients(xp.concatenate([above, below]))
    # What the points differ by, not twice the step: adding has rounded it.
    columns = (slopes[: xi.size] - slopes[xi.size :]) / xp.diagonal(above - below)[:, None]
    return 0.5 * (columns + columns.T)


def _step(dtype: Any) -> float:
    return float(np.cbrt(jnp.finfo(dtype).eps))
