"""The ten lab targets: unnormalised log-densities on R^d with known difficulties.

Each is given to `dmvi.fit` as a plain log-density. Simulated data come from NumPy generators with fixed
seeds, so log evidences stay comparable from run to run and from machine to machine.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

LogDensity = Callable[[Float[Array, " dim"]], Float[Array, ""]]


@dataclass(frozen=True)
class LabTarget:
    """One target.

    Attributes:
        name: what the command line calls it.
        title: what the table calls it.
        dim: number of coordinates.
        log_density: log pi(x), unnormalised.
        gap_bar: largest gap log Z - ELBO allowed, in nats; None where it is only reported.
        log_evidence: log Z where it is known in closed form.
        hard: whether only its gap is judged, not time and weights.
    """

    name: str
    title: str
    dim: int
    log_density: LogDensity
    gap_bar: float | None = None
    log_evidence: float | None = None
    hard: bool = False


def _log_half_normal(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """log-density of u = log s with s ~ HalfNormal(1)."""
    return norm.logpdf(jnp.exp(u)) + jnp.log(2.0) + u


def _log_half_cauchy(u: Float[Array, "..."], scale: float = 1.0) -> Float[Array, "..."]:
    """log-density of u = log s with s ~ HalfCauchy(scale)."""
    v = u - jnp.log(scale)
    return jnp.log(2.0 / jnp.pi) - jax.nn.softplus(2.0 * v) + v


def eight_schools() -> LabTarget:
    """The centred eight schools: a funnel in (log tau, theta) with exponential tails in log tau."""
    y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def log_density(x):
        mu, log_tau, theta = x[0], x[1], x[2:]
        prior = norm.logpdf(mu, 0.0, 5.0) + _log_half_cauchy(log_tau, 5.0)
        groups = norm.logpdf(theta, mu, jnp.exp(log_tau)).sum()
        return prior + groups + norm.logpdf(y, theta, sigma).sum()

    return LabTarget("eight_schools", "eight schools, centred", 10, log_density, gap_bar=0.02)


def hierarchical_5(count: int = 100, seed: int = 1) -> LabTarget:
    """The paper's fifth hierarchical model: two nested levels, both scales unknown."""
    rng = np.random.default_rng(seed)
    sigma_gamma, sigma_beta, mu = abs(rng.normal()), abs(rng.normal()), rng.normal()
    gamma = mu + sigma_gamma * rng.normal(size=5)
    beta = np.repeat(gamma, 2) + sigma_beta * rng.normal(size=10)
    y = beta + rng.normal(size=(count, 10))
    # The likelihood depends on beta through the column means alone; the rest is a constant.
    y_mean = jnp.asarray(y.mean(0))
    constant = float((-0.5 * (y - y.mean(0)) ** 2 - 0.5 * np.log(2.0 * np.pi)).sum())

    def log_density(x):
        log_sigma_gamma, mu, gamma, log_sigma_beta, beta = x[0], x[1], x[2:7], x[7], x[8:]
        prior = _log_half_normal(log_sigma_gamma) + norm.logpdf(mu) + _log_half_normal(log_sigma_beta)
        upper = norm.logpdf(gamma, mu, jnp.exp(log_sigma_gamma)).sum()
        lower = norm.logpdf(beta, jnp.repeat(gamma, 2), jnp.exp(log_sigma_beta)).sum()
        return prior + upper + lower - 0.5 * count * ((y_mean - beta) ** 2).sum() + constant

    return LabTarget("hierarchical_5", "paper's hierarchical model 5", 18, log_density, gap_bar=0.012)


def mixture(count: int = 100, seed: int = 2) -> LabTarget:
    """The paper's mixture of three bivariate Gaussians, prior means at -1, 0 and 1, equal weights."""
    rng = np.random.default_rng(seed)
    prior_mean = np.stack([-np.ones(2), np.zeros(2), np.ones(2)])
    true_loc = prior_mean + rng.normal(size=(3, 2))
    true_scale = abs(rng.normal(size=(3, 2)))
    component = rng.integers(3, size=count)
    y = jnp.asarray(true_loc[component] + true_scale[component] * rng.normal(size=(count, 2)))
    prior_mean = jnp.asarray(prior_mean)

    def log_density(x):
        loc, log_scale = x[:6].reshape(3, 2), x[6:].reshape(3, 2)
        prior = norm.logpdf(loc, prior_mean).sum() + _log_half_normal(log_scale).sum()
        by_component = norm.logpdf(y[:, None, :], loc[None], jnp.exp(log_scale)[None]).sum(-1)
        return prior + (logsumexp(by_component, axis=1) - jnp.log(3.0)).sum()

    return LabTarget("mixture", "paper's mixture", 12, log_density, gap_bar=0.015)


def funnel() -> LabTarget:
    """Neal's funnel: v ~ N(0, 3^2), nine x_i ~ N(0, e^v)."""

    def log_density(x):
        return norm.logpdf(x[0], 0.0, 3.0) + norm.logpdf(x[1:], 0.0, jnp.exp(x[0] / 2.0)).sum()

    return LabTarget("funnel", "funnel", 10, log_density, gap_bar=0.015, log_evidence=0.0)


