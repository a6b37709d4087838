"""The five models in PyMC."""

# PyMC and PyTensor declare few of their names and types.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt

from tests.targets.programs import COMMON, GP_Y, GROUP, LINE_Y, MEANS, MIXED, SIGMA, X, Y, covariance, flat


def centred():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, SIGMA, observed=Y)
    return model


def noncentred():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, shape=8)
        pm.Normal("y", mu + tau * z, SIGMA, observed=Y)
    return model


def regression():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1, shape=2))
        # PyMC adds the logarithm of LKJ's normaliser, 2^3 B(2, 2) = 4/3, where the density divides by it.
        pm.Potential("normaliser", pt.constant(-2 * np.log(4 / 3)))
        noise = pm.HalfNormal("noise", 1)
        beta = pm.MvNormal("beta", mu, chol=chol, shape=(4, 2))
        pm.Normal("y", beta[GROUP, 0] + beta[GROUP, 1] * X, noise, observed=LINE_Y)
    return model


def gp():
    with pm.Model() as model:
        amplitude, length = pm.HalfNormal("amplitude", 1), pm.LogNormal("length", 0, 0.5)
        noise = pm.HalfNormal("noise", 0.5)
        pm.MvNormal("y", pt.zeros(8), cov=covariance(amplitude, length, noise, pt.exp), observed=GP_Y)
    return model


def mixture():
    with pm.Model() as model:
        weight, sd = pm.Beta("weight", 2, 2), pm.HalfNormal("sd", 1)
        means = pm.Normal("means", MEANS, 1, shape=2)
        parts = pm.Normal.dist(means, sd)
        pm.Mixture("y", w=pt.stack([weight, 1 - weight]), comp_dists=parts, observed=MIXED)
    return model


MODELS = {f.__name__: f for f in (centred, noncentred, regression, gp, mixture)}


def _chol(v):
    """PyMC names the scaled triangle, as a packed vector or, from PyMC 6 on, as a matrix."""
    chol = jnp.asarray(v["chol"])
    return chol if chol.ndim == 1 else jnp.stack([chol[0, 0], chol[1, 0], chol[1, 1]])


VARIABLES = {**COMMON, "regression": lambda v: flat(v["mu"], _chol(v), v["beta"], v["noise"])}
