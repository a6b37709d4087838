"""Which entries of a model may change places is asked of its density."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dmvi
from dmvi.guides import Block, Mixture, Symmetry
from dmvi.posterior import Verdict
from dmvi.targets import as_target, from_log_density
from dmvi.warmstart._laplace import Mode
from dmvi.warmstart._symmetries import nearest_images, symmetry_of

RNG = np.random.default_rng(0)
Y = np.concatenate([RNG.normal(place, 0.5, 30) for place in (-4.0, 0.0, 4.0)]).astype(np.float32)


def components(y=None, ordered=False):
    places = np.array([-1.0, 0.0, 1.0], np.float32) if ordered else np.zeros(3, np.float32)
    loc = numpyro.sample("loc", dist.Normal(places, 5.0).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    mixed = dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(loc, scale))
    with numpyro.plate("n", len(Y)):
        numpyro.sample("y", mixed, obs=y)


def schools(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    theta = numpyro.sample("theta", dist.Normal(mu, 2.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, 1.0).to_event(1), obs=y)


def target_of(model, **data):
    return as_target(model, args=(), data=data, init=None)


def symmetry_at_the_origin(target):
    """With a mode at zero of unit scale."""
    return symmetry_of(target, np.vstack([np.zeros(target.dim), np.eye(target.dim)])[None])


def test_components_of_a_mixture():
    found = symmetry_at_the_origin(target_of(components, y=Y))
    assert found == Symmetry(3, (Block(0, (3,), 0, simplex=False), Block(4, (2,), 0, simplex=True)))


@pytest.mark.parametrize("equal", [True, False])
def test_what_belongs_to_data(equal):
    """Groups of a hierarchy are told apart by their data; where these are equal nothing tells them apart."""
    y = np.array([1.0, 1.0, 1.0 if equal else 1.1], np.float32)
    found = symmetry_at_the_origin(target_of(schools, y=y))
    assert found == (Symmetry(3, (Block(1, (3,), 0, simplex=False),)) if equal else None)


def test_priors_may_tell_components_apart():
    assert symmetry_at_the_origin(target_of(components, y=Y, ordered=True)) is None


@pytest.mark.parametrize("apart", [True, False])
def test_priors_of_large_scale_tell_components_apart_too(apart):
    """At zero, a hundredth of an sd of all priors, nothing tells them apart; around the modes it does."""
    y = 1e4 * np.concatenate([RNG.normal(3.0, 0.5, 10), RNG.normal(8.0, 0.5, 10)]).astype(np.float32)

    def wide(y=None):
        places = np.array([3e4, 8e4 if apart else 3e4], np.float32)
        loc = numpyro.sample("loc", dist.Normal(places, 3e4).to_event(1))
        mixed = dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(2) / 2), dist.Normal(loc, 5e3))
        numpyro.sample("y", mixed.expand([20]).to_event(1), obs=y)

    modes = np.stack([np.vstack([[low, high], 1.6e3 * np.eye(2)]) for low, high in ((3e4, 8e4), (8e4, 3e4))])
    found = symmetry_of(target_of(wide, y=y), modes)
    assert (found is None) == apart


def test_the_axis_is_found():
    """Columns are alike, rows are not, and a site of the same length has nothing to do with it."""

    def log_density(x):
        rows = jnp.sum(x["a"] ** 4, axis=1) @ jnp.array([1.0, 2.0, 3.0])
        return -rows - jnp.sum(jnp.prod(x["a"], axis=0)) ** 2 - jnp.sum(x["b"] ** 2 * jnp.arange(1.0, 4.0))

    found = symmetry_at_the_origin(from_log_density(log_density, {"a": jnp.zeros((3, 3)), "b": jnp.zeros(3)}))
    assert found == Symmetry(3, (Block(0, (3, 3), 1, simplex=False),))


def test_a_density_that_is_finite_nowhere_has_none():
    nowhere = from_log_density(lambda x: -jnp.sum(x**2), jnp.zeros(3))
    broken = jax.tree.map(lambda leaf: leaf, nowhere)
    object.__setattr__(broken, "_log_density", lambda xi, params, batch: jnp.nan * jnp.sum(xi))
    assert symmetry_at_the_origin(nowhere) is not None
    assert symmetry_at_the_origin(broken) is None


def test_priors_may_tell_components_apart_among_many_rows():
    """A density of millions of nats is rounded to more than the prior's difference nowhere near the modes."""

    def many(y=None):
        loc = numpyro.sample("loc", dist.Normal(np.array([-1.5, 0.0, 1.5], np.float32), 1.0).to_event(1))
        scaled = numpyro.handlers.scale(scale=1e5)
        with scaled:
            mixed = dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(3) / 3), dist.Normal(loc, 1.0))
            numpyro.sample("y", mixed.expand([5]).to_event(1), obs=y)

    assert symmetry_at_the_origin(target_of(many, y=Y[:5])) is None


