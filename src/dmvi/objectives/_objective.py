"""What training minimises: an objective sees only the contracts of Guide and Target."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.guides._guide import Draw, Guide
from dmvi.targets._target import Batch, Target

MAX_COVER = 10.0
COVER_FROM_ESS = 0.5


class Evidence(NamedTuple):
    """What the draws of a loss say about the guide: their log-weights and the noise they came from."""

    log_weights: Float[Array, " n"]
    noise: Float[Array, "n dim"]


class Value(NamedTuple):
    """A loss to differentiate and, beside the gradient, what its draws showed."""

    loss: Float[Array, ""]
    evidence: Evidence


class Objective(eqx.Module):
    """A loss of the guide and of the target's generative parameters."""

    @abc.abstractmethod
    def __call__(self, guide: Guide, target: Target, keys: PRNGKeyArray, batch: Batch) -> Value:
        """Estimate from one draw per key on one minibatch (None: the full data)."""


class ELBO(Objective):
    """-E[log pi(xi) - log q(xi)] with the full reparameterised gradient."""

    def __call__(self, guide, target, keys, batch):
        log_weights, noise = _weigh(guide.draw, target, keys, batch)
        return Value(-jnp.mean(log_weights), _evidence(log_weights, noise))


class PathELBO(Objective):
    """The same bound with the path gradient: no variance where the guide is exact."""

    def __call__(self, guide, target, keys, batch):
        log_weights, noise = _weigh(guide.draw_path, target, keys, batch)
        return Value(-jnp.mean(log_weights), _evidence(log_weights, noise))


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
        log_weights, noise = _weigh(guide.draw_path, target, keys, batch)
        value = jax.lax.stop_gradient(log_weights)
        cover = jnp.ones_like(value)
        if batch is None and not target.params:
            weights = jax.nn.softmax(value) * value.shape[0]
            trusted = value.shape[0] / jnp.sum(weights**2) > COVER_FROM_ESS
            cover = jnp.where(trusted, jnp.clip(weights, 1.0, MAX_COVER), 1.0)
        return Value(-jnp.mean(cover * log_weights), _evidence(log_weights, noise))


def _evidence(log_weights: Array, noise: Array) -> Evidence:
    return Evidence(*jax.lax.stop_gradient((log_weights, noise)))


def _weigh(
    draw: Callable[[PRNGKeyArray], Draw], target: Target, keys: PRNGKeyArray, batch: Batch
) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
    def one(key):
        made = draw(key)
        return target.log_density(made.xi, batch) - made.log_q, made.noise

    return jax.vmap(one)(keys)
