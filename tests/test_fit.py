"""fit() from end to end: exact posteriors, repeatability, and mistakes that are told at once."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import dmvi
from dmvi import MLP, ChainGuide, DiffusionGuide, InputError, Projected, Status
from dmvi._choice import CHOICE
from dmvi._fit import training_settings
from dmvi.guides import Chain, Diffusion, LowRankAffine

Y = np.random.default_rng(0).normal(1.0, 1.0, size=20)
SMALL = DiffusionGuide(steps=2, network=Projected(rank=1, scale_rank=1, width=4, scale_width=4, depth=1))


def conjugate(y):
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def exact(y) -> tuple[float, float, float]:
    """Posterior mean and standard deviation, and the log evidence, of `conjugate`."""
    precision = 1 / 4 + len(y)
    covariance = np.eye(len(y)) + 4.0
    log_evidence = -0.5 * (
        y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1] + len(y) * np.log(2 * np.pi)
    )
    return y.sum() / precision, precision**-0.5, log_evidence


def fit(model, **options) -> dmvi.Posterior:
    return dmvi.fit(model, **{"steps": 96, "progress": False, **options})


class Counted:
    """A correlated Gaussian that counts how often Python runs it."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return -0.5 * (x[0] ** 2 + (x[1] - x[0]) ** 2 / 0.25)


@pytest.fixture(scope="module")
def counted():
    """Fits of one density: a short one, its repetition, and one with ten times the steps."""
    densities = [Counted() for _ in range(3)]
    fits = [
        fit(density, init=jnp.zeros(2), guide="full-rank", steps=steps)
        for density, steps in zip(densities, (64, 64, 640), strict=True)
    ]
    return densities, fits


def test_log_density_is_traced_a_fixed_number_of_times(counted):
    densities, fits = counted
    assert fits[2].run.steps > 4 * fits[0].run.steps
    assert densities[0].calls == densities[1].calls == densities[2].calls
    assert densities[0].calls < 20


def test_same_seed_same_posterior_bit_for_bit(counted):
    _, (first, again, _) = counted
    np.testing.assert_array_equal(first.sample(100)["x"], again.sample(100)["x"])
    assert first.diagnostics.elbo == again.diagnostics.elbo
    np.testing.assert_array_equal(first.run.history, again.run.history)


def test_posterior_of_a_conjugate_model():
    posterior = fit(conjugate, data={"y": Y}, guide=SMALL, seed=3)
    mean, sd, log_evidence = exact(Y)
    draws = posterior.sample(20_000)["theta"]
    assert abs(draws.mean() - mean) < 0.05 * sd
    assert abs(draws.std() / sd - 1) < 0.03
    assert abs(posterior.diagnostics.log_evidence - log_evidence) < 0.01
    assert abs(posterior.diagnostics.elbo - log_evidence) < 0.01
    assert posterior.run.seed == 3
    assert posterior.run.guide_name == "diffusion"
    assert posterior.run.steps <= 96


def test_generative_parameters_are_learned():
    """y ~ N(theta, 1), theta ~ N(psi, 1): the evidence N(psi, I + 1 1^T) is largest at psi = mean y."""

    def model(y):
        psi = numpyro.param("psi", 0.0)
        theta = numpyro.sample("theta", dist.Normal(psi, 1.0))
        numpyro.sample("y", dist.Normal(theta, 1.0).expand([len(y)]), obs=y)

    posterior = fit(model, data={"y": Y}, guide="full-rank", steps=192)
    sd = (len(Y) + 1) ** -0.5
    assert abs(posterior.params["psi"] - Y.mean()) < 0.02
    draws = posterior.sample(20_000)["theta"]
    assert abs(draws.mean() - Y.mean()) < 0.1 * sd
    assert abs(draws.std() / sd - 1) < 0.05


def test_minibatches_recover_the_exact_posterior():
    y = np.random.default_rng(1).normal(0.5, 1.0, size=200)

    def model(y):
        theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
        with numpyro.plate("n", len(y), subsample_size=50) as index:
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y[index])

    posterior = fit(model, data={"y": y}, guide="mean-field", steps=192)
    mean, sd, log_evidence = exact(y)
    draws = posterior.sample(20_000)["theta"]
    assert abs(draws.mean() - mean) < 0.25 * sd
    assert abs(draws.std() / sd - 1) < 0.1
    # Judged on the full data, whatever it was trained on.
    assert abs(posterior.diagnostics.log_evidence - log_evidence) < 0.05


def banana(x):
    return -0.5 * (x[0] ** 2 + (x[1] - 0.5 * x[0] ** 2) ** 2 / 0.25)


BANANA_LOG_EVIDENCE = np.log(2 * np.pi * 0.5)


@pytest.mark.slow
def test_network_with_dropout_and_layer_norm_in_double_precision():
    guide = DiffusionGuide(steps=2, network=MLP(width=6, depth=2, dropout=0.1, layer_norm=True))
    with jax.enable_x64(True):
        posterior = fit(banana, init=jnp.zeros(2), guide=guide)
        assert posterior.sample(10)["x"].dtype == np.float64
        assert posterior.guide.draw(jr.key(0)).log_q.dtype == jnp.float64
        assert posterior.diagnostics.elbo <= BANANA_LOG_EVIDENCE + 0.01
        # Draws are made without dropout, and inverted to the last digits.
        assert posterior.diagnostics.round_trip_error < 1e-8


class UserNetwork(eqx.Module):
    """A user's network made of Equinox's own parts, activation functions included."""

    layers: eqx.nn.MLP

    def __call__(self, u, t):
        return self.layers(jnp.append(u, t))


