r"""The projected flow: exact determinants at the size of a few learned directions, in any dimension.

The residual is r(u, t) = s(W u, t) * u_perp + m(V u, t): each coordinate is scaled and shifted by
functions of a few learned directions, which is what funnels and hierarchies need. A step solves its
two parts one after the other, the part linear in u exactly:

    scale   z = W u,  u_perp = u - W^T z,  v = W^T z + P exp(s(z)) u_perp,   P = I - W^T W
    shift   u' = v + m(V v)

W (q x d) has orthonormal rows, so the scale leaves z as it is: dv/du is block triangular, and with
D = diag(exp s)

    log |det dv/du|  = sum s + log det B,   B = W D^-1 W^T     (positive definite: never folds)
    log |det du'/dv| = log |det A|,         A = I + V dm/da    (r x r, a = V v)

Both depend on u through z and a alone, so densities and scores cost O(d (q + r) + r^3).

An optimiser such as Adam moves every weight by about its learning rate. The more coordinates there are, the
smaller each weight of a projection is and the more outputs are moved at once, so beyond MANY dimensions both
are trained in units of sqrt(MANY / d).
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._errors import InputError
from dmvi._random import children
from dmvi.diffusion._directions import directions
from dmvi.diffusion._flow import FlowRecipe, Moved, SteppedFlow, injective_log_det
from dmvi.diffusion._hidden import Hidden
from dmvi.diffusion._networks import initial_weights, zeros
from dmvi.diffusion._newton import newton_root

LOG_SCALE_LIMIT = 4.0  # bound of |s| in one step; four steps reach scales of e^16
MANY = 128  # dimensions above which weights are trained in smaller units


def unit(dim: int) -> float:
    """What weights are trained in: one up to MANY dimensions, then falling as their root."""
    return min(1.0, math.sqrt(MANY / dim))


class Head(eqx.Module):
    """Hidden layers of a projection and the linear map from them to R^dim, zero at the start."""

    hidden: Hidden
    out: Float[Array, "dim width"]
    bias: Float[Array, " dim"]

    def __init__(self, rank: int, width: int, depth: int, dim: int, *, key: PRNGKeyArray):
        self.hidden = Hidden(rank, width, depth, key=key)
        self.out = zeros(dim, width)
        self.bias = zeros(dim)

    def weights(self) -> Float[Array, "dim width"]:
        """The linear map."""
        return unit(len(self.out)) * self.out

    def __call__(self, h: Float[Array, " width"]) -> Float[Array, " dim"]:
        return h @ self.weights().T + unit(len(self.out)) * self.bias


class Knot(NamedTuple):
    """One step's projections and time embeddings; `folded` is V O, the shift's output seen through V."""

    scale_time: Float[Array, " scale_width"]
    shift_time: Float[Array, " width"]
    w: Float[Array, "scale_rank dim"]
    v: Float[Array, "rank dim"]
    folded: Float[Array, "rank width"]


class ProjectedFlow(SteppedFlow):
    """Scale and shift steps through learned projections; see the module's equations."""

    scale: Head
    shift: Head
    raw_w: Float[Array, "steps scale_rank dim"]
    v: Float[Array, "steps rank dim"]
    steps: int = eqx.field(static=True)

    def straighter(self, share):
        return eqx.tree_at(lambda flow: flow.shift.out, self, (1 - share) * self.shift.out)

    def driven(self, u, r):
        """Projections begin with the directions in which the base lacks most.

        All shifts see the same first ones, and the scales of each step the next ones.
        """
        steps, rank, dim = self.v.shape
        scale_rank = self.raw_w.shape[1]
        found = directions(u, r, max(rank, steps * scale_rank))
        v = jnp.broadcast_to(found[:rank], self.v.shape) / unit(dim)
        places = jnp.arange(steps * scale_rank) % len(found)
        w = found[places].reshape(self.raw_w.shape) / unit(dim)  # its size sets how fast it turns
        return eqx.tree_at(lambda flow: (flow.v, flow.raw_w), self, (v, w))

    def knots(self) -> Knot:
        taus, v = self.taus(), unit(self.v.shape[-1]) * self.v
        return Knot(
            jax.vmap(self.scale.hidden.embed)(taus),
            jax.vmap(self.shift.hidden.embed)(taus),
            jax.vmap(orthonormal_rows)(self.raw_w),
            v,
            v @ self.shift.weights(),
        )

    def _log_scale(self, h: Float[Array, " scale_width"]) -> Float[Array, " dim"]:
        """s from the scale's features, bounded."""
        return LOG_SCALE_LIMIT * jnp.tanh(self.delta * self.scale(h) / LOG_SCALE_LIMIT)

    def _shift(self, h: Float[Array, " width"]) -> Float[Array, " dim"]:
        """m from the shift's features."""
        return self.delta * self.shift(h)

    def _shift_matrix(self, knot: Knot, tangents: Float[Array, "rank width"]) -> Float[Array, "rank rank"]:
        """A^T = I + (V dm/da)^T."""
        return jnp.eye(len(tangents), dtype=tangents.dtype) + self.delta * tangents @ knot.folded.T

    def step(self, knot, u, key=None):
        z = u @ knot.w.T
        s = self._log_scale(self.scale.hidden(z, knot.scale_time))
        v = _scaled(knot.w, u, z, s)[0]
        return v + self._shift(self.shift.hidden(v @ knot.v.T, knot.shift_time))

    def step_density(self, knot, u):
        z = u @ knot.w.T
        s = self._log_scale(self.scale.hidden(z, knot.scale_time))
        v = _scaled(knot.w, u, z, s)[0]
        jet = self.shift.hidden.jet(v @ knot.v.T, knot.shift_time)
        log_det = injective_log_det(self._shift_matrix(knot, jet.tangents))
        return v + self._shift(jet.h), jnp.sum(s) + swept(_compressed(knot.w, s))[1] + log_det

    def step_score(self, knot, u, score, key=None):
        v, log_det_scale, score = self._scale_score(knot, u, score)
        jet = self.shift.hidden.jet(v @ knot.v.T, knot.shift_time)
        matrix = self._shift_matrix(knot, jet.tangents)
        inverse, log_det = swept(matrix)  # of A^T
        gradient = self.shift.hidden.trace_gradient(jet, self.delta * inverse.T @ knot.folded)
        # (I + dm/da V)^T G' = G - V^T grad, solved at rank r.
        right = score - gradient @ knot.v
        pulled = jet.tangents @ (self.delta * (right @ self.shift.weights()))
        score = right - (inverse @ pulled) @ knot.v
        return Moved(v + self._shift(jet.h), log_det_scale + log_det, score)

    def _scale_score(self, knot: Knot, u: Array, score: Array) -> tuple[Array, Array, Array]:
        """(v, log |det dv/du|, (dv/du)^{-T} (G - grad log |det dv/du|)), across W's rows, then along them.

        d log det / d s = 1 - diag(W^T B^-1 W) / D.
        """
        w, z = knot.w, u @ knot.w.T
        jet = self.scale.hidden.jet(z, knot.scale_time)
        s = self._log_scale(jet.h)
        v, scaled = _scaled(w, u, z, s)
        inverse, log_det_b = swept(_compressed(w, s))
        along = score @ w.T
        across = _compressed_solve(w, s, inverse, score - along @ w)
        s_gradient = 1 - jnp.sum(w * (inverse @ w), axis=0) * jnp.exp(-s)
        s_slope = self.delta * (1 - (s / LOG_SCALE_LIMIT) ** 2)
        pulled = jet.tangents @ ((s_slope * (s_gradient + scaled * across)) @ self.scale.weights())
        return v, jnp.sum(s) + log_det_b, across + (along - pulled) @ w

    def step_inverse(self, knot, u):
        a = self._invert_shift(knot, u @ knot.v.T)
        v = u - self._shift(self.shift.hidden(a, knot.shift_time))
        z = v @ knot.w.T
        s = self._log_scale(self.scale.hidden(z, knot.scale_time))
        inverse, _ = swept(_compressed(knot.w, s))
        return z @ knot.w + _compressed_solve(knot.w, s, inverse, v - z @ knot.w)

    def _invert_shift(self, knot: Knot, image: Float[Array, " rank"]) -> Float[Array, " rank"]:
        """a with a + V m(a) = image."""

        def residual(a):
            jet = self.shift.hidden.jet(a, knot.shift_time)
            return a + self._shift(jet.h) @ knot.v.T - image, self._shift_matrix(knot, jet.tangents).T

        return newton_root(residual, image)


