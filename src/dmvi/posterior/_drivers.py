"""Which coordinates the heaviest weights come from."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# Below this distance the tail's draws of a coordinate look like all others.
_PULL = 0.2
_MOST = 5


class Driver(NamedTuple):
    """A coordinate in which the heaviest draws stand apart, and how far, from 0 to 1."""

    name: str
    pull: float


def drivers(
    xi: Float[np.ndarray, "n dim"], log_w: Float[np.ndarray, " n"], names: tuple[str, ...]
) -> tuple[Driver, ...]:
    r"""The coordinates that drive the tail of the weights, the strongest first.

    The tail that k-hat is fitted to are the M = 3 sqrt(n) heaviest draws. If a coordinate had nothing
    to do with it, its ranks u among all draws would be uniform in the tail. The pull is how far they are
    from that, the Kolmogorov-Smirnov distance

        max_u |F_tail(u) - u|,

    the same for every monotone change of the coordinate. Chance alone gives 1.6 / sqrt(M), 0.08 for
    20,000 draws, once in a hundred; what is below 0.2 is left out.

    Args:
        xi: draws in unconstrained coordinates.
        log_w: their log-weights; those not finite count as the lightest.
        names: one label for each coordinate.
    """
    n = len(log_w)
    tail_size = int(3 * np.sqrt(n))
    if n < 100:
        return ()
    heaviest = np.argsort(np.where(np.isfinite(log_w), log_w, -np.inf))[-tail_size:]
    steps = np.arange(tail_size + 1) / tail_size
    pulls = []
    for column in range(xi.shape[1]):
        values = xi[:, column]
        # Ranks in the middle of ties, so that a constant coordinate has no pull.
        ordered = np.sort(values)
        low = np.searchsorted(ordered, values[heaviest], side="left")
        high = np.searchsorted(ordered, values[heaviest], side="right")
        if ordered[0] == ordered[-1]:
            pulls.append(0.0)
            continue
        ranks = np.sort((low + high) / (2 * n))
        pulls.append(float(max(np.max(steps[1:] - ranks), np.max(ranks - steps[:-1]))))
    order = np.argsort(pulls)[::-1][:_MOST]
    return tuple(Driver(names[i], pulls[i]) for i in order if pulls[i] >= _PULL)
