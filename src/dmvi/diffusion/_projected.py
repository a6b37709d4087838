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
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.diffusion._flow import Flow, Moved, injective_log_det
from dmvi.diffusion._networks import MLP, Features
from dmvi.diffusion._newton import newton_inverse

LOG_SCALE_LIMIT = 4.0  # bound of |s| in one step; four steps reach scales of e^16


class Head(eqx.Module):
    """Features of a projection and the linear map from them to R^dim, zero at the start."""

    features: Features
    out: Float[Array, "dim width"]
    bias: Float[Array, " dim"]

    def __init__(self, mlp: MLP, rank: int, dim: int, *, key: PRNGKeyArray):
        self.features = mlp.hidden(rank, key=key)
        self.out = jnp.zeros((dim, mlp.width))
        self.bias = jnp.zeros(dim)

    def __call__(self, a: Array, t: Array, key: PRNGKeyArray | None = None) -> Float[Array, " dim"]:
        return self.out @ self.features(a, t, key) + self.bias


class Knot(NamedTuple):
    """One step's time and projections; `folded` is V O, the shift's output seen through V."""

    tau: Float[Array, ""]
    w: Float[Array, "scale_rank dim"]
    v: Float[Array, "rank dim"]
    folded: Float[Array, "rank width"]


class ProjectedFlow(Flow):
    """Scale and shift steps through learned projections; see the module's equations."""

    scale: Head
    shift: Head
    raw_w: Float[Array, "steps scale_rank dim"]
    v: Float[Array, "steps rank dim"]
    steps: int = eqx.field(static=True)

    def knots(self) -> Knot:
        return Knot(
            self.taus(), jax.vmap(orthonormal_rows)(self.raw_w), self.v, self.v @ self.shift.out
        )

    def _log_scale(self, knot: Knot, z: Array, key=None) -> Float[Array, " dim"]:
        s = self.delta * self.scale(z, knot.tau, key)
        return LOG_SCALE_LIMIT * jnp.tanh(s / LOG_SCALE_LIMIT)

    def _shift(self, knot: Knot, a: Array, key=None) -> Float[Array, " dim"]:
        return self.delta * self.shift(a, knot.tau, key)

    def _scale_density(self, knot: Knot, z: Array, key=None):
        """log |det dv/du| as a function of z, with (s, B)."""
        s = self._log_scale(knot, z, key)
        b = (knot.w * jnp.exp(-s)) @ knot.w.T
        return jnp.sum(s) + jnp.linalg.slogdet(b)[1], (s, b)

    def _shift_density(self, knot: Knot, a: Array, key=None):
        """log |det du'/dv| as a function of a, with A and the features of a."""

        def features(a):
            h = self.shift.features(a, knot.tau, key)
            return h, h

        jacobian, h = jax.jacfwd(features, has_aux=True)(a)
        matrix = jnp.eye(a.shape[0], dtype=a.dtype) + self.delta * knot.folded @ jacobian
        return injective_log_det(matrix), (matrix, h)

    def step(self, knot, u, key=None):
        z = knot.w @ u
        v = _scaled(knot.w, u, z, self._log_scale(knot, z, key))[0]
        return v + self._shift(knot, knot.v @ v, key)

    def step_density(self, knot, u):
        z = knot.w @ u
        log_det_scale, (s, _) = self._scale_density(knot, z)
        v = _scaled(knot.w, u, z, s)[0]
        log_det_shift, (_, h) = self._shift_density(knot, knot.v @ v)
        return v + self.delta * (self.shift.out @ h + self.shift.bias), log_det_scale + log_det_shift

    def step_score(self, knot, u, score, key=None):
        z = knot.w @ u
        (log_det_scale, (s, b)), z_gradient = jax.value_and_grad(
            self._scale_density, argnums=1, has_aux=True
        )(knot, z, key)
        v, scaled = _scaled(knot.w, u, z, s)
        pullback = jax.vjp(lambda z: self._log_scale(knot, z, key), z)[1]
        score = _score_after_scale(knot.w, s, b, scaled, score, z_gradient, pullback)

        a = knot.v @ v
        (log_det_shift, (matrix, h)), a_gradient = jax.value_and_grad(
            self._shift_density, argnums=1, has_aux=True
        )(knot, a, key)
        pullback = jax.vjp(lambda a: self._shift(knot, a, key), a)[1]
        # (I + dm/da V)^T G' = G - V^T grad, solved at rank r.
        right = score - knot.v.T @ a_gradient
        score = right - knot.v.T @ jnp.linalg.solve(matrix.T, pullback(right)[0])
        moved = v + self.delta * (self.shift.out @ h + self.shift.bias)
        return Moved(moved, log_det_scale + log_det_shift, score)

    def step_inverse(self, knot, u):
        image = knot.v @ u
        a = newton_inverse(lambda a: a + knot.v @ self._shift(knot, a), image, image)
        v = u - self._shift(knot, a)
        z = knot.w @ v
        s = self._log_scale(knot, z)
        b = (knot.w * jnp.exp(-s)) @ knot.w.T
        return knot.w.T @ z + _compressed_solve(knot.w, s, b, v - knot.w.T @ z)


