r"""Residual scores of a Gaussian base: what a guide on it has left to bend.

    xi = F(u),   u ~ N(0, I),   r(u) = grad_u [log pi(F(u)) - log N(u)] = J_F^T grad log pi(F(u)) + u

They are zero where the Gaussian is the posterior.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi.guides import AnyAffine, Guide
from dmvi.targets._target import Target


@dataclass(frozen=True)
class ResidualSettings:
    """How many draws show the structure of a target.

    Attributes:
        draws: an entry of a matrix of moments has an error of one in the root of these.
        draws_of_many: where there are more than `many` coordinates, whose drivers move hundreds of others.
        draws_of_thousands: above `thousands`, where only drivers of very many are of use.
        draws_of_each: where many targets are looked at side by side.
        many: coordinates from which on fewer draws do.
        thousands: coordinates from which on still fewer do.
        at_once: draws side by side, which bounds the memory.
    """

    draws: int = 8192
    draws_of_many: int = 4096
    draws_of_thousands: int = 2048
    draws_of_each: int = 1024
    many: int = 600
    thousands: int = 2000
    at_once: int = 64

    def of(self, dim: int) -> int:
        """Draws in so many dimensions."""
        if dim > self.thousands:
            return self.draws_of_thousands
        return self.draws if dim <= self.many else self.draws_of_many


@compiled
def residual_scores(
    affine: AnyAffine, target: Target, key: PRNGKeyArray, draws: int, at_once: int
) -> tuple[Float[Array, "draws dim"], Float[Array, "draws dim"]]:
    """Antithetic draws u and their residual scores.

    Args:
        affine: the Gaussian base.
        target: what to approximate.
        key: random key.
        draws: their even number.
        at_once: of these, side by side.
    """
    return _residuals(affine, target, key, draws, at_once)


def _residuals(
    affine: AnyAffine, target: Target, key: PRNGKeyArray, draws: int, at_once: int
) -> tuple[Float[Array, "draws dim"], Float[Array, "draws dim"]]:
    half = jr.normal(key, (draws // 2, affine.dim), affine.loc.dtype)
    u = jnp.concatenate([half, -half])
    slope = jax.grad(lambda u: target.log_density(affine(u)))
    return u, jax.lax.map(slope, u, batch_size=at_once) + u


def with_drivers(guide: Guide, target: Target, key: PRNGKeyArray) -> tuple[Guide, int]:
    """The guide with the structure that its Gaussian base shows, and the gradients that took."""
    settings = ResidualSettings()
    draws = settings.of(guide.dim)
    affine = guide.affine  # pyright: ignore[reportAttributeAccessIssue]
    u, r = residual_scores(affine, target, key, draws, settings.at_once)
    return _driven(guide, u, r), draws


@compiled
def with_drivers_of_each(guides: Guide, targets: Target, keys: PRNGKeyArray) -> Guide:
    """As `with_drivers`, for stacked guides and targets in one program."""
    settings = ResidualSettings()

    def one(guide: Guide, target: Target, key: PRNGKeyArray) -> Guide:
        affine = guide.affine  # pyright: ignore[reportAttributeAccessIssue]
        return guide.driven(*_residuals(affine, target, key, settings.draws_of_each, settings.at_once))

    return eqx.filter_vmap(one)(guides, targets, keys)


@compiled
def _driven(guide: Guide, u: Float[Array, "draws dim"], r: Float[Array, "draws dim"]) -> Guide:
    return guide.driven(u, r)
