"""Five models in NumPyro and as log-densities, with the data that all libraries share.

Each entry of a table is a model with its data bound, and a function from its own variables to an array
that says the same in every library: two targets are at the same point when these arrays agree.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false, reportCallIssue=false

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy import stats
from jax.scipy.special import betaln, logsumexp

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

_RNG = np.random.default_rng(0)
GROUP = np.repeat(np.arange(4), 5)
X = _RNG.normal(size=20)
LINE_Y = 1 + 0.5 * GROUP + (0.3 - 0.2 * GROUP) * X + 0.4 * _RNG.normal(size=20)
GP_X = np.linspace(-2, 2, 8)
GP_Y = np.sin(2 * GP_X) + 0.2 * _RNG.normal(size=8)
MIXED = np.concatenate([_RNG.normal(-2, 0.7, 8), _RNG.normal(2, 0.7, 12)])
MEANS = np.array([-2.0, 2.0])

NAMES = ["centred", "noncentred", "regression", "gp", "mixture"]


def packed(sd, corr_chol):
    """The lower triangle of diag(sd) L row by row."""
    return jnp.stack([sd[0], sd[1] * corr_chol[1, 0], sd[1] * corr_chol[1, 1]])


def flat(*parts):
    return jnp.concatenate([jnp.ravel(jnp.asarray(part)) for part in parts])


COMMON = {
    "centred": lambda v: flat(v["mu"], v["tau"], v["theta"]),
    "noncentred": lambda v: flat(v["mu"], v["tau"], v["z"]),
    "regression": lambda v: flat(v["mu"], packed(v["sd"], v["corr"]), v["beta"], v["noise"]),
    "gp": lambda v: flat(v["amplitude"], v["length"], v["noise"]),
    "mixture": lambda v: flat(v["weight"], v["means"], v["sd"]),
}


def centred():
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, SIGMA), obs=Y)


def noncentred():
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * z, SIGMA), obs=Y)


def regression():
    mu = numpyro.sample("mu", dist.Normal(jnp.zeros(2), 2).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(jnp.ones(2)).to_event(1))
    corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("groups", 4):
        beta = numpyro.sample("beta", dist.MultivariateNormal(mu, scale_tril=sd[:, None] * corr))
    mean = beta[GROUP, 0] + beta[GROUP, 1] * X
    numpyro.sample("y", dist.Normal(mean, noise), obs=LINE_Y)


def covariance(amplitude, length, noise, exp=jnp.exp):
    square = (GP_X[:, None] - GP_X[None, :]) ** 2
    return amplitude**2 * exp(-0.5 * square / length**2) + (noise**2 + 1e-4) * np.eye(8)


def gp():
    amplitude = numpyro.sample("amplitude", dist.HalfNormal(1))
    length = numpyro.sample("length", dist.LogNormal(0, 0.5))
    noise = numpyro.sample("noise", dist.HalfNormal(0.5))
    cov = covariance(amplitude, length, noise)
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(8), covariance_matrix=cov), obs=GP_Y)


def mixture():
    weight = numpyro.sample("weight", dist.Beta(2, 2))
    means = numpyro.sample("means", dist.Normal(MEANS, 1).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1))
    parts = dist.Categorical(probs=jnp.stack([weight, 1 - weight]))
    with numpyro.plate("data", 20):
        numpyro.sample("y", dist.MixtureSameFamily(parts, dist.Normal(means, sd)), obs=MIXED)


NUMPYRO = {f.__name__: f for f in (centred, noncentred, regression, gp, mixture)}


def half_normal(x, scale):
    return jnp.log(2.0) + stats.norm.logpdf(x, 0, scale)


def half_cauchy(x, scale):
    return jnp.log(2.0) + stats.cauchy.logpdf(x, 0, scale)


def schools_density(x, centred):
    """Coordinates mu, log tau, and theta or z."""
    tau = jnp.exp(x["log_tau"])
    prior = stats.norm.logpdf(x["mu"], 0, 5) + half_cauchy(tau, 5) + x["log_tau"]
    if centred:
        theta, local = x["theta"], stats.norm.logpdf(x["theta"], x["mu"], tau)
    else:
        theta, local = x["mu"] + tau * x["z"], stats.norm.logpdf(x["z"])
    return prior + local.sum() + stats.norm.logpdf(Y, theta, SIGMA).sum()


def schools_variables(x):
    return {**x, "tau": jnp.exp(x["log_tau"])}


def regression_variables(x):
    rho = jnp.tanh(x["z"])
    corr = jnp.array([[1.0, 0.0], [0.0, 0.0]]).at[1].set(jnp.stack([rho, jnp.sqrt(1 - rho**2)]))
    return {**x, "sd": jnp.exp(x["log_sd"]), "corr": corr, "noise": jnp.exp(x["log_noise"])}


def regression_density(x):
    """rho = tanh z has density (1 - rho^2) / (2^3 B(2, 2)) under LKJ(2), and d rho / d z = 1 - rho^2."""
    v = regression_variables(x)
    rho = v["corr"][1, 0]
    prior = stats.norm.logpdf(x["mu"], 0, 2).sum() + (half_normal(v["sd"], 1) + x["log_sd"]).sum()
    prior += 2 * jnp.log1p(-(rho**2)) - jnp.log(8.0) - betaln(2.0, 2.0)
    prior += half_normal(v["noise"], 1) + x["log_noise"]
    scale = v["sd"][:, None] * v["corr"]
    whitened = jax.scipy.linalg.solve_triangular(scale, (x["beta"] - x["mu"][None]).T, lower=True)
    local = stats.norm.logpdf(whitened).sum() - 4 * jnp.log(jnp.diagonal(scale)).sum()
    mean = x["beta"][GROUP, 0] + x["beta"][GROUP, 1] * X
    return prior + local + stats.norm.logpdf(LINE_Y, mean, v["noise"]).sum()


def logs(*names):
    return lambda x: {**x, **{name: jnp.exp(x[f"log_{name}"]) for name in names}}


def gp_density(x):
    v = logs("amplitude", "length", "noise")(x)
    prior = (
        half_normal(v["amplitude"], 1) + x["log_amplitude"] + half_normal(v["noise"], 0.5) + x["log_noise"]
    )
    prior += stats.norm.logpdf(x["log_length"], 0, 0.5)
    cov = covariance(v["amplitude"], v["length"], v["noise"])
    return prior + stats.multivariate_normal.logpdf(jnp.asarray(GP_Y), jnp.zeros(8), cov)


def mixture_variables(x):
    return {**x, "weight": jax.nn.sigmoid(x["logit"]), "sd": jnp.exp(x["log_sd"])}


def mixture_density(x):
    v = mixture_variables(x)
    w, sd = v["weight"], v["sd"]
    prior = stats.beta.logpdf(w, 2, 2) + jnp.log(w * (1 - w)) + half_normal(sd, 1) + x["log_sd"]
    prior += stats.norm.logpdf(x["means"], MEANS, 1).sum()
    parts = jnp.log(jnp.stack([w, 1 - w]))[:, None] + stats.norm.logpdf(MIXED[None], x["means"][:, None], sd)
    return prior + logsumexp(parts, axis=0).sum()


# Log-density, a point of its argument, and the model's variables at a point.
DENSITIES = {
    "centred": (
        functools.partial(schools_density, centred=True),
        {"log_tau": 0.0, "mu": 0.0, "theta": np.zeros(8)},
        schools_variables,
    ),
    "noncentred": (
        functools.partial(schools_density, centred=False),
        {"log_tau": 0.0, "mu": 0.0, "z": np.zeros(8)},
        schools_variables,
    ),
    "regression": (
        regression_density,
        {"beta": np.zeros((4, 2)), "log_noise": 0.0, "log_sd": np.zeros(2), "mu": np.zeros(2), "z": 0.0},
        regression_variables,
    ),
    "gp": (
        gp_density,
        {"log_amplitude": 0.0, "log_length": 0.0, "log_noise": 0.0},
        logs("amplitude", "length", "noise"),
    ),
    "mixture": (
        mixture_density,
        {"log_sd": 0.0, "logit": 0.0, "means": np.zeros(2)},
        mixture_variables,
    ),
}