def logistic(dim: int = 30, count: int = 400, seed: int = 3) -> LabTarget:
    """Logistic regression on correlated predictors, standard normal weights."""
    rng = np.random.default_rng(seed)
    predictors = rng.normal(size=(count, dim)) @ (np.eye(dim) + 0.3 * rng.normal(size=(dim, dim)))
    predictors = (predictors - predictors.mean(0)) / predictors.std(0)
    weights = rng.normal(size=dim)
    y = jnp.asarray((rng.uniform(size=count) < 1.0 / (1.0 + np.exp(-predictors @ weights))) * 1.0)
    predictors = jnp.asarray(predictors)

    def log_density(x):
        logits = predictors @ x
        return norm.logpdf(x).sum() + (y * logits - jax.nn.softplus(logits)).sum()

    return LabTarget("logistic", "logistic regression", dim, log_density, gap_bar=0.02)


def brownian(length: int = 30, seed: int = 4) -> LabTarget:
    """Brownian regression: a random walk seen through noise, its middle third not seen at all."""
    rng = np.random.default_rng(seed)
    walk = np.cumsum(0.1 * rng.normal(size=length))
    y = jnp.asarray(walk + 0.15 * rng.normal(size=length))
    third = length // 3
    seen = jnp.concatenate([jnp.ones(third), jnp.zeros(third), jnp.ones(length - 2 * third)])

    def log_density(x):
        log_step, log_noise, walk = x[0], x[1], x[2:]
        prior = norm.logpdf(log_step, 0.0, 2.0) + norm.logpdf(log_noise, 0.0, 2.0)
        previous = jnp.concatenate([jnp.zeros(1), walk[:-1]])
        moves = norm.logpdf(walk, previous, jnp.exp(log_step)).sum()
        return prior + moves + (seen * norm.logpdf(y, walk, jnp.exp(log_noise))).sum()

    return LabTarget("brownian", "Brownian regression", length + 2, log_density, gap_bar=0.02)


def hierarchy_100(groups: int = 100, seed: int = 5) -> LabTarget:
    """A centred hierarchy of many groups with unequal noise."""
    rng = np.random.default_rng(seed)
    sigma = rng.uniform(0.5, 2.0, size=groups)
    true_theta = 1.0 + 0.4 * rng.normal(size=groups)
    y = jnp.asarray(true_theta + sigma * rng.normal(size=groups))
    sigma = jnp.asarray(sigma)

    def log_density(x):
        mu, log_tau, theta = x[0], x[1], x[2:]
        prior = norm.logpdf(mu, 0.0, 5.0) + _log_half_normal(log_tau)
        return prior + norm.logpdf(theta, mu, jnp.exp(log_tau)).sum() + norm.logpdf(y, theta, sigma).sum()

    return LabTarget("hierarchy_100", "centred hierarchy, 100 groups", groups + 2, log_density, gap_bar=0.02)


def banana() -> LabTarget:
    """A bent Gaussian: x_1 ~ N(0, 2^2), x_2 ~ N(x_1^2 / 2 - 2, 0.3^2)."""

    def log_density(x):
        return norm.logpdf(x[0], 0.0, 2.0) + norm.logpdf(x[1], 0.5 * x[0] ** 2 - 2.0, 0.3)

    return LabTarget("banana", "banana", 2, log_density, gap_bar=0.006, log_evidence=0.0)


def ring() -> LabTarget:
    """Eight separate Gaussians on a circle of radius 5."""
    angles = np.arange(8) * 2.0 * np.pi / 8.0
    centres = jnp.asarray(5.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1))

    def log_density(x):
        return logsumexp(norm.logpdf(x[None], centres, 0.5).sum(-1)) - jnp.log(8.0)

    return LabTarget("ring", "ring of 8 Gaussians", 2, log_density, log_evidence=0.0, hard=True)


def horseshoe(predictor_count: int = 30, count: int = 100, seed: int = 6) -> LabTarget:
    """Sparse regression under the centred horseshoe prior: thirty funnels that share one neck."""
    rng = np.random.default_rng(seed)
    predictors = rng.normal(size=(count, predictor_count))
    weights = np.zeros(predictor_count)
    weights[:4] = [3.0, -2.0, 1.5, 1.0]
    y = jnp.asarray(predictors @ weights + rng.normal(size=count))
    predictors = jnp.asarray(predictors)

    def log_density(x):
        log_tau, log_lambda, beta = x[0], x[1 : predictor_count + 1], x[predictor_count + 1 :]
        prior = _log_half_cauchy(log_tau, 0.1) + _log_half_cauchy(log_lambda).sum()
        slab = norm.logpdf(beta, 0.0, jnp.exp(log_lambda + log_tau)).sum()
        return prior + slab + norm.logpdf(y, predictors @ beta).sum()

    dim = 2 * predictor_count + 1
    return LabTarget("horseshoe", "horseshoe regression", dim, log_density, gap_bar=0.5, hard=True)


TARGETS: dict[str, Callable[[], LabTarget]] = {
    "eight_schools": eight_schools,
    "hierarchical_5": hierarchical_5,
    "mixture": mixture,
    "funnel": funnel,
    "logistic": logistic,
    "brownian": brownian,
    "hierarchy_100": hierarchy_100,
    "banana": banana,
    "ring": ring,
    "horseshoe": horseshoe,
}
