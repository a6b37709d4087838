r"""The flow of sparse bends: every coordinate has a small network of its few strongest drivers.

In hierarchies a few coordinates set the scales and means of many others, and these differ from a Gaussian each
in its own way. Drivers are measured at the base (`_drivers.py`) and coordinates get levels by strength. A
step bends each coordinate monotonically (`_sinh_arcsinh.py`) by four functions of its parents, which stand at
lower levels,

    x_i = W_i u_{pa(i)} + b_i,   (s, m, d, e)_i = B tanh((O_i g(x_i) / sqrt(width) + c_i) / B)   (m: not bounded),

so that its Jacobian is triangular in the levels with a positive diagonal: no step can fold, and
log |det du'/du| is the sum of the log-slopes. With N the part off the diagonal, N^levels = 0. Every `TURN`-th
step takes the levels the other way round, so that the drivers bend too.

The score of own draws solves y J = G - grad log |det J| level by level. At most 62 coordinates stand at levels
other than the last, so the last level is one division, and the others are a few products of a matrix of that
size. A step costs O(dim parents width).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.diffusion._drivers import Drivers, DriverSettings
from dmvi.diffusion._flow import FlowRecipe, Moved, SteppedFlow
from dmvi.diffusion._hidden import gelu, gelu_jet
from dmvi.diffusion._networks import initial_weights, zeros
from dmvi.diffusion._sinh_arcsinh import BendJet, Bends, bounded


class Knot(NamedTuple):
    """One step: its weights, zero where there is no parent, and its parents."""

    first: Float[Array, "parents width dim"]
    bias: Float[Array, "width dim"]
    out: Float[Array, "4 width dim"]
    out_bias: Float[Array, "4 dim"]
    parents: Int[Array, "parents dim"]
    backward: Bool[Array, ""]

    def inputs(self, u: Float[Array, " dim"]) -> Float[Array, "parents dim"]:
        """u_{pa(i)}."""
        return u[self.parents]

    def inner(self, inputs: Float[Array, "parents dim"]) -> Float[Array, "width dim"]:
        """x = W u_pa + b."""
        return jnp.sum(self.first * inputs[:, None], axis=0) + self.bias

    def bends(self, h: Float[Array, "width dim"]) -> tuple[Bends, Float[Array, "4 dim"]]:
        """(s, m, d, e) from the hidden units, and the slopes of their bounds."""
        return bounded(jnp.sum(self.out * h[None], axis=1) + self.out_bias)

    def pulled(self, of_bends: Float[Array, "4 dim"], slope: Float[Array, "width dim"]) -> Array:
        """Derivatives by x from those by what bends are made of."""
        return jnp.sum(of_bends[:, None] * self.out, axis=0) * slope


class Jet(NamedTuple):
    """What a step makes of u, with derivatives by what its bends are made of."""

    inputs: Float[Array, "parents dim"]
    h: Float[Array, "width dim"]
    slope: Float[Array, "width dim"]
    bend: BendJet
    of_image: Float[Array, "4 dim"]
    of_slope: Float[Array, "4 dim"]


def jet(knot: Knot, u: Float[Array, " dim"]) -> Jet:
    """The step at u."""
    inputs = knot.inputs(u)
    h, slope, _ = gelu_jet(knot.inner(inputs))
    bends, bounds = knot.bends(h)
    bend = bends.jet(u)
    return Jet(inputs, h, slope, bend, bend.of_image * bounds, bend.of_slope * bounds)


@jax.custom_jvp
def bent(knot: Knot, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """u', whose derivatives are products that sum over draws at once where many are taken side by side."""
    return knot.bends(gelu(knot.inner(knot.inputs(u))))[0].image_of(u)


@bent.defjvp
def _(primals, tangents):
    (knot, u), (of_knot, of_u) = primals, tangents
    here = jet(knot, u)
    inner = jnp.sum(knot.first * of_u[knot.parents][:, None], axis=0) + of_knot.bias
    inner = inner + jnp.einsum("mhi,mi->hi", of_knot.first, here.inputs)
    bends = jnp.sum(knot.out * (here.slope * inner)[None], axis=1) + of_knot.out_bias
    bends = bends + jnp.einsum("chi,hi->ci", of_knot.out, here.h)
    return here.bend.image, jnp.exp(here.bend.log_slope) * of_u + jnp.sum(here.of_image * bends, axis=0)


