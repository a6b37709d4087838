"""Posterior expectations by importance sampling, with their error."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from dmvi.posterior._psis import smooth


@dataclass(frozen=True)
class Expectation:
    """An estimate of E[f] under the posterior.

    Attributes:
        value: the estimate, in the shape of one value of f.
        se: its standard error, in the same shape.
        khat: tail index of the weights; from 0.7 on neither number can be relied on.
    """

    value: Any
    se: Any
    khat: float


def expect(values: Any, log_w: Float[np.ndarray, " n"]) -> Expectation:
    r"""Self-normalised importance sampling with Pareto-smoothed weights.

    E[f] = sum_i w_i f_i,   se^2 = sum_i w_i^2 (f_i - E[f])^2,   sum_i w_i = 1

    Args:
        values: f at each draw: an array, or a pytree of arrays, draws leading.
        log_w: log-weights of the draws.
    """
    log_smooth, khat = smooth(log_w)
    weights = np.exp(log_smooth - np.logaddexp.reduce(log_smooth))

    def mean(f: np.ndarray) -> np.ndarray:
        return np.tensordot(weights, _where_weighed(f, weights), axes=1)

    def error(f: np.ndarray) -> np.ndarray:
        f = _where_weighed(f, weights)
        return np.sqrt(np.tensordot(weights**2, (f - mean(f)[None]) ** 2, axes=1))

    values = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), values)
    return Expectation(_plain(jax.tree.map(mean, values)), _plain(jax.tree.map(error, values)), khat)


def _where_weighed(f: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """f without the values at draws of weight zero, which may not be finite."""
    shape = (-1,) + (1,) * (f.ndim - 1)
    return np.where(weights.reshape(shape) > 0, f, 0.0)


def _plain(tree: Any) -> Any:
    """A bare scalar as a float."""
    single = isinstance(tree, np.ndarray | np.floating) and np.ndim(tree) == 0
    return float(tree) if single else tree
