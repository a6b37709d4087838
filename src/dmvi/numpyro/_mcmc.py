"""NUTS started from a fit."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from dmvi._errors import InputError
from dmvi._random import children
from dmvi.numpyro._autoguide import AutoRecipe
from dmvi.posterior import Posterior

DRAWS = 4000  # behind the mass matrix
_LEAST = 1e-6  # of the largest variance, added to each so that the matrix is positive definite


class MCMCStart(NamedTuple):
    """Where NUTS starts.

    Attributes:
        init_params: unconstrained positions by site, for `MCMC.run(..., init_params=...)`; with more
            than one chain the chains lead.
        inverse_mass_matrix: covariance of the fit in unconstrained coordinates, or its diagonal, in NumPyro's
            own order of sites; for `NUTS(..., inverse_mass_matrix=..., dense_mass=...)`.
    """

    init_params: dict[str, Array]
    inverse_mass_matrix: Float[Array, "..."]


def init_mcmc(
    fit: Posterior | AutoRecipe,
    params: dict[str, Any] | None = None,
    *,
    num_chains: int = 1,
    seed: int = 0,
    dense: bool = True,
) -> MCMCStart:
    """Positions and mass matrix for NUTS from a fit of the same model.

    Args:
        fit: what `dmvi.fit` returned for a NumPyro model, or an autoguide of this module.
        params: trained parameters, with an autoguide only.
        num_chains: chains to start; each position is a draw of the fit.
        seed: chooses the draws.
        dense: covariance (for `dense_mass=True`) or variances only.

    Example:
        >>> start = dmvi.numpyro.init_mcmc(posterior, num_chains=4)
        >>> nuts = NUTS(model, inverse_mass_matrix=start.inverse_mass_matrix, dense_mass=True)
        >>> MCMC(nuts, num_warmup=200, num_samples=1000, num_chains=4).run(key, init_params=start.init_params)
    """
    if isinstance(num_chains, bool) or not isinstance(num_chains, int) or num_chains < 1:
        raise InputError(f"num_chains must be an integer of at least 1, got {num_chains!r}.")
    sites = _unconstrained(fit, params, seed, DRAWS + num_chains)
    # NumPyro flattens sites in the order of their names.
    flat = np.concatenate(
        [np.reshape(sites[name], (DRAWS + num_chains, -1)) for name in sorted(sites)], axis=1
    )
    flat = flat[num_chains:].astype(np.float64)
    variance = flat.var(axis=0, ddof=1) + _LEAST * flat.var(axis=0, ddof=1).max()
    covariance = np.atleast_2d(np.cov(flat, rowvar=False))
    matrix = covariance - np.diag(np.diagonal(covariance)) + np.diag(variance) if dense else variance
    positions = {name: value[0] if num_chains == 1 else value[:num_chains] for name, value in sites.items()}
    dtype = jnp.result_type(float)
    return MCMCStart(jax.tree.map(jnp.asarray, positions), jnp.asarray(matrix, dtype))


def _unconstrained(
    fit: Posterior | AutoRecipe, params: dict[str, Any] | None, seed: int, n: int
) -> dict[str, np.ndarray]:
    """n draws of every latent site in unconstrained coordinates."""
    if isinstance(fit, Posterior):
        if params is not None:
            raise InputError("A Posterior holds its parameters already; drop params.")
        key, _ = children(jr.key(seed), 2)
        xi = fit.guide.sample(key, (n,))
        return jax.tree.map(np.asarray, jax.vmap(fit.target.unpack)(xi))
    if not isinstance(fit, AutoRecipe):
        raise InputError(
            "init_mcmc takes what dmvi.fit returned, or an autoguide of dmvi.numpyro with its params; "
            f"got an object of type {type(fit).__name__}."
        )
    if params is None:
        raise InputError("init_mcmc needs the trained params of the autoguide: svi_result.params.")
    xi = fit.get_guide(params).sample(jr.key(seed), (n,))
    return jax.tree.map(np.asarray, jax.vmap(fit._unpack_latent)(xi))
