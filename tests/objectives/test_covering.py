"""The covering objective: where it sends its draws, and that it is still exact there."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from dmvi.guides import Gaussian, anchored
from dmvi.guides._noise import EVENNESS, REACH, spread
from dmvi.objectives import CoveringELBO, PathELBO
from dmvi.objectives._covering import EVERYWHERE, FAR, LEAST_WEIGHT, MOST, PRIOR_DRAWS, Attention
from dmvi.targets import Target, from_log_density
from tests.guides.registry import DIM, as_vector, base, exact_gaussian, perturbed, target, trained_like


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def gradient(objective, guide, model, keys, batch=None, memory=None):
    phi, rebuild = as_vector(guide)
    memory = objective.memory(DIM) if memory is None else memory
    return jax.jit(jax.grad(lambda phi: objective(rebuild(phi), model, keys, batch, memory).loss))(phi)


def attention(above, below=(0.0, 0.0, 0.0)) -> Attention:
    """A memory of draws whose mean weight far out, on either side, is 1 + excess."""
    draws = jnp.full((2, len(above)), 1e4)
    return Attention(draws, draws * (1 + jnp.asarray([below, above])), jnp.asarray(0.3))


@pytest.mark.parametrize("side", [-1, 1])
def test_spread_noise_is_nearly_even_and_ends_at_the_reach(side):
    z = jnp.asarray(np.random.default_rng(0).normal(size=(100_000, 2)))
    moved = np.asarray(jax.vmap(spread, (0, None))(z, jnp.array([side, 0])))
    np.testing.assert_array_equal(moved[:, 1], z[:, 1])
    assert 0 <= (side * moved[:, 0]).min() < (side * moved[:, 0]).max() <= REACH
    # P(|REACH erf(z / sqrt(2) EVENNESS)| > 3) from the normal quantile of where it reaches 3.
    edge = EVENNESS * norm.ppf(0.5 + 0.5 * 3 / REACH)
    np.testing.assert_allclose(np.mean(np.abs(moved[:, 0]) > 3), 2 * norm.sf(edge), rtol=0.03)
    assert 2 * norm.sf(edge) > 20 * 2 * norm.sf(3)  # far more than the noise's own


@pytest.mark.parametrize("name", ["full-rank", "projected, narrow"])
def test_a_far_draw_has_the_density_of_the_guide_itself(name):
    """log_q of a draw made far out is what `evidence` gives at that point."""
    guide = trained_like(name)
    far = jnp.array([0, -1, 0])
    draws = jax.jit(jax.vmap(lambda key: guide.draw_path(key, far)))(jr.split(jr.key(0), 50))
    assert draws.noise[:, 1].max() < 0
    assert draws.noise[:, 1].min() < -3
    np.testing.assert_allclose(draws.log_q, jax.jit(jax.vmap(guide.evidence))(draws.xi), rtol=1e-8, atol=1e-8)


def test_gradient_vanishes_for_an_exact_guide_wherever_draws_are_sent():
    keys = jr.split(jr.key(0), 64)
    memory = attention([2.0, 0.0, 0.5])
    assert np.abs(memory.sent(64)).sum() > 20
    exact = gradient(CoveringELBO(), exact_gaussian(), target("gaussian"), keys, memory=memory)
    np.testing.assert_allclose(exact, 0, atol=1e-9)
    wrong = gradient(
        CoveringELBO(), perturbed(exact_gaussian(), size=0.1), target("gaussian"), keys, memory=memory
    )
    assert np.abs(wrong).max() > 0.05


def test_shares_follow_the_missing_mass():
    usual = EVERYWHERE / 6
    even = np.asarray(attention([0.0, 0.01, -0.3]).shares())
    np.testing.assert_allclose(even, usual)  # what is tolerated, or too heavy, draws no attention
    one = np.asarray(attention([0.0, 4.0, 0.0]).shares())
    np.testing.assert_allclose(one, [[usual, usual, usual], [usual, usual + MOST, usual]])
    two = np.asarray(attention([1.03, 0.0, 0.0], below=[0.0, 4.03, 0.0]).shares() - usual)
    np.testing.assert_allclose(two, [[0.0, MOST * 0.8, 0.0], [MOST * 0.2, 0.0, 0.0]], atol=1e-12)


def test_systematic_sampling_gives_every_side_its_share():
    memory = attention([0.1, 0.02, 0.4], below=[0.0, 0.3, 0.0])
    total = np.zeros((2, 3))
    for step in range(400):
        sent = np.asarray(memory._replace(phase=jnp.asarray((0.618034 * step) % 1.0)).sent(32))
        assert np.all(np.abs(sent).sum(axis=1) <= 1)
        total += [(sent == -1).sum(axis=0), (sent == 1).sum(axis=0)]
    np.testing.assert_allclose(total / (400 * 32), memory.shares(), atol=2e-3)


def test_memory_finds_the_side_that_lacks_mass():
    """Draws of N(0, I) weighed against a law whose second coordinate has sd 1.3 above zero."""
    rng = np.random.default_rng(0)
    memory = CoveringELBO().memory(3)
    np.testing.assert_allclose(memory.weights / memory.draws, 1.0)
    for _ in range(300):
        z = rng.normal(size=(32, 3))
        scale = np.where(z[:, 1] > 0, 1.3, 1.0)
        # Two halves of normals, each with half of the mass.
        log_w = norm.logpdf(z[:, 1], 0, scale) - norm.logpdf(z[:, 1])
        weights = np.exp(log_w) / np.exp(log_w).mean()
        memory = memory.after(jnp.asarray(weights), jnp.asarray(z))
    mean = np.asarray(memory.weights / memory.draws)
    assert mean[1, 1] > 1.5
    np.testing.assert_allclose(mean[[0, 0, 0, 1, 1], [0, 1, 2, 0, 2]], 1.0, atol=0.15)
    # Counts fade: 300 steps of 32 draws, each weighted by exp(-age / 500), and what was there before.
    expected = 32 * norm.sf(FAR) * np.exp(-np.arange(300) / 500).sum() + PRIOR_DRAWS * np.exp(-0.6)
    np.testing.assert_allclose(memory.draws, expected, rtol=0.25)


def light_tailed() -> Gaussian:
    """The Gaussian target's own guide but for its second coordinate, which is too narrow."""
    guide = exact_gaussian()
    return eqx.tree_at(lambda g: g.affine.log_diagonal, guide, replace_fn=lambda x: x.at[1].add(-0.3))