def orthonormal_rows(w: Float[Array, "rank dim"]) -> Float[Array, "rank dim"]:
    """C^-1 W with C C^T = W W^T: orthonormal rows spanning the same directions."""
    gram = w @ w.T
    ridge = 1e-6 * jnp.trace(gram) / gram.shape[0]
    factor = jnp.linalg.cholesky(gram + ridge * jnp.eye(gram.shape[0], dtype=w.dtype))
    return jax.scipy.linalg.solve_triangular(factor, w, lower=True)


def _scaled(w: Array, u: Array, z: Array, s: Array) -> tuple[Array, Array]:
    """(v, D u_perp): the scale part of a step and its product before projection."""
    along = w.T @ z
    scaled = jnp.exp(s) * (u - along)
    return scaled - w.T @ (w @ scaled) + along, scaled


def _compressed_solve(w: Array, s: Array, b: Array, right: Array) -> Array:
    """x orthogonal to W's rows with P D x = right, for right orthogonal to them too."""
    x = jnp.exp(-s) * right
    return x - jnp.exp(-s) * (w.T @ jnp.linalg.solve(b, w @ x))


def _score_after_scale(w, s, b, scaled, score, z_gradient, pullback) -> Array:
    """(dv/du)^{-T} (G - W^T grad), block by block: first across W's rows, then along them."""
    along = w @ score
    across = _compressed_solve(w, s, b, score - w.T @ along)
    return across + w.T @ (along - z_gradient - pullback(scaled * across)[0])


class Projected(eqx.Module):
    """Recipe of the projected flow, the default network.

    Args:
        rank: directions that drive shifts (r).
        scale_rank: directions that drive scales (q).
        mlp: hidden layers of the shift.
        scale_mlp: hidden layers of the scale.
    """

    rank: int = eqx.field(static=True, default=8)
    scale_rank: int = eqx.field(static=True, default=2)
    mlp: MLP = MLP(width=64, depth=2)
    scale_mlp: MLP = MLP(width=32, depth=2)

    def __check_init__(self):
        if self.rank < 1 or self.scale_rank < 1:
            raise InputError(
                f"Projected needs rank and scale_rank of at least 1, got rank={self.rank}, "
                f"scale_rank={self.scale_rank}."
            )

    def build(self, dim: int, steps: int, *, key: PRNGKeyArray) -> ProjectedFlow:
        """The flow for `dim` coordinates; ranks are cut to what the dimension allows."""
        rank = min(self.rank, dim)
        scale_rank = min(self.scale_rank, max(dim - 1, 1))
        keys = jr.split(key, 4)
        return ProjectedFlow(
            scale=Head(self.scale_mlp, scale_rank, dim, key=keys[0]),
            shift=Head(self.mlp, rank, dim, key=keys[1]),
            raw_w=jr.normal(keys[2], (steps, scale_rank, dim)) / jnp.sqrt(dim),
            v=jr.normal(keys[3], (steps, rank, dim)) / jnp.sqrt(dim),
            steps=steps,
        )
