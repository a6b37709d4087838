"""dmvi's guides as NumPyro's own: autoguides for stock SVI, a path-gradient ELBO, a start for NUTS."""

from dmvi.numpyro._autoguide import AutoChain as AutoChain
from dmvi.numpyro._autoguide import AutoDiffusion as AutoDiffusion
from dmvi.numpyro._elbo import PathELBO as PathELBO
from dmvi.numpyro._elbo import PathEnumELBO as PathEnumELBO
from dmvi.numpyro._mcmc import MCMCStart as MCMCStart
from dmvi.numpyro._mcmc import init_mcmc as init_mcmc
