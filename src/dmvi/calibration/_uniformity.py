r"""Whether ranks are uniform: simultaneous bands of an empirical distribution function, exactly.

N ranks among L draws are uniform on {0, ..., L}. With F the share of ranks below k, at points z = k / (L + 1)
the count N F(z) is binomial, B(N, z), if the ranks are uniform. The pointwise tail probability at its worst,

    gamma = 2 min_i min{P(B(N, z_i) <= N F(z_i)), P(B(N, z_i) >= N F(z_i))},

is one number for the whole function. Its distribution under uniformity follows from the Markov chain of the
counts along z_1 < z_2 < ...,

    N F(z_{i+1}) - N F(z_i)  ~  B(N - N F(z_i), (z_{i+1} - z_i) / (1 - z_i)),

and so does the gamma at which all of F stays inside its bands with a given probability (Saeilynoja, Buerkner
and Vehtari, 2022, Statistics and Computing 32:32). A p-value below alpha is an F that leaves the bands
of 1 - alpha: figures and verdicts cannot disagree.
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy  # loads scipy.stats when it is used
from jaxtyping import Float, Int

MOST_POINTS = 100  # at which F is looked at
HALVINGS = 20


class Bands(NamedTuple):
    """Counts N F(z) between which all of F lies with probability `level`, if ranks are uniform.

    Attributes:
        z: points.
        low: least counts inside.
        high: largest counts inside.
        level: the probability.
    """

    z: Float[np.ndarray, " points"]
    low: Int[np.ndarray, " points"]
    high: Int[np.ndarray, " points"]
    level: float


def rank_points(count: int, draws: int) -> Int[np.ndarray, " points"]:
    """The k at which F is looked at: as many as ranks, but at most MOST_POINTS, evenly in 1..L."""
    points = min(count, draws, MOST_POINTS)
    return np.unique(np.rint(np.arange(1, points + 1) * (draws + 1) / (points + 1)).astype(int))


def counts_below(ranks: Int[np.ndarray, " count"], draws: int) -> Int[np.ndarray, " points"]:
    """N F at every point: how many ranks lie below k."""
    return np.searchsorted(np.sort(ranks), rank_points(len(ranks), draws), side="left")


def uniformity(ranks: Int[np.ndarray, " count"], draws: int) -> float:
    """The p-value of ranks among `draws` draws: how often uniform ones stray as far from the diagonal.

    Exact down to 1e-12; below that, the bound by the sum over the points.
    """
    count, k = len(ranks), rank_points(len(ranks), draws)
    z, found = k / (draws + 1), counts_below(ranks, draws)
    below, above = scipy.stats.binom.cdf(found, count, z), scipy.stats.binom.sf(found - 1, count, z)
    gamma = 2 * float(np.min(np.minimum(below, above)))
    if gamma >= 1:
        return 1.0
    # A function as far out as this one has left the bands; those just wider have it inside.
    low, high = _pointwise(gamma * (1 + 1e-9), count, z)
    p_value = 1 - _inside(low, high, count, z)
    bound = min(gamma * len(k), 1.0)
    return float(np.clip(p_value, 0.0, 1.0)) if p_value > 1e-12 else bound


@functools.lru_cache(maxsize=64)
def simultaneous_bands(count: int, draws: int, level: float = 0.95) -> Bands:
    """The bands of N = count ranks among so many draws."""
    z = rank_points(count, draws) / (draws + 1)

    # The sum over the points bounds the probability of leaving, so `safe` always keeps the level. Coverage
    # moves in steps, as counts are whole; halving ends on the safe side of one.
    safe, most = np.log((1 - level) / len(z)), np.log(1 - level)
    for _ in range(HALVINGS):
        middle = 0.5 * (safe + most)
        if _inside(*_pointwise(float(np.exp(middle)), count, z), count, z) >= level:
            safe = middle
        else:
            most = middle
    low, high = _pointwise(float(np.exp(safe)), count, z)
    return Bands(z, low, high, level)


def _pointwise(gamma: float, count: int, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts with a tail probability of more than gamma / 2 on either side."""
    low = scipy.stats.binom.ppf(gamma / 2, count, z).astype(int)
    low = np.where(scipy.stats.binom.cdf(low, count, z) <= gamma / 2, low + 1, low)
    high = scipy.stats.binom.isf(gamma / 2, count, z).astype(int)
    high = np.where(scipy.stats.binom.sf(high - 1, count, z) <= gamma / 2, high - 1, high)
    return low, high


def _inside(low: np.ndarray, high: np.ndarray, count: int, z: np.ndarray) -> float:
    """P(low_i <= N F(z_i) <= high_i for all i), along the chain of counts."""
    states, probability, before = np.array([0]), np.array([1.0]), 0.0
    for at, least, most in zip(z, low, high, strict=True):
        if most < least:
            return 0.0
        following = np.arange(least, most + 1)
        step = scipy.stats.binom.pmf(
            following[None, :] - states[:, None], count - states[:, None], (at - before) / (1 - before)
        )
        states, probability, before = following, probability @ step, at
    return float(np.sum(probability))


def holm(p_values: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """p-values adjusted so that rejecting those below alpha errs anywhere with probability alpha at most.

    In ascending order p_(i) becomes max_{j <= i} min{1, (m - j + 1) p_(j)} (Holm, 1979).
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1.0)
    return adjusted
