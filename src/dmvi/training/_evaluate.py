"""Fresh draws weighed on the full data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.guides._guide import Guide
from dmvi.targets._target import Target


@eqx.filter_jit
def log_weights(guide: Guide, target: Target, keys: PRNGKeyArray) -> Float[Array, " n"]:
    """log pi(xi) - log_q of one draw per key, on the full data."""

    def one(key):
        xi, log_q = guide.draw(key)
        return target.log_density(xi) - log_q

    return jax.vmap(one)(keys)


class Pool(eqx.Module):
    """Weighed draws of one guide: their keys, log-weights and what follows from them."""

    keys: PRNGKeyArray
    log_weights: Float[Array, " n"]

    def elbo(self) -> float:
        """Mean log-weight; -inf when a tenth or more of the weights are not finite."""
        values = np.asarray(self.log_weights, float)
        finite = np.isfinite(values)
        return float(values[finite].mean()) if finite.mean() > 0.9 else -np.inf

    def standard_error(self) -> float:
        """Standard error of `elbo`."""
        values = np.asarray(self.log_weights, float)
        values = values[np.isfinite(values)]
        return float(values.std() / np.sqrt(max(values.size, 1)))


def weigh(guide: Guide, target: Target, key: PRNGKeyArray, size: int) -> Pool:
    """`size` fresh draws and their weights."""
    keys = jr.split(key, size)
    return Pool(keys, log_weights(guide, target, keys))


@eqx.filter_jit
def adapt(guide: Guide, pool: Pool) -> Guide:
    """The guide refitted to its own weighed draws where reverse KL is blind."""
    weights = jnp.where(jnp.isfinite(pool.log_weights), pool.log_weights, -jnp.inf)
    return guide.adapt(pool.keys, weights)
