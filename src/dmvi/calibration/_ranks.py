"""Ranks of the truth among draws."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int


def rank_of(
    truth: Float[np.ndarray, "*shape"], draws: Float[np.ndarray, "draws *shape"], rng: np.random.Generator
) -> Int[np.ndarray, "*shape"]:
    """How many draws lie below the truth, 0 to L; among equal ones the place is drawn.

    What is not a number counts as lower than any.
    """
    truth, draws = _ordered(truth), _ordered(draws)
    below = np.sum(draws < truth, axis=0)
    equal = np.sum(draws == truth, axis=0)
    return below + rng.integers(0, equal + 1)


def _ordered(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    return np.where(np.isnan(values), -np.inf, values)


def scalar_names(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[str, ...]]:
    """Site -> the names of its scalars, "theta[3]" style."""
    return {
        site: tuple(f"{site}[{','.join(map(str, i))}]" if i else site for i in np.ndindex(shape))
        for site, shape in shapes.items()
    }
