"""The published training: its density, its optimum, its contraction, and replicates that do not meet."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpyro.infer.util import log_density

from dmvi.diffusion import NoiseMLP
from dmvi.paper import MODELS, data_set, paper_model
from dmvi.paper._densities import Density, many_sites
from dmvi.paper._models import DataSet
from dmvi.paper._published import DRAWS, Recipe, batches
from dmvi.paper._side_by_side import fit_published

ROWS = 40
RECIPES = {
    "gaussian": Recipe("gaussian"),
    "flow": Recipe("flow"),
    "diffusion": Recipe("diffusion", 50, 10, 1),
    "diffusion of order 3": Recipe("diffusion", 100, 10, 3),
}


@pytest.mark.parametrize("name", MODELS)
def test_density_in_softplus_coordinates(name):
    """log p(y, theta(xi)) + log |det d theta / d xi|, the determinant by automatic derivatives."""
    model = paper_model(name, "printed")
    y = jnp.asarray(data_set(model, ROWS, 0, None).y)
    density = Density(model, y.shape[1])
    xi = 0.3 * jr.normal(jr.key(0), (density.dim,))

    def flat(xi):  # a simplex has one number too many
        parts = [v[:-1] if site == "weights" else v.ravel() for site, v in density.sites(xi).items()]
        return jnp.concatenate(parts)

    log_det = jnp.linalg.slogdet(jax.jacfwd(flat)(xi))[1]
    joint, _ = log_density(model.program, (y,), {}, density.sites(xi))
    np.testing.assert_allclose(density.log_density(xi, y), joint + log_det, rtol=1e-4)


def test_a_minibatch_counts_the_prior_once_for_each_row():
    model = paper_model("hierarchical_1", "code")
    y = jnp.asarray(data_set(model, ROWS, 0, None).y)
    density = Density(model, 10)
    xi = 0.3 * jr.normal(jr.key(0), (density.dim,))
    parts = density.parts(xi, y)
    kept = (np.arange(ROWS) < 30).astype(np.float32)
    expected = jnp.sum(parts.log_rows[:30]) + 30 * parts.log_prior + parts.log_det
    np.testing.assert_allclose(density.published(xi, y, jnp.asarray(kept)), expected, rtol=1e-6)


def test_the_optimum_in_the_mean_model_is_half_the_mean():
    """sum_n [log N(y_n; m, I) + log N(m; 0, I)] is largest at ybar / 2, the joint at n ybar / (n + 1)."""
    model = paper_model("mean", "code")
    y = jnp.asarray(data_set(model, ROWS, 0, None).y)
    density = Density(model, 5)
    slope = jax.grad(lambda xi: density.published(xi, y, jnp.ones(ROWS)))
    np.testing.assert_allclose(slope(jnp.mean(y, axis=0) / 2), 0.0, atol=1e-3)
    slope = jax.grad(lambda xi: density.log_density(xi, y))
    np.testing.assert_allclose(slope(jnp.sum(y, axis=0) / (ROWS + 1)), 0.0, atol=1e-3)


def test_batches_hold_every_row_once():
    rows, kept = batches(100, np.random.default_rng(0))
    assert rows.shape == kept.shape == (4, 32)
    np.testing.assert_array_equal(np.sort(rows[kept == 1]), np.arange(100))


@pytest.mark.parametrize("name", RECIPES)
def test_draws_and_densities(name):
    """The density of a draw is that of the map from noise; for Gaussian and flow L is -log q."""
    guide = RECIPES[name].build(3, jr.key(0))
    moving, static = eqx.partition(guide, eqx.is_inexact_array)
    keys = iter(jr.split(jr.key(1), 20))
    moving = jax.tree.map(lambda leaf: leaf + 0.02 * jr.normal(next(keys), leaf.shape), moving)
    guide = eqx.combine(moving, static)
    key = jr.key(2)
    noise = guide._noise(key)
    if name == "gaussian":
        jacobian = jnp.diag(jnp.exp(guide.log_scale))
    else:
        jacobian = jax.jacfwd(guide.flow.move)(noise)
    expected = jnp.sum(jax.scipy.stats.norm.logpdf(noise)) - jnp.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(guide.draw(key)[1], expected, rtol=1e-4)
    xi, stand_in = guide.step(key)
    assert xi.shape == (DRAWS, 3)
    assert stand_in.shape == (DRAWS,)
    if "diffusion" not in name:
        np.testing.assert_allclose(-stand_in[0], guide.draw(jr.split(key, DRAWS)[0])[1], rtol=1e-5)


@pytest.mark.parametrize("recipe", [Recipe("diffusion", 50, 10, 1), Recipe("diffusion", 100, 10, 3)])
def test_without_dropout_draws_are_those_of_the_solver(recipe):
    """The merged network, each step at its own order, moves noise as the flow does that has the density."""
    guide = recipe.build(3, jr.key(0))
    guide = eqx.tree_at(lambda guide: guide.flow.network, guide, NoiseMLP(3, 32, 0.0, key=jr.key(1)))
    moving, static = eqx.partition(guide, eqx.is_inexact_array)
    keys = iter(jr.split(jr.key(2), 20))
    moving = jax.tree.map(lambda leaf: leaf + 0.3 * jr.normal(next(keys), leaf.shape), moving)
    guide, key = eqx.combine(moving, static), jr.key(3)
    np.testing.assert_allclose(guide.sample(key), guide.draw(key)[0], rtol=1e-3, atol=1e-4)
    assert np.abs(guide.sample(key) - guide._noise(key)).max() > 0.1


@pytest.mark.parametrize("recipe", [Recipe("diffusion", 50, 10, 1), Recipe("diffusion", 100, 10, 3)])
def test_gathered_slopes_are_those_of_automatic_differentiation(recipe):
    guide = recipe.build(3, jr.key(0))
    moving, static = eqx.partition(guide, eqx.is_inexact_array)
    keys = iter(jr.split(jr.key(2), 20))
    moving = jax.tree.map(lambda leaf: leaf + 0.3 * jr.normal(next(keys), leaf.shape), moving)

    def gathered(moving):
        return jnp.sum(jnp.sin(eqx.combine(moving, static).step(jr.key(4))[0]))

    def one_by_one(moving):
        keys = jr.split(jr.fold_in(jr.key(4), 0), DRAWS)
        return jnp.sum(jnp.sin(jax.vmap(eqx.combine(moving, static).sample)(keys)))

    with jax.enable_x64():
        moving = jax.tree.map(lambda leaf: leaf.astype(np.float64), moving)
        values, slopes = zip(*(jax.value_and_grad(f)(moving) for f in (gathered, one_by_one)), strict=True)
        np.testing.assert_allclose(*values, rtol=1e-9)
        for ours, theirs in zip(*map(jax.tree.leaves, slopes), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9 * np.abs(theirs).max())
            assert np.abs(theirs).max() > 0


def test_replicates_side_by_side_are_those_alone():
    model = paper_model("mean", "code")
    data = [data_set(model, ROWS, replicate, None) for replicate in (0, 1)]
    both = list(fit_published(Recipe("gaussian"), model, data, (0, 1), draws=1000, epochs=3))
    (alone,) = fit_published(Recipe("gaussian"), model, data[1:], (1,), draws=1000, epochs=3)
    np.testing.assert_allclose(both[1].u, alone.u, rtol=1e-4, atol=1e-5)
    assert np.abs(both[0].u - both[1].u).max() > 1e-3
    assert both[0].steps == 3 * 2


@pytest.mark.slow
def test_the_flow_contracts_to_half_the_mean():
    """It starts at unit scale; after 5,000 steps it is below the exact sd and sure of the wrong point."""
    model = paper_model("mean", "code")
    data = [DataSet(np.random.default_rng(0).normal(0.5, 1, (32, 5)).astype(np.float32), np.zeros(5))]
    (fitted,) = fit_published(Recipe("flow"), model, data, (0,), draws=1000, epochs=5000)
    assert np.all(fitted.u.std(0) < 0.6 / np.sqrt(33))
    centre = data[0].y.mean(0) / 2
    assert np.abs(fitted.u.mean(0) - centre).max() < 0.1
    assert fitted.weights.khat > 0.7 or fitted.weights.ess < 0.1


def test_sites_of_many_draws():
    model = paper_model("mixture", "printed")
    density = Density(model, 2)
    sites = many_sites(density, np.zeros((4, density.dim), np.float32))
    np.testing.assert_allclose(sites["weights"], 1 / 3, rtol=1e-5)
    np.testing.assert_allclose(sites["scale"], np.log(2), rtol=1e-5)
    assert model.coordinates(sites).shape == (4, 12)


def test_the_published_flow_trains_nothing_but_the_biases_of_its_outputs():
    guide = Recipe("flow").build(4, jr.key(0))

    def loss(guide):
        xi, stand_in = guide.step(jr.key(1))
        return jnp.sum(stand_in + jnp.sum((xi - 3.0) ** 2, axis=1))

    slope = eqx.filter_grad(loss)(guide).flow
    for still in (slope.first, slope.bias, slope.scale, slope.shift):
        np.testing.assert_array_equal(still, 0.0)
    assert np.all(np.abs(slope.shift_bias) > 0.1)
