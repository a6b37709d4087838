r"""The flow of sparse bends: every coordinate has a small network of its few strongest drivers.

In hierarchies a few coordinates set the scales and means of many others, and each of these differs from a
Gaussian in its own way. Drivers are measured at the base (`_drivers.py`), and coordinates get levels by their
strength as drivers. A step bends each coordinate monotonically (`_sinh_arcsinh.py`) by four functions of its
parents, which are drivers at lower levels,

    x_i = W_i u_pa(i) + b_i,   (s, m, d, e)_i = B tanh((O_i g(x_i) / sqrt(width) + c_i) / B)

(m is not bounded), so that its Jacobian J is triangular in the levels with a positive diagonal: no step can
fold, and log |det J| is the sum of the log-slopes. With N the part of J off the diagonal, N^levels = 0. Some
steps take the levels the other way round, so that drivers are bent by what they drive.

The score of own draws solves y J = G - grad log |det J| level by level. Few coordinates are not at the last
level: that one is a single division, and the others are products with a matrix of their size.

Parents lie among these few, so W is also kept as a matrix of all coordinates by all drivers: one large matrix
product is quicker on a processor than gathering and scattering the few entries that are not zero.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.diffusion._drivers import Drivers, DriverSettings
from dmvi.diffusion._flow import FlowRecipe, Moved, SteppedFlow
from dmvi.diffusion._hidden import gelu, gelu_jet
from dmvi.diffusion._networks import initial_weights, zeros
from dmvi.diffusion._sinh_arcsinh import BendJet, Bends, bounded


class Knot(NamedTuple):
    """One step: its weights, zero where there is no parent.

    `first` is W by drivers, `back` that of drivers by their parents when levels are taken the other way: no
    rows where no step of the flow takes them so.
    """

    first: Float[Array, "drivers width*dim"]
    back: Float[Array, "parents width drivers"]
    bias: Float[Array, "width dim"]
    out: tuple[Float[Array, "width dim"], ...]
    out_bias: tuple[Float[Array, " dim"], ...]
    backward: Bool[Array, ""]

    def inner(self, inputs: "Inputs", drivers: Drivers) -> Float[Array, "width dim"]:
        """x = W u_pa + b."""
        inner = (inputs.ahead @ self.first).reshape(self.bias.shape) + self.bias
        if not len(self.back):
            return inner
        return inner.at[:, drivers.strongest].add(jnp.sum(self.back * inputs.back[:, None], axis=0))

    def bends(self, h: Float[Array, "width dim"]) -> tuple[Bends, Bends]:
        """(s, m, d, e) from the hidden units, and the slopes of their bounds."""
        parts = zip(self.out, self.out_bias, strict=True)
        return bounded([jnp.sum(weight * h, axis=0) + bias for weight, bias in parts])


class Inputs(NamedTuple):
    """u at the drivers, and at the parents of the drivers when levels are taken the other way round."""

    ahead: Float[Array, " drivers"]
    back: Float[Array, "parents drivers"]


def inputs_of(knot: Knot, drivers: Drivers, u: Float[Array, " dim"]) -> Inputs:
    """What the networks of a step see."""
    return Inputs(u[drivers.strongest], u[drivers.back[: len(knot.back)]])


class Jet(NamedTuple):
    """What a step makes of u, with derivatives by what its bends are made of."""

    inputs: Inputs
    h: Float[Array, "width dim"]
    slope: Float[Array, "width dim"]
    bend: BendJet
    of_image: Bends
    of_slope: Bends


def jet(knot: Knot, drivers: Drivers, u: Float[Array, " dim"]) -> Jet:
    """The step at u."""
    inputs = inputs_of(knot, drivers, u)
    h, slope, _ = gelu_jet(knot.inner(inputs, drivers))
    bends, bounds = knot.bends(h)
    bend = bends.jet(u)
    return Jet(inputs, h, slope, bend, bend.of_image.times(bounds), bend.of_slope.times(bounds))


@jax.custom_jvp
def bent(knot: Knot, drivers: Drivers, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """u'; its derivative is written out so that, over draws side by side, weights' are matrix products."""
    return knot.bends(gelu(knot.inner(inputs_of(knot, drivers, u), drivers)))[0].image_of(u)


@bent.defjvp
def _bent_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (knot, drivers, u), (of_knot, _, of_u) = primals, tangents
    here = jet(knot, drivers, u)
    inner = knot._replace(bias=of_knot.bias).inner(inputs_of(knot, drivers, of_u), drivers)
    inner = inner + of_knot._replace(bias=jnp.zeros_like(inner)).inner(here.inputs, drivers)
    moved = here.slope * inner
    change = jnp.exp(here.bend.log_slope) * of_u
    for slope, weight, of_weight, of_bias in zip(
        here.of_image, knot.out, of_knot.out, of_knot.out_bias, strict=True
    ):
        moved_by = jnp.einsum("hi,hi->i", of_weight, here.h)
        change = change + slope * (jnp.sum(weight * moved, axis=0) + moved_by + of_bias)
    return here.bend.image, change


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
        self.drivers = Drivers.none(dim, recipe.parents, DriverSettings().up_to(recipe.drivers))
        parents, width = self.drivers.places.shape[0], recipe.width
        self.first = initial_weights(jr.fold_in(key, 0), (steps, parents, width, dim), recipe.spread)
        self.bias = initial_weights(jr.fold_in(key, 1), (steps, width, dim), recipe.spread)
        self.out, self.out_bias = zeros(steps, 4, width, dim), zeros(steps, 4, dim)
        self.steps, self.turn = steps, recipe.turn

    @property
    def wants_drivers(self) -> bool:
        return True

    def driven(self, u, r):
        return eqx.tree_at(lambda flow: flow.drivers, self, self.drivers.measured(u, r))

    def knots(self):
        backward = np.arange(self.steps) % self.turn == self.turn // 2
        strongest, dim = self.drivers.strongest, self.drivers.dim
        lower, higher = self.drivers.lower()
        ahead = jnp.where(lower[None, :, None] & ~backward[:, None, None, None], self.first, 0.0)
        rows = self.first.shape[1] if backward.any() else 0
        back = self.first[:, :rows, :, strongest]
        back = jnp.where(higher[None, :rows, None] & backward[:, None, None, None], back, 0.0)
        steps, _, width, _ = self.first.shape
        of_drivers = jnp.zeros((steps, strongest.shape[0], width, dim), ahead.dtype)
        columns = jnp.broadcast_to(jnp.arange(dim)[None], self.drivers.places.shape)
        of_drivers = of_drivers.at[:, self.drivers.places, :, columns].add(ahead.transpose(1, 3, 0, 2))
        of_drivers = of_drivers.reshape(steps, -1, width * dim)
        out = self.out / np.sqrt(width)
        rows, biases = (tuple(jnp.moveaxis(weights, 1, 0)) for weights in (out, self.out_bias))
        return Knot(of_drivers, back, self.bias, rows, biases, jnp.asarray(backward))

    def step(self, knot, u, key=None):
        return bent(knot, self.drivers, u)

    def step_density(self, knot, u):
        bends, _ = knot.bends(gelu(knot.inner(inputs_of(knot, self.drivers, u), self.drivers)))
        w = bends.angle(u)
        return bends.image(w), jnp.sum(bends.log_slopes(u, w))

    def step_score(self, knot, u, score, key=None):
        """Solves y J = right - q W, where q, the derivative of log-slopes and y J by x, holds y itself."""
        here, strongest = jet(knot, self.drivers, u), self.drivers.strongest
        slopes, right = jnp.exp(here.bend.log_slope), score - here.bend.gradient
        # At the last level y is right at once when levels are taken in their order; else it drives nothing.
        q = _pulled(knot.out, here.slope, _along(here.of_slope, right / slopes, here.of_image))
        last = jnp.ones(u.shape, bool).at[strongest].set(False)
        from_last = jnp.where(last[None], q, 0.0).ravel() @ knot.first.T
        y, from_drivers = self._among_drivers(knot, here, right[strongest] - from_last)
        if len(from_drivers):
            right = right - jnp.zeros_like(right).at[self.drivers.back].add(from_drivers)
        y = (right / slopes).at[strongest].set(y)
        return Moved(here.bend.image, jnp.sum(here.bend.log_slope), y)

    def _among_drivers(
        self, knot: Knot, here: Jet, right: Float[Array, " drivers"]
    ) -> tuple[Float[Array, " drivers"], Float[Array, "parents drivers"]]:
        """y at the drivers, level by level, and what they owe to their parents the other way round."""
        at = self.drivers.strongest
        among = knot.first.reshape(-1, *knot.bias.shape)[:, :, at].transpose(1, 2, 0)
        if len(knot.back):
            same = self.drivers.back[:, :, None] == at[None, None]
            among = among + jnp.einsum("mhi,mij->hij", knot.back, same.astype(right.dtype))
        among = among.reshape(-1, at.shape[0])
        out, slope, slopes = [w[:, at] for w in knot.out], here.slope[:, at], jnp.exp(here.bend.log_slope[at])
        of_image, of_slope = (Bends(*(row[at] for row in rows)) for rows in (here.of_image, here.of_slope))

        def once(_: int, y: Array) -> Array:
            q = _pulled(out, slope, _along(of_slope, y, of_image))
            return (right - q.ravel() @ among) / slopes

        y = jax.lax.fori_loop(0, self.drivers.last_level - 1, once, right / slopes)
        q = _pulled(out, slope, _along(of_slope, y, of_image))
        return y, jnp.sum(knot.back * q[None], axis=1)

    def step_inverse(self, knot, u):
        level, last = self.drivers.levels(), self.drivers.last_level
        level = jnp.where(knot.backward, last - level, level)

        def place(here: int, placed: Array) -> Array:
            inner = knot.inner(inputs_of(knot, self.drivers, placed), self.drivers)
            return jnp.where(level == here, knot.bends(gelu(inner))[0].inverse(u), placed)

        # Coordinates not yet placed do not matter to those before them, as long as they are finite.
        return jax.lax.fori_loop(0, last + 1, place, jnp.zeros_like(u))


def _along(of_slope: Bends, y: Float[Array, " rows"], of_image: Bends) -> Bends:
    """Derivatives of the log-slopes and of y J by what bends are made of."""
    return Bends(*(slope + y * image for slope, image in zip(of_slope, of_image, strict=True)))


def _pulled(
    out: Sequence[Float[Array, "width rows"]], slope: Float[Array, "width rows"], of_bends: Bends
) -> Float[Array, "width rows"]:
    """Derivatives by x, from those by what bends are made of."""
    first, second, third, fourth = (part[None] * weight for part, weight in zip(of_bends, out, strict=True))
    return (first + second + third + fourth) * slope


class SparseBends(FlowRecipe):
    """Recipe of the flow of sparse bends, for many coordinates of which a few drive the others.

    Args:
        width: hidden units of each coordinate.
        parents: drivers that each coordinate's network sees, at most.
        drivers: coordinates that may be drivers, at most; a step costs O(dim drivers width).
        turn: one step in so many takes the levels the other way round.
        spread: standard deviation of the hidden units' initial weights: units that differ, none saturated.
    """

    width: int = eqx.field(static=True, default=4)
    parents: int = eqx.field(static=True, default=8)
    drivers: int = eqx.field(static=True, default=30)
    turn: int = eqx.field(static=True, default=4)
    spread: float = eqx.field(static=True, default=0.5)

    def __check_init__(self):
        for name in ("width", "parents", "drivers", "turn"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"SparseBends needs {name} to be an integer of at least 1, got {value!r}.")
        if not isinstance(self.spread, int | float) or not 0 < self.spread < np.inf:
            raise InputError(f"SparseBends needs spread to be a positive number, got {self.spread!r}.")

    def build(self, dim: int, steps: int, *, key: PRNGKeyArray) -> SparseBendsFlow:
        """The flow for `dim` coordinates; no coordinate has parents until `driven` has seen draws."""
        return SparseBendsFlow(dim, self, steps, key=key)
