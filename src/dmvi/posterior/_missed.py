"""Separate modes that the search has visited and the guide does not hold."""

import numpy as np
from jaxtyping import Float
from scipy.special import gammaincinv

from dmvi.objectives import Weighed
from dmvi.posterior._draws import Draws

TRIED = 250  # draws around each mode
HELD = 0.9  # mass of a mode's Gaussian within the ellipsoid that is looked at
NEGLIGIBLE = 1e-3  # share of the posterior below which a mode does not matter
THIN = 0.1  # a guide that has less than this part of a mode's share has missed it


def missed_share(
    draws: Draws,
    weighed: Weighed,
    visited: Float[np.ndarray, "modes rows dim"],
    log_evidence: float,
    tried: int = TRIED,
) -> float:
    r"""The share of the posterior around visited modes where the guide has next to no draws.

    Around mode k lies the ellipsoid E_k that holds 90 % of its Gaussian g_k. The posterior's mass in it,

        M_k = E_{g_k}[pi(xi) / g_k(xi) 1{xi in E_k}],

    comes from draws of g_k, so it does not depend on the guide; the guide's share of draws in E_k is counted.
    The largest M_k / (Z + M_k) is returned, over modes of which the guide has less than a tenth. Z is
    the guide's own estimate of the evidence, which lacks what it has missed. There are `tried` draws of
    each g_k.
    """
    if not np.isfinite(log_evidence):
        return 0.0
    worst, dim = 0.0, weighed.xi.shape[1]
    radius = 2 * gammaincinv(dim / 2, HELD)  # the quantile of chi-squared
    for number, mode in enumerate(np.asarray(visited, float)):
        loc, scale = mode[0], mode[1:]
        noise = np.random.default_rng(number).standard_normal((tried, dim))
        inside = np.sum(noise**2, axis=1) <= radius
        xi = (loc + noise @ scale.T).astype(weighed.xi.dtype)
        log_g = -0.5 * np.sum(noise**2, axis=1) - 0.5 * dim * np.log(2 * np.pi)
        log_g -= np.sum(np.log(np.abs(np.diagonal(scale))))
        log_ratio = draws.log_density(xi).astype(float) - log_g - log_evidence
        with np.errstate(over="ignore"):
            mass = float(np.mean(np.where(inside & np.isfinite(log_ratio), np.exp(log_ratio), 0.0)))
        share = mass / (1 + mass) if np.isfinite(mass) else 1.0
        whitened = np.linalg.solve(scale, (weighed.xi - loc).T.astype(float))
        own = float(np.mean(np.sum(whitened**2, axis=0) <= radius))
        if share > max(NEGLIGIBLE, worst) and own < THIN * share:
            worst = share
    return worst
