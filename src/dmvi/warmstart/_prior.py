"""The Gaussian of the prior, for posteriors that the data hardly move."""

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi.targets import Target
from dmvi.warmstart._laplace import LARGEST_SD

DRAWS = 256
QUARTILES = 1.349  # between the quartiles of a standard normal
SMALLEST_SD = 1e-4


def prior_gaussian(
    target: Target, key: PRNGKeyArray
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]] | None:
    """Location and scale of the prior in each coordinate, by quartiles; None where it cannot be drawn from.

    Quartiles and not moments: a half-Cauchy's draws reach too far for these even on the log scale.
    """
    try:
        draws = np.asarray(_draws(target, key), float)
    except (
        Exception
    ):  # improper priors, and whatever else drawing raises in a user's own code: there are other starts
        return None
    if not np.isfinite(draws).all():
        return None
    low, loc, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
    return loc, np.clip((high - low) / QUARTILES, SMALLEST_SD, LARGEST_SD)


@compiled
def _draws(target: Target, key: PRNGKeyArray) -> Float[Array, "draws dim"]:
    return jax.vmap(target.prior)(jr.split(key, DRAWS))
