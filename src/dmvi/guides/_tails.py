r"""The noise the diffusion starts from: independent, Gaussian in the middle, with tails to choose.

    z_i = sinh(t_i arsinh(e_i)),  e_i ~ N(0, 1),  t_i >= 1

t_i = 1 is the Gaussian; a larger t_i gives tails like exp(-c |z|^(2 / t_i)). A Lipschitz flow cannot
change the tail class of its noise, and reverse KL hardly sees tails at all, so t is not trained by the
ELBO but fitted by the forward KL to importance-weighted draws, where they show that it must grow.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.guides._guide import Frozen

MAX_TAIL = 1.6
MAX_TAIL_CHANGE = 0.12  # a flow follows small changes of its noise, not large ones
MAX_WEIGHT = 20.0  # truncation: no single draw decides
ADAPT_FROM_ESS = 0.5  # below, the weights speak of the middle, not of the tails
SIGNIFICANCE = 3.0  # standard errors a tail must be away from fitting before it is moved


def standard_normal(key: PRNGKeyArray, dim: int, dtype: np.dtype) -> Float[Array, " dim"]:
    """dim normal numbers, cut from a multiple of 16: XLA compiles such lengths four times faster on CPUs."""
    return jr.normal(key, (-(-dim // 16) * 16,), dtype)[:dim]


class TailedNoise(eqx.Module):
    """Independent noise on R^dim with per-coordinate tail exponents."""

    frozen_tails: Frozen

    @property
    def tails(self) -> Float[Array, " dim"]:
        """The exponents t."""
        return self.frozen_tails.value

    def sample(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        normal = standard_normal(key, self.tails.shape[0], self.tails.dtype)
        return jnp.sinh(self.tails * jnp.arcsinh(normal))

    def log_prob(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        """log p(z)."""
        angle = jnp.arcsinh(z) / self.tails
        log_normal = -0.5 * jnp.sinh(angle) ** 2 - 0.5 * jnp.log(2 * jnp.pi)
        log_jacobian = jnp.log(jnp.cosh(angle)) - jnp.log(self.tails) - 0.5 * jnp.log1p(z**2)
        return jnp.sum(log_normal + log_jacobian)

    def score(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """grad_z log p(z)."""
        angle = jnp.arcsinh(z) / self.tails
        inner = jnp.tanh(angle) - jnp.sinh(angle) * jnp.cosh(angle)
        return inner / (self.tails * jnp.sqrt(1 + z**2)) - z / (1 + z**2)

    def refitted(self, z: Float[np.ndarray, "n dim"], log_weights: Float[np.ndarray, " n"]) -> "TailedNoise":
        r"""One natural-gradient step of the forward KL in each t_i, where it is significant.

        With normalised weights w and g_i = d log p(z_i; t_i) / d t_i, which has mean zero under the
        noise itself, the step is mean((w - 1) g_i) / mean(g_i^2), w cut at MAX_WEIGHT. It is taken where
        it exceeds SIGNIFICANCE standard errors, so that coordinates with Gaussian tails keep t_i = 1.
        A few thousand numbers on the host: nothing here is worth compiling.
        """
        if not len(log_weights):
            return self
        tails = np.asarray(self.tails, float)
        weights = np.exp(log_weights - np.max(log_weights))
        weights = np.minimum(weights / np.mean(weights), MAX_WEIGHT)
        if len(weights) / np.sum(weights**2) < ADAPT_FROM_ESS:
            return self
        angle = np.arcsinh(np.asarray(z, float)) / tails
        slope = (angle * (np.sinh(angle) * np.cosh(angle) - np.tanh(angle)) - 1) / tails
        pull = (weights - 1)[:, None] * slope
        information = np.mean(slope**2, axis=0)
        change = np.mean(pull, axis=0) / information
        error = np.std(pull, axis=0) / np.sqrt(len(pull)) / information
        change = np.where(np.abs(change) > SIGNIFICANCE * error, change, 0.0)
        tails = tails + np.clip(change, -MAX_TAIL_CHANGE, MAX_TAIL_CHANGE)
        tails = np.clip(tails, 1.0, MAX_TAIL)
        return TailedNoise(Frozen(jnp.asarray(tails, self.tails.dtype)))
