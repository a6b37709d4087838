"""Recipes of guides as plain values, so that a file can say how its guide was made."""

import dataclasses
from typing import Any

from dmvi import diffusion, guides
from dmvi._errors import InputError
from dmvi.guides import GuideRecipe

# Classes of our own that a description may name; nothing else is ever made from a file.
_KNOWN: dict[str, type] = {
    name: value
    for module in (guides, diffusion)
    for name, value in vars(module).items()
    if isinstance(value, type)
    and (issubclass(value, GuideRecipe) or name in ("Projected", "MLP"))
    and value is not GuideRecipe
}
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
