"""Gaussian guides: mean-field and full-rank."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.guides._guide import Draw, Guide, GuideRecipe, frozen, with_path_gradient
from dmvi.guides._noise import spread, standard_log_prob, standard_normal
from dmvi.guides._sparse import AnyAffine


class Gaussian(Guide):
    """xi = affine(u), u ~ N(0, I): log q(xi) = log N(u) - log |det L|."""

    affine: AnyAffine
    dim: int = eqx.field(static=True)

    def draw(self, key):
        u = self._noise(key)
        return Draw(self.affine(u), standard_log_prob(u) - self.affine.log_det(), u)

    def draw_path(self, key, far=None):
        u = spread(self._noise(key), far)
        w = self.affine.whitened(u)
        fixed = frozen(self.affine)
        log_q = standard_log_prob(u) - fixed.log_det()
        log_q = with_path_gradient(log_q, w, fixed.whitened_score(-u))
        return Draw(self.affine.from_whitened(w), log_q, u)

    def sample(self, key, shape=()):
        noise = jr.normal(key, (*shape, self.dim), self.affine.loc.dtype)
        return jnp.vectorize(self.affine, signature="(d)->(d)")(noise)

    def evidence(self, xi, key=None):
        return standard_log_prob(self.affine.inverse(xi)) - self.affine.log_det()

    def _noise(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return standard_normal(key, self.dim, self.affine.loc.dtype)


class GaussianGuide(GuideRecipe):
    """Recipe of a Gaussian guide.

    Args:
        full_rank: learn every correlation (a lower triangle) or none (mean-field).
    """

    full_rank: bool = eqx.field(static=True, default=True)

    @property
    def name(self) -> str:
        return "full-rank" if self.full_rank else "mean-field"

    def build(self, affine, *, key):
        return Gaussian(affine=affine, dim=affine.dim)
