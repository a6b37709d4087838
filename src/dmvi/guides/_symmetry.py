r"""Permutations that leave a posterior as it is, as those of the components of a mixture model do.

A permutation p of the K entries along one axis of some sites is a map T_p of unconstrained coordinates. The
posterior is symmetric if log pi(T_p xi) = log pi(xi) for all p and xi.

Entries that have a coordinate each change places with them. Those of a simplex have one coordinate less than
there are entries; T_p then leads over the simplex x itself, where the permutation is linear. No T_p changes
volumes: for stick-breaking log |det dx / d xi| = sum_k log x_k, the same for every order of the entries.
"""

import itertools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

LARGEST_COUNT = 4  # entries that change places: more have more permutations than a density can look at
_MOST_AXES = 8


class Block(NamedTuple):
    """The coordinates of a site whose entries change places.

    Attributes:
        start: its first coordinate.
        shape: of its unconstrained values.
        axis: along which entries change places.
        simplex: whether they are those of simplices on the last axis, by stick-breaking.
    """

    start: int
    shape: tuple[int, ...]
    axis: int
    simplex: bool

    @property
    def stop(self) -> int:
        """The coordinate after its last one."""
        return self.start + math.prod(self.shape)


class Symmetry(eqx.Module):
    """All permutations of `count` entries, made along the axes of some blocks at once."""

    count: int = eqx.field(static=True)
    blocks: tuple[Block, ...] = eqx.field(static=True)

    @property
    def permutations(self) -> Int[np.ndarray, "order count"]:
        """All of them, the identity first."""
        return np.array(list(itertools.permutations(range(self.count))))

    @property
    def order(self) -> int:
        """How many there are."""
        return math.factorial(self.count)

    def image(
        self, xi: Float[Array, " dim"], permutation: Int[Array, " count"] | np.ndarray
    ) -> Float[Array, " dim"]:
        """T_p xi."""
        for block in self.blocks:
            part = xi[block.start : block.stop].reshape(block.shape)
            if block.simplex:
                part = _from_log_simplex(jnp.take(_log_simplex(part), permutation, axis=-1))
            else:
                part = jnp.take(part, permutation, axis=block.axis)
            xi = xi.at[block.start : block.stop].set(jnp.ravel(part))
        return xi

    def images(self, xi: Float[Array, " dim"]) -> Float[Array, "order dim"]:
        """T_p xi of every permutation, the identity first."""
        return jax.vmap(lambda p: self.image(xi, p))(jnp.asarray(self.permutations))

    def describe(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"count": self.count, "blocks": [[*block] for block in self.blocks]}


def _log_simplex(inner: Float[Array, "*batch entries-1"]) -> Float[Array, "*batch entries"]:
    """log x by stick-breaking, x_i = z_i prod_{j<i} (1 - z_j): what is tiny keeps all of its digits."""
    logits = inner - _stick_offsets(inner)
    left = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
    before = jnp.concatenate([jnp.zeros_like(left[..., :1]), left], axis=-1)
    return before + jnp.concatenate([jax.nn.log_sigmoid(logits), jnp.zeros_like(left[..., :1])], axis=-1)


def _from_log_simplex(log_x: Float[Array, "*batch entries"]) -> Float[Array, "*batch entries-1"]:
    """The inverse, logit z_i = log x_i - log sum_{j>i} x_j."""
    after = jax.lax.cumlogsumexp(log_x, axis=log_x.ndim - 1, reverse=True)[..., 1:]
    logits = log_x[..., :-1] - after
    return logits + _stick_offsets(logits)


def _stick_offsets(inner: Float[Array, "*batch entries-1"]) -> Float[Array, "*batch entries-1"]:
    """What NumPyro takes from coordinates so that zeros are the middle of the simplex."""
    offsets = jnp.log(jnp.arange(inner.shape[-1], 0, -1, dtype=inner.dtype))
    return jnp.broadcast_to(offsets, inner.shape)


def symmetry_from(description: Any, dim: int) -> Symmetry | None:
    """The inverse of `describe`, and None of None; raises ValueError for anything else."""
    if description is None:
        return None
    try:
        count = _whole(description["count"], 2, LARGEST_COUNT)
        blocks = tuple(_block(entry, count, dim) for entry in description["blocks"])
    except (KeyError, TypeError) as error:
        raise ValueError("no symmetry") from error
    apart = all(before.stop <= after.start for before, after in itertools.pairwise(blocks))
    if not blocks or not apart:
        raise ValueError("no symmetry")
    return Symmetry(count, blocks)


def _block(entry: Any, count: int, dim: int) -> Block:
    start, shape, axis, simplex = entry
    sizes = tuple(_whole(size, 1, dim) for size in shape)
    axes = _whole(len(sizes), 1, _MOST_AXES)
    block = Block(_whole(start, 0, dim), sizes, _whole(axis, 0, axes - 1), bool(simplex))
    expected = count - 1 if block.simplex else count
    last = not block.simplex or block.axis == axes - 1
    if block.stop > dim or sizes[block.axis] != expected or not last:
        raise ValueError("no symmetry")
    return block


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError("no symmetry")
    return value
