"""Score networks: the residual r(u, t) on the score of the whitened base."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dmvi._errors import InputError
from dmvi._random import children, seed_of

TIME_FREQUENCIES = 4


def initial_weights(key: PRNGKeyArray, shape: tuple[int, ...], scale: float) -> Array:
    """Normal initial weights of standard deviation `scale`; from NumPy, unless the key is traced."""
    if isinstance(key, Tracer):
        return scale * jr.normal(key, shape, jnp.result_type(float))
    values = scale * np.random.default_rng(seed_of(key)).standard_normal(shape)
    return jax.device_put(values.astype(jnp.result_type(float)))


def zeros(*shape: int) -> Array:
    """Zero initial weights, made by NumPy: `jnp.zeros` compiles a program for every shape."""
    return jax.device_put(np.zeros(shape, jnp.result_type(float)))


def time_features(t: Float[Array, ""]) -> Float[Array, " features"]:
    """Smooth features of diffusion time, [1, cos(j t), sin(j t) for j = 1..4]."""
    angles = t * jnp.arange(1, TIME_FREQUENCIES + 1, dtype=t.dtype)
    return jnp.concatenate([jnp.ones_like(t)[None], jnp.cos(angles), jnp.sin(angles)])


class ScoreNetwork(eqx.Module):
    """r(u, t) from R^dim x R to R^dim; `key` feeds dropout during training only."""

    @abc.abstractmethod
    def __call__(
        self, u: Float[Array, " dim"], t: Float[Array, ""], key: PRNGKeyArray | None = None
    ) -> Float[Array, " dim"]: ...

    def straighter(self, share: float) -> "ScoreNetwork":
        """r taken back by a share; itself if nothing of it is trained."""
        return self


class Features(eqx.Module):
    """Hidden layers h(x, t) of a residual multilayer perceptron.

    h_0 = gelu(W_0 x + E time(t)),  h_l = h_{l-1} + gelu(W_l norm(h_{l-1}) + b_l)
    """

    first: Float[Array, "width dim_in"]
    time: Float[Array, "width features"]
    weights: tuple[Float[Array, "width width"], ...]
    biases: tuple[Float[Array, " width"], ...]
    layer_norm: bool = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(
        self, dim_in: int, width: int, depth: int, *, layer_norm: bool, dropout: float, key: PRNGKeyArray
    ):
        keys = children(key, depth + 1)
        features = 2 * TIME_FREQUENCIES + 1
        self.first = initial_weights(keys[0], (width, dim_in), dim_in**-0.5)
        self.time = initial_weights(keys[1], (width, features), 0.1)
        self.weights = tuple(initial_weights(k, (width, width), width**-0.5) for k in keys[2:])
        self.biases = tuple(zeros(width) for _ in keys[2:])
        self.layer_norm = layer_norm
        self.dropout = dropout

    def __call__(self, x: Array, t: Array, key: PRNGKeyArray | None = None) -> Float[Array, " width"]:
        h = jax.nn.gelu(self.first @ x + self.time @ time_features(t))
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            inside = (h - h.mean()) * jax.lax.rsqrt(h.var() + 1e-5) if self.layer_norm else h
            h = h + jax.nn.gelu(weight @ inside + bias)
            if self.dropout > 0 and key is not None:
                keep = jr.bernoulli(jr.fold_in(key, layer), 1 - self.dropout, h.shape)
                h = jnp.where(keep, h / (1 - self.dropout), 0.0)
        return h


class ResidualMLP(ScoreNetwork):
    """r(u, t) = O h(u, t) + b with O and b zero at the start, so the guide begins as its base."""

    features: Features
    out: Float[Array, "dim width"]
    bias: Float[Array, " dim"]

    def __call__(self, u, t, key=None):
        return self.out @ self.features(u, t, key) + self.bias

    def straighter(self, share):
        return eqx.tree_at(
            lambda net: (net.out, net.bias), self, ((1 - share) * self.out, (1 - share) * self.bias)
        )


class Gated(ScoreNetwork):
    """A user's network behind a gain g that starts at zero: r(u, t) = g * net(u, t).

    Whatever the network returns untrained, the guide still begins as exactly its base.
    """

    net: PyTree
    apply: Callable = eqx.field(static=True)
    gain: Float[Array, " dim"]

    def __call__(self, u, t, key=None):
        return self.gain * self.apply(self.net, u, t)

    def straighter(self, share):
        return eqx.tree_at(lambda net: net.gain, self, (1 - share) * self.gain)


class MLP(eqx.Module):
    """Recipe of the built-in residual multilayer perceptron.

    Args:
        width: units of each hidden layer.
        depth: number of hidden layers.
        layer_norm: normalise the input of each residual layer.
        dropout: fraction of hidden units left out while training; draws are made without.
    """

    width: int = eqx.field(static=True, default=64)
    depth: int = eqx.field(static=True, default=2)
    layer_norm: bool = eqx.field(static=True, default=False)
    dropout: float = eqx.field(static=True, default=0.0)

    def __check_init__(self):
        for name in ("width", "depth"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"MLP needs {name} to be an integer of at least 1, got {value!r}.")
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"MLP needs dropout in [0, 1), got {self.dropout}.")

    def build(self, dim: int, *, key: PRNGKeyArray) -> ResidualMLP:
        """The network for `dim` coordinates."""
        features = Features(
            dim, self.width, self.depth, layer_norm=self.layer_norm, dropout=self.dropout, key=key
        )
        return ResidualMLP(features, zeros(dim, self.width), zeros(dim))


def _call_module(net: Callable, u: Array, t: Array) -> Array:
    return net(u, t)


def as_score_network(network: object, dim: int, *, key: PRNGKeyArray) -> ScoreNetwork:
    """Any accepted network as a ScoreNetwork of `dim` coordinates.

    Args:
        network: an `MLP` recipe, an Equinox module called as net(u, t), or a pair
            (params, apply) called as apply(params, u, t).
        dim: number of coordinates of u and of the result.
        key: initialises the built-in network.
    """
    if isinstance(network, MLP):
        return network.build(dim, key=key)
    if isinstance(network, tuple) and len(network) == 2 and callable(network[1]):
        net, apply = network
    elif isinstance(network, eqx.Module) and callable(network):
        net, apply = network, _call_module
    else:
        raise InputError(
            "network must be dmvi.MLP(...), dmvi.Projected(...), dmvi.Triangular(...), "
            "dmvi.SparseBends(...), an Equinox module called as net(u, t), or a "
            f"pair (params, apply) called as apply(params, u, t); got {type(network).__name__}."
        )
    _check_output(net, apply, dim)
    return Gated(net, apply, zeros(dim))


def _check_output(net: PyTree, apply: Callable, dim: int) -> None:
    try:
        out = eqx.filter_eval_shape(apply, net, jnp.zeros(dim), jnp.zeros(()))
    except Exception as error:
        raise InputError(
            f"the score network could not be called as net(u, t), u of shape ({dim},), t a scalar: {error}"
        ) from error
    if getattr(out, "shape", None) != (dim,):
        raise InputError(
            f"the score network must map u of shape ({dim},) to the same shape, "
            f"got {getattr(out, 'shape', out)}."
        )
