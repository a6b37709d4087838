r"""Draws of the published guide for which the slopes of a weight are gathered over all evaluations.

With x_e the input of a linear layer in evaluation e of the network and delta_e = dL / d(x_e W + b),

    dL/dW = sum_e x_e^T delta_e,   dL/db = sum_e delta_e.

Automatic differentiation adds up one small product for each e. Here the inputs are kept, each evaluation has
its own b_e, whose slope is delta_e, and the sum is one product.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dmvi.diffusion._noise_model import MergedMLP, normalised

# From the network, as a function of a state and the number of the evaluation, and noise to draws.
Solve = Callable[[Callable[[Array, int], Array], Array], Array]


class _Biases(NamedTuple):
    """What is added in each evaluation: before the activation, after the normalisation, at the end."""

    shifts: list[Float[Array, "draws width"]]
    offsets: list[Float[Array, "draws width"]]
    ends: list[Float[Array, "draws dim"]]


class _Inputs(NamedTuple):
    """What is multiplied in all evaluations: by the first matrix, by the gain, by the last matrix."""

    states: Float[Array, "evaluations draws dim"]
    hidden: Float[Array, "evaluations draws width"]
    masked: Float[Array, "evaluations draws width"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gathered(
    solve: Solve,
    network: MergedMLP,
    shifts: Float[Array, "evaluations width"],
    masks: Float[Array, "evaluations draws width"],
    z: Float[Array, "draws dim"],
) -> Float[Array, "draws dim"]:
    """Draws: `solve` applied to the network, for the noise z of all draws together.

    Args:
        solve: the solver.
        network: the network.
        shifts: its shift in each evaluation.
        masks: its mask in each evaluation; these and z have no slopes.
        z: noise.
    """
    return _forward(solve, network, shifts, masks, z)[0]


def _forward(solve, network, shifts, masks, z) -> tuple[Float[Array, "draws dim"], Any]:
    each = [jnp.broadcast_to(shift, masks.shape[1:]) for shift in shifts]
    offsets = [jnp.broadcast_to(network.offset, masks.shape[1:])] * len(each)
    ends = [jnp.broadcast_to(network.out_bias, z.shape)] * len(each)

    def draw(biases: _Biases) -> tuple[Float[Array, "draws dim"], _Inputs]:
        inputs: list[tuple[Array, Array, Array]] = []

        def evaluate(w: Float[Array, "draws dim"], e: int) -> Float[Array, "draws dim"]:
            hidden = normalised(jax.nn.gelu(w @ network.first + biases.shifts[e]))
            masked = masks[e] * (network.gain * hidden + biases.offsets[e])
            inputs.append((w, hidden, masked))
            return masked @ network.out + biases.ends[e]

        xi = solve(evaluate, z)
        return xi, _Inputs(*map(jnp.stack, zip(*inputs, strict=True)))

    xi, pull, inputs = jax.vjp(draw, _Biases(each, offsets, ends), has_aux=True)
    return xi, (pull, inputs)


def _backward(solve, kept, slope) -> tuple[MergedMLP, Float[Array, "evaluations width"], None, None]:
    pull, inputs = kept
    shifts, offsets, ends = map(jnp.stack, pull(slope)[0])
    network = MergedMLP(
        first=jnp.einsum("edi,edj->ij", inputs.states, shifts),
        gain=jnp.sum(inputs.hidden * offsets, axis=(0, 1)),
        offset=jnp.sum(offsets, axis=(0, 1)),
        out=jnp.einsum("edi,edj->ij", inputs.masked, ends),
        out_bias=jnp.sum(ends, axis=(0, 1)),
    )
    return network, jnp.sum(shifts, axis=1), None, None


gathered.defvjp(_forward, _backward)
