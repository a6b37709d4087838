"""The inverse of a lower triangle in matrix products alone.

    [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]

LAPACK's solver would wake threads of its own at every step of training, beside those of XLA: on few cores
they cost more than the solution.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LEAF = 8  # rows solved one by one


def lower_inverse(lower: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """L^-1, from the blocks on the diagonal by doubling their size."""
    dim, count = lower.shape[0], 1
    while count * LEAF < dim:
        count *= 2
    size = -(-dim // count)
    padded = jnp.eye(size * count, dtype=lower.dtype).at[:dim, :dim].set(lower)
    inverse = _by_rows(_blocks(padded, size, count, below=0))
    while count > 1:
        corner = _blocks(padded, size, count, below=1)
        first, second = inverse[0::2], inverse[1::2]
        top = jnp.concatenate([first, jnp.zeros_like(first)], axis=2)
        bottom = jnp.concatenate([-second @ corner @ first, second], axis=2)
        inverse = jnp.concatenate([top, bottom], axis=1)
        size, count = 2 * size, count // 2
    return inverse[0, :dim, :dim]


def _blocks(matrix: Array, size: int, count: int, *, below: int) -> Float[Array, "blocks size size"]:
    """Blocks on the diagonal or, at `below` = 1, those below every other of them."""
    places = np.arange(0, count - below, 1 + below)
    return matrix.reshape(count, size, count, size)[places + below, :, places]


def _by_rows(lower: Float[Array, "blocks size size"]) -> Float[Array, "blocks size size"]:
    """Inverses of small triangles by forward substitution."""
    size = lower.shape[1]
    unit = jnp.eye(size, dtype=lower.dtype)
    rows: list[Array] = []
    for i in range(size):
        row = jnp.broadcast_to(unit[i], lower.shape[::2])
        for j, done in enumerate(rows):
            row = row - lower[:, i, j, None] * done
        rows.append(row / lower[:, i, i, None])
    return jnp.stack(rows, axis=1)