def test_empty_sites_and_rows_of_simplices():
    def model(y=None):
        numpyro.sample("nothing", dist.Normal(0, 1).expand([0]).to_event(1))
        rows = numpyro.sample("rows", dist.Dirichlet(jnp.ones(5)).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.sum(rows**2), 1.0), obs=y)

    found = symmetry_at_the_origin(target_of(model, y=1.0))
    assert found == Symmetry(3, (Block(0, (3, 4), 0, simplex=False),))


def test_the_most_coordinates_are_found_among_many_sites():
    """Seven sites belong together, an eighth, which comes first, does not."""

    def log_density(x):
        together = sum(x[name] ** 2 * (1 + x["b0"] ** 2) for name in x if name != "a")
        return -jnp.sum(together) - jnp.sum(x["a"] ** 2 * jnp.arange(1.0, 4.0))

    init = {name: jnp.zeros(3) for name in ("a", *(f"b{i}" for i in range(7)))}
    found = symmetry_at_the_origin(from_log_density(log_density, init))
    assert found is not None
    assert [block.start for block in found.blocks] == list(range(3, 24, 3))


def test_the_nearest_image():
    symmetry = Symmetry(3, (Block(0, (3,), 0, simplex=False),))
    reference = Mode(np.array([1.0, 2.0, 3.0]), np.eye(3), 0.0)
    points = np.array([[3.1, 0.9, 2.2], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(
        nearest_images(symmetry, points, reference), [[0.9, 2.2, 3.1], [1.0, 2.0, 3.0]], rtol=1e-6
    )


@pytest.fixture(scope="module")
def posterior():
    return dmvi.fit(components, data={"y": Y}, steps=960, progress=False)


@pytest.mark.slow
def test_one_guide_for_all_labellings(posterior):
    """One component stands for six, every labelling is drawn alike, and weights are even."""
    guide = posterior.guide
    assert isinstance(guide, Mixture)
    assert guide.log_weights.value.shape == (1,)
    assert posterior.diagnostics.warm_start == "1 mode in 6 labellings"
    assert posterior.verdict is Verdict.TRUST
    assert posterior.diagnostics.gap < 0.05
    loc = np.asarray(posterior.sample(6000, seed=1)["loc"])
    for place in (-4.0, 0.0, 4.0):
        shares = np.mean(np.argmin(np.abs(loc - place), axis=1)[:, None] == np.arange(3), axis=0)
        np.testing.assert_allclose(shares, 1 / 3, atol=5 * np.sqrt(2 / 9 / 6000))


@pytest.mark.slow
def test_it_comes_back_from_a_file(posterior, tmp_path):
    posterior.save(tmp_path / "fit.dmvi")
    again = dmvi.load(tmp_path / "fit.dmvi", components, data={"y": Y})
    key = jr.key(3)
    np.testing.assert_array_equal(again.guide.sample(key, (50,)), posterior.guide.sample(key, (50,)))
    assert isinstance(again.guide, Mixture)
    assert again.guide.symmetry == posterior.guide.symmetry
