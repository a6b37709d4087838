"""Permutations of coordinates: what they do to values and volumes, and how they are written down."""

import json

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpyro.distributions.transforms import StickBreakingTransform

from dmvi.guides import Block, Symmetry, symmetry_from

# Three entries with two coordinates each, along the second axis; a simplex of them, and one coordinate apart.
SYMMETRY = Symmetry(3, (Block(0, (2, 3), 1, simplex=False), Block(7, (2,), 0, simplex=True)))
DIM = 9


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def values_of(xi):
    return xi[:6].reshape(2, 3), xi[6], StickBreakingTransform()(xi[7:])


def test_entries_change_places():
    xi = jr.normal(jr.key(0), (DIM,))
    images = SYMMETRY.images(xi)
    assert images.shape == (SYMMETRY.order, DIM)
    np.testing.assert_allclose(images[0], xi, rtol=1e-12)
    plain, apart, simplex = values_of(xi)
    for image, permutation in zip(images, SYMMETRY.permutations, strict=True):
        moved = values_of(image)
        np.testing.assert_array_equal(moved[0], plain[:, permutation])
        assert moved[1] == apart
        np.testing.assert_allclose(moved[2], simplex[permutation], rtol=1e-12)


def test_volumes_stay():
    xi = jr.normal(jr.key(1), (DIM,))
    jacobians = jax.jacfwd(SYMMETRY.images)(xi)
    np.testing.assert_allclose(np.linalg.slogdet(jacobians)[1], 0, atol=1e-12)


@pytest.mark.parametrize("place", [(20.0, 0.0), (-20.0, -20.0), (0.0, -90.0), (30.0, 30.0), (-3.0, 60.0)])
def test_near_the_edges_of_a_simplex(place):
    """In single precision: every image has the first point among its own, and slopes are finite."""
    with jax.enable_x64(False):
        xi = jnp.concatenate([jnp.arange(7.0), jnp.asarray(place)])
        images = SYMMETRY.images(xi)
        assert np.isfinite(images).all()
        assert np.isfinite(jax.jacfwd(SYMMETRY.images)(xi)).all()
        for image in images:
            distances = np.abs(SYMMETRY.images(image) - xi[None]).max(axis=1)
            assert distances.min() < 1e-4


def test_the_way_back():
    """Every image has the same images."""
    xi = jr.normal(jr.key(2), (DIM,))
    images = SYMMETRY.images(xi)
    for image in images:
        again = SYMMETRY.images(image)
        distances = np.abs(images[:, None] - again[None]).max(axis=2)
        np.testing.assert_array_less(distances.min(axis=0), 1e-10)


def test_written_down():
    assert symmetry_from(json.loads(json.dumps(SYMMETRY.describe())), DIM) == SYMMETRY
    assert symmetry_from(None, DIM) is None


@pytest.mark.parametrize(
    "described",
    [
        {},
        [],
        {"count": 3, "blocks": []},
        {"count": 3, "blocks": 3},
        {"count": 9, "blocks": [[0, [9], 0, False]]},
        {"count": 3, "blocks": [[0, [4], 0, False]]},
        {"count": 3, "blocks": [[0, [3, 2], 0, True]]},
        {"count": 3, "blocks": [[8, [3], 0, False]]},
        {"count": 3, "blocks": [[0, [3], 1, False]]},
        {"count": 3, "blocks": [[0, [3, 10**9], 0, False]]},
        {"count": 3, "blocks": [[0, [3], 0, False], [0, [3], 0, False]]},
        {"count": 3, "blocks": [[0, [3] + [1] * 20, 0, False]]},
        {"count": 3.0, "blocks": [[0, [3], 0, False]]},
        {"count": 3, "blocks": [[0, [3], 0, False]] * 10},
    ],
)
def test_what_is_none_is_refused(described):
    with pytest.raises(ValueError, match="no symmetry"):
        symmetry_from(described, DIM)