def test_training_steps_teach_the_memory():
    memory, model, guide = CoveringELBO().memory(DIM), target("gaussian"), light_tailed()
    step = jax.jit(lambda keys, memory: CoveringELBO()(guide, model, keys, None, memory).memory)
    for i in range(200):
        memory = step(jr.split(jr.key(i), 32), memory)
    shares = np.asarray(memory.shares())
    assert shares[:, 1].min() > 3 * shares[:, [0, 2]].max()


@pytest.mark.parametrize("reason", ["minibatch", "generative parameters"])
def test_covering_is_the_path_elbo_where_weights_mean_nothing(reason):
    guide, model = Gaussian(affine=perturbed(base()), dim=DIM), target("gaussian")
    if reason == "generative parameters":
        model = dataclasses.replace(model, params={"psi": jnp.zeros(())})
    batch = {"n": jnp.arange(2)} if reason == "minibatch" else None
    keys, memory = jr.split(jr.key(0), 64), attention([2.0, 0.0, 0.5])
    results = [
        gradient(objective, guide, model, keys, batch, memory) for objective in (CoveringELBO(), PathELBO())
    ]
    # Two programs for one formula: XLA may round them differently in the last place.
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)


def cliff(edge: float) -> Target:
    """A standard normal whose density overflows, value and slope, beyond `edge` of its first coordinate."""
    return from_log_density(
        lambda x: -0.5 * jnp.sum(x**2) - jnp.exp(1e6 * (x[0] - edge)), jnp.full(DIM, edge - 2.0)
    )


