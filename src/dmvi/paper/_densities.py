r"""A model's density in the coordinates that the published code trains in.

Positive values are softplus of a coordinate, simplices come by stick-breaking, all else is as it is; sites
in alphabetical order. Data stay arguments, so that one compiled program serves any data set of a shape.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import IdentityTransform, SoftplusTransform, StickBreakingTransform

from dmvi.paper._models import PaperModel


class Parts(NamedTuple):
    """log p(theta), log |det d theta / d xi| and log p(y_n | theta) for each row n."""

    log_prior: Float[Array, ""]
    log_det: Float[Array, ""]
    log_rows: Float[Array, " n"]


class Density:
    """log p(y, theta(xi)) of a model, in parts.

    Args:
        model: whose density it is.
        columns: number of columns of its data.
    """

    def __init__(self, model: PaperModel, columns: int):
        self.model = model
        trace = handlers.trace(handlers.seed(model.program, jr.key(0))).get_trace(np.zeros((1, columns)))
        latent = {
            name: site for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]
        }
        self._transforms = {name: _transform(latent[name]["fn"].support) for name in sorted(latent)}
        self._shapes = {
            name: transform.inverse_shape(np.shape(latent[name]["value"]))
            for name, transform in self._transforms.items()
        }
        self.dim = sum(int(np.prod(shape)) for shape in self._shapes.values())

    def sites(self, xi: Float[Array, " dim"]) -> dict[str, Array]:
        """The model's variables at xi."""
        return {name: theta for name, theta, _ in self._mapped(xi)}

    def parts(self, xi: Float[Array, " dim"], y: Float[Array, "n columns"]) -> Parts:
        """The density at xi given some rows of data."""
        mapped = self._mapped(xi)
        known = handlers.substitute(self.model.program, data={name: theta for name, theta, _ in mapped})
        trace = handlers.trace(known).get_trace(y)
        log_prior = sum(jnp.sum(trace[name]["fn"].log_prob(theta)) for name, theta, _ in mapped)
        log_det = sum(jnp.sum(log_det) for _, _, log_det in mapped)
        return Parts(jnp.asarray(log_prior), jnp.asarray(log_det), trace["y"]["fn"].log_prob(y))

    def log_density(self, xi: Float[Array, " dim"], y: Float[Array, "n columns"]) -> Float[Array, ""]:
        """log pi(xi): the rows, the prior once, the log-determinant."""
        parts = self.parts(xi, y)
        return jnp.sum(parts.log_rows) + parts.log_prior + parts.log_det

    def published(
        self, xi: Float[Array, " dim"], y: Float[Array, "n columns"], kept: Float[Array, " n"]
    ) -> Float[Array, ""]:
        """What the published code takes for it on a minibatch: unscaled rows, the prior once for each row.

        Args:
            xi: where.
            y: rows of the minibatch.
            kept: 1 for each of them, 0 for rows that only fill it up.
        """
        parts = self.parts(xi, y)
        return jnp.sum(kept * (parts.log_rows + parts.log_prior)) + parts.log_det

    def _mapped(self, xi: Float[Array, " dim"]) -> list[tuple[str, Array, Array]]:
        """Name, value and log |det| of each latent site."""
        found, start = [], 0
        for name, transform in self._transforms.items():
            shape = self._shapes[name]
            part = xi[start : start + int(np.prod(shape))].reshape(shape)
            start += part.size
            theta = transform(part)
            found.append((name, theta, transform.log_abs_det_jacobian(part, theta)))
        return found


def _transform(support) -> Callable:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.positive:
        return SoftplusTransform()
    return StickBreakingTransform() if support is constraints.simplex else IdentityTransform()


def many_sites(density: Density, xi: Float[np.ndarray, "draws dim"]) -> dict[str, np.ndarray]:
    """The model's variables at each of many points."""
    found = jax.jit(jax.vmap(density.sites))(jnp.asarray(xi))
    return {name: np.asarray(value) for name, value in found.items()}
