r"""The default objective: the path-gradient ELBO with some of its draws sent where the guide lacks mass.

Reverse KL hardly sees the tails it leaves out: few of the guide's own draws come near them, and its
importance weights pay for it. But the path gradient of one draw,

    (d xi / d phi)^T (grad log q(xi) - grad log pi(xi)),

vanishes at q = p wherever the draw was made. So the noise of some draws may be made further out than
q's own, to one side of one coordinate at a time, chosen by what the weights w = p/q of earlier draws far
out there showed: where they average above one, the guide has too little mass. Where no side lacks mass
nearly all draws stay q's own. A draw sent where there is hardly any mass is left out:
its gradient would be large and ask only for mass to be taken away. Where such a draw has no weight at all,
because the density overflows or the guide folds, no more than the usual few are sent.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dmvi.guides._guide import with_path_gradient
from dmvi.objectives._objective import Objective, PathELBO, Value

FAR = 2.5  # sds from which a coordinate of the noise counts as far out
LEAST_WEIGHT = 1e-4  # below which a draw sent far out is left out
LARGEST_WEIGHT = 5.0  # at which one draw's weight is cut
FADING = 500.0  # steps after which what was seen has faded to 1 / e
PRIOR_DRAWS = 10.0  # of weight one, before anything was seen
EVERYWHERE = 0.125  # share of the draws sent far out on all sides in turn
MOST = 0.35  # largest share of the draws sent where mass is lacking
TOLERATED = 0.03  # mean weight above one that is left alone
LACKING = 0.15  # sum of the excess weights that calls for MOST of the draws
GOLDEN = (math.sqrt(5) - 1) / 2


class Attention(NamedTuple):
    """What draws far out on either side of each coordinate of the noise weighed, fading with time.

    Attributes:
        draws: number of draws far out, below zero and above it.
        weights: sum of their weights.
        phase: where the systematic sampling of sides stands, in [0, 1).
    """

    draws: Float[Array, "2 dim"]
    weights: Float[Array, "2 dim"]
    phase: Float[Array, ""]

    def shares(self) -> Float[Array, "2 dim"]:
        """Share of the draws to be sent to either side of each coordinate."""
        excess = jnp.maximum(self.weights / self.draws - 1 - TOLERATED, 0.0)
        lacking = MOST * excess / jnp.maximum(jnp.sum(excess), LACKING)
        return EVERYWHERE / excess.size + lacking

    def sent(self, n: int) -> Int[Array, "n dim"]:
        """Which coordinate of which of n draws goes to which side, by systematic sampling of the shares."""
        place = ((jnp.arange(n, dtype=self.phase.dtype) / n + self.phase) % 1.0)[:, None]
        shares = self.shares().reshape(1, -1)
        ends = jnp.cumsum(shares, axis=1)
        chosen = ((place < ends) & (place >= ends - shares)).astype(jnp.int32)
        below, above = jnp.split(chosen, 2, axis=1)
        return above - below

    def after(self, weights: Float[Array, " n"], z: Float[Array, "n dim"]) -> "Attention":
        """Having seen n draws of noise z with weights of mean one."""
        far = jnp.stack([z < -FAR, z > FAR]).astype(z.dtype)
        kept = math.exp(-1 / FADING)
        return Attention(
            kept * self.draws + jnp.sum(far, axis=1),
            kept * self.weights + jnp.minimum(weights, LARGEST_WEIGHT) @ far,
            (self.phase + GOLDEN) % 1.0,
        )

    def content_with(self, reached: Bool[Array, "2 dim"]) -> "Attention":
        """As if the sides marked lacked no mass: the guide has gone there as far as it can."""
        return self._replace(weights=jnp.where(reached, jnp.minimum(self.weights, self.draws), self.weights))


class CoveringELBO(Objective):
    r"""The path-gradient ELBO, its draws attentive to where the guide lacks mass; see the module.

    On minibatches a weight would be noise, and with generative parameters to learn the bound itself is
    wanted: there this is `PathELBO`.
    """

    def memory(self, dim):
        prior = PRIOR_DRAWS * jnp.ones((2, dim))
        return Attention(prior, prior, jnp.zeros(()))

    def __call__(self, guide, target, keys, batch, memory):
        if batch is not None or target.params:
            return PathELBO()(guide, target, keys, batch, memory)

        def weigh(key, far):
            draw = guide.draw_path(key, far)
            log_pi, slope = jax.value_and_grad(target.log_density)(jax.lax.stop_gradient(draw.xi))
            # Far out the density may overflow or the guide fold, which says nothing against its own draws.
            usable = jnp.isfinite(log_pi - draw.log_q) & jnp.all(jnp.isfinite(slope))
            lost = jnp.any(far != 0) & ~usable
            log_pi = with_path_gradient(log_pi, draw.xi, jnp.where(lost, 0.0, slope))
            log_weight = jnp.where(lost, -jnp.inf, log_pi - draw.log_q)
            return log_weight, draw.noise, ~jnp.isfinite(draw.log_q)

        sent = memory.sent(keys.shape[0])
        stayed = jnp.all(sent == 0, axis=1)
        log_weights, noise, folded = jax.vmap(weigh)(keys, sent)
        weights = jax.nn.softmax(log_weights) * keys.shape[0]
        left_out = jnp.isneginf(log_weights)[:, None]
        lost = jnp.stack([jnp.any(left_out & (sent == side), axis=0) for side in (-1, 1)])
        memory = jax.lax.stop_gradient(memory.after(weights, noise).content_with(lost))
        kept = stayed | (weights > LEAST_WEIGHT)
        own = stayed & guide.trains_as_it_draws
        loss = -jnp.mean(log_weights, where=kept)
        return Value(loss, log_weights, own, jnp.any(folded & stayed), memory)
