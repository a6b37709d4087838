"""Recipes of guides and their bases as plain values, so that a file can say how its guide was made."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from dmvi import diffusion, guides
from dmvi._errors import InputError
from dmvi.diffusion import SparseBends, Stacked, Triangular
from dmvi.guides import (
    FEW,
    AnyAffine,
    DiffusionGuide,
    FlowGuide,
    Guide,
    GuideRecipe,
    LowRank,
    LowRankAffine,
    Mixture,
    SparseAffine,
    SparseShape,
    anchored,
    low_rank_anchored,
    repeated,
    sparse_anchored,
    symmetry_from,
)
from dmvi.targets import Target

_PARTS = ("Projected", "Triangular", "SparseBends", "Stacked", "MLP", "LinearSchedule", "CosineSchedule")
# Classes of our own that a description may name; nothing else is ever made from a file.
_KNOWN: dict[str, type] = {
    name: value
    for module in (guides, diffusion)
    for name, value in vars(module).items()
    if isinstance(value, type)
    and (issubclass(value, GuideRecipe) or name in _PARTS)
    and value is not GuideRecipe
}
OTHER_ARRAYS = "the {} in the file has other arrays than this one; {}."
_MOST_MODES = 1_000
_MOST_NUMBERS = 2_000  # a row, of a sparse base
_LARGEST = 100_000  # of any whole number in a recipe: a file must not ask for more memory than there is


def describe_recipe(recipe: Any) -> Any:
    """A recipe as JSON can hold it; None stands for what only the user's own code can make."""
    if type(recipe).__name__ not in _KNOWN or type(recipe) is not _KNOWN[type(recipe).__name__]:
        return None
    described: dict[str, Any] = {"type": type(recipe).__name__}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if value is not None and not isinstance(value, bool | int | float | str):
            value = describe_recipe(value)
            if value is None:
                return None
        described[field.name] = value
    return described


def recipe_from(description: Any) -> Any:
    """The inverse of `describe_recipe`.

    Raises:
        InputError: for a description of anything else.
    """
    if not isinstance(description, dict) or description.get("type") not in _KNOWN:
        raise InputError(
            "the file does not say how its guide was made, as with a network of your own; pass the recipe "
            "the fit was made with, load(..., guide=dmvi.DiffusionGuide(...))."
        )
    known = _KNOWN[description["type"]]
    names = {field.name for field in dataclasses.fields(known)}
    arguments = {}
    for name, value in description.items():
        if name == "type":
            continue
        if name not in names:
            raise InputError(f"the file describes a guide with a setting {name!r} that it does not have.")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
            raise InputError(f"the file describes a guide with {name}={value}, beyond {_LARGEST:,}.")
        arguments[name] = recipe_from(value) if isinstance(value, dict) else value
    return known(**arguments)


def check_size(recipe: GuideRecipe, dim: int, leaves: Sequence[np.ndarray]) -> None:
    """Refuse a description of more than the arrays of its file.

    Asked before a guide is made even in outline, which takes time for every layer.

    Raises:
        InputError: where a guide of the recipe has more arrays, or more numbers in them, than there are.
    """
    layers, numbers = _least(recipe, dim, 1)
    if layers > len(leaves) or numbers > sum(leaf.size for leaf in leaves):
        raise InputError(OTHER_ARRAYS.format("guide", "pass the recipe of the fit as guide"))


def _least(recipe: Any, dim: int, steps: int) -> tuple[int, int]:
    """Arrays and numbers that a guide, or a network of so many steps, has at least."""
    if isinstance(recipe, DiffusionGuide):
        return _least(recipe.network, dim, recipe.steps)
    if isinstance(recipe, Stacked):
        early = _least(recipe.early, dim, max(steps - recipe.late_steps, 1))
        late = _least(recipe.late, dim, recipe.late_steps)
        return early[0] + late[0], early[1] + late[1]
    width, depth = getattr(recipe, "width", 1), getattr(recipe, "depth", 1)
    own = isinstance(recipe, Triangular | SparseBends)  # a network for every coordinate in every step
    times = recipe.layers if isinstance(recipe, FlowGuide) else steps if own else 1
    return depth, width * max(times * dim, depth)


def visible_density(target: Target) -> Callable[[Array], Array] | None:
    """The density whose slope a recipe may use: none under minibatches or with parameters still to learn."""
    return None if target.subsampled or target.params else target.log_density


