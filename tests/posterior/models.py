"""Small NumPyro models with posteriors in closed form, and quick fits of them."""

import functools

import numpy as np
import numpyro
import numpyro.distributions as dist

import dmvi
from dmvi.posterior import Posterior

Y = np.array([1.2, 0.4, -0.3, 2.0, 0.9, 1.4])
X = np.array([0.5, 1.0, -1.0, 2.0, 0.0, 1.5])


def line(x, y):
    """y ~ N(a + b x, 1), a and b standard normal; `mean` is deterministic."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("point", len(x)):
        mean = numpyro.deterministic("mean", a + b * x)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def constant(x, y):
    """y ~ N(a, 1), a standard normal."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("point", len(x)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


DATA = {"x": X, "y": Y}


def closed_form(design: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Posterior mean and covariance of the weights, and log p(y), for y ~ N(design w, 1), w ~ N(0, I)."""
    precision = np.eye(design.shape[1]) + design.T @ design
    covariance = np.linalg.inv(precision)
    marginal = np.eye(len(y)) + design @ design.T
    _, log_det = np.linalg.slogdet(marginal)
    log_evidence = -0.5 * (y @ np.linalg.solve(marginal, y) + log_det + len(y) * np.log(2 * np.pi))
    return covariance @ design.T @ y, covariance, float(log_evidence)


@functools.cache
def quick_fit(name: str) -> Posterior:
    """A short fit of one of the models; both are Gaussian, so the warm start is nearly exact already."""
    model = {"line": line, "constant": constant}[name]
    return dmvi.fit(model, data=DATA, guide="full-rank", steps=48, seed=1, progress=False)


@functools.cache
def diffusion_fit() -> Posterior:
    """A short fit of `line` with the diffusion guide, not at its optimum."""
    recipe = dmvi.DiffusionGuide(steps=2, network=dmvi.Projected(width=8, scale_width=8))
    return dmvi.fit(line, data=DATA, guide=recipe, steps=48, seed=2, progress=False)
