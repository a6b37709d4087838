"""The solver against processes whose flow is known, and its steps against autodiff."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from dmvi.diffusion import (
    MLP,
    ORDERS,
    TAU_MAX,
    NetworkFlow,
    Projected,
    ScoreNetwork,
    Triangular,
    as_score_network,
)
from tests.guides.registry import perturbed


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


class GaussianScore(ScoreNetwork):
    """Exact residual for data N(0, v): r = sigma u (1 / (alpha^2 v + sigma^2) - 1)."""

    variance: float = eqx.field(static=True)

    def __call__(self, u, t, key=None):
        alpha, sigma = 1 / jnp.cosh(t), jnp.tanh(t)
        return sigma * u * (1 / (alpha**2 * self.variance + sigma**2) - 1)


WEIGHTS, MEANS, SD = (0.4, 0.6), (-1.0, 1.2), 0.6


class MixtureScore(ScoreNetwork):
    """Exact residual for a mixture of two normals in R^1: r = -sigma (grad log p_t + u)."""

    def __call__(self, u, t, key=None):
        alpha, sigma = 1 / jnp.cosh(t), jnp.tanh(t)

        def log_p(u):
            sd = jnp.sqrt(alpha**2 * SD**2 + sigma**2)
            terms = [
                jnp.log(w) + jax.scipy.stats.norm.logpdf(u, alpha * m, sd)
                for w, m in zip(WEIGHTS, MEANS, strict=True)
            ]
            return jax.scipy.special.logsumexp(jnp.stack(terms))

        return -sigma * (jax.grad(log_p)(u[0])[None] + u)


def slope(network, order, start, exact, steps=(16, 32, 64)):
    """The exponent p of error = C delta^p, from the finest two of the step counts."""
    errors = []
    for count in steps:
        end = jax.jit(NetworkFlow(network=network, steps=count, order=order).move)(start)
        errors.append(float(jnp.max(jnp.abs(end - exact))))
    assert errors[-1] > 1e-11  # above rounding
    return np.log2(errors[-2] / errors[-1])


@pytest.mark.parametrize("order", ORDERS)
def test_order_on_a_gaussian(order):
    """u / sqrt(alpha^2 v + sigma^2) is constant along the flow."""
    variance = 0.3
    start = jnp.asarray([1.5, -0.7])
    alpha, sigma = 1 / np.cosh(TAU_MAX), np.tanh(TAU_MAX)
    exact = start * np.sqrt(variance / (alpha**2 * variance + sigma**2))
    assert abs(slope(GaussianScore(variance), order, start, exact) - order) < 0.2


@pytest.mark.parametrize("order", ORDERS)
def test_order_on_a_mixture(order):
    """In one dimension the flow keeps the quantile: F_0(u_0) = F_T(u_T); nothing is linear here."""
    alpha, sigma = 1 / np.cosh(TAU_MAX), np.tanh(TAU_MAX)

    def distribution(u, alpha, sigma):
        sd = np.sqrt(alpha**2 * SD**2 + sigma**2)
        return sum(w * scipy.stats.norm.cdf(u, alpha * m, sd) for w, m in zip(WEIGHTS, MEANS, strict=True))

    start = 0.4
    quantile = distribution(start, alpha, sigma)
    exact = scipy.optimize.brentq(lambda u: distribution(u, 1.0, 0.0) - quantile, -5, 5, xtol=1e-14)
    assert abs(slope(MixtureScore(), order, jnp.asarray([start]), exact) - order) < 0.25


def flow_of(name: str):
    if name == "projected":
        return perturbed(
            Projected(rank=2, scale_rank=2, width=6, scale_width=6).build(4, 3, key=jr.key(0)), size=0.1
        )
    if name == "triangular":
        return perturbed(Triangular(width=3).build(4, 2, key=jr.key(0)), size=0.3)
    network = as_score_network(MLP(width=6, depth=2), 4, key=jr.key(0))
    return perturbed(NetworkFlow(network=network, steps=2, order=int(name[-1])), size=0.1)


FLOWS = ("projected", "triangular", "order 1", "order 2", "order 3")


@pytest.mark.parametrize("name", FLOWS)
def test_step_against_autodiff(name):
    """log |det|, the score and the inverse of one step, all from the dense Jacobian of `step`."""
    flow = flow_of(name)
    knot = jax.tree.map(lambda leaf: leaf[1], flow.knots())
    u, score = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)))

    def log_det(u):
        return jnp.linalg.slogdet(jax.jacfwd(lambda u: flow.step(knot, u))(u))[1]

    @jax.jit
    def both(u, score):
        jacobian = jax.jacfwd(lambda u: flow.step(knot, u))(u)
        expected = (
            flow.step(knot, u),
            log_det(u),
            jnp.linalg.solve(jacobian.T, score - jax.jacfwd(log_det)(u)),
        )
        moved = flow.step_score(knot, u, score)
        return expected, moved, flow.step_density(knot, u), flow.step_inverse(knot, moved.u)

    expected, moved, density, inverse = both(u, score)
    for left, right in zip(expected, moved, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(density[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(density[1], expected[1], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(inverse, u, rtol=1e-9, atol=1e-10)
    assert abs(float(expected[1])) > 1e-3


def test_times_run_from_the_noise_to_the_data():
    flow = NetworkFlow(network=GaussianScore(0.5), steps=4, order=1)
    np.testing.assert_allclose(flow.taus(), [2.0, 1.5, 1.0, 0.5])
    assert flow.delta == 0.5


class Linear(ScoreNetwork):
    """r(u, t) = c u: a step of size delta multiplies by 1 - delta c."""

    factor: float = eqx.field(static=True)

    def __call__(self, u, t, key=None):
        return self.factor * u


@pytest.mark.parametrize("factor", [0.4, 0.99, 1.01, 3.0])
def test_a_folding_step_has_no_density(factor):
    """With delta = 1 in R^1 the step keeps its orientation for c < 1 and turns it round for c > 1."""
    flow = NetworkFlow(network=Linear(factor), steps=2, order=1)
    u, log_det = flow.move_density(jnp.ones(1))
    moved = flow.move_path(jnp.ones(1), jnp.ones(1))
    np.testing.assert_allclose(u, (1 - factor) ** 2)
    if factor < 1:
        np.testing.assert_allclose(log_det, 2 * np.log(1 - factor))
        np.testing.assert_allclose(moved.log_det, 2 * np.log(1 - factor))
    else:
        assert np.isnan(log_det)
        assert np.isnan(moved.log_det)


def test_a_folding_projected_step_has_no_density():
    """A steep negative shift turns the line round."""
    flow = Projected(rank=1, scale_rank=1, width=4, scale_width=4, depth=1).build(1, 1, key=jr.key(0))
    steep = jnp.full((1, 4), -20.0) * jnp.sign(flow.shift.hidden.first.T * flow.v[0])
    flow = eqx.tree_at(lambda f: f.shift.out, flow, steep)
    slopes = jax.vmap(jax.jacfwd(flow.move))(jnp.linspace(-2, 2, 9)[:, None])[:, 0, 0]
    log_dets = jax.vmap(flow.move_density)(jnp.linspace(-2, 2, 9)[:, None])[1]
    assert np.any(slopes < 0)
    np.testing.assert_array_equal(np.isnan(log_dets), np.asarray(slopes) <= 0)


def test_dropout_is_for_training_only_and_its_density_is_of_the_map_taken():
    network = as_score_network(MLP(width=8, depth=3, dropout=0.5, layer_norm=True), 3, key=jr.key(0))
    flow = perturbed(NetworkFlow(network=network, steps=2, order=1), size=0.05)
    u = jnp.asarray([0.3, -0.4, 1.0])
    keys = [jr.key(1), jr.key(1), jr.key(2)]
    first, again, other = (flow.move(u, key) for key in keys)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    moved = flow.move_path(u, -u, keys[0])
    np.testing.assert_allclose(moved.u, first, rtol=1e-12)
    jacobian = jax.jacfwd(lambda u: flow.move(u, keys[0]))(u)
    np.testing.assert_allclose(moved.log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-9)
    np.testing.assert_allclose(flow.move(u), flow.move_density(u)[0], rtol=1e-12)
