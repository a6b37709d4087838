"""What training minimises: an objective sees only the contracts of Guide and Target."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dmvi.guides._guide import Draw, Guide
from dmvi.targets._target import Batch, Target


class Value(NamedTuple):
    """A loss to differentiate and, beside the gradient, what its draws showed.

    Attributes:
        loss: the estimate.
        log_weights: log pi(xi) - log_q of the draws it was made from.
        own: which of the draws are the guide's own and weighed exactly, so that they tell its ELBO.
        folded: whether the guide itself gives a draw of its own no density.
        memory: what the objective carries to the next step.
    """

    loss: Float[Array, ""]
    log_weights: Float[Array, " n"]
    own: Bool[Array, " n"]
    folded: Bool[Array, ""]
    memory: Any


class Objective(eqx.Module):
    """A loss of the guide and of the target's generative parameters."""

    @property
    def caution(self) -> str | None:
        """What to tell the user before training where the loss is no bound of the log evidence.

        Such a loss is trained to the last step: the ELBO of looks on the way says nothing about it.
        """
        return None

    def check(self, guide: Guide) -> None:
        """Raises `InputError` where the objective cannot train such a guide."""

    def memory(self, dim: int) -> Any:
        """What the objective carries from step to step, before the first: by default nothing."""
        return None

    @abc.abstractmethod
    def __call__(self, guide: Guide, target: Target, keys: PRNGKeyArray, batch: Batch, memory: Any) -> Value:
        """Estimate from one draw per key on one minibatch (None: the full data)."""


class ELBO(Objective):
    """-E[log pi(xi) - log q(xi)] with the full reparameterised gradient."""

    def __call__(self, guide, target, keys, batch, memory):
        return _negative_bound(guide.draw, True, target, keys, batch, memory)


class PathELBO(Objective):
    """The same bound with the path gradient: no variance where the guide is exact."""

    def __call__(self, guide, target, keys, batch, memory):
        return _negative_bound(guide.draw_path, guide.trains_as_it_draws, target, keys, batch, memory)


def _negative_bound(
    make: Callable[[PRNGKeyArray], Draw],
    own: bool,
    target: Target,
    keys: PRNGKeyArray,
    batch: Batch,
    memory: Any,
) -> Value:
    """-(1/n) sum_i [log pi(xi_i) - log q(xi_i)] over the draws that `make` makes of the keys."""

    def log_weight(key):
        draw = make(key)
        return target.log_density(draw.xi, batch) - draw.log_q, ~jnp.isfinite(draw.log_q)

    log_weights, folded = jax.vmap(log_weight)(keys)
    own_draws = jnp.full(log_weights.shape, own)
    return Value(-jnp.mean(log_weights), log_weights, own_draws, jnp.any(folded), memory)
