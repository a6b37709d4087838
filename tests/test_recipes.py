"""Guides described by plain values and made again from them."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import dmvi
from dmvi._recipes import describe_base, describe_recipe, guide_from, recipe_from
from dmvi.guides import (
    Block,
    LowRank,
    SparseShape,
    Symmetry,
    anchored,
    low_rank_anchored,
    mixture,
    sparse_anchored,
)

DIM = 5
RECIPES = {
    "diffusion": dmvi.DiffusionGuide(network=dmvi.Projected(rank=2, width=8)),
    "triangular": dmvi.DiffusionGuide(network=dmvi.Triangular(width=3)),
    "sparse bends": dmvi.DiffusionGuide(
        steps=6, network=dmvi.Stacked(dmvi.Projected(rank=2, width=8), dmvi.SparseBends(width=3), 2)
    ),
    "grown": dmvi.DiffusionGuide(
        network=dmvi.Stacked(
            dmvi.Triangular(), dmvi.Stacked(dmvi.Projected(rank=2, width=8), dmvi.Triangular()), 2
        )
    ),
    "mlp": dmvi.DiffusionGuide(steps=2, order=2, network=dmvi.MLP(width=8)),
    "chain": dmvi.ChainGuide(steps=2, width=8),
    "flow": dmvi.FlowGuide(width=8),
    "full-rank": dmvi.GaussianGuide(),
    "paper": dmvi.PaperGuide(schedule=dmvi.CosineSchedule()),
}
ZEROS = jnp.zeros(DIM)
THIN = LowRank(jnp.ones(DIM), jnp.zeros((DIM, 3)), jnp.zeros((DIM, 3)))
SPARSE = SparseShape(1, ((1, 2, 0, 0), (2, 2, 1, 2)))
BASES = {
    "triangle": anchored(ZEROS, jnp.eye(DIM), full=True),
    "diagonal": anchored(ZEROS, jnp.ones(DIM), full=False),
    "triangle in another order": anchored(ZEROS, jnp.eye(DIM)[::-1], full=False, order=jnp.arange(DIM)[::-1]),
    "triangle in another order, all trained": anchored(
        ZEROS, jnp.eye(DIM)[::-1], full=True, order=jnp.arange(DIM)[::-1]
    ),
    "low rank on a triangle": low_rank_anchored(ZEROS, jnp.eye(DIM), rank=2),
    "low rank on a diagonal": low_rank_anchored(ZEROS, jnp.ones(DIM), rank=2),
    "low rank on low rank": low_rank_anchored(ZEROS, THIN, rank=2),
    "sparse": sparse_anchored(ZEROS, SPARSE.identity(DIM)),
}


def shapes(guide):
    leaves, structure = jax.tree.flatten(eqx.filter(guide, eqx.is_array))
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def through_json(guide, recipe):
    """A guide of the same shape, made from what a file would hold."""
    held = json.loads(json.dumps([describe_recipe(recipe), describe_base(guide)]))
    return guide_from(recipe_from(held[0]), held[1], DIM)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", RECIPES)
def test_a_guide_comes_back_in_its_shape(name, base):
    guide = RECIPES[name].build(BASES[base], key=jr.key(1))
    assert shapes(through_json(guide, RECIPES[name])) == shapes(guide)


@pytest.mark.parametrize("symmetry", [None, Symmetry(2, (Block(1, (2, 1), 0, simplex=False),))])
def test_a_mixture_comes_back_in_its_shape(symmetry):
    recipe = RECIPES["diffusion"]
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), BASES["triangle"])
    guide = mixture(recipe, stacked, jnp.zeros(3), jnp.ones(3, bool), symmetry=symmetry, key=jr.key(1))
    assert shapes(through_json(guide, recipe)) == shapes(guide)


def test_a_symmetry_that_cannot_be_is_refused():
    recipe = RECIPES["diffusion"]
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), BASES["triangle"])
    base = describe_base(mixture(recipe, stacked, jnp.zeros(3), jnp.ones(3, bool), key=jr.key(1)))
    with pytest.raises(dmvi.InputError, match="the file describes a symmetry"):
        guide_from(recipe, base | {"symmetry": {"count": 2, "blocks": [[0, [DIM + 1], 0, False]]}}, DIM)


@pytest.mark.parametrize("change", [{"modes": 10**9}, {"rank": -1}, {"anchor": "2"}, {"anchor": 0}])
def test_a_base_that_cannot_be_is_refused(change):
    base = describe_base(RECIPES["full-rank"].build(BASES["triangle"], key=jr.key(1))) | change
    with pytest.raises(dmvi.InputError, match="the file"):
        guide_from(RECIPES["full-rank"], base, DIM)


@pytest.mark.parametrize(
    "sparse",
    [[], {}, [[1, 2, 0]], [[1, 2, 0, "2"]], [[10**9, 1, 0, 0]], [[1, 0, 0, 0]], [[5, 5, 5, 5]] * 2, "5"],
)
def test_a_sparse_base_that_cannot_be_is_refused(sparse):
    base = describe_base(RECIPES["full-rank"].build(BASES["sparse"], key=jr.key(1)))
    with pytest.raises(dmvi.InputError, match="the file describes a sparse base"):
        guide_from(RECIPES["full-rank"], base | {"sparse": sparse}, DIM)
