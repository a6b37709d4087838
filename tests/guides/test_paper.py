"""The paper's guide: an exact density for what the solver draws, and the terms of its bound."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.stats import norm
from jaxtyping import Array

from dmvi import CosineSchedule, InputError, LinearSchedule, PaperGuide
from dmvi.diffusion import NoiseModel, NoiseSchedule, SolverFlow
from dmvi.guides import PaperDiffusion
from tests.guides.registry import DIM, as_vector, base, draw_many, perturbed

FEW = 20
RECIPES = {
    "order 1, cosine": PaperGuide(CosineSchedule(50), steps=10, order=1, width=16),
    "order 2": PaperGuide(LinearSchedule(50), steps=5, order=2, grid="uniform", width=16),
    "order 3": PaperGuide(steps=10, order=3, width=16),
}


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def guide_of(name: str) -> PaperDiffusion:
    guide = RECIPES[name].build(base(), key=jr.key(1))
    assert isinstance(guide, PaperDiffusion)
    return perturbed(guide, size=0.2)  # all weights start at 0.001


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", RECIPES)
def test_density_is_that_of_the_solvers_map(name):
    guide = guide_of(name)
    draws = draw_many(guide, FEW)

    def by_autodiff(z):
        log_det = jnp.linalg.slogdet(jax.jacfwd(guide.flow.move)(z))[1]
        return guide.flow.move(z), jnp.sum(norm.logpdf(z)) - log_det

    xi, log_q = jax.jit(jax.vmap(by_autodiff))(draws.noise)
    np.testing.assert_allclose(draws.xi, xi, rtol=1e-9)
    np.testing.assert_allclose(draws.log_q, log_q, rtol=1e-9)
    assert np.std(draws.log_q - jnp.sum(norm.logpdf(draws.noise), axis=1)) > 0.05  # not a constant factor
    if name == "order 1, cosine":  # one is enough: the inverse does not know the order, and compiles slowly
        np.testing.assert_allclose(jax.jit(jax.vmap(guide.evidence))(draws.xi), draws.log_q, rtol=1e-8)


@pytest.mark.usefixtures("double")
def test_path_gradient():
    """d log_q / d phi = (d xi / d phi)^T G with G = grad_xi log q(xi), got here by inverting the solver."""
    guide = guide_of("order 2")
    phi, rebuild = as_vector(guide)
    key = jr.key(3)
    draw = guide.draw(key)
    jacobian = jax.jacfwd(guide.flow.move)(draw.noise)
    along_noise = jax.grad(lambda z: jnp.sum(norm.logpdf(z)) - guide.flow.move_density(z)[1])(draw.noise)
    score = jnp.linalg.solve(jacobian.T, along_noise)
    expected = jax.vjp(lambda phi: rebuild(phi).flow.move(draw.noise), phi)[1](score)[0]
    gradient = jax.grad(lambda phi: rebuild(phi).draw_path(key).log_q)(phi)
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-9)


class GaussianNoise(NoiseModel):
    """sigma_t w: the exact noise prediction where theta ~ N(0, I)."""

    times: Array
    log_alphas: Array

    def __init__(self, schedule: NoiseSchedule):
        self.times, self.log_alphas = jnp.asarray(schedule.times()), jnp.asarray(schedule.log_alphas())

    def __call__(self, w, time, key=None):
        return jnp.sqrt(-jnp.expm1(2 * jnp.interp(time, self.times, self.log_alphas))) * w


def gaussian_guide(schedule: NoiseSchedule) -> PaperDiffusion:
    flow = SolverFlow(GaussianNoise(schedule), schedule, evaluations=10, order=1, grid="logsnr")
    return PaperDiffusion(flow=flow, dim=DIM)


@pytest.mark.parametrize("schedule", [LinearSchedule(50), CosineSchedule(50)], ids=["linear", "cosine"])
def test_terms_add_up_to_the_density_where_the_chain_is_exact(schedule):
    """With eps = sigma_t w the reverse chain is the forward one reversed, so that for every path
    log q(xi, w) - log r(w | xi) = log N(xi; 0, I): the bound of log q is tight."""
    guide = gaussian_guide(schedule)
    xi = jnp.asarray([0.4, -1.1, 0.7])
    draws = 40_000
    terms = jax.jit(jax.vmap(guide.denoising_terms, (None, 0)))(xi, jr.split(jr.key(0), draws))
    total = np.asarray(terms.diffusion + terms.prior + terms.reconstruction, float)
    error = total.std() / np.sqrt(draws)
    assert error < 0.2
    assert abs(total.mean() + np.sum(norm.logpdf(xi))) < 5 * error


def test_terms_bound_the_density_from_below():
    """Worse noise predictions only loosen it: the terms are above -log q, which for the chain of no
    prediction at all is that of N(0, c^2 I)."""

    class Nothing(NoiseModel):
        def __call__(self, w, time, key=None):
            return 0.0 * w

    schedule = LinearSchedule(50)
    guide = eqx.tree_at(lambda g: g.flow.network, gaussian_guide(schedule), Nothing())
    variance = 1.0
    for beta in schedule.betas()[::-1]:  # w_{t-1} = w_t / sqrt(1 - beta) + sqrt(beta) eps
        variance = variance / (1 - beta) + beta
    xi = jnp.asarray([0.4, -1.1, 0.7])
    terms = jax.jit(jax.vmap(guide.denoising_terms, (None, 0)))(xi, jr.split(jr.key(0), 800_000))
    total = np.asarray(terms.diffusion + terms.prior + terms.reconstruction, float)
    assert total.mean() > -np.sum(norm.logpdf(xi, 0, np.sqrt(variance))) + 5 * total.std() / 800_000**0.5


def test_forward_noise_has_the_marginals_of_the_schedule():
    """The simple term shows the network w_t = alpha_t xi + sigma_t eps: a network that answers w / sigma_t
    misses (alpha_t / sigma_t) xi, whatever eps was."""

    class Echo(NoiseModel):
        times: Array
        log_alphas: Array

        def __call__(self, w, time, key=None):
            return w / jnp.sqrt(-jnp.expm1(2 * jnp.interp(time, self.times, self.log_alphas)))

    schedule = LinearSchedule(50)
    known = GaussianNoise(schedule)
    guide = gaussian_guide(schedule)
    guide = eqx.tree_at(lambda g: g.flow.network, guide, Echo(known.times, known.log_alphas))
    xi = jnp.asarray([0.4, -1.1, 0.7])
    simple = jax.vmap(guide.denoising_terms, (None, 0))(xi, jr.split(jr.key(0), 2000)).simple
    expected = np.exp(2 * schedule.log_snr(schedule.times())) * np.sum(np.asarray(xi) ** 2)
    found = np.sort(np.unique(np.round(np.asarray(simple, float), 4)))
    nearest = np.min(np.abs(found[:, None] / expected[None, :] - 1), axis=1)
    assert np.max(nearest) < 2e-3
    hit = np.min(np.abs(np.asarray(simple, float)[None, :] / expected[:, None] - 1), axis=1)
    assert np.max(hit) < 2e-3  # every t = 1..T comes up


def test_wrong_choices_are_refused():
    for keywords, match in (
        ({"schedule": "linear"}, "schedule"),
        ({"steps": 0}, "steps"),
        ({"order": 4}, "order"),
        ({"grid": "cosine"}, "grid"),
        ({"dropout": 1.0}, "dropout"),
    ):
        with pytest.raises(InputError, match=match):
            PaperGuide(**keywords)  # pyright: ignore[reportArgumentType]
