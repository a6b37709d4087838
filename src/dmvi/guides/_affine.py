r"""Affine maps: whitened coordinates to the target's own.

    xi = a + S (b + L u)

The anchor (a, S) comes from the warm start and stays fixed; b and the lower triangle L are trained.
The optimiser therefore sees coordinates of unit scale from its first step, whatever the model's. S is a
diagonal, a lower triangle, or a matrix that is one once its rows are taken in a given order.

An optimiser such as Adam moves every entry of L by about its learning rate, and each coordinate is a sum over
its row. So beyond FEW dimensions entries beside the diagonal are trained in units of FEW / d.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dmvi.diffusion import lower_inverse
from dmvi.guides._guide import Frozen

FEW = 64  # dimensions above which pairs are trained in smaller units


class Affine(eqx.Module):
    """xi = a + S (b + L u) with a fixed anchor (a, S); L is diagonal when `lower` is None."""

    anchor: Frozen  # a
    anchor_scale: Frozen  # S, lower triangle (its rows in `order`) or diagonal
    loc: Float[Array, " dim"]
    log_diagonal: Float[Array, " dim"]
    lower: Float[Array, "dim dim"] | None  # L beside its diagonal, in units of FEW / d
    order: Int[Array, " dim"] | None = None  # S[order] is the lower triangle; None: as the coordinates stand

    @property
    def dim(self) -> int:
        return self.loc.shape[0]

    def __call__(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return self.from_whitened(self.whitened(u))

    def whitened(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """w = b + L u, the part that is trained."""
        moved = self.loc + jnp.exp(self.log_diagonal) * u
        return moved if self.lower is None else moved + u @ self._pairs().T

    def from_whitened(self, w: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """a + S w, the part that is fixed."""
        scale = self.anchor_scale.value
        return self.anchor.value + (scale * w if scale.ndim == 1 else w @ scale.T)

    def untrained(self) -> "Affine":
        """The anchor alone, xi = a + S u."""
        return anchored(self.anchor.value, self.anchor_scale.value, full=False, order=self.order)

    def log_det(self) -> Float[Array, ""]:
        """log |det S L|."""
        scale = self._triangle()
        diagonal = scale if scale.ndim == 1 else jnp.diagonal(scale)
        return jnp.sum(jnp.log(jnp.abs(diagonal))) + jnp.sum(self.log_diagonal)

    def inverse(self, xi: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """u with a + S (b + L u) = xi."""
        return solve(self._scale(), solve(*self.in_order(xi)) - self.loc)

    def in_order(self, xi: Float[Array, " dim"]) -> tuple[Array, Float[Array, " dim"]]:
        """S as a lower triangle, or its diagonal, and xi - a, the rows of both in order."""
        centred = xi - self.anchor.value
        return self._triangle(), centred if self.order is None else centred[self.order]

    def whitened_score(self, score: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """L^{-T} G: a score in u as a score in w = b + L u."""
        scale = self._scale()
        return score / scale if scale.ndim == 1 else score @ lower_inverse(scale)

    def _triangle(self) -> Array:
        """S with its rows in order."""
        scale = self.anchor_scale.value
        return scale if self.order is None else scale[self.order]

    def _scale(self) -> Array:
        diagonal = jnp.exp(self.log_diagonal)
        return diagonal if self.lower is None else jnp.diag(diagonal) + self._pairs()

    def _pairs(self) -> Float[Array, "dim dim"]:
        """L without its diagonal."""
        assert self.lower is not None
        return min(1.0, FEW / self.dim) * jnp.tril(self.lower, -1)

    def rebased(self) -> "Affine":
        """The same map with everything trained moved into the anchor (b = 0, L = I)."""
        trained, anchor = self._scale(), self.anchor_scale.value
        columns = trained[None, :] if trained.ndim < anchor.ndim else trained
        scale = anchor * columns if trained.ndim == 1 else anchor @ trained
        full = self.lower is not None
        return anchored(self(jnp.zeros_like(self.loc)), scale, full=full, order=self.order)


def anchored(
    loc: Float[Array, " dim"], scale: Array, *, full: bool, order: Int[Array, " dim"] | None = None
) -> Affine:
    """The affine map loc + scale u as an anchor, with the trainable part at the identity.

    Args:
        loc: location a.
        scale: S, a lower triangle where `full`, else that or a diagonal.
        full: train a lower triangle (full-rank) or a diagonal (mean-field).
        order: in which the rows of S are a lower triangle; None where they are as they stand.
    """
    dim = loc.shape[0]
    zeros = jnp.zeros(dim, loc.dtype)
    lower = jnp.zeros((dim, dim), loc.dtype) if full else None
    return Affine(Frozen(loc), Frozen(scale), zeros, zeros, lower, order)


def solve(scale: Array, x: Array) -> Array:
    return x / scale if scale.ndim == 1 else jax.scipy.linalg.solve_triangular(scale, x, lower=True)