def orthonormal_rows(w: Float[Array, "rank dim"]) -> Float[Array, "rank dim"]:
    """Orthonormal rows spanning the same directions, by Gram-Schmidt, each row twice for accuracy."""
    rows: list[Array] = []
    for row in w:
        for _ in range(2):
            for done in rows:
                row = row - jnp.sum(done * row) * done
            row = row * jax.lax.rsqrt(jnp.sum(row**2))
        rows.append(row)
    return jnp.stack(rows)


def swept(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """M^-1 and log det M of a small matrix, by sweeping its pivots in turn; not a number where det <= 0.

    Pivots are taken as they come: those of a positive definite matrix are positive, and in a step of training
    the rare draw whose pivot is near zero may be inexact. A library call searches for pivots, and its
    bookkeeping takes several times as long as the arithmetic.
    """
    n = matrix.shape[0]
    size, sign = jnp.zeros((), matrix.dtype), jnp.ones((), matrix.dtype)
    for i in range(n):
        pivot, at = matrix[i, i], jnp.arange(n) == i
        size, sign = size + jnp.log(jnp.abs(pivot)), sign * jnp.sign(pivot)
        row = jnp.where(at, 1.0, matrix[i]) / pivot
        # The pivot's column is that of the inverse from here on.
        others = jnp.where(at[None, :], 0.0, matrix) - jnp.outer(matrix[:, i], row)
        matrix = jnp.where(at[:, None], row[None, :], others)
    return matrix, jnp.where(sign > 0, size, jnp.nan)


def _scaled(w: Array, u: Array, z: Array, s: Array) -> tuple[Array, Array]:
    """(v, D u_perp): the scale part of a step and its product before projection."""
    along = z @ w
    scaled = jnp.exp(s) * (u - along)
    return scaled - (scaled @ w.T) @ w + along, scaled


def _compressed(w: Array, s: Array) -> Float[Array, "scale_rank scale_rank"]:
    """B = W D^-1 W^T."""
    return (w * jnp.exp(-s)[None, :]) @ w.T


def _compressed_solve(w: Array, s: Array, inverse: Array, right: Array) -> Array:
    """x orthogonal to W's rows with P D x = right, for right orthogonal to them too; `inverse` is B^-1."""
    x = jnp.exp(-s) * right
    return x - jnp.exp(-s) * ((inverse @ (x @ w.T)) @ w)


class Projected(FlowRecipe):
    """Recipe of the projected flow, the default network.

    Args:
        rank: directions that drive shifts (r).
        scale_rank: directions that drive scales (q).
        width: hidden units of the shift.
        scale_width: hidden units of the scale.
        depth: hidden layers of both.
    """

    rank: int = eqx.field(static=True, default=8)
    scale_rank: int = eqx.field(static=True, default=2)
    width: int = eqx.field(static=True, default=64)
    scale_width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        for name in ("rank", "scale_rank", "width", "scale_width", "depth"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"Projected needs {name} to be an integer of at least 1, got {value!r}.")

    def build(self, dim: int, steps: int, *, key: PRNGKeyArray) -> ProjectedFlow:
        """The flow for `dim` coordinates; ranks are cut to what the dimension allows."""
        rank = min(self.rank, dim)
        scale_rank = min(self.scale_rank, max(dim - 1, 1))
        keys = children(key, 4)
        return ProjectedFlow(
            scale=Head(scale_rank, self.scale_width, self.depth, dim, key=keys[0]),
            shift=Head(rank, self.width, self.depth, dim, key=keys[1]),
            raw_w=initial_weights(keys[2], (steps, scale_rank, dim), min(dim, MANY) ** -0.5),
            v=initial_weights(keys[3], (steps, rank, dim), min(dim, MANY) ** -0.5),
            steps=steps,
        )
