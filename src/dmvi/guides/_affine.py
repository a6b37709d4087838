r"""Affine maps: whitened coordinates to the target's own.

    xi = a + S (b + L u)

The anchor (a, S) comes from the warm start and stays fixed; b and the lower triangle L are trained.
The optimiser therefore sees coordinates of unit scale from its first step, whatever the model's.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Affine(eqx.Module):
    """xi = a + S (b + L u) with a fixed anchor (a, S); L is diagonal when `lower` is None."""

    anchor_loc: Float[Array, " dim"]
    anchor_scale: Float[Array, "dim dim"] | Float[Array, " dim"]
    loc: Float[Array, " dim"]
    log_diagonal: Float[Array, " dim"]
    lower: Float[Array, "dim dim"] | None

    @property
    def dim(self) -> int:
        return self.loc.shape[0]

    def __call__(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        whitened = self.loc + jnp.exp(self.log_diagonal) * u
        if self.lower is not None:
            whitened = whitened + jnp.tril(self.lower, -1) @ u
        anchor_loc, anchor_scale = jax.lax.stop_gradient((self.anchor_loc, self.anchor_scale))
        if anchor_scale.ndim == 1:
            return anchor_loc + anchor_scale * whitened
        return anchor_loc + anchor_scale @ whitened

    def log_det(self) -> Float[Array, ""]:
        """log |det S L|."""
        anchor = self.anchor_scale if self.anchor_scale.ndim == 1 else jnp.diagonal(self.anchor_scale)
        return jnp.sum(jnp.log(jnp.abs(jax.lax.stop_gradient(anchor)))) + jnp.sum(self.log_diagonal)

    def inverse(self, xi: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """u with a + S (b + L u) = xi."""
        centred = _solve(self.anchor_scale, xi - self.anchor_loc) - self.loc
        return _solve(self._scale(), centred)

    def pull_score(self, score: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """(S L)^{-T} G: a score in u as a score in xi."""
        return _solve_transposed(self.anchor_scale, _solve_transposed(self._scale(), score))

    def _scale(self) -> Array:
        diagonal = jnp.exp(self.log_diagonal)
        return diagonal if self.lower is None else jnp.diag(diagonal) + jnp.tril(self.lower, -1)

    def rebased(self) -> "Affine":
        """The same map with everything trained moved into the anchor (b = 0, L = I)."""
        scale, anchor = self._scale(), self.anchor_scale
        if anchor.ndim == 1 and scale.ndim == 2:
            scale = anchor[:, None] * scale
        elif anchor.ndim == 2 and scale.ndim == 1:
            scale = anchor * scale
        else:
            scale = anchor * scale if scale.ndim == 1 else anchor @ scale
        return anchored(self(jnp.zeros_like(self.loc)), scale, full=self.lower is not None)


def anchored(loc: Float[Array, " dim"], scale: Array, *, full: bool) -> Affine:
    """The affine map loc + scale u as an anchor, with the trainable part at the identity.

    Args:
        loc: location a.
        scale: lower triangle or diagonal S.
        full: train a lower triangle (full-rank) or a diagonal (mean-field).
    """
    dim = loc.shape[0]
    zeros = jnp.zeros(dim, loc.dtype)
    return Affine(loc, scale, zeros, zeros, jnp.zeros((dim, dim), loc.dtype) if full else None)


def _solve(scale: Array, x: Array) -> Array:
    return x / scale if scale.ndim == 1 else jax.scipy.linalg.solve_triangular(scale, x, lower=True)


def _solve_transposed(scale: Array, x: Array) -> Array:
    if scale.ndim == 1:
        return x / scale
    return jax.scipy.linalg.solve_triangular(scale, x, lower=True, trans="T")
