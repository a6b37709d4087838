"""Separate modes are found without a scale, and one mode stays one."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.special import logsumexp

import dmvi
from dmvi._clock import Clock
from dmvi.targets import from_log_density
from dmvi.training import Silent
from dmvi.warmstart import _many, _modes, _warm_start, warm_start
from dmvi.warmstart._climb import Climber
from dmvi.warmstart._effort import effort_of
from dmvi.warmstart._laplace import Surface, curvatures_of, laplace, scale_from_precision
from dmvi.warmstart._modes import modes_apart, proper, separate_modes


def modes_of(log_density, dim: int, searches: int = 8):
    """What the searches of a warm start lead to, from starts near the origin."""
    target = from_log_density(log_density, jnp.zeros(dim))
    surface = Surface(target)
    starts = np.random.default_rng(0).normal(size=(searches, dim))
    searched = [laplace(surface, start) for start in starts]
    return separate_modes(target, surface, searched, None, single=-1e3, key=jr.key(0))[0]


def gaussians(centres: np.ndarray, log_weights: np.ndarray, scale: float = 1.0):
    where, weights = jnp.asarray(centres, float), jnp.asarray(log_weights, float)

    def log_density(x):
        squares = -0.5 * jnp.sum((x[None] - where) ** 2, axis=1) / scale**2
        return logsumexp(weights + squares - x.size * (0.5 * jnp.log(2 * jnp.pi) + jnp.log(scale)))

    return log_density


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
def test_modes_are_found_in_coordinates_of_any_scale(scale):
    """Slopes and curvatures are small everywhere where coordinates are large."""
    centres = scale * np.array([[-10.0, 0.0], [10.0, 3.0]])
    target = from_log_density(gaussians(centres, np.zeros(2), scale), jnp.zeros(2))
    surface = Surface(target)
    starts = 5 * scale * np.random.default_rng(0).normal(size=(8, 2))
    surface.begin_at(starts)
    visited = modes_apart(proper(surface, [laplace(surface, start) for start in starts]))
    assert visited is not None
    visited = visited[np.argsort(visited[:, 0, 0])]
    np.testing.assert_allclose(visited[:, 0] / scale, centres / scale, atol=0.02)
    np.testing.assert_allclose(visited[:, 1:] / scale, np.stack([np.eye(2)] * 2), atol=0.02)


def test_a_flat_direction_is_told_in_each_coordinates_own_unit():
    for library in (np, jnp):
        units, values, vectors = curvatures_of(library.diag(library.asarray([4.0, 1e-9, 0.0, -0.5])))
        np.testing.assert_allclose(units, [1.0, 1e-9**0.5, 1.0, 1.0], rtol=1e-6)
        np.testing.assert_allclose(values, [-0.5, 0.0, 1.0, 4.0], rtol=1e-5)
        np.testing.assert_allclose(np.abs(vectors), np.eye(4)[[3, 2, 1, 0]], atol=1e-6)


def mixed_pair(x):
    """Two modes eight sds from zero in a coordinate that is ten thousand times the other's scale."""
    z = x / jnp.asarray([12_000.0, 1.0])
    return jnp.logaddexp(-0.5 * jnp.sum((z - 8) ** 2), -0.5 * jnp.sum((z + 8) ** 2))


def test_modes_are_found_where_coordinates_have_different_scales():
    target = from_log_density(mixed_pair, jnp.zeros(2))
    start = warm_start(target, full=True, key=jr.key(0), progress=Silent(), mixes=True)
    assert start.modes is not None
    assert start.visited is not None
    assert len(start.visited) == 2
    ends = np.sort(np.asarray(start.modes.affines.anchor.value)[:, 0]) / 12_000
    np.testing.assert_allclose(ends, [-8.0, 8.0], atol=0.02)
    assert abs(start.modes.elbo - np.log(2 * 2 * np.pi * 12_000)) < 1e-3


def test_many_fits_know_modes_of_different_scales():
    found, proper_one = _many._mode(from_log_density(mixed_pair, jnp.zeros(2)), jnp.asarray([2.0, 0.5]))
    assert proper_one
    np.testing.assert_allclose(found[0], [96_000.0, 8.0], rtol=1e-3)
    assert abs(found[2] - np.log(2 * np.pi * 12_000)) < 1e-2


