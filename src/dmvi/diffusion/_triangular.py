r"""The triangular flow: every coordinate has a small network of its own, of the coordinates before it.

Models in which many coordinates each set the scale of one other, as local scales do in sparse regression,
need more directions than a projection has. Here the residual r_i(u, t) depends on u_1, ..., u_i alone, and a
step bends each coordinate monotonically,

    x_i = W_i u_{<i} + b_i,   h_i = g(x_i),   (s, m, d, e)_i = B tanh((O_i h_i + c_i) / B)   (m: not bounded)
    u'_i = exp(s_i) sinh(exp(d_i) arsinh(u_i) + e_i) + m_i,

so that its Jacobian is triangular with a positive diagonal: a step can never fold,

    log |det du'/du| = sum_i s_i + d_i + log cosh w_i - log(1 + u_i^2) / 2,   w = exp(d) arsinh(u) + e.

The score of own draws takes the inverse of one triangle. Steps take the coordinates in natural order and in
reverse by turns. Weights are those of one step, so r is constant in t within a step. A step costs
O(dim^2 width), its inverse, coordinate by coordinate, O(dim^3 width).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.diffusion._flow import FlowRecipe, Moved, SteppedFlow
from dmvi.diffusion._hidden import gelu, gelu_jet
from dmvi.diffusion._networks import initial_weights, zeros
from dmvi.diffusion._sinh_arcsinh import Bends, bounded
from dmvi.diffusion._triangle import lower_inverse

BIAS = 0.5  # sd of the hidden units' initial biases


class Knot(NamedTuple):
    """One step: masked weights, and whether it takes the coordinates in reverse."""

    first: Float[Array, "width dim dim"]
    bias: Float[Array, "width dim"]
    out: Float[Array, "4 width dim"]
    out_bias: Float[Array, "4 dim"]
    backward: Bool[Array, ""]

    def inner(self, u: Float[Array, " dim"]) -> Float[Array, "width dim"]:
        """x = W u + b, one product for all coordinates."""
        width, dim = self.bias.shape
        return (u @ self.first.reshape(width * dim, dim).T).reshape(width, dim) + self.bias

    def bends(self, h: Float[Array, "width dim"]) -> tuple[Bends, Bends]:
        """(s, m, d, e) from the hidden units, and the slopes of their bounds."""
        return bounded(tuple(jnp.sum(self.out * h[None], axis=1) + self.out_bias))


class TriangularFlow(SteppedFlow):
    """Monotone bends of each coordinate by functions of those before it; see the module's equations."""

    first: Float[Array, "steps width dim dim"]
    bias: Float[Array, "steps width dim"]
    out: Float[Array, "steps 4 width dim"]
    out_bias: Float[Array, "steps 4 dim"]
    steps: int = eqx.field(static=True)

    def __init__(self, dim: int, width: int, steps: int, *, key: PRNGKeyArray):
        self.first = initial_weights(jr.fold_in(key, 0), (steps, width, dim, dim), dim**-0.5)
        self.bias = initial_weights(jr.fold_in(key, 1), (steps, width, dim), BIAS)
        self.out, self.out_bias = zeros(steps, 4, width, dim), zeros(steps, 4, dim)
        self.steps = steps

    def knots(self):
        backward = jnp.asarray(np.arange(self.steps) % 2 == 1)
        return Knot(jnp.tril(self.first, -1), self.bias, self.out, self.out_bias, backward)

    def step(self, knot, u, key=None):
        return self.step_density(knot, u)[0]

    def step_density(self, knot, u):
        u = _turned(knot, u)
        bends, _ = knot.bends(gelu(knot.inner(u)))
        w = bends.angle(u)
        return _turned(knot, bends.image(w)), jnp.sum(bends.log_slopes(u, w))

    def step_score(self, knot, u, score, key=None):
        u, score = _turned(knot, u), _turned(knot, score)
        h, slope, _ = gelu_jet(knot.inner(u))
        bends, bounds = knot.bends(h)
        jet = bends.jet(u)
        # By the hidden units' x.
        image_inner = jnp.sum(jnp.stack(jet.of_image.times(bounds))[:, None] * knot.out, axis=0) * slope
        slope_inner = jnp.sum(jnp.stack(jet.of_slope.times(bounds))[:, None] * knot.out, axis=0) * slope
        jacobian = jnp.einsum("hi,hij->ij", image_inner, knot.first) + jnp.diag(jnp.exp(jet.log_slope))
        gradient = jet.gradient + slope_inner.ravel() @ knot.first.reshape(-1, u.shape[0])
        score = (score - gradient) @ lower_inverse(jacobian)
        return Moved(_turned(knot, jet.image), jnp.sum(jet.log_slope), _turned(knot, score))

    def step_inverse(self, knot, u):
        image = _turned(knot, u)

        def place(i, u):
            return u.at[i].set(knot.bends(gelu(knot.inner(u)))[0].inverse(image)[i])

        # Coordinates not yet placed do not matter to those before them, as long as they are finite.
        return _turned(knot, jax.lax.fori_loop(0, u.shape[0], place, jnp.zeros_like(image)))


def _turned(knot: Knot, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """x in the step's order."""
    return jnp.where(knot.backward, jnp.flip(x), x)


class Triangular(FlowRecipe):
    """Recipe of the triangular flow, for targets that a few directions do not explain.

    Args:
        width: hidden units of each coordinate.
    """

    width: int = eqx.field(static=True, default=8)

    def __check_init__(self):
        if not isinstance(self.width, int) or self.width < 1:
            raise InputError(f"Triangular needs width to be an integer of at least 1, got {self.width!r}.")

    def build(self, dim: int, steps: int, *, key: PRNGKeyArray) -> TriangularFlow:
        """The flow for `dim` coordinates."""
        return TriangularFlow(dim, self.width, steps, key=key)
