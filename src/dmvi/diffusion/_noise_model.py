r"""The paper's noise model: a multilayer perceptron with one hidden layer.

eps(w, t) = O drop(g * norm(gelu(W w + E time(t) + b)) + o) + c

Dropout multiplies what g and o make, so a mask is a network of its own: one with other g and o.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._random import children
from dmvi.diffusion._dpm_solver import NoiseModel
from dmvi.diffusion._networks import TIME_FREQUENCIES, initial_weights, time_features, zeros

SMALL = 1e-3  # sd of the last layer's initial weights: at first eps is all but zero


class NoiseMLP(NoiseModel):
    """One hidden layer, gelu, layer norm with gain g and offset o, dropout, a linear layer."""

    first: Float[Array, "width dim"]
    time: Float[Array, "width features"]
    bias: Float[Array, " width"]
    gain: Float[Array, " width"]
    offset: Float[Array, " width"]
    out: Float[Array, "dim width"]
    out_bias: Float[Array, " dim"]
    dropout: float = eqx.field(static=True)

    def __init__(self, dim: int, width: int, dropout: float, *, key: PRNGKeyArray):
        keys = children(key, 3)
        self.first = initial_weights(keys[0], (width, dim), dim**-0.5)
        self.time = initial_weights(keys[1], (width, 2 * TIME_FREQUENCIES + 1), 0.1)
        self.bias, self.offset, self.out_bias = zeros(width), zeros(width), zeros(dim)
        self.gain = zeros(width) + 1.0
        self.out = initial_weights(keys[2], (dim, width), SMALL)
        self.dropout = dropout

    def thinned(self, key: PRNGKeyArray) -> "NoiseMLP":
        """The network with one mask of dropout: for several evaluations that are to share it."""
        keep = jr.bernoulli(key, 1 - self.dropout, self.gain.shape) / (1 - self.dropout)
        return eqx.tree_at(lambda net: (net.gain, net.offset), self, (keep * self.gain, keep * self.offset))

    def __call__(self, w, time, key=None):
        if self.dropout > 0 and key is not None:
            return self.thinned(key)(w, time)
        h = jax.nn.gelu(self.first @ w + self.time @ time_features(jnp.pi * time) + self.bias)
        centred = h - h.mean()
        h = self.gain * centred * jax.lax.rsqrt(jnp.mean(centred**2) + 1e-5) + self.offset
        return self.out @ h + self.out_bias
