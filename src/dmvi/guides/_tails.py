r"""The noise the diffusion starts from: independent, Gaussian in the middle, with tails to choose.

    z_i = sinh(t_i arsinh(e_i)),  e_i ~ N(0, 1),  t_i >= 1

t_i = 1 is the Gaussian; a larger t_i gives tails like exp(-c |z|^(2 / t_i)). A Lipschitz flow cannot
change the tail class of its noise, and reverse KL hardly sees tails at all, so t is not trained by the
ELBO but fitted by the forward KL to importance-weighted draws, where they show that it must grow.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

MAX_TAIL = 2.2
MAX_TAIL_CHANGE = 0.3
SIGNIFICANCE = 3.0  # standard errors a tail must be away from fitting before it is moved


class TailedNoise(eqx.Module):
    """Independent noise on R^dim with per-coordinate tail exponents."""

    tails: Float[Array, " dim"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        tails = jax.lax.stop_gradient(self.tails)
        normal = jr.normal(key, tails.shape, tails.dtype)
        return jnp.sinh(tails * jnp.arcsinh(normal))

    def log_prob(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.sum(self._log_probs(jax.lax.stop_gradient(self.tails), z))

    def score(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """grad_z log p(z)."""
        return jax.grad(self.log_prob)(z)

    @staticmethod
    def _log_probs(tails: Array, z: Array) -> Float[Array, " dim"]:
        angle = jnp.arcsinh(z) / tails
        normal = jnp.sinh(angle)
        log_jacobian = jnp.log(jnp.cosh(angle)) - jnp.log(tails) - 0.5 * jnp.log1p(z**2)
        return -0.5 * normal**2 - 0.5 * jnp.log(2 * jnp.pi) + log_jacobian

    def refitted(self, z: Float[Array, "n dim"], log_weights: Float[Array, " n"]) -> "TailedNoise":
        r"""One natural-gradient step of the forward KL in each t_i, where it is significant.

        With normalised weights w and g_i = d log p(z_i; t_i) / d t_i, which has mean zero under the
        noise itself, the step is mean((w - 1) g_i) / mean(g_i^2). It is taken where it exceeds
        SIGNIFICANCE standard errors, so that coordinates with Gaussian tails keep t_i = 1 exactly.
        """
        weights = jnp.exp(log_weights - jax.nn.logsumexp(log_weights)) * log_weights.shape[0]
        slope = jax.vmap(lambda z: jax.grad(lambda t: jnp.sum(self._log_probs(t, z)))(self.tails))(z)
        pull = (weights - 1)[:, None] * slope
        change = jnp.mean(pull, axis=0) / jnp.mean(slope**2, axis=0)
        error = jnp.std(pull, axis=0) / jnp.sqrt(z.shape[0]) / jnp.mean(slope**2, axis=0)
        change = jnp.where(jnp.abs(change) > SIGNIFICANCE * error, change, 0.0)
        tails = self.tails + jnp.clip(change, -MAX_TAIL_CHANGE, MAX_TAIL_CHANGE)
        tails = jnp.clip(tails, 1.0, MAX_TAIL)
        return TailedNoise(jnp.where(jnp.isfinite(tails), tails, self.tails))
