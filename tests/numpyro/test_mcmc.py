"""NUTS starts from a fit: in its posterior, with its covariance, in NumPyro's own order."""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportOptionalSubscript=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC, NUTS, SVI

import dmvi
from dmvi.numpyro import AutoDiffusion, PathELBO, init_mcmc

COVARIANCE = np.array([[4.0, 1.5, 0.0], [1.5, 1.0, 0.2], [0.0, 0.2, 0.25]])


def correlated():
    """Sites in an order that is not that of their names; together N((5, 0, -2), COVARIANCE)."""
    zeta = numpyro.sample("zeta", dist.Normal(0, 1))
    alpha = numpyro.sample("alpha", dist.Normal(jnp.zeros(2), 1).to_event(1))
    z = jnp.concatenate([zeta[None], alpha])
    scale = jnp.asarray(np.linalg.cholesky(COVARIANCE))
    target = dist.MultivariateNormal(jnp.array([5.0, 0.0, -2.0]), scale_tril=scale)
    numpyro.factor("target", target.log_prob(z) - dist.Normal(0, 1).log_prob(z).sum())


@pytest.fixture(scope="module")
def posterior():
    return dmvi.fit(correlated, guide="full-rank", steps=200, progress=False)


def test_positions_and_mass_matrix_of_a_fit(posterior):
    start = init_mcmc(posterior, num_chains=3, seed=1)
    order = [1, 2, 0]  # alpha before zeta
    expected = COVARIANCE[np.ix_(order, order)]
    np.testing.assert_allclose(start.inverse_mass_matrix, expected, atol=0.25)
    assert start.init_params["alpha"].shape == (3, 2)
    assert start.init_params["zeta"].shape == (3,)
    assert init_mcmc(posterior, dense=False).inverse_mass_matrix.shape == (3,)
    assert init_mcmc(posterior).init_params["zeta"].shape == ()


def test_nuts_runs_from_it_without_adapting_its_mass(posterior):
    start = init_mcmc(posterior)
    nuts = NUTS(
        correlated,
        inverse_mass_matrix=start.inverse_mass_matrix,
        dense_mass=True,
        adapt_mass_matrix=False,
    )
    mcmc = MCMC(nuts, num_warmup=100, num_samples=1000, progress_bar=False)
    mcmc.run(jax.random.key(0), init_params=start.init_params, extra_fields=("num_steps",))
    assert float(mcmc.get_samples()["zeta"].mean()) == pytest.approx(5.0, abs=0.4)
    # In the right coordinates the target is round: few leapfrog steps a draw.
    assert float(np.mean(mcmc.get_extra_fields()["num_steps"])) < 8


def test_an_autoguide_starts_nuts_too():
    guide = AutoDiffusion(correlated)
    svi = SVI(correlated, guide, optax.adam(1e-2), PathELBO())
    params = svi.get_params(svi.init(jax.random.key(0)))
    start = init_mcmc(guide, params, num_chains=2)
    np.testing.assert_allclose(start.inverse_mass_matrix, np.eye(3), atol=0.15)
    assert start.init_params["alpha"].shape == (2, 2)
    with pytest.raises(dmvi.InputError, match="params"):
        init_mcmc(guide)


def test_what_it_refuses(posterior):
    with pytest.raises(dmvi.InputError, match="drop params"):
        init_mcmc(posterior, {})
    with pytest.raises(dmvi.InputError, match="num_chains"):
        init_mcmc(posterior, num_chains=0)
    with pytest.raises(dmvi.InputError, match=r"dmvi\.fit returned"):
        init_mcmc("posterior")
