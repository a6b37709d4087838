"""Predictive draws of a NumPyro model, at the data of the fit or at new data."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.targets._arguments import Arguments, read_arguments
from dmvi.targets._checks import explain_failure
from dmvi.targets._numpyro_program import Program
from dmvi.targets._target import Predict


def predictive(program: Program, params: dict[str, Any], data: Mapping[str, Any] | None) -> Predict:
    """A function that draws observed and deterministic sites.

    Args:
        program: the model at the data of the fit.
        params: its generative parameters, whose structure is used.
        data: arguments to replace, by name. Arguments that give an observed site its size have to be
            among them where it changes; their values do not matter.
    """
    if data is None:
        return _predict(program, program)
    if not isinstance(data, Mapping):
        raise InputError(
            f"data has to be a dict of named values, got an object of type {type(data).__name__}."
        )
    arguments = _replaced(program, dict(data))
    try:
        try:
            return _tried(program, dataclasses.replace(program, arguments=arguments), params)
        except (jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError):
            return _tried(program, dataclasses.replace(program, arguments=arguments.on_jax()), params)
    except InputError:
        raise
    except Exception as error:  # whatever a user's own code raises is told as a fault of model or data
        raise explain_failure(error, program.model, "data", arguments.named) from error


def constant_data(program: Program, observed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The numeric arrays among a model's arguments that are not its observations."""
    found = {}
    for name, value in program.arguments.named.items():
        if not isinstance(value, np.ndarray | jax.Array | int | float) or isinstance(value, bool):
            continue
        array = np.asarray(value)
        same = any(array.shape == y.shape and np.array_equal(array, y) for y in observed.values())
        if array.dtype.kind in "biuf" and not same:
            found[name] = array
    return found


def _replaced(program: Program, data: dict[str, Any]) -> Arguments:
    args, kwargs = program.arguments.args, program.arguments.kwargs
    if any(name in program.arguments.named and name not in kwargs for name in data):
        args, kwargs = (), program.arguments.named  # what came by position is replaced by name
    return read_arguments(program.model, args, {**kwargs, **data})


def _predict(fitted: Program, program: Program) -> Predict:
    """Latents as the fit knows them, everything else from the program at its own data."""

    def predict(key: PRNGKeyArray, xi: Array | None, params: dict[str, Any]) -> dict[str, Array]:
        return program.predict(key, {} if xi is None else fitted.latents(xi, params), params)

    return predict


def _tried(fitted: Program, program: Program, params: dict[str, Any]) -> Predict:
    """The draw at new data, run once on shapes alone so that faults show here."""
    predict = _predict(fitted, program)
    xi = jnp.zeros(program.sites.coordinates.dim)
    jax.eval_shape(lambda key: predict(key, xi, params), jax.random.key(0))
    return predict
