r"""Monotone bends of single coordinates, the sinh-arcsinh transformation of Jones and Pewsey (2009).

    u' = exp(s) sinh(w) + m,   w = exp(d) arsinh(u) + e

s scales, m shifts, d sets the weight of the tails and e skews. The slope is positive whatever the four
numbers are, so a bend never folds.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LIMITS = np.array([3.0, 1.0, 0.7, 1.5])  # largest |s|, |d| and |e| of one step: four reach scales of e^12
FREE = np.array([False, True, False, False])  # m is not bounded


class BendJet(NamedTuple):
    """Image and log-slope of a bend with their derivatives by (s, m, d, e) and, of the log-slope, by u."""

    image: Float[Array, " dim"]
    log_slope: Float[Array, " dim"]
    of_image: Float[Array, "4 dim"]
    of_slope: Float[Array, "4 dim"]
    gradient: Float[Array, " dim"]


class Bends(NamedTuple):
    """What each coordinate is bent by: u' = exp(s) sinh(exp(d) arsinh(u) + e) + m."""

    s: Float[Array, " dim"]
    m: Float[Array, " dim"]
    d: Float[Array, " dim"]
    e: Float[Array, " dim"]

    def angle(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """w = exp(d) arsinh(u) + e."""
        return jnp.exp(self.d) * jnp.arcsinh(u) + self.e

    def image(self, w: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """u' from w."""
        return jnp.exp(self.s) * jnp.sinh(w) + self.m

    def image_of(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """u' from u."""
        return self.image(self.angle(u))

    def log_slopes(self, u: Float[Array, " dim"], w: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """log du'_i/du_i."""
        return self.s + self.d + jnp.logaddexp(w, -w) - np.log(2.0) - 0.5 * jnp.log1p(u**2)

    def inverse(self, image: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """u with that image."""
        return jnp.sinh((jnp.arcsinh((image - self.m) * jnp.exp(-self.s)) - self.e) * jnp.exp(-self.d))

    def jet(self, u: Float[Array, " dim"]) -> BendJet:
        """Image and log-slope with their derivatives."""
        w = self.angle(u)
        scale, stretch, ones = jnp.exp(self.s), jnp.exp(self.d) * jnp.arcsinh(u), jnp.ones_like(u)
        cosh, tanh, root = scale * jnp.cosh(w), jnp.tanh(w), jnp.sqrt(1 + u**2)
        return BendJet(
            self.image(w),
            self.log_slopes(u, w),
            jnp.stack([scale * jnp.sinh(w), ones, cosh * stretch, cosh]),
            jnp.stack([ones, jnp.zeros_like(u), tanh * stretch + 1, tanh]),
            tanh * jnp.exp(self.d) / root - u / root**2,
        )


def bounded(raw: Float[Array, "4 dim"]) -> tuple[Bends, Float[Array, "4 dim"]]:
    """(s, m, d, e) = B tanh(raw / B) but for m, which is free, and the slopes of these bounds."""
    limits, free = jnp.asarray(LIMITS, raw.dtype)[:, None], FREE[:, None]
    squashed = jnp.tanh(raw / limits)
    return Bends(*jnp.where(free, raw, limits * squashed)), jnp.where(free, 1.0, 1 - squashed**2)
