"""What training minimises: an objective sees only the contracts of Guide and Target."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.guides._guide import Guide
from dmvi.targets._target import Batch, Target

MAX_COVER = 10.0
COVER_FROM_ESS = 0.5


class Value(NamedTuple):
    """A loss to differentiate and the ELBO estimate from the same draws."""

    loss: Float[Array, ""]
    elbo: Float[Array, ""]


class Objective(eqx.Module):
    """A loss of the guide and of the target's generative parameters."""

    @abc.abstractmethod
    def __call__(self, guide: Guide, target: Target, keys: PRNGKeyArray, batch: Batch) -> Value:
        """Estimate from one draw per key on one minibatch (None: the full data)."""


class ELBO(Objective):
    """-E[log pi(xi) - log q(xi)] with the full reparameterised gradient."""

    def __call__(self, guide, target, keys, batch):
        log_weights = _log_weights(guide.draw, target, keys, batch)
        return Value(-jnp.mean(log_weights), jax.lax.stop_gradient(jnp.mean(log_weights)))


class PathELBO(Objective):
    """The same bound with the path gradient: no variance where the guide is exact."""

    def __call__(self, guide, target, keys, batch):
        log_weights = _log_weights(guide.draw_path, target, keys, batch)
        return Value(-jnp.mean(log_weights), jax.lax.stop_gradient(jnp.mean(log_weights)))


class CoveringELBO(Objective):
    r"""The path-gradient ELBO that leans towards covering where the guide lacks mass.

    For any f-divergence E_q[f(w)], w = p/q, the path gradient is that of the reverse KL with each draw
    weighted by c(w) = w^2 f''(w): c = 1 is the reverse KL, c = w the forward KL. We take

        c(w) = max(1, w),

    reverse KL where q has mass enough and forward KL where it has too little, with w normalised over the
    draws and cut at MAX_COVER. Both divergences vanish only at q = p. Until the draws' effective sample
    size passes COVER_FROM_ESS, and on minibatches or with generative parameters to learn, where w would
    be noise or the bound itself is wanted, c = 1.
    """

    def __call__(self, guide, target, keys, batch):
        log_weights = _log_weights(guide.draw_path, target, keys, batch)
        value = jax.lax.stop_gradient(log_weights)
        cover = jnp.ones_like(value)
        if batch is None and not target.params:
            weights = jax.nn.softmax(value) * value.shape[0]
            trusted = value.shape[0] / jnp.sum(weights**2) > COVER_FROM_ESS
            cover = jnp.where(trusted, jnp.clip(weights, 1.0, MAX_COVER), 1.0)
        return Value(-jnp.mean(cover * log_weights), jnp.mean(value))


def _log_weights(draw, target: Target, keys: PRNGKeyArray, batch: Batch) -> Float[Array, " n"]:
    def one(key):
        made = draw(key)
        return target.log_density(made.xi, batch) - made.log_q

    return jax.vmap(one)(keys)
