r"""Affine maps for many dimensions: a diagonal and a few directions.

    xi = a + S (b + M u),   M = diag(e^l) + U V^T   (U, V: d x r)

Inverse and determinant are exact at rank r, by Woodbury's formula and the determinant lemma,

    M^-1 = D^-1 - D^-1 U C^-1 V^T D^-1,   |det M| = |det D| |det C|,   C = I + V^T D^-1 U,   D = diag(e^l),

so time and memory are linear in d. The anchor S is fixed: a diagonal, a map of the same form, or, where d
allows, a lower triangle.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dmvi.guides._affine import Affine, anchored, solve
from dmvi.guides._guide import Frozen


class LowRank(eqx.Module):
    """M = diag(d) + U V^T; see the module's equations."""

    diagonal: Float[Array, " dim"]
    left: Float[Array, "dim rank"]  # U
    right: Float[Array, "dim rank"]  # V

    def __call__(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return self.diagonal * x + self.left @ (self.right.T @ x)

    def log_det(self) -> Float[Array, ""]:
        """log |det M|."""
        return jnp.sum(jnp.log(jnp.abs(self.diagonal))) + jnp.linalg.slogdet(self._core())[1]

    def solve(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """M^-1 x."""
        x = x / self.diagonal
        return x - self.left @ jnp.linalg.solve(self._core(), self.right.T @ x) / self.diagonal

    def solve_transposed(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """M^-T x."""
        x = x / self.diagonal
        return x - self.right @ jnp.linalg.solve(self._core().T, self.left.T @ x) / self.diagonal

    def after(self, other: "LowRank") -> "LowRank":
        """The product with `other` applied first; ranks add up."""
        left = jnp.concatenate(
            [
                self.diagonal[:, None] * other.left + self.left @ (self.right.T @ other.left),
                self.left,
            ],
            axis=1,
        )
        right = jnp.concatenate([other.right, other.diagonal[:, None] * self.right], axis=1)
        return LowRank(self.diagonal * other.diagonal, left, right)

    def _core(self) -> Float[Array, "rank rank"]:
        """C = I + V^T D^-1 U."""
        rank = self.left.shape[1]
        return jnp.eye(rank, dtype=self.left.dtype) + self.right.T @ (self.left / self.diagonal[:, None])


class LowRankAffine(eqx.Module):
    """xi = a + S (b + M u) with a fixed anchor (a, S); M is a diagonal and a low rank."""

    anchor: Frozen  # a
    anchor_scale: Frozen  # S: lower triangle, diagonal or LowRank
    loc: Float[Array, " dim"]
    log_diagonal: Float[Array, " dim"]
    left: Float[Array, "dim rank"]
    right: Float[Array, "dim rank"]

    @property
    def dim(self) -> int:
        return self.loc.shape[0]

    def __call__(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return self.from_whitened(self.whitened(u))

    def whitened(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """w = b + M u, the part that is trained."""
        return self.loc + self._scale()(u)

    def from_whitened(self, w: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """a + S w, the part that is fixed."""
        return self.anchor.value + _apply(self.anchor_scale.value, w)

    def untrained(self) -> "Affine | LowRankAffine":
        """The anchor alone, xi = a + S u."""
        scale = self.anchor_scale.value
        if not isinstance(scale, LowRank):
            return anchored(self.anchor.value, scale, full=False)
        none = jnp.zeros((self.dim, 1), self.loc.dtype)
        zeros = jnp.zeros_like(self.loc)
        return LowRankAffine(self.anchor, self.anchor_scale, zeros, zeros, none, none)

    def log_det(self) -> Float[Array, ""]:
        """log |det S M|."""
        return _log_det(self.anchor_scale.value) + self._scale().log_det()

    def inverse(self, xi: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """u with a + S (b + M u) = xi."""
        return self._scale().solve(_solve(self.anchor_scale.value, xi - self.anchor.value) - self.loc)

    def whitened_score(self, score: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """M^{-T} G: a score in u as a score in w = b + M u."""
        return self._scale().solve_transposed(score)

    def rebased(self) -> "LowRankAffine":
        """The same map with what was trained moved into the anchor, as far as it keeps its form.

        A lower triangle takes up the location alone: its product with M would be no triangle.
        """
        centre = Frozen(self(jnp.zeros_like(self.loc)))
        scale, zeros = self.anchor_scale.value, jnp.zeros_like(self.loc)
        if not isinstance(scale, LowRank) and scale.ndim == 2:
            return LowRankAffine(centre, self.anchor_scale, zeros, self.log_diagonal, self.left, self.right)
        trained = self._scale()
        if isinstance(scale, LowRank):
            product = scale.after(trained)
        else:
            product = LowRank(scale * trained.diagonal, scale[:, None] * trained.left, trained.right)
        return LowRankAffine(centre, Frozen(product), zeros, zeros, jnp.zeros_like(self.left), self.right)

    def _scale(self) -> LowRank:
        return LowRank(jnp.exp(self.log_diagonal), self.left, self.right)


def low_rank_anchored(loc: Float[Array, " dim"], scale: Array | LowRank, *, rank: int) -> LowRankAffine:
    """The affine map loc + scale u as an anchor, with a trainable part of low rank at the identity.

    Args:
        loc: location a.
        scale: S, a lower triangle, a diagonal or a `LowRank`.
        rank: r; the directions V begin at random, so that U = 0 has a gradient.
    """
    dim, dtype = loc.shape[0], loc.dtype
    right = np.random.default_rng(0).standard_normal((dim, rank)) / np.sqrt(dim)
    zeros = jnp.zeros(dim, dtype)
    left = jnp.zeros((dim, rank), dtype)
    return LowRankAffine(Frozen(loc), Frozen(scale), zeros, zeros, left, jnp.asarray(right.astype(dtype)))


def _apply(scale: Array | LowRank, x: Array) -> Array:
    if isinstance(scale, LowRank):
        return scale(x)
    return scale * x if scale.ndim == 1 else scale @ x


def _log_det(scale: Array | LowRank) -> Array:
    if isinstance(scale, LowRank):
        return scale.log_det()
    return jnp.sum(jnp.log(jnp.abs(scale if scale.ndim == 1 else jnp.diagonal(scale))))


def _solve(scale: Array | LowRank, x: Array) -> Array:
    return scale.solve(x) if isinstance(scale, LowRank) else solve(scale, x)
