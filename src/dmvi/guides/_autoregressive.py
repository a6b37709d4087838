r"""Inverse autoregressive flow: each layer scales and shifts a coordinate by functions of those before it.

    x = W u + b,  h = g(x),   s = S tanh((O_s h + c_s) / S),   m = O_m h + c_m,   u' = exp(s) * u + m

W, O_s and O_m are masked so that s_i and m_i depend on coordinates before i alone (MADE). The Jacobian is
triangular,

    dF/du = diag(exp s) + diag(u exp s) ds/du + dm/du,   log |det dF/du| = sum s,

so the density of own draws is free and the score of own draws takes one triangular solve: the path
gradient is exact. Only `invert` goes coordinate by coordinate. Layers take the coordinates in natural
order and in reverse by turns: a permutation between them, with the identity as the untrained flow.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dmvi.diffusion._flow import Moved, SteppedFlow
from dmvi.diffusion._hidden import gelu, gelu_jet
from dmvi.diffusion._networks import initial_weights, zeros

LOG_SCALE_LIMIT = 4.0  # S: what one layer can scale by is between e^-4 and e^4


class Layer(NamedTuple):
    """One layer: masked weights, and whether it takes the coordinates in reverse."""

    first: Float[Array, "width dim"]
    bias: Float[Array, " width"]
    scale: Float[Array, "dim width"]
    scale_bias: Float[Array, " dim"]
    shift: Float[Array, "dim width"]
    shift_bias: Float[Array, " dim"]
    backward: Bool[Array, ""]

    def scale_and_shift(self, h: Float[Array, " width"]) -> tuple[Array, Array]:
        """s and m from the hidden units."""
        raw = (self.scale @ h + self.scale_bias) / LOG_SCALE_LIMIT
        return LOG_SCALE_LIMIT * jnp.tanh(raw), self.shift @ h + self.shift_bias


def masks(dim: int, width: int, backward: bool) -> tuple[np.ndarray, np.ndarray]:
    """Which inputs a hidden unit sees, (width, dim), and which hidden units an output sees, (dim, width).

    Coordinate i has degree i, counted from 1 in the layer's order; hidden units have the degrees
    1..dim - 1 in turn, see inputs up to their own degree, and are seen by outputs above it.
    """
    degree = np.arange(dim, 0, -1) if backward else np.arange(1, dim + 1)
    hidden = 1 + np.arange(width) % max(dim - 1, 1)
    return hidden[:, None] >= degree[None, :], degree[:, None] > hidden[None, :]


class AutoregressiveFlow(SteppedFlow):
    """Layers of an inverse autoregressive flow; see the module's equations."""

    first: Float[Array, "steps width dim"]
    bias: Float[Array, "steps width"]
    scale: Float[Array, "steps dim width"]
    scale_bias: Float[Array, "steps dim"]
    shift: Float[Array, "steps dim width"]
    shift_bias: Float[Array, "steps dim"]
    steps: int = eqx.field(static=True)

    def __init__(self, dim: int, width: int, layers: int, *, key: PRNGKeyArray):
        self.first = initial_weights(jr.fold_in(key, 0), (layers, width, dim), dim**-0.5)
        self.bias = zeros(layers, width)
        self.scale, self.shift = zeros(layers, dim, width), zeros(layers, dim, width)
        self.scale_bias, self.shift_bias = zeros(layers, dim), zeros(layers, dim)
        self.steps = layers

    def knots(self):
        layers, width, dim = self.first.shape
        backward = np.arange(layers) % 2 == 1
        inner, outer = (
            np.stack(rows) for rows in zip(*(masks(dim, width, b) for b in backward), strict=True)
        )
        return Layer(
            jnp.where(inner, self.first, 0.0),
            self.bias,
            jnp.where(outer, self.scale, 0.0),
            self.scale_bias,
            jnp.where(outer, self.shift, 0.0),
            self.shift_bias,
            jnp.asarray(backward),
        )

    def step(self, knot, u, key=None):
        return self.step_density(knot, u)[0]

    def step_density(self, knot, u):
        s, m = knot.scale_and_shift(gelu(knot.first @ u + knot.bias))
        return jnp.exp(s) * u + m, jnp.sum(s)

    def step_score(self, knot, u, score, key=None):
        h, slope, _ = gelu_jet(knot.first @ u + knot.bias)
        s, m = knot.scale_and_shift(h)
        inner = slope[:, None] * knot.first  # dh/du
        s_outer = (1 - (s / LOG_SCALE_LIMIT) ** 2)[:, None] * knot.scale
        scaled = jnp.exp(s) * u
        jacobian = jnp.diag(jnp.exp(s)) + (scaled[:, None] * s_outer + knot.shift) @ inner
        right = score - inner.T @ jnp.sum(s_outer, axis=0)
        return Moved(scaled + m, jnp.sum(s), _solve_transposed(jacobian, right, knot.backward))

    def step_inverse(self, knot, u):
        dim = u.shape[0]

        def place(i, v):
            s, m = knot.scale_and_shift(gelu(knot.first @ v + knot.bias))
            at = jnp.where(knot.backward, dim - 1 - i, i)
            return v.at[at].set((u[at] - m[at]) * jnp.exp(-s[at]))

        # What is not yet placed does not matter to what is.
        return jax.lax.fori_loop(0, dim, place, jnp.zeros_like(u))


def _solve_transposed(
    jacobian: Float[Array, "dim dim"], right: Float[Array, " dim"], backward: Bool[Array, ""]
) -> Float[Array, " dim"]:
    """J^-T right for J lower triangular in the layer's order."""

    def turned(x):
        return jnp.where(backward, jnp.flip(x), x)

    return turned(jax.scipy.linalg.solve_triangular(turned(jacobian), turned(right), lower=True, trans="T"))
