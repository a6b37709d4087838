r"""The paper's noise model: two linear layers, the time's embedding between them, and one hidden layer.

eps(w, t) = drop(g * norm(gelu((w W_1 + b_1 + emb(t)) W_2 + b_2)) + o) O + c

with vectors as rows. No activation stands between the first two layers, so W_1 W_2 and emb(t) W_2 can be
formed once for many evaluations, in one product of matrices; each of them then costs what a network with one
layer less would.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._random import children
from dmvi.diffusion._dpm_solver import NoiseModel
from dmvi.diffusion._networks import zeros

SMALL = 1e-3  # scale of all initial weights: at first eps is all but zero
FARTHEST = 2.0  # in these scales, where their normal distribution is cut off
SLOWEST = 1e-4  # frequency of the embedding, whose quickest is 1
LEVELS = 2**16  # of the random numbers behind a mask


def embedding(time: Float[Array, ""], width: int) -> Float[Array, " width"]:
    """emb(t) = [sin(f_i t), cos(f_i t)] with frequencies f_i from 1 down to SLOWEST, evenly in their log."""
    half = width // 2
    angles = time * jnp.exp(math.log(SLOWEST) * jnp.arange(half, dtype=time.dtype) / max(half - 1, 1))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles), jnp.zeros(width % 2, time.dtype)])


class MergedMLP(eqx.Module):
    """`NoiseMLP` with its linear layers multiplied out; in place of a time it takes a shift and a mask."""

    first: Float[Array, "dim width"]
    gain: Float[Array, " width"]
    offset: Float[Array, " width"]
    out: Float[Array, "width dim"]
    out_bias: Float[Array, " dim"]

    def __call__(
        self, w: Float[Array, " dim"], moment: tuple[Float[Array, " width"], Float[Array, " width"]]
    ) -> Float[Array, " dim"]:
        shift, mask = moment
        h = self.gain * normalised(jax.nn.gelu(w @ self.first + shift)) + self.offset
        return (mask * h) @ self.out + self.out_bias


def normalised(h: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
    """(h - mean) / sd, over the last axis."""
    centred = h - h.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


class NoiseMLP(NoiseModel):
    """Two linear layers, emb(t) between, gelu, layer norm with gain and offset, dropout, a linear layer."""

    first: Float[Array, "dim width"]
    first_bias: Float[Array, " width"]
    second: Float[Array, "width width"]
    bias: Float[Array, " width"]
    gain: Float[Array, " width"]
    offset: Float[Array, " width"]
    out: Float[Array, "width dim"]
    out_bias: Float[Array, " dim"]
    dropout: float = eqx.field(static=True)

    def __init__(self, dim: int, width: int, dropout: float, *, key: PRNGKeyArray):
        shapes = ((dim, width), (width, width), (width, dim))
        self.first, self.second, self.out = (
            SMALL * jr.truncated_normal(key, -FARTHEST, FARTHEST, shape, jnp.result_type(float))
            for key, shape in zip(children(key, 3), shapes, strict=True)
        )
        self.first_bias, self.bias, self.offset, self.out_bias = (
            zeros(n) for n in (width, width, width, dim)
        )
        self.gain = zeros(width) + 1.0
        self.dropout = dropout

    def masks(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "*shape width"]:
        """Masks of dropout, one for each evaluation: zero, or what makes up for the zeros."""
        shape = (*shape, len(self.gain))
        if self.dropout == 0:
            return jnp.ones(shape, self.gain.dtype)
        # Four numbers of 16 bits from each hash: a quarter of what `jr.bernoulli` takes, most of a draw.
        hashed = threefry_2x32(
            jr.bits(key, (2,), jnp.uint32), jnp.arange(-(-math.prod(shape) // 4) * 2, dtype=jnp.uint32)
        )
        numbers = jax.lax.bitcast_convert_type(hashed, jnp.uint16).ravel()[: math.prod(shape)]
        # In wider integers: where next to nothing is left out the bound is LEVELS itself.
        keep = numbers.reshape(shape).astype(jnp.uint32) < round((1 - self.dropout) * LEVELS)
        return keep.astype(self.gain.dtype) / (1 - self.dropout)

    def merged(self, times: Float[Array, " n"]) -> tuple[MergedMLP, Float[Array, "n width"]]:
        """The network for many evaluations, and its shifts (b_1 + emb(t)) W_2 + b_2 at some times."""
        inner = jax.vmap(lambda time: self.first_bias + embedding(time, len(self.gain)))(times)
        first, shifts = jnp.split(jnp.concatenate([self.first, inner]) @ self.second, [len(self.first)])
        return MergedMLP(first, self.gain, self.offset, self.out, self.out_bias), shifts + self.bias[None]

    def __call__(self, w, time, key=None):
        mask = jnp.ones_like(self.gain) if key is None else self.masks(key)
        network, shifts = self.merged(time[None])
        return network(w, (shifts[0], mask))