def test_draws_sent_where_the_density_overflows_are_left_out():
    """The loss and its gradient are those of the other draws; the guide's own overflow still shows."""
    guide = Gaussian(affine=anchored(jnp.zeros(DIM), jnp.ones(DIM), full=False), dim=DIM)
    keys, memory = jr.split(jr.key(0), 64), attention([5.0, 0.0, 0.0])
    value = CoveringELBO()(guide, cliff(2.5), keys, None, memory)
    lost = ~np.isfinite(np.asarray(value.log_weights))
    assert 3 < lost.sum() < 30
    assert np.all(np.any(np.asarray(memory.sent(64)), axis=1)[lost])
    # A standard normal whose guide is exact: no weight but those of the lost is small.
    np.testing.assert_allclose(value.loss, -np.mean(np.asarray(value.log_weights)[~lost]), rtol=1e-12)
    wide = perturbed(guide, size=0.1)
    slope = gradient(CoveringELBO(), wide, cliff(2.5), keys, memory=memory)
    assert np.all(np.isfinite(slope))
    assert np.abs(slope).max() > 0.01
    assert not np.isfinite(CoveringELBO()(guide, cliff(-0.5), keys, None, memory).loss)


def test_draws_sent_where_there_is_hardly_any_mass_are_left_out():
    """A guide ten times too wide: its own draws count whatever they weigh, those sent out do not."""
    guide = Gaussian(affine=anchored(jnp.zeros(DIM), jnp.full(DIM, 10.0), full=False), dim=DIM)
    keys, memory = jr.split(jr.key(0), 64), attention([5.0, 0.0, 0.0])
    model = from_log_density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(DIM))
    value = CoveringELBO()(guide, model, keys, None, memory)
    log_weights, sent = np.asarray(value.log_weights), np.asarray(memory.sent(64)).any(axis=1)
    light = np.exp(log_weights - logsumexp(log_weights)) * 64 < LEAST_WEIGHT
    assert (light & sent).sum() > 10
    assert (light & ~sent).sum() > 5
    np.testing.assert_allclose(value.loss, -np.mean(log_weights[~(light & sent)]), rtol=1e-12)


def test_the_guides_own_draws_are_marked_and_are_what_it_draws_itself():
    """Where nothing is sent far out the draw of a key is the guide's own, with its exact weight."""
    guide, model = trained_like("projected, narrow"), target("gaussian")
    keys, memory = jr.split(jr.key(3), 64), CoveringELBO().memory(DIM)
    value = jax.jit(lambda keys: CoveringELBO()(guide, model, keys, None, memory))(keys)
    draws = jax.jit(jax.vmap(guide.draw))(keys)
    log_weights = jax.vmap(model.log_density)(draws.xi) - draws.log_q
    own = np.asarray(value.own)
    assert 0 < (~own).sum() < 32
    np.testing.assert_array_equal(own, ~np.asarray(memory.sent(64)).any(axis=1))
    np.testing.assert_allclose(np.asarray(value.log_weights)[own], np.asarray(log_weights)[own], rtol=1e-9)
    assert np.abs(np.asarray(value.log_weights) - log_weights)[~own].min() > 1e-3


class Folding(Gaussian):
    """A Gaussian that folds far out on one side, where its log-density is not a number."""

    def draw_path(self, key, far=None):
        draw = super().draw_path(key, far)
        return draw._replace(log_q=jnp.where(draw.noise[0] > 2.5, jnp.nan, draw.log_q))


def test_a_fold_far_out_is_left_out_and_not_remembered():
    """One sent draw whose density is not a number must not make the memory forget all others."""
    affine = anchored(jnp.zeros(DIM), jnp.ones(DIM), full=False)
    keys, memory = jr.split(jr.key(0), 64), attention([5.0, 0.0, 0.0], below=[0.5, 0.0, 0.0])
    model = from_log_density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(DIM))
    value = CoveringELBO()(Folding(affine=affine, dim=DIM), model, keys, None, memory)
    folded = np.isneginf(np.asarray(value.log_weights))
    assert 3 < folded.sum() < 40
    assert np.isfinite(value.loss)
    weights, draws = np.asarray(value.memory.weights), np.asarray(value.memory.draws)
    assert np.all(np.isfinite(weights))
    # The guide has gone there as far as it can: no more than the usual few are sent.
    assert weights[1, 0] == draws[1, 0]
    assert weights[0, 0] > 1.4 * draws[0, 0]  # the other side still lacks mass
    np.testing.assert_allclose(value.memory.shares()[1, 0], EVERYWHERE / (2 * DIM))
