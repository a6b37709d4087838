"""Single hard targets beside the suite: many coordinates, or many rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks import high_dimension
from benchmarks.hard_measure import Case
from benchmarks.public import bent
from benchmarks.targets import LabTarget, horseshoe


def _of_lab(target: LabTarget) -> Case:
    return Case(target.name, target.log_density, dim=target.dim, log_evidence=target.log_evidence)


def local_level(y: np.ndarray) -> None:
    """y_t ~ N(mu_t, s_y), mu_t a random walk of steps N(0, s_mu), wide half-normal priors."""
    s_mu = numpyro.sample("s_mu", dist.HalfNormal(10.0))
    s_y = numpyro.sample("s_y", dist.HalfNormal(10.0))
    mu = numpyro.sample("mu", dist.GaussianRandomWalk(s_mu, num_steps=len(y)))
    numpyro.sample("y", dist.Normal(mu, s_y).to_event(1), obs=y)


def local_level_data(
    length: int = 20_000, s_mu: float = 0.3, s_y: float = 1.0, seed: int = 0
) -> dict[str, Any]:
    """A walk with steps smaller than the noise, so that neighbours have to be smoothed together."""
    rng = np.random.default_rng(seed)
    mu = np.cumsum(s_mu * rng.normal(size=length))
    return {"y": mu + s_y * rng.normal(size=length)}


def student_t(x: np.ndarray, y: np.ndarray) -> None:
    """y ~ StudentT(nu, tanh(x beta), sigma)."""
    beta = jnp.asarray(numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    numpyro.sample("y", dist.StudentT(nu, jnp.tanh(x @ beta), sigma), obs=y)


def student_t_data(rows: int = 400_000, coefficients: int = 10, seed: int = 0) -> dict[str, Any]:
    """Standard normal columns, a linear predictor of sd 1, noise of scale 0.5 with 4 degrees of freedom."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, coefficients)).astype(np.float32)
    beta = rng.normal(size=coefficients) / np.sqrt(coefficients)
    y = np.tanh(x @ beta) + 0.5 * rng.standard_t(4.0, size=rows)
    return {"x": x, "y": y.astype(np.float32)}


# Each from the folder that holds pines.csv.
MORE: dict[str, Callable[[Path], Case]] = {
    "bent_100": lambda folder: _of_lab(bent(100)),
    "bent_1000": lambda folder: _of_lab(bent(1000)),
    "horseshoe": lambda folder: _of_lab(horseshoe()),
    "cox": lambda folder: _of_lab(high_dimension.TARGETS["cox"](folder)),
    "hierarchy_1000": lambda folder: _renamed("hierarchy_1000", folder),
    "hierarchy_10000": lambda folder: _renamed("hierarchy_10000", folder),
    "local_level": lambda folder: Case("local_level", local_level, local_level_data),
    "student_t": lambda folder: Case("student_t", student_t, student_t_data),
    "student_t_20s": lambda folder: Case("student_t_20s", student_t, student_t_data, time_limit=20.0),
}


def _renamed(name: str, folder: Path) -> Case:
    """All hierarchies of the lab have one name."""
    target = high_dimension.TARGETS[name](folder)
    return Case(name, target.log_density, dim=target.dim)
