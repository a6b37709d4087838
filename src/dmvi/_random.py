"""Random keys and numbers on the host."""

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray


def children(key: PRNGKeyArray, n: int) -> list[PRNGKeyArray]:
    """n keys derived from one: as `jax.random.split`, which would compile a program for every n."""
    return [jr.fold_in(key, i) for i in range(n)]


def seed_of(key: PRNGKeyArray) -> list[int]:
    """A seed for NumPy's generator, for the few numbers that are not worth compiling a program for."""
    return np.asarray(jr.key_data(key)).ravel().tolist()
