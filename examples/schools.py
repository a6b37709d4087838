# %% [markdown]
# # From a model to a report: the eight schools
#
# Eight schools coached their pupils for a test; each reports an estimated effect and its standard error.
# Did coaching help, and did it help more in some schools than in others?
#
# The data come with ArviZ itself: `arviz_base.load_arviz_data("centered_eight")` reads a file of the
# package, nothing is downloaded. Run this file as a script, or open it as a notebook with Jupytext.
# `STEPS=100` in the environment makes it quick and rough.

# %%
import os

import arviz_base
import numpy as np
import numpyro
import numpyro.distributions as dist
from arviz_stats.loo import loo

import dmvi

STEPS = int(os.environ.get("STEPS", "3600"))

shipped = arviz_base.load_arviz_data("centered_eight")
schools = [str(name) for name in shipped["observed_data"]["school"].values]
data = {
    "y": shipped["observed_data"]["obs"].values,
    "sigma": shipped["constant_data"]["sigma"].values,
}


# %% [markdown]
# ## Two models
#
# Either every school has an effect of its own, drawn around a common mean, or one effect is all there is.


# %%
def hierarchical(sigma, y):
    """School effects around a common mean, in the centred form whose funnel is hard for Gaussians."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def pooled(sigma, y):
    """One effect for all schools."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    with numpyro.plate("school", len(sigma)):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


# %% [markdown]
# ## Fit, and read the verdict
#
# Printing a posterior says first whether to trust it, then why, then what to do next.

# %%
posterior = dmvi.fit(hierarchical, data=data, seed=0, steps=STEPS, progress=False)
print(posterior)

# %%
print(posterior.summary())

# %% [markdown]
# ## Before and after the data
#
# Prior-predictive draws say what the model expected, posterior-predictive draws what it makes of the data.
# The last line asks about another measurement at the first two schools, with a standard error of 5.

# %%
before = posterior.predictive(seed=1, prior=True)["y"]
after = posterior.predictive(seed=1)["y"]
print("spread of the first school's effect, expected before:", before[:, 0].std().round(1))
print("and after:", after[:, 0].std().round(1))
more = posterior.predictive(seed=1, data={"sigma": np.full(8, 5.0)})["y"][:, :2]
print("next time, 90 % of", schools[:2], np.quantile(more, (0.05, 0.95), axis=0).round(1).tolist())

# %% [markdown]
# ## A question of one's own
#
# The probability that coaching at the first school beats that at the third, with the error of the estimate.

# %%
better = posterior.expectation(lambda draw: draw["theta"][0] > draw["theta"][2])
print(f"P(theta_0 > theta_2) = {better.value:.3f} +- {better.se:.3f}")

# %% [markdown]
# ## ArviZ
#
# The plate gave the dimension its name; the schools' own names become its coordinates.

# %%
tree = posterior.to_arviz(coords={"school": schools})
print(tree["posterior"]["theta"].sel(school="Choate").mean().item())
print(loo(tree))

# %% [markdown]
# ## Which model?

# %%
simple = dmvi.fit(pooled, data=data, seed=0, steps=STEPS, guide="full-rank", progress=False)
print(dmvi.compare({"hierarchical": posterior, "pooled": simple}))

# %% [markdown]
# ## Keep it, show it
#
# The file holds plain arrays and JSON. The page opens in any browser, offline.

# %%
posterior.save("schools.dmvi")
again = dmvi.load("schools.dmvi", hierarchical, data=data)
assert np.array_equal(again.sample(10)["theta"], posterior.sample(10)["theta"])
posterior.plot_diffusion("tau", "theta[0]", gif="schools.gif").savefig("schools.png")
print("wrote", posterior.report("schools.html"))
