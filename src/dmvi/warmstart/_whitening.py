r"""The triangle of a Gaussian's scale, with coordinates that many others hang on first.

    S S^T = Sigma,   Sigma[order][:, order] = T T^T,   S[order] = T

T is the lower Cholesky factor in that order, and T^-T, read backwards, that of the precision. Each coordinate
is whitened given those before it, which for local coordinates are the shared ones: a group's effect moves
with the scale and the mean of its groups, and a network that bends it need not undo what other groups do.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from dmvi.guides import Affine, anchored

PARTIAL = 0.05  # a partial correlation above which two coordinates count as neighbours


def triangle(scale: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """The lower triangle T of positive diagonal with T T^T = S S^T, in double precision."""
    lower = np.asarray(np.linalg.qr(np.asarray(scale, float).T, mode="r")).T
    signs = np.sign(np.diagonal(lower))
    return lower * np.where(signs == 0, 1.0, signs)


def shared_first(scale: Float[np.ndarray, "dim dim"]) -> Int[np.ndarray, " dim"]:
    """The coordinates by number and size of their partial correlations, those with most first."""
    lower = triangle(scale)
    inverse = np.linalg.solve(lower, np.eye(len(lower)))
    precision = inverse.T @ inverse
    diagonal = np.sqrt(np.diagonal(precision))
    partial = np.abs(precision) / np.outer(diagonal, diagonal)
    np.fill_diagonal(partial, 0.0)
    return np.argsort(-((partial > PARTIAL).sum(axis=0) + partial.sum(axis=0)), kind="stable")


def ordered_scale(scale: Float[np.ndarray, "dim dim"], order: Int[np.ndarray, " dim"]) -> np.ndarray:
    """S with S S^T as before whose rows in `order` are a lower triangle."""
    ordered = np.empty_like(scale, dtype=float)
    ordered[order] = triangle(np.asarray(scale, float)[order])
    return ordered


def whitened_locally(affine: Affine, *, full: bool) -> Affine:
    """The same Gaussian in coordinates that keep what is local local.

    Args:
        affine: the Gaussian.
        full: train a lower triangle in these coordinates, or a diagonal.
    """
    loc, scale = affine.anchor.value, np.asarray(affine.anchor_scale.value, float)
    if scale.ndim == 1:
        return affine
    order = shared_first(scale)
    ordered = ordered_scale(scale, order).astype(loc.dtype)
    return anchored(loc, jnp.asarray(ordered), full=full, order=jnp.asarray(order))
