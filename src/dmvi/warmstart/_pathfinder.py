r"""Gaussians along the way to a mode, of which the best by ELBO is taken: multi-path Pathfinder.

In hierarchies the mode is useless or infinite, but a search passes good places on the way there. At points x
of the ways of several searches, with g and H the slope and the negative Hessian of log pi there,

    N(x + |H|^-1 g, |H|^-1),   |H| = sum_j max(|h_j|, flat) v_j v_j^T,

a step of Newton's that goes uphill whatever the curvature; h_j, v_j are the eigenpairs of H. The method is
that of Zhang, Carpenter, Gelman and Vehtari (2022), with exact Hessians, as there are few points.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from dmvi.warmstart._laplace import FLAT, NOWHERE, Surface, climb, curvatures_of

PATHS = 4
ITERATIONS = 60
POINTS = 8  # of a way
DRAWS = 16  # of each Gaussian


class Found(NamedTuple):
    """A Gaussian N(loc, precision^-1) and its ELBO, up to a constant."""

    loc: Float[np.ndarray, " dim"]
    precision: Float[np.ndarray, "dim dim"]
    elbo: float


def pathfinder(
    surface: Surface, starts: Float[np.ndarray, "starts dim"], rng: np.random.Generator
) -> Found | None:
    """The best of the Gaussians on the ways from the first PATHS starts; None where none is finite.

    Args:
        surface: log pi and its derivatives.
        starts: points to begin from, best first.
        rng: for the draws that tell the ELBOs.
    """
    noise = rng.standard_normal((DRAWS, starts.shape[1]))
    best: Found | None = None
    for start in starts[:PATHS]:
        way: list[np.ndarray] = [start]
        climb(surface, start, ITERATIONS, way)
        for place in np.unique(np.linspace(0, len(way) - 1, POINTS).round().astype(int)):
            found = _gaussian(surface, way[place], noise)
            if found is not None and (best is None or found.elbo > best.elbo):
                best = found
    return best


def _gaussian(surface: Surface, x: np.ndarray, noise: Float[np.ndarray, "draws dim"]) -> Found | None:
    """The Gaussian at one point; None where anything is not finite."""
    _, slope = surface.value_and_gradient(x)
    hessian = surface.hessian(x)
    if not (np.isfinite(slope).all() and np.isfinite(hessian).all()):
        return None
    units, curvatures, vectors = curvatures_of(-0.5 * (hessian + hessian.T))
    sds = np.maximum(np.abs(curvatures), FLAT) ** -0.5
    root = vectors * sds / units[:, None]
    loc = x + root @ (root.T @ slope)
    values = [surface.value_and_gradient(loc + root @ z)[0] for z in noise]
    entropy = np.sum(np.log(sds / units)) + 0.5 * np.mean(np.sum(noise**2, axis=1))
    elbo = float(np.mean(values) + entropy)
    if not np.isfinite(elbo) or elbo < -NOWHERE:
        return None
    inverse = units[:, None] * vectors / sds
    return Found(loc, inverse @ inverse.T, elbo)
