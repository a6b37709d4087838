"""Models that several tests share, with their densities written by hand."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false

import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import halfcauchy, norm

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.deterministic("effect", theta - mu)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_log_density(xi):
    """log pi at xi = (mu, log tau, theta)."""
    mu, log_tau, theta = xi[0], xi[1], xi[2:]
    tau = np.exp(log_tau)
    prior = norm.logpdf(mu, 0, 5) + halfcauchy.logpdf(tau, scale=5) + log_tau
    return prior + norm.logpdf(theta, mu, tau).sum() + norm.logpdf(Y, theta, SIGMA).sum()
