"""The autoguide, trained by stock SVI with the path gradient, reaches what `fit` reaches."""

import jax
import numpy as np
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO

import dmvi
from dmvi.numpyro import AutoDiffusion, PathELBO
from tests.targets.models import SIGMA, Y, eight_schools

UPDATES = 10_000


@pytest.mark.slow
def test_svi_reaches_the_elbo_of_fit():
    """Both ELBOs on 20,000 fresh draws; their standard errors are below 0.003."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 100, UPDATES)
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))
    guide = AutoDiffusion(eight_schools)
    svi = SVI(eight_schools, guide, optimizer, PathELBO(num_particles=16))
    result = svi.run(jax.random.key(0), UPDATES, SIGMA, Y, progress_bar=False)
    assert np.isfinite(result.losses).all()
    fresh = Trace_ELBO(num_particles=20_000)
    elbo = -float(np.asarray(fresh.loss(jax.random.key(1), result.params, eight_schools, guide, SIGMA, Y)))
    posterior = dmvi.fit(eight_schools, data={"sigma": SIGMA, "y": Y}, seed=0, progress=False)
    print(f"SVI {elbo:.4f}, fit {posterior.diagnostics.elbo:.4f}, se {posterior.diagnostics.elbo_se:.4f}")
    assert elbo == pytest.approx(posterior.diagnostics.elbo, abs=0.02)
