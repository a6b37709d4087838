"""Random numbers on the host."""

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray


def seed_of(key: PRNGKeyArray) -> list[int]:
    """A seed for NumPy's generator, for the few numbers that are not worth compiling a program for."""
    return np.asarray(jr.key_data(key)).ravel().tolist()
