"""The eight schools (Rubin, 1981), centred: small, famous, and hard for a Gaussian."""

import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Float
from numpyro.infer.reparam import LocScaleReparam

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(y: Float[np.ndarray, " schools"], sigma: Float[np.ndarray, " schools"]) -> None:
    """Effects of coaching in eight schools.

    mu ~ N(0, 5), tau ~ HalfCauchy(5), theta_j ~ N(mu, tau), y_j ~ N(theta_j, sigma_j).
    Small tau squeezes all theta towards mu: a funnel.
    """
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


# theta = mu + tau z with z ~ N(0, 1): the same posterior without the funnel, which MCMC finds easy.
non_centred = numpyro.handlers.reparam(eight_schools, config={"theta": LocScaleReparam(0.0)})