@pytest.mark.parametrize("from_start", [False, True])
def test_a_plateau_is_no_farther_after_a_second_search(from_start):
    """Uphill without end: searches end by their slope, and those that begin where one ended stay there."""
    target = from_log_density(lambda x: -jnp.sum(jnp.exp(-x)), jnp.zeros(1))
    surface = Surface(target)
    if from_start:
        surface.begin_at(np.zeros((1, 1)))
    first = laplace(surface, np.zeros(1))
    again = laplace(surface, first.loc)
    np.testing.assert_array_equal(again.loc, first.loc)


def test_costly_searches_run_a_few_at_a_time(monkeypatch):
    centres = np.array([[-10.0, 0.0], [10.0, 3.0], [0.0, -12.0]])
    sizes = []

    def climb(target, starts, at_once):
        sizes.append(at_once)
        return climbed(target, starts, at_once)

    climbed = _modes._climb
    monkeypatch.setattr(_modes, "_climb", climb)
    monkeypatch.setattr(_modes, "AT_ONCE", 2000)
    found = modes_of(gaussians(centres, np.zeros(3)), 2)
    assert found is not None
    assert len(found.log_weights) == 3
    assert 1 <= max(sizes) < 100  # of a thousand


def forty(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-40, 40, size=(40, 2))


@pytest.mark.slow
def test_forty_gaussians_far_from_the_start():
    """Every one is found, alone or with a neighbour it has grown together with, and the mixture is right."""
    centres = forty()
    modes = modes_of(gaussians(centres, np.full(40, -np.log(40))), 2)
    assert modes is not None
    assert 36 <= len(modes.log_weights) <= 40
    assert modes.elbo > -0.02  # log Z = 0
    ends = np.asarray(jax.vmap(lambda affine: affine(jnp.zeros(2)))(modes.affines))
    nearest = np.min(np.linalg.norm(ends[:, None] - centres[None], axis=2), axis=0)
    assert np.max(nearest) < 2


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_weights_of_two_modes_whatever_their_scale(scale):
    """9 to 1, in the log-density's own units."""
    centres = scale * np.array([[-10.0, 0.0, 0.0], [10.0, 5.0, 0.0]])
    log_weights = np.log([0.9, 0.1])
    target = from_log_density(gaussians(centres, log_weights, scale), jnp.zeros(3))
    surface = Surface(target)
    found = [laplace(surface, centre + 0.1 * scale) for centre in centres]
    modes, _ = separate_modes(target, surface, found, None, single=-1.0, key=jr.key(0))
    assert modes is not None
    np.testing.assert_allclose(np.sort(np.exp(modes.log_weights)), [0.1, 0.9], atol=1e-3)
    assert not np.any(modes.unfinished)
    assert abs(modes.elbo) < 1e-3


def funnel(x):
    return -0.5 * (x[0] / 3) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - x[0]


def banana(x):
    return -0.125 * x[0] ** 2 - 5 * (x[1] - 0.5 * x[0] ** 2) ** 2


ONE = {
    "gaussian": lambda x: -0.5 * jnp.sum(x**2),
    "funnel": funnel,
    "banana": banana,
    "modes that overlap": gaussians(np.array([[-1.5, 0.0], [1.5, 0.0]]), np.zeros(2)),
    "a mode that does not matter": gaussians(np.array([[0.0, 0.0], [20.0, 0.0]]), np.array([0.0, -12.0])),
    "flat": lambda x: -1e-12 * jnp.sum(x**2),
}


@pytest.mark.parametrize("name", ONE)
def test_one_gaussian_is_enough(name):
    assert modes_of(ONE[name], 3 if name == "funnel" else 2, searches=3) is None


def test_modes_that_a_single_gaussian_beats_are_left():
    """Two separate modes, and a single Gaussian said to be better than both."""
    target = from_log_density(gaussians(np.array([[-9.0], [9.0]]), np.zeros(2)), jnp.zeros(1))
    surface = Surface(target)
    found = [laplace(surface, np.array([place])) for place in (-8.0, 8.0)]
    modes, known = separate_modes(target, surface, found, None, single=2.0, key=jr.key(0))
    assert modes is None
    np.testing.assert_allclose(sorted(mode.loc[0] for mode in known), [-9.0, 9.0], atol=0.02)