class SparseBendsFlow(SteppedFlow):
    """Monotone bends of each coordinate by functions of its drivers; see the module's equations."""

    first: Float[Array, "steps parents width dim"]
    bias: Float[Array, "steps width dim"]
    out: Float[Array, "steps 4 width dim"]
    out_bias: Float[Array, "steps 4 dim"]
    drivers: Drivers
    steps: int = eqx.field(static=True)
    turn: int = eqx.field(static=True)

    def __init__(self, dim: int, recipe: "SparseBends", steps: int, *, key: PRNGKeyArray):
        self.drivers = Drivers.none(dim, recipe.parents, DriverSettings())
        parents, width = self.drivers.parents.shape[1], recipe.width
        self.first = initial_weights(jr.fold_in(key, 0), (steps, parents, width, dim), recipe.spread)
        self.bias = initial_weights(jr.fold_in(key, 1), (steps, width, dim), recipe.spread)
        self.out, self.out_bias = zeros(steps, 4, width, dim), zeros(steps, 4, dim)
        self.steps, self.turn = steps, recipe.turn

    def driven(self, u, r):
        return eqx.tree_at(lambda flow: flow.drivers, self, self.drivers.measured(u, r))

    def knots(self):
        backward = np.arange(self.steps) % self.turn == self.turn // 2
        way = backward.astype(int)
        first = jnp.where(self.drivers.lower()[way][:, :, None], self.first, 0.0)
        out = self.out / np.sqrt(self.bias.shape[1])
        return Knot(first, self.bias, out, self.out_bias, self.drivers.parents[way], jnp.asarray(backward))

    def step(self, knot, u, key=None):
        return bent(knot, u)

    def step_density(self, knot, u):
        bends, _ = knot.bends(gelu(knot.inner(knot.inputs(u))))
        w = bends.angle(u)
        return bends.image(w), jnp.sum(bends.log_slopes(u, w))

    def step_score(self, knot, u, score, key=None):
        here = jet(knot, u)
        right, slopes = score - here.bend.gradient, jnp.exp(here.bend.log_slope)
        right, solved = self._solve_drivers(knot, here, right, right / slopes)
        y = (right / slopes).at[self.drivers.strongest].set(solved)
        return Moved(here.bend.image, jnp.sum(here.bend.log_slope), y)

    def _solve_drivers(self, knot: Knot, here: Jet, right: Array, y: Array) -> tuple[Array, Array]:
        """The right side less what drivers have to do with others, and y at the drivers.

        y_j J_jj = right_j - sum_{i != j} q_i W_ij, where q is the derivative of log-slopes and y J by x. At the
        last level y is right at once when levels are taken in their order.
        """
        dim, strongest = u_dim(right), self.drivers.strongest
        q = knot.pulled(here.of_slope + y[None] * here.of_image, here.slope)
        last = jnp.ones(dim, bool).at[strongest].set(False)
        from_last = jnp.where(last[None], jnp.sum(knot.first * q[None], axis=1), 0.0)
        right = right - jnp.zeros_like(right).at[knot.parents].add(from_last)
        rows = jax.tree.map(lambda leaf: leaf[..., strongest], knot._replace(backward=last))
        of_image, of_slope = here.of_image[:, strongest], here.of_slope[:, strongest]
        slope, slopes = here.slope[:, strongest], jnp.exp(here.bend.log_slope[strongest])
        among = self._among(rows)
        y = right[strongest] / slopes
        for _ in range(self.drivers.last_level - 1):
            q = rows.pulled(of_slope + y[None] * of_image, slope)
            y = (right[strongest] - jnp.einsum("hi,hij->j", q, among)) / slopes
        q = rows.pulled(of_slope + y[None] * of_image, slope)
        from_drivers = jnp.sum(rows.first * q[None], axis=1)
        return right - jnp.zeros_like(right).at[rows.parents].add(from_drivers), y

    def _among(self, rows: Knot) -> Float[Array, "width drivers drivers"]:
        """W of drivers by drivers."""
        same = rows.parents[:, :, None] == self.drivers.strongest[None, None]
        return jnp.einsum("mhi,mij->hij", rows.first, same.astype(rows.first.dtype))

    def step_inverse(self, knot, u):
        level = self.drivers.levels()
        level = jnp.where(knot.backward, self.drivers.last_level - level, level)
        image, u = u, jnp.zeros_like(u)
        for here in range(self.drivers.last_level + 1):
            bends, _ = knot.bends(gelu(knot.inner(knot.inputs(u))))
            u = jnp.where(level == here, bends.inverse(image), u)
        return u


def u_dim(u: Array) -> int:
    return u.shape[-1]


class SparseBends(FlowRecipe):
    """Recipe of the flow of sparse bends, for many coordinates of which a few drive the others.

    Args:
        width: hidden units of each coordinate.
        parents: drivers that each coordinate's network sees, at most.
        turn: one step in so many takes the levels the other way round.
        spread: standard deviation of the hidden units' initial weights: units that differ, none saturated.
    """

    width: int = eqx.field(static=True, default=8)
    parents: int = eqx.field(static=True, default=8)
    turn: int = eqx.field(static=True, default=4)
    spread: float = eqx.field(static=True, default=0.5)

    def __check_init__(self):
        for name in ("width", "parents", "turn"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"SparseBends needs {name} to be an integer of at least 1, got {value!r}.")
        if not isinstance(self.spread, int | float) or not 0 < self.spread < np.inf:
            raise InputError(f"SparseBends needs spread to be a positive number, got {self.spread!r}.")

    def build(self, dim: int, steps: int, *, key: PRNGKeyArray) -> SparseBendsFlow:
        """The flow for `dim` coordinates; no coordinate has parents until `driven` has seen draws."""
        return SparseBendsFlow(dim, self, steps, key=key)
