r"""Affine maps for thousands of dimensions: a Gaussian whose precision is sparse.

    xi = a + S (b + e^l * u)

The coordinates are in blocks, and the blocks in levels. Given all levels before its own, a block depends on a
few coordinates only, those that separate it from the rest:

    x_block = V x_above + A x_shared + W z_block

`above` are these few, `shared` the coordinates that nearly every block depends on, such as the scales of a
hierarchy. The map S takes one product of small matrices a level; a precision that is sparse has few levels
(`dmvi.warmstart` makes them). What is dense but of low rank, such as a sum that is held near zero, is a map
of its own that comes first:

    P = L (I + G G^T) L^T   has the root   S = L^-T (I + G G^T)^(-1/2),

L^-T being the levels. Time and memory are linear in d, inverse and determinant exact.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dmvi.guides._affine import Affine
from dmvi.guides._guide import Frozen
from dmvi.guides._low_rank import LowRank, LowRankAffine


class Level(eqx.Module):
    """Blocks of one size that depend on earlier levels; short ones are filled up (W = I, V = A = 0)."""

    own: Int[Array, "blocks width"]  # the coordinates; 0 where filled up
    above: Int[Array, "blocks above"]  # places, counted through the earlier levels; 0 where filled up
    scale: Float[Array, "blocks width width"]  # W, upper triangles
    slope: Float[Array, "blocks width above"]  # V
    shared: Float[Array, "blocks width shared"]  # A

    def shape(self) -> tuple[int, int, int, int]:
        """Blocks, their width, the coordinates above each and those shared by all."""
        blocks, width, shared = self.shared.shape
        return blocks, width, self.above.shape[1], shared

    def given(self, before: Float[Array, " places"]) -> Float[Array, "blocks width"]:
        """V x_above + A x_shared, the mean of each block given the coordinates of earlier levels."""
        blocks, width = self.own.shape
        mean = jnp.zeros((blocks, width), self.scale.dtype)
        if self.above.shape[1]:
            mean = mean + jnp.einsum("bij,bj->bi", self.slope, before[self.above])
        if self.shared.shape[2]:
            mean = mean + self.shared @ before[: self.shared.shape[2]]
        return mean


class SparseScale(eqx.Module):
    """S, with (S S^T)^-1 a sparse precision and a low rank; see the module's equations."""

    inner: LowRank  # (I + G G^T)^(-1/2)
    levels: tuple[Level, ...]
    place: Int[Array, " dim"]  # where each coordinate is, counted through all levels

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """S z."""
        owned = jnp.concatenate([level.own.ravel() for level in self.levels])
        noise, x = _reordered(self.inner(z), owned, self.place), jnp.zeros(0, z.dtype)
        for level in self.levels:
            blocks, width = level.own.shape
            z_level = noise[x.size : x.size + blocks * width].reshape(blocks, width)
            x_level = level.given(x) + jnp.einsum("bij,bj->bi", level.scale, z_level)
            x = jnp.concatenate([x, x_level.ravel()])
        return _reordered(x, self.place, owned)

    def log_det(self) -> Float[Array, ""]:
        """log |det S|."""
        diagonals = [jnp.diagonal(level.scale, axis1=1, axis2=2) for level in self.levels]
        return self.inner.log_det() + sum(jnp.sum(jnp.log(diagonal)) for diagonal in diagonals)

    def solve(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """S^-1 x: all levels at once, as x is there."""
        everything = jnp.concatenate([x[level.own].ravel() for level in self.levels])
        z = []
        for level in self.levels:
            noise = x[level.own] - level.given(everything)
            z.append(jax.scipy.linalg.solve_triangular(level.scale, noise[..., None])[..., 0].ravel())
        return self.inner.solve(jnp.concatenate(z)[self.place])

    def after(self, diagonal: Float[Array, " dim"]) -> "SparseScale":
        """The product S diag(diagonal)."""
        inner = self.inner
        product = LowRank(inner.diagonal * diagonal, inner.left, diagonal[:, None] * inner.right)
        return SparseScale(product, self.levels, self.place)

    def shape(self) -> "SparseShape":
        """The sizes of all its arrays."""
        return SparseShape(
            self.inner.left.shape[1],
            tuple(level.shape() for level in self.levels),
        )


@jax.custom_vjp
def _reordered(x: Float[Array, " n"], there: Int[Array, " m"], back: Int[Array, " n"]) -> Float[Array, " m"]:
    """x[there], with [back] as its transpose: slopes are gathered too, which is quicker than to scatter them.

    Places that only fill up are read nowhere, so that it does not matter what slope they are given.
    """
    return x[there]


_reordered.defvjp(lambda x, there, back: (x[there], back), lambda back, slope: (slope[back], None, None))


class SparseShape(NamedTuple):
    """What the arrays of a `SparseScale` are made from.

    Attributes:
        rank: directions of the part of low rank.
        levels: of every level, its blocks, their width, the coordinates above each and those shared by all.
    """

    rank: int
    levels: tuple[tuple[int, int, int, int], ...]

    def numbers(self, dim: int) -> int:
        """How many numbers the arrays hold."""
        levels = sum(
            blocks * (width + above + width * (width + above + shared))
            for blocks, width, above, shared in self.levels
        )
        return levels + 2 * dim * (self.rank + 1)

    def identity(self, dim: int) -> SparseScale:
        """Arrays of these sizes, for a file to fill."""
        levels = tuple(
            Level(
                jnp.zeros((blocks, width), int),
                jnp.zeros((blocks, above), int),
                jnp.zeros((blocks, width, width)) + jnp.eye(width),
                jnp.zeros((blocks, width, above)),
                jnp.zeros((blocks, width, shared)),
            )
            for blocks, width, above, shared in self.levels
        )
        flat = jnp.zeros((dim, self.rank))
        return SparseScale(LowRank(jnp.ones(dim), flat, flat), levels, jnp.zeros(dim, int))


class SparseAffine(eqx.Module):
    """xi = a + S (b + e^l * u) with a fixed anchor (a, S), the precision (S S^T)^-1 sparse."""

    anchor: Frozen  # a
    anchor_scale: Frozen  # S, a SparseScale
    loc: Float[Array, " dim"]
    log_diagonal: Float[Array, " dim"]

    @property
    def dim(self) -> int:
        return self.loc.shape[0]

    def __call__(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return self.from_whitened(self.whitened(u))

    def whitened(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """w = b + e^l * u, the part that is trained."""
        return self.loc + jnp.exp(self.log_diagonal) * u

    def from_whitened(self, w: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """a + S w, the part that is fixed."""
        return self.anchor.value + self.anchor_scale.value(w)

    def untrained(self) -> "SparseAffine":
        """The anchor alone, xi = a + S u."""
        return sparse_anchored(self.anchor.value, self.anchor_scale.value)

    def log_det(self) -> Float[Array, ""]:
        """log |det S| + sum l."""
        return self.anchor_scale.value.log_det() + jnp.sum(self.log_diagonal)

    def inverse(self, xi: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """u with a + S (b + e^l * u) = xi."""
        w = self.anchor_scale.value.solve(xi - self.anchor.value)
        return (w - self.loc) * jnp.exp(-self.log_diagonal)

    def whitened_score(self, score: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """e^-l * G: a score in u as a score in w = b + e^l * u."""
        return score * jnp.exp(-self.log_diagonal)

    def rebased(self) -> "SparseAffine":
        """The same map with everything trained moved into the anchor (b = 0, l = 0)."""
        scale = self.anchor_scale.value.after(jnp.exp(self.log_diagonal))
        return sparse_anchored(self(jnp.zeros_like(self.loc)), scale)


AnyAffine = Affine | LowRankAffine | SparseAffine


def sparse_anchored(loc: Float[Array, " dim"], scale: SparseScale) -> SparseAffine:
    """The affine map loc + scale u as an anchor, with a trainable diagonal at the identity."""
    zeros = jnp.zeros_like(loc)
    return SparseAffine(Frozen(loc), Frozen(scale), zeros, zeros)
