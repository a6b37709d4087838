"""Many Gaussians by reverse KL describe modes that touch, where Laplace's at the modes do not."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from dmvi.guides import Block, GaussianGuide, Symmetry, anchored, mixture
from dmvi.posterior import Draws
from dmvi.targets import from_log_density
from dmvi.warmstart import _gaussians, overlapping_modes
from dmvi.warmstart._laplace import Surface, laplace
from dmvi.warmstart._modes import MOST, modes_apart, proper
from dmvi.warmstart._weighed import cloud_of, in_all_labellings, weighed_gaussians


def crossing_bananas(x):
    """Two bananas that bend against each other and cross twice; log Z = 0."""
    along = norm.logpdf(x[0], scale=1.5)
    bends = jnp.stack([norm.logpdf(x[1] - side * (x[0] ** 2 - 3), scale=0.7) for side in (-1, 1)])
    return along + logsumexp(bends) - jnp.log(2.0)


@pytest.fixture(scope="module")
def searched():
    target = from_log_density(crossing_bananas, jnp.zeros(2))
    surface = Surface(target)
    starts = np.random.default_rng(0).normal(scale=2.0, size=(12, 2))
    return target, modes_apart(proper(surface, [laplace(surface, start) for start in starts]))


def fitted(target, visited, *, single=-1.0, deadline=np.inf):
    return overlapping_modes(target, visited, single=single, deadline=deadline, key=jr.key(0))


@pytest.mark.slow
def test_modes_that_touch(searched):
    target, visited = searched
    assert len(visited) >= 2
    laplaces = weighed_gaussians(
        target, visited[:, 0], visited[:, 1:], np.zeros(len(visited)), None, jr.key(1)
    )
    assert laplaces.elbo < -0.3
    found = fitted(target, visited, single=-0.2)
    assert found is not None
    assert len(found.log_weights) == MOST
    assert -0.05 < found.elbo < 0.01
    guide = mixture(GaussianGuide(), found.affines, found.log_weights, found.unfinished, key=jr.key(0))
    log_w = Draws(target, guide).weigh(jr.key(2), 20_000).log_w
    weights = np.exp(log_w.astype(float))
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(len(weights))
    assert abs(log_w.mean() - found.elbo) < 0.02


ORDERS = np.array(list(itertools.permutations((-6.0, 0.0, 6.0))))
THREE = Symmetry(3, (Block(0, (3,), 0, simplex=False),))


def any_order(x):
    """A Gaussian at each order of three places; log Z = 0."""
    return logsumexp(norm.logpdf(x[None], jnp.asarray(ORDERS)).sum(axis=1)) - jnp.log(6.0)


def test_a_gaussian_shared_out_among_all_orders_loses_nothing():
    """Of log 6 nats that one Gaussian lacks."""
    target = from_log_density(any_order, jnp.zeros(3))
    affine = anchored(jnp.array([-6.0, 0.0, 6.0]), jnp.eye(3), full=True)
    images = in_all_labellings(target, affine, THREE, jr.key(0))
    assert images.elbo == pytest.approx(0.0, abs=0.02)
    alone = weighed_gaussians(target, np.array([[-6.0, 0, 6]]), np.eye(3)[None], np.zeros(1), None, jr.key(0))
    assert alone.elbo == pytest.approx(-np.log(6.0), abs=0.02)


@pytest.mark.slow
def test_modes_that_touch_in_all_orders():
    """Places 1.2 sds apart: six modes that hang together, of which Gaussians stand for all images."""

    def touching(x):
        return logsumexp(norm.logpdf(x[None], jnp.asarray(0.2 * ORDERS)).sum(axis=1)) - jnp.log(6.0)

    target = from_log_density(touching, jnp.zeros(3))
    visited = np.stack([np.vstack([place, np.eye(3)]) for place in 0.2 * ORDERS])
    found = fitted(target, visited, single=-0.2)
    assert found is not None
    assert found.symmetry == THREE
    assert -0.02 < found.elbo < 0.01


def test_one_mode_stays_one(searched):
    target, visited = searched
    assert fitted(target, None) is None
    gaussian = from_log_density(lambda x: norm.logpdf(x).sum(), jnp.zeros(2))
    assert fitted(gaussian, visited) is None
    learned = dataclasses.replace(target, params={"a": jnp.zeros(())})
    assert fitted(learned, visited) is None


@pytest.mark.parametrize("single", [100.0, 3.0])
def test_a_much_better_guide_is_kept(single, searched):
    """It is told by Laplace's Gaussians, or after one stage of training."""
    assert fitted(*searched, single=single) is None


@pytest.mark.parametrize(("above", "taken"), [(0.1, True), (1.0, False)])
def test_what_training_can_be_expected_to_gain(above, taken, searched, monkeypatch):
    """Only how the last stage ends counts here; without training it ends the same every time."""

    def unimproved(loc, scale, *_):
        return jax.vmap(lambda loc, scale: anchored(loc, scale, full=True))(loc, scale)

    monkeypatch.setattr(_gaussians, "_improved", unimproved)
    monkeypatch.setattr(_gaussians, "IDLE", 1e-30)
    for gate in ("HOPELESS", "WORSE"):
        monkeypatch.setattr(_gaussians, gate, np.inf)
    start = fitted(*searched, single=-50.0)
    assert start is not None
    assert (fitted(*searched, single=start.elbo + above) is not None) == taken


def test_no_time_is_left(searched):
    assert fitted(*searched, deadline=0.0) is None


def test_gaussians_of_no_weight_are_moved_to_where_mass_is_lacking():
    """One of two modes has a Gaussian, a wide one sees the other; the third one is idle."""

    def two_modes(x):
        return logsumexp(jnp.stack([norm.logpdf(x, place).sum() for place in (-2.5, 2.5)]))

    target = from_log_density(two_modes, jnp.zeros(2))
    loc = np.array([[-2.5, -2.5], [0.0, 0.0], [0.0, 0.0]])
    scale = np.array([1.0, 3.0, 3.0])[:, None, None] * np.eye(2)
    cloud = cloud_of(target, loc, scale, None, jr.key(0))
    log_weights = np.log([0.95, 0.05, 1e-6])
    places = cloud.lacking(log_weights, 200, np.random.default_rng(0))[1]
    assert np.mean(np.linalg.norm(places - 2.5, axis=1) < 3) > 0.95
    moved, scales, weights = _gaussians._moved(cloud, loc, scale, log_weights, np.random.default_rng(0))
    np.testing.assert_array_equal(moved[:2], loc[:2])
    np.testing.assert_array_equal(weights[:2], log_weights[:2])
    assert np.linalg.norm(moved[2] - 2.5) < 3
    assert weights[2] > np.log(1e-3)
    np.testing.assert_array_equal(scales, scale)
