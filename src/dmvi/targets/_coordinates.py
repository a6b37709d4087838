"""One flat vector and the named arrays it holds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclass(frozen=True)
class Coordinates:
    """How the coordinates xi in R^dim are cut, in order, into named arrays.

    Attributes:
        shapes: shape of each array by name; the order is that of the coordinates.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def dim(self) -> int:
        """Length of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def labels(self) -> tuple[str, ...]:
        """One label per coordinate: "mu" for a scalar, "theta[3]" or "omega[1,2]" otherwise."""
        return tuple(
            name + (f"[{','.join(map(str, index))}]" if index else "")
            for name, shape in self.shapes.items()
            for index in np.ndindex(*shape)
        )

    def split(self, xi: Float[Array, " dim"]) -> dict[str, Array]:
        """The named arrays of one flat vector."""
        xi = jnp.asarray(xi)  # a NumPy vector could not be indexed inside a scanned model
        pieces, begin = {}, 0
        for name, shape in self.shapes.items():
            end = begin + math.prod(shape)
            pieces[name] = jnp.reshape(xi[begin:end], shape)
            begin = end
        return pieces
