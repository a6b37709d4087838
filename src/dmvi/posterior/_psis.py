"""Pareto-smoothed importance sampling."""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

# With fewer positive weights than this the tail would have fewer than five draws.
_FEWEST = 25
# The 3 sqrt(n) largest weights form the tail; closer together than 0.1 % they are one value up to rounding.
_NO_TAIL = 1e-3


def smooth(log_w: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], float]:
    r"""Smoothed, normalised log-weights and the tail index k-hat.

    The largest weights are replaced by quantiles of a generalised Pareto distribution

    p(w) = (1 / sigma) (1 + k (w - u) / sigma)^(-1/k - 1),   w > u,

    fitted to them. Weights have 1 / k finite moments: up to k-hat = 0.5 their variance is finite,
    up to 0.7 estimates are reliable at practical numbers of draws (Vehtari et al., 2024).

    Edge cases: k-hat is 0 where the 3 sqrt(n) largest weights agree to 0.1 %, for such weights are
    bounded and have no tail, and infinity where fewer than 25 weights are positive or no
    distribution can be fitted to them.

    Args:
        log_w: log-weights; minus infinity and NaN stand for a weight of zero.

    Returns:
        Log-weights whose exponentials sum to one, and k-hat.
    """
    log_w = np.where(np.isfinite(log_w), log_w, -np.inf)
    total = logsumexp(log_w)
    if np.isneginf(total):
        return np.full_like(log_w, -np.log(log_w.size)), np.inf
    raw = log_w - total
    if np.sum(np.isfinite(log_w)) < _FEWEST:
        return raw, np.inf
    from arviz_stats.base.array import array_stats  # brings pandas and xarray: slow to import

    tail = np.sort(log_w)[-int(3 * np.sqrt(log_w.size)) :]
    if tail[-1] - tail[0] < _NO_TAIL:
        return raw, 0.0
    with np.errstate(all="ignore"):
        # psislw is written for log-likelihoods and negates what it is given.
        smoothed, khat = array_stats.psislw(-log_w)
    if not (np.isfinite(khat) and np.isfinite(logsumexp(smoothed))):
        return raw, np.inf
    return np.asarray(smoothed), float(khat)


def resample(log_w: Float[np.ndarray, " n"], n: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of n draws chosen in proportion to exp(log_w) by systematic resampling.

    A draw of normalised weight w is taken floor(n w) or ceil(n w) times: with a pool larger than
    n and even weights nothing comes twice, and no scheme that keeps every mean unbiased repeats
    less. The order is random, so any part of the result is itself a sample.
    """
    cumulative = np.cumsum(np.exp(log_w - np.max(log_w)))
    positions = (np.arange(n) + rng.uniform()) / n * cumulative[-1]
    indices = np.minimum(np.searchsorted(cumulative, positions, side="right"), log_w.size - 1)
    return rng.permutation(indices)
