"""The paper's objective: the signs it says it has, and what they do to the mean model."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import dmvi
from dmvi.guides import PaperDiffusion
from dmvi.objectives import Paper
from tests.guides.registry import base, target

GUIDE = dmvi.PaperGuide(dmvi.LinearSchedule(50), steps=10, order=1, width=64)


def terms(objective: Paper):
    guide = GUIDE.build(base(), key=jr.key(0))
    assert isinstance(guide, PaperDiffusion)
    return objective(guide, target("gaussian"), jr.split(jr.key(1), 64), None, None)


def test_signs():
    """loss = -mean log pi +- mean L, on the same draws."""
    code, printed = terms(Paper()), terms(Paper(sign="printed"))
    np.testing.assert_array_equal(code.log_weights, printed.log_weights)  # log pi + L
    denoising = 0.5 * (code.loss - printed.loss)
    np.testing.assert_allclose(jnp.mean(code.log_weights), -printed.loss, rtol=1e-5)
    assert abs(denoising / 3 - 1) < 0.5  # L = E ||eps||^2 = d where nothing is predicted


def test_terms_are_added():
    with_all = terms(Paper(prior=True, reconstruction=True)).loss
    with_prior = terms(Paper(prior=True)).loss
    assert with_prior > terms(Paper()).loss  # a divergence
    assert with_all != with_prior
    assert terms(Paper(simplified=False)).loss != terms(Paper()).loss


def test_other_guides_are_refused():
    with pytest.raises(dmvi.InputError, match="PaperGuide"):
        dmvi.fit(lambda x: -jnp.sum(x**2), init=jnp.zeros(2), objective=Paper(), progress=False)
    with pytest.raises(dmvi.InputError, match="sign"):
        Paper(sign="minus")


N = 100


def fit_mean_model(**keywords) -> tuple[dmvi.Posterior, np.ndarray]:
    """y_n ~ N(mu, I), mu ~ N(0, I) in R^2, and draws less the exact mean; the exact sd is 1 / sqrt(N + 1)."""
    rng = np.random.default_rng(0)
    y_mean = jnp.asarray(rng.normal(size=2) + rng.normal(size=(N, 2)).mean(0))

    def log_density(mu):
        return -0.5 * jnp.sum(mu**2) - 0.5 * N * jnp.sum((mu - y_mean) ** 2)

    with (
        jax.numpy_rank_promotion("allow"),
        pytest.warns(UserWarning, match="docs/paper.md") as told,
    ):
        posterior = dmvi.fit(
            log_density, init=jnp.zeros(2), guide=GUIDE, steps=600, particles=16, progress=False, **keywords
        )
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    return posterior, np.asarray(posterior.sample(2000)["x"]) - np.asarray(y_mean) * N / (N + 1)


def test_the_sign_of_the_code_contracts_the_guide():
    """By default, as published: a spread below a third of the exact, and the verdict says so."""
    posterior, draws = fit_mean_model()
    assert np.all(draws.std(axis=0) < 1 / 3 / np.sqrt(N + 1))
    assert posterior.judgement.verdict.name == "DO_NOT_TRUST"


def test_the_printed_sign_diverges():
    """As printed: the guide denoises ever worse, at the cost of the fit to the data."""
    _, draws = fit_mean_model(objective=Paper(sign="printed"))
    assert np.sqrt(np.mean(draws**2)) > 3 / np.sqrt(N + 1)  # one sd for the exact posterior
