"""A mixture of guides: exact weights whatever its components have become, and the density of the whole
mixture where they are Gaussian."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dmvi.diffusion import Projected
from dmvi.guides import Block, DiffusionGuide, Mixture, Symmetry, anchored, mixture
from dmvi.objectives import CoveringELBO, PathELBO
from tests.guides.registry import DIM, LOG_EVIDENCE, as_vector, perturbed, target

LOCS = np.array([[-1.0, -1.0, -1.0], [1.0, 1.2, 0.9], [4.0, 0.0, -4.0]])
SCALES = np.stack([1.5 * np.eye(3), 1.4 * np.eye(3) + np.diag([0.4, -0.3], -1), 0.5 * np.eye(3)])
WEIGHTS = np.array([0.3, 0.5, 0.2])
ALL = Symmetry(3, (Block(0, (3,), 0, simplex=False),))
# The first coordinate and those of a simplex of three.
ON_A_SIMPLEX = Symmetry(3, (Block(1, (2,), 0, simplex=True),))
RECIPE = DiffusionGuide(steps=2, network=Projected(rank=2, scale_rank=1, width=6, scale_width=5))


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def a_mixture(
    *,
    size: float = 0.0,
    unfinished: tuple[bool, ...] = (True, True, True),
    symmetry: Symmetry | None = None,
) -> Mixture:
    affines = jax.vmap(lambda loc, scale: anchored(loc, scale, full=True))(
        jnp.asarray(LOCS, float), jnp.asarray(SCALES, float)
    )
    log_weights = jnp.asarray(np.log(WEIGHTS), float)
    guide = mixture(RECIPE, affines, log_weights, jnp.asarray(unfinished), symmetry=symmetry, key=jr.key(1))
    return perturbed(guide, size=size) if size else guide


def test_at_the_start_it_is_the_gaussian_mixture():
    guide = a_mixture()
    draws = jax.jit(jax.vmap(guide.draw))(jr.split(jr.key(0), 20_000))
    log_g = [
        multivariate_normal.logpdf(np.asarray(draws.xi, float), loc, scale @ scale.T)
        for loc, scale in zip(LOCS, SCALES, strict=True)
    ]
    joint = np.stack(log_g, axis=1) + np.log(WEIGHTS)
    np.testing.assert_allclose(draws.log_q, np.logaddexp.reduce(joint, axis=1), atol=2e-4)
    share = np.exp(joint - np.logaddexp.reduce(joint, axis=1)[:, None]).mean(axis=0)
    np.testing.assert_allclose(share, WEIGHTS, atol=0.02)
    np.testing.assert_allclose(jax.jit(jax.vmap(guide.evidence))(draws.xi), draws.log_q, atol=1e-3)
    np.testing.assert_allclose(
        jax.jit(lambda key: guide.sample(key, (20_000,)))(jr.key(5)).mean(axis=0), WEIGHTS @ LOCS, atol=0.08
    )


@pytest.mark.parametrize("symmetry", [None, ALL])
def test_components_are_inverted_by_themselves(symmetry):
    """Where components overlap their own density comes back, and from one that folds it does not."""

    def errors(guide: Mixture) -> np.ndarray:
        log_q, again = jax.jit(jax.vmap(guide.round_trip))(jr.split(jr.key(0), 200))
        return np.abs(np.asarray(again - log_q))

    assert np.max(errors(a_mixture(size=0.1, symmetry=symmetry))) < 0.01
    folding = eqx.tree_at(
        lambda guide: guide.components, a_mixture(), replace_fn=lambda c: perturbed(c, size=9.0)
    )
    assert np.mean(~(errors(folding) < 0.1)) > 0.2


def test_mean_weight_is_the_evidence_whatever_the_components():
    """Components moved away from their Gaussians, and two of them overlapping: still E[w] = Z."""
    name = "mixture"
    guide = a_mixture(size=0.1)
    draws = jax.jit(jax.vmap(guide.draw))(jr.split(jr.key(0), 40_000))
    log_pi = jax.jit(jax.vmap(target(name).log_density))(draws.xi)
    weights = np.exp(np.asarray(log_pi - draws.log_q, float) - LOG_EVIDENCE[name])
    error = weights.std() / np.sqrt(weights.size)
    assert error < 0.04
    assert abs(weights.mean() - 1) < 5 * error


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("symmetry", [None, ALL, ON_A_SIMPLEX])
def test_path_gradient(symmetry):
    """d log_q / d phi = (d xi / d phi)^T grad_xi [log q_k(xi) - log r(k | xi)], of component k alone."""
    guide = a_mixture(size=0.1, symmetry=symmetry)
    phi, rebuild = as_vector(guide)

    @jax.jit
    def both(key):
        k = guide._index(key, jnp.ones(3))
        draw = guide.draw_path(key)

        def log_q(xi):
            return guide._component(k).evidence(xi) + guide._log_ratio(k, xi)

        steps = 1e-5 * jnp.eye(DIM)
        ends = jax.vmap(log_q)(draw.xi[None] + jnp.concatenate([steps, -steps]))
        score = (ends[:DIM] - ends[DIM:]) / 2e-5
        expected = jax.vjp(lambda phi: rebuild(phi).draw_path(key).xi, phi)[1](score)[0]
        return (
            jax.grad(lambda phi: rebuild(phi).draw_path(key).log_q)(phi),
            expected,
            draw.log_q,
            log_q(draw.xi),
        )

    for seed in range(3 if symmetry is None else 1):
        gradient, expected, log_q, inverted = both(jr.key(seed))
        np.testing.assert_allclose(gradient, expected, atol=1e-5 * np.abs(expected).max())
        np.testing.assert_allclose(log_q, inverted, rtol=1e-8)


def test_finished_components_do_not_move():
    """Every training draw goes to the unfinished component, and no gradient to the others."""
    guide = a_mixture(size=0.1, unfinished=(False, True, False))
    phi, rebuild = as_vector(guide)
    keys = jr.split(jr.key(0), 50)
    assert set(np.asarray(jax.vmap(lambda key: guide._index(key, jnp.array([0.0, 1.0, 0.0])))(keys))) == {1}
    gradient = jax.jit(jax.grad(lambda phi: jnp.sum(jax.vmap(rebuild(phi).draw_path)(keys).log_q)))(phi)
    moved = rebuild(gradient).components
    largest = [
        np.abs(leaf).reshape(3, -1).max(axis=1)
        for leaf in jax.tree.leaves(eqx.filter(moved.flow, eqx.is_array))
    ]
    assert np.max([row[[0, 2]] for row in largest]) == 0
    assert np.max([row[1] for row in largest]) > 0


def test_training_draws_do_not_tell_the_elbo():
    """They are spread evenly over unfinished components, whatever the weights."""
    guide, density = a_mixture(), target("gaussian")
    keys = jr.split(jr.key(0), 8)
    own = eqx.filter_jit(lambda objective: objective(guide, density, keys, None, objective.memory(DIM)).own)
    for objective in (PathELBO(), CoveringELBO()):
        assert not np.any(own(objective))


def test_at_the_start_it_is_the_gaussian_mixture_and_its_images():
    """log_q is log sum_k w_k h_k, the mean over all orders of the coordinates."""
    guide = a_mixture(symmetry=ALL)
    draws = jax.jit(jax.vmap(guide.draw))(jr.split(jr.key(0), 20_000))
    xi = np.asarray(draws.xi, float)
    log_g = [
        multivariate_normal.logpdf(xi[:, order], loc, scale @ scale.T) + np.log(weight / 6)
        for loc, scale, weight in zip(LOCS, SCALES, WEIGHTS, strict=True)
        for order in itertools.permutations(range(3))
    ]
    np.testing.assert_allclose(draws.log_q, np.logaddexp.reduce(log_g, axis=0), atol=5e-4)
    np.testing.assert_allclose(jax.jit(jax.vmap(guide.evidence))(draws.xi), draws.log_q, atol=2e-3)
    for found in (xi, jax.jit(lambda key: guide.sample(key, (20_000,)))(jr.key(5))):
        np.testing.assert_allclose(np.mean(found, axis=0), np.mean(WEIGHTS @ LOCS), atol=0.08)


@pytest.mark.parametrize("symmetry", [ALL, ON_A_SIMPLEX])
def test_mean_weight_is_the_evidence_of_targets_that_are_not_even_symmetric(symmetry):
    name = "mixture"
    guide = a_mixture(size=0.1, symmetry=symmetry)
    draws = jax.jit(jax.vmap(guide.draw))(jr.split(jr.key(0), 60_000))
    log_pi = jax.jit(jax.vmap(target(name).log_density))(draws.xi)
    weights = np.exp(np.asarray(log_pi - draws.log_q, float) - LOG_EVIDENCE[name])
    error = weights.std() / np.sqrt(weights.size)
    assert error < 0.05
    assert abs(weights.mean() - 1) < 5 * error