def test_equinox_network_of_a_user():
    network = UserNetwork(eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=jr.key(0)))
    posterior = fit(banana, init=jnp.zeros(2), guide=DiffusionGuide(steps=2, network=network))
    assert posterior.diagnostics.elbo <= BANANA_LOG_EVIDENCE + 0.01
    assert np.isfinite(posterior.sample(100)["x"]).all()


def test_chain_with_the_target_s_slope():
    """Trained, weighed and judged as any guide, but for the round trip that it has not."""
    posterior = fit(banana, init=jnp.zeros(2), guide=ChainGuide(steps=2, width=4, depth=1, score=True))
    diagnostics = posterior.diagnostics
    assert diagnostics.elbo <= BANANA_LOG_EVIDENCE + 0.01
    assert abs(diagnostics.log_evidence - BANANA_LOG_EVIDENCE) < 0.1
    assert np.isnan(diagnostics.round_trip_error)
    assert "whole paths" in repr(posterior)
    assert isinstance(posterior.guide, Chain)
    assert posterior.guide.log_density is not None


def test_base_of_low_rank_in_high_dimension(monkeypatch):
    """Above DENSE_DIMENSION, here 1, unless a Gaussian of a certain kind was asked for."""
    monkeypatch.setattr("dmvi._start.DENSE_DIMENSION", 1)
    posterior = fit(banana, init=jnp.zeros(2), guide=SMALL)
    assert isinstance(posterior.guide, Diffusion)
    assert isinstance(posterior.guide.affine, LowRankAffine)
    assert abs(posterior.diagnostics.log_evidence - BANANA_LOG_EVIDENCE) < 0.1
    assert posterior.diagnostics.round_trip_error < 1e-2


def test_time_limit_ends_training():
    posterior = fit(banana, init=jnp.zeros(2), guide="full-rank", steps=1_000_000, time_limit=1e-3)
    assert posterior.run.status in (Status.TIME_LIMIT, Status.WARM_START)
    assert posterior.run.steps < 1_000_000


MISTAKES = {
    "unknown guide": {"guide": "difusion"},
    "guide of a wrong type": {"guide": 3},
    "a class in place of a recipe": {"guide": DiffusionGuide},
    "no steps": {"steps": 0},
    "negative steps": {"steps": -5},
    "steps as a float": {"steps": 100.0},
    "steps as a truth value": {"steps": True},
    "no particles": {"particles": 0},
    "negative seed": {"seed": -1},
    "seed as text": {"seed": "0"},
    "seed as a float": {"seed": 0.5},
    "seed too large": {"seed": 2**70},
    "no time": {"time_limit": 0.0},
    "time that is not a number": {"time_limit": float("nan")},
    "time as text": {"time_limit": "60"},
    "optimizer by name": {"optimizer": "adam"},
    "optimizer not called": {"optimizer": optax.adam},
    "objective by name": {"objective": "elbo"},
    "objective not called": {"objective": dmvi.objectives.PathELBO},
    "data with a log-density": {"data": {"y": 1.0}},
    "network of too few outputs": {"guide": DiffusionGuide(network=({}, lambda params, u, t: u[:1]))},
    "network that cannot be called": {"guide": DiffusionGuide(network=({}, lambda params, u: u))},
    "network of a wrong type": {"guide": DiffusionGuide(network="mlp")},
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_before_any_work(name, monkeypatch):
    """An InputError, and before the warm start, which takes seconds."""

    def too_late(*args, **options):
        pytest.fail("the warm start ran first")

    monkeypatch.setattr("dmvi._start.warm_start", too_late)
    with pytest.raises(InputError):
        fit(banana, init=jnp.zeros(2), **MISTAKES[name])


def test_unknown_keyword():
    with pytest.raises(TypeError, match="learning_rate"):
        dmvi.fit(banana, init=jnp.zeros(2), learning_rate=0.1)  # pyright: ignore[reportCallIssue]


def test_an_error_names_the_guides_there_are():
    with pytest.raises(InputError, match=r'"mean-field".*difusion'):
        fit(banana, init=jnp.zeros(2), guide="difusion")


def test_whole_numbers_of_numpy_are_numbers(monkeypatch):
    """len(y) // 2, np.int64 and the like come up in scripts."""

    class Reached(Exception):
        pass

    def reached(*args, **options):
        raise Reached

    monkeypatch.setattr("dmvi._start.warm_start", reached)
    with pytest.raises(Reached):
        fit(banana, init=jnp.zeros(2), seed=np.int64(3), steps=np.int32(50), particles=np.int64(8))


def test_defaults_are_counted_by_the_dimension():
    """Up to 2,000 dimensions as ever; above, steps times dimension stay about the same."""
    assert [(CHOICE.most_steps(dim), CHOICE.draws(dim)) for dim in (64, 65, 200, 201, 2000)] == [
        (3600, 32), (3600, 64), (3600, 64), (2400, 48), (2400, 48),
    ]  # fmt: skip
    for dim in (2001, 5000, 10_000, 15_000):
        assert CHOICE.draws(dim) == 16
        assert 0.9 < CHOICE.most_steps(dim) * dim / 2_400_000 <= 1
    assert CHOICE.most_steps(1_000_000) == 120


@pytest.mark.parametrize("dim", [2001, 10_000, 1_000_000])
@pytest.mark.parametrize("steps", [1, 50, None])
def test_training_in_many_dimensions_does_not_begin_with_its_end(dim, steps):
    """The rate falls over the last half at most, so that a chunk fits in before."""
    steps = CHOICE.most_steps(dim) if steps is None else steps
    settings = training_settings(DiffusionGuide(), steps, CHOICE.draws(dim), None, None, dim)
    assert settings.chunk >= 1
    assert settings.cooldown_steps >= 1
    assert settings.chunk + settings.cooldown_steps <= max(steps, 2)
