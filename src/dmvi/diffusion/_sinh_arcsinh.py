r"""Monotone bends of single coordinates, the sinh-arcsinh transformation of Jones and Pewsey (2009).

    u' = exp(s) sinh(w) + m,   w = exp(d) arsinh(u) + e

s scales, m shifts, d sets the weight of the tails and e skews. The slope is positive whatever the four
numbers are, so a bend never folds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LIMITS = (3.0, None, 0.7, 1.5)  # largest |s|, |d| and |e| of one step: four reach scales of e^12; m is free


class BendJet(NamedTuple):
    """Image and log-slope of a bend with their derivatives by (s, m, d, e) and, of the log-slope, by u.

    The four stay apart: as rows of one array they would be computed element by element.
    """

    image: Float[Array, " dim"]
    log_slope: Float[Array, " dim"]
    of_image: "Bends"
    of_slope: "Bends"
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
        """log du'_i/du_i, where log 2 cosh w = |w| + log(1 + exp(-2 |w|))."""
        size = jnp.abs(w)
        return self.s + self.d + size - np.log(2.0) + jnp.log((1 + jnp.exp(-2 * size)) / jnp.sqrt(1 + u**2))

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
            Bends(scale * jnp.sinh(w), ones, cosh * stretch, cosh),
            Bends(ones, jnp.zeros_like(u), tanh * stretch + 1, tanh),
            tanh * jnp.exp(self.d) / root - u / root**2,
        )

    def times(self, other: "Bends") -> "Bends":
        """Products one by one."""
        return Bends(*(left * right for left, right in zip(self, other, strict=True)))


def bounded(raw: Sequence[Float[Array, " dim"]]) -> tuple[Bends, Bends]:
    """(s, m, d, e) = B tanh(raw / B) but for m, which is free, and the slopes of these bounds."""
    bends, slopes = [], []
    for row, limit in zip(raw, LIMITS, strict=True):
        squashed = row if limit is None else jnp.tanh(row / limit)
        bends.append(row if limit is None else limit * squashed)
        slopes.append(jnp.ones_like(row) if limit is None else 1 - squashed**2)
    return Bends(*bends), Bends(*slopes)