def test_modes_found_on_the_way_are_remembered(monkeypatch):
    """Also where one Gaussian is better than a mixture of theirs, for the guide on it may miss them."""
    target = from_log_density(gaussians(np.array([[0.0, 0.0], [300.0, 0.0]]), np.zeros(2)), jnp.zeros(2))
    surface = Surface(target)
    places = [laplace(surface, np.array([place, 0.0])) for place in (0.1, 299.0)]
    monkeypatch.setattr(_warm_start, "separate_modes", lambda *_, **__: (None, places))
    start = warm_start(target, full=True, key=jr.key(0), progress=Silent(), mixes=True)
    assert start.modes is None
    assert start.visited is not None
    np.testing.assert_allclose(np.sort(start.visited[:, 0, 0]), [0.0, 300.0], atol=0.02)


def climber_of(target) -> Climber:
    effort = effort_of(Surface(target), Clock())
    return Climber(target, effort, jr.key(0), Silent())


def test_a_skewed_mode_in_many_dimensions_is_held_after_variational_inference():
    """Its mass is 1, of which draws of Laplace's Gaussian see next to nothing."""
    target = from_log_density(lambda x: jnp.sum(x - jnp.exp(x)), jnp.zeros(100))
    mode = laplace(Surface(target), np.zeros(100))
    visited = np.vstack([mode.loc, scale_from_precision(mode.precision, full=True)])[None]
    masses = []
    for mode in (visited[0], climber_of(target).fitted(visited)[0]):
        noise = np.random.default_rng(0).standard_normal((250, 100))
        x = mode[0] + noise @ mode[1:].T
        log_g = -0.5 * np.sum(noise**2, axis=1) - 50 * np.log(2 * np.pi) - np.linalg.slogdet(mode[1:])[1]
        masses.append(np.mean(np.exp(np.sum(x - np.exp(x), axis=1) - log_g)))
    assert masses[0] < 0.01
    assert 0.03 < masses[1] < 2


def test_merged_modes_are_fitted_to_their_moments():
    """Two unit Gaussians 2.2 apart beside a third one far away: Laplace at either is wrong for the pair."""
    centres = np.array([[-1.1, 0.0], [1.1, 0.0], [30.0, 0.0]])
    modes = modes_of(gaussians(centres, np.full(3, -np.log(3))), 2)
    assert modes is not None
    assert modes.elbo > -0.02


@pytest.mark.slow
def test_default_fit_of_the_forty_gaussians():
    """Each within a factor 1.5 of its weight, and log Z = 0 within 0.05."""
    centres = forty()
    posterior = dmvi.fit(gaussians(centres, np.full(40, -np.log(40))), init=jnp.zeros(2), progress=False)
    draws = np.asarray(posterior.sample(20_000)["x"])
    log_g = -0.5 * np.sum((draws[:, None] - centres[None]) ** 2, axis=2)
    shares = 40 * np.mean(np.exp(log_g - np.logaddexp.reduce(log_g, axis=1)[:, None]), axis=0)
    assert np.all((shares > 1 / 1.5) & (shares < 1.5))
    assert abs(posterior.diagnostics.log_evidence) < 0.05


@pytest.mark.slow
def test_default_fit_of_a_ring():
    """Eight modes at radius 5, sd 0.5, found and weighed by a short fit."""
    angles = np.arange(8) * np.pi / 4
    centres = 5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    posterior = dmvi.fit(
        gaussians(centres, np.full(8, -np.log(8)), 0.5), init=jnp.zeros(2), steps=100, progress=False
    )
    draws = np.asarray(posterior.sample(20_000)["x"])
    nearest = np.argmin(np.linalg.norm(draws[:, None] - centres[None], axis=2), axis=1)
    shares = np.bincount(nearest, minlength=8) / 2500
    assert np.all((shares > 1 / 1.5) & (shares < 1.5))
    assert abs(posterior.diagnostics.log_evidence) < 0.01
    assert posterior.diagnostics.warm_start == "8 modes"