def describe_base(guide: Guide) -> dict[str, Any]:
    """The shape of the Gaussian, or Gaussians, under a guide: 0 stands for what there is none of.

    Keys: modes (of a mixture), full (a lower triangle is trained), rank (is trained instead), anchor (number
    of axes of the fixed scale), anchor_rank, ordered where its rows are a triangle in another order, units
    where that is trained in units of 64 / d, symmetry
    where a mixture has one, and sparse where the fixed scale is the root of a sparse precision:
    `SparseShape.levels`.
    """
    symmetry = guide.symmetry if isinstance(guide, Mixture) else None
    modes = guide.log_weights.value.shape[0] if isinstance(guide, Mixture) else 0
    affine = getattr(guide.components if isinstance(guide, Mixture) else guide, "affine", None)
    if affine is None:
        return {"modes": 0, "full": 0, "rank": 0, "anchor": 1, "anchor_rank": 0}
    scale = affine.anchor_scale.value
    if isinstance(affine, SparseAffine):
        shape = scale.shape()
        sparse = [list(level) for level in shape.levels]
        return {"modes": 0, "full": 0, "rank": 0, "anchor": 0, "anchor_rank": shape.rank, "sparse": sparse}
    low_rank = isinstance(affine, LowRankAffine)
    return {
        "modes": modes,
        "full": int(not low_rank and affine.lower is not None),
        "rank": affine.left.shape[-1] if low_rank else 0,
        "anchor": 0 if isinstance(scale, LowRank) else scale.ndim - (modes > 0),
        "anchor_rank": scale.left.shape[-1] if isinstance(scale, LowRank) else 0,
        **({} if getattr(affine, "order", None) is None else {"ordered": True}),
        **({"units": True} if _in_units(affine, guide.dim) else {}),
        **({} if symmetry is None else {"symmetry": symmetry.describe()}),
    }


def _in_units(affine: Any, dim: int) -> bool:
    """Whether a triangle is trained in smaller units than it once was."""
    return not isinstance(affine, LowRankAffine) and affine.lower is not None and dim > FEW


def guide_from(recipe: GuideRecipe, base: Any, dim: int) -> Guide:
    """A guide of the recipe on a base of that shape, at the origin: what a file's arrays fit into."""
    numbers = ("modes", "full", "rank", "anchor", "anchor_rank")
    if not isinstance(base, dict) or any(type(base.get(name)) is not int for name in numbers):
        raise InputError("the file does not say which base its guide stands on.")
    modes, rank, anchor_rank = base["modes"], base["rank"], base["anchor_rank"]
    if not all(0 <= base[name] <= max(dim, _MOST_MODES) for name in numbers):
        raise InputError("the file describes a base with more directions than its guide has dimensions.")
    affine = _base(base, dim, rank, anchor_rank)
    if not modes:
        return recipe.build(affine, key=jr.key(0))
    if rank:
        raise InputError("the file describes a mixture of bases of low rank, which there is not.")
    if "sparse" in base:
        raise InputError("the file describes a mixture of sparse bases, which there is not.")
    try:
        symmetry = symmetry_from(base.get("symmetry"), dim)
    except ValueError:
        raise InputError("the file describes a symmetry that no guide has.") from None
    return repeated(recipe.build(affine, key=jr.key(0)), modes, symmetry)


def _base(base: dict[str, Any], dim: int, rank: int, anchor_rank: int) -> AnyAffine:
    zeros = jnp.zeros(dim)
    scale = LowRank(zeros, jnp.zeros((dim, anchor_rank)), jnp.zeros((dim, anchor_rank)))
    if "sparse" in base:
        return sparse_anchored(zeros, _sparse_shape(base["sparse"], dim, anchor_rank).identity(dim))
    if base["anchor"]:
        scale = jnp.eye(dim) if base["anchor"] == 2 else jnp.ones(dim)
    if rank:
        return low_rank_anchored(zeros, scale, rank=rank)
    if isinstance(scale, LowRank):
        raise InputError("the file describes a base that no guide has.")
    if base["full"] and dim > FEW and base.get("units") is not True:
        raise InputError("the file is of an earlier dmvi, whose bases had other units: fit again.")
    order = jnp.arange(dim) if base.get("ordered") is True and scale.ndim == 2 else None
    return anchored(zeros, scale, full=bool(base["full"]), order=order)


def _sparse_shape(levels: Any, dim: int, rank: int) -> SparseShape:
    """The sizes of a sparse base that a file describes, with no more numbers than a warm start makes."""
    rows = levels if isinstance(levels, list) else []
    if not rows or not all(
        isinstance(row, list)
        and len(row) == 4
        and all(type(number) is int and 0 <= number <= dim for number in row)
        and row[0] > 0
        and row[1] > 0
        for row in rows
    ):
        raise InputError("the file describes a sparse base that no guide has.")
    shape = SparseShape(rank, tuple(tuple(row) for row in rows))
    if sum(row[0] for row in rows) > dim or shape.numbers(dim) > _MOST_NUMBERS * dim:
        raise InputError("the file describes a sparse base of more numbers than a guide has.")
    return shape
