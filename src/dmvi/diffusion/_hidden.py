r"""Hidden layers with their Jacobian and the gradient of its log-determinant in closed form.

    x_0 = W_0 a + e,  h_0 = g(x_0),   x_l = W_l h_{l-1} + b_l,  h_l = h_{l-1} + g(x_l)

with g(x) = x Phi(x), the Gaussian error linear unit. Its derivatives are g' = Phi + x phi and
g'' = (2 - x^2) phi, phi and Phi the normal density and distribution function. Writing them out costs
fewer operations than differentiating twice by machine, and far less time to compile.

Vectors stand on the left of matrices and Jacobians are kept transposed, one row for each direction of a:
over many particles every product is then one large matrix product, with nothing to be laid out anew.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._random import children
from dmvi.diffusion._networks import TIME_FREQUENCIES, initial_weights, time_features, zeros


def gelu(x: Array) -> Array:
    """g(x)."""
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


def gelu_jet(x: Array) -> tuple[Array, Array, Array]:
    """g(x), g'(x) and g''(x)."""
    distribution = 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))
    density = jnp.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return x * distribution, distribution + x * density, (2 - x**2) * density


class Layer(NamedTuple):
    """One layer at one point: (dx_l/da)^T, g'(x_l), g''(x_l)."""

    inner: Float[Array, "rank width"]
    slope: Float[Array, " width"]
    curvature: Float[Array, " width"]


class Jet(NamedTuple):
    """h(a) with its tangents J^T = (dh/da)^T and the layers it was made of."""

    h: Float[Array, " width"]
    tangents: Float[Array, "rank width"]
    layers: tuple[Layer, ...]


class Hidden(eqx.Module):
    """Residual layers h(a); see the module's equations."""

    first: Float[Array, "width rank"]
    time: Float[Array, "width features"]
    weights: tuple[Float[Array, "width width"], ...]
    biases: tuple[Float[Array, " width"], ...]

    def __init__(self, rank: int, width: int, depth: int, *, key: PRNGKeyArray):
        keys = children(key, depth + 1)
        self.first = initial_weights(keys[0], (width, rank), rank**-0.5)
        self.time = initial_weights(keys[1], (width, 2 * TIME_FREQUENCIES + 1), 0.1)
        self.weights = tuple(initial_weights(k, (width, width), width**-0.5) for k in keys[2:])
        self.biases = tuple(zeros(width) for _ in keys[2:])

    def embed(self, t: Float[Array, ""]) -> Float[Array, " width"]:
        """e = E time(t), the time's share of the first layer."""
        return self.time @ time_features(t)

    def __call__(self, a: Float[Array, " rank"], embedding: Array) -> Float[Array, " width"]:
        h = gelu(a @ self.first.T + embedding)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            h = h + gelu(h @ weight.T + bias)
        return h

    def jet(self, a: Float[Array, " rank"], embedding: Array) -> Jet:
        """h, J_l = J_{l-1} + diag(g'(x_l)) W_l J_{l-1}, and each layer."""
        h, slope, curvature = gelu_jet(a @ self.first.T + embedding)
        tangents = self.first.T * slope[None, :]
        layers = [Layer(self.first.T, slope, curvature)]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            inner = tangents @ weight.T
            added, slope, curvature = gelu_jet(h @ weight.T + bias)
            h, tangents = h + added, tangents + inner * slope[None, :]
            layers.append(Layer(inner, slope, curvature))
        return Jet(h, tangents, tuple(layers))

    def trace_gradient(self, jet: Jet, y: Float[Array, "rank width"]) -> Float[Array, " rank"]:
        r"""grad_a tr(Y J(a)) at fixed Y, which is grad log det(I + F J) for Y = (I + F J)^-1 F.

        Layer by layer from the last: tr(Y dJ_l) = tr(Y (I + D_l W_l) dJ_{l-1}) + tr(Y dD_l X_l), where
        D_l = diag g'(x_l) and X_l = dx_l/da; the second term is X_l^T (g''(x_l) * diag(X_l Y)).
        """
        gradient = jnp.zeros(y.shape[0], y.dtype)
        for weight, layer in zip((None, *self.weights)[::-1], jet.layers[::-1], strict=True):
            diagonal = jnp.sum(layer.inner * y, axis=0)
            gradient = gradient + layer.inner @ (layer.curvature * diagonal)
            if weight is not None:
                y = y + (y * layer.slope[None, :]) @ weight
        return gradient
