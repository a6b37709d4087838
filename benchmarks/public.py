"""Public targets that neural samplers are compared on, and a family that grows with the dimension.

Data come from a folder that the caller names: sonar.npz, ionosphere.npz (X, y) and pines.csv.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import norm

from benchmarks.targets import LabTarget, funnel

GRID = 40
VARIANCE = 1.91
CORRELATION = 33 / GRID  # inverse length, per cell

SEEDS_GERMINATED = [10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10, 8, 10, 8, 23, 0, 3, 22, 15, 32, 3]
SEEDS_SOWN = [39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7]


def _logistic(name: str, folder: Path) -> LabTarget:
    """Logistic regression on standardised columns and an intercept, standard normal weights."""
    data = np.load(folder / f"{name}.npz")
    spread = data["X"].std(axis=0)
    columns = (data["X"] - data["X"].mean(axis=0)) / np.where(spread == 0, 1.0, spread)
    design = jnp.asarray(np.concatenate([np.ones((len(columns), 1)), columns], axis=1))
    y = jnp.asarray(data["y"] * 1.0)

    def log_density(w):
        logits = design @ w
        return norm.logpdf(w).sum() + (y * logits - jax.nn.softplus(logits)).sum()

    return LabTarget(name, name, design.shape[1], log_density)


def seeds(folder: Path) -> LabTarget:
    """Germination of seeds: binomial regression, an effect for each plate, its precision on the log scale."""
    germinated, sown = np.array(SEEDS_GERMINATED, float), np.array(SEEDS_SOWN, float)
    x1 = np.arange(21) >= 11
    x2 = np.array([0] * 5 + [1] * 6 + [0] * 5 + [1] * 5)
    design = jnp.asarray(np.stack([np.ones(21), x1, x2, x1 * x2], axis=1))
    chosen = gammaln(sown + 1) - gammaln(germinated + 1) - gammaln(sown - germinated + 1)
    r, n = jnp.asarray(germinated), jnp.asarray(sown)
    shape = rate = 0.01
    constant = float(shape * np.log(rate) - gammaln(shape) + chosen.sum())

    def log_density(x):
        log_tau, weights, effects = x[0], x[1:5], x[5:]
        logits = design @ weights + effects
        # Gamma(tau) with the Jacobian of tau = exp(log_tau).
        prior = shape * log_tau - rate * jnp.exp(log_tau) + norm.logpdf(weights, 0.0, 10.0).sum()
        plates = norm.logpdf(effects, 0.0, jnp.exp(-0.5 * log_tau)).sum()
        return prior + plates + (r * logits - n * jax.nn.softplus(logits)).sum() + constant

    return LabTarget("seeds", "seeds", 26, log_density)


def cox(folder: Path) -> LabTarget:
    """The log-Gaussian Cox process of pine saplings on a grid of 40 x 40 cells.

    x ~ GP(log 126 - VARIANCE / 2, VARIANCE exp(-distance CORRELATION)), y_i ~ Poisson(exp(x_i) / 1600).
    As in the published comparisons, terms of the likelihood without x are left out: the factorials and
    sum_i y_i log 1600 = 929.6.
    """
    points = np.loadtxt(folder / "pines.csv", delimiter=",", skiprows=1, usecols=(1, 2))
    edges = np.linspace(0, 1, GRID + 1)
    counts = np.histogram2d(points[:, 0], points[:, 1], bins=(edges, edges))[0].ravel()
    cells = np.stack(np.meshgrid(np.arange(GRID), np.arange(GRID), indexing="ij"), axis=-1).reshape(-1, 2)
    distance = np.linalg.norm(cells[:, None] - cells[None], axis=-1)
    root = np.linalg.cholesky(VARIANCE * np.exp(-distance * CORRELATION))
    dim = GRID**2
    constant = -np.log(np.diagonal(root)).sum() - 0.5 * dim * np.log(2 * np.pi)
    mean = np.log(len(points)) - 0.5 * VARIANCE
    # One product with the inverse is quicker than a solve, and the root is well-conditioned.
    inverse = jnp.asarray(np.linalg.inv(root))
    y = jnp.asarray(counts)

    def log_density(x):
        whitened = inverse @ (x - mean)
        prior = -0.5 * jnp.sum(whitened**2) + constant
        return prior + jnp.sum(y * x - jnp.exp(x) / dim)

    return LabTarget("cox", "log-Gaussian Cox process", dim, log_density)


def bent(dim: int, correlation: float = 0.9) -> LabTarget:
    """A correlated family of any even dimension that no Gaussian fits, with log Z = 0.

    z_1 ~ N(0, 1), z_{i+1} | z_i ~ N(c z_i, 1 - c^2);  x_i = z_i, and in every second coordinate
    x_i = z_i + (z_{i-1}^2 - 1) / 2: a shear, which keeps volumes.
    """

    def log_density(x):
        pairs = x.reshape(-1, 2)
        z = jnp.stack([pairs[:, 0], pairs[:, 1] - 0.5 * (pairs[:, 0] ** 2 - 1)], axis=1).ravel()
        steps = norm.logpdf(z[1:], correlation * z[:-1], np.sqrt(1 - correlation**2))
        return norm.logpdf(z[0]) + steps.sum()

    return LabTarget(f"bent_{dim}", "bent", dim, log_density, log_evidence=0.0)


PUBLIC: dict[str, Callable[[Path], LabTarget]] = {
    "sonar": lambda folder: _logistic("sonar", folder),
    "ionosphere": lambda folder: _logistic("ionosphere", folder),
    "seeds": seeds,
    "funnel": lambda folder: funnel(),
    "cox": cox,
}
