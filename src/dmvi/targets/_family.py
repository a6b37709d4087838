"""One model and many data sets of one shape: targets that differ in arrays alone and share every program."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from dmvi._errors import InputError
from dmvi.targets._arguments import Arguments, in_default_width, read_arguments
from dmvi.targets._checks import TRIES, explain_failure, find_start
from dmvi.targets._dispatch import as_target
from dmvi.targets._jax import bare_target, read_point
from dmvi.targets._numpyro import probe_program, program_target, trial_points
from dmvi.targets._numpyro_program import Program, trace_prior
from dmvi.targets._numpyro_sites import unconstrained_param
from dmvi.targets._target import Target

EXPLAINED = 3  # unusable data sets whose fault is looked for: each costs the compilation of a model


class Family(NamedTuple):
    """Targets of one model.

    Attributes:
        targets: one per data set.
        faults: why a data set cannot be used, by its number.
        datasets: the data as one pytree of arrays with a leading data-set axis.
    """

    targets: list[Target]
    faults: dict[int, str]
    datasets: Any


def family(model: Any, datasets: Any, *, shared: Mapping[str, Any] | None = None, init: Any = None) -> Family:
    r"""One target per data set, log pi_i(xi) = log p(y_i, theta(xi)) + log |det d theta / d xi|.

    Args:
        model: a NumPyro model; or, with `init`, a JAX log-density of a point and a data set.
        datasets: the arguments that change: arrays with a leading data-set axis, in a dict by the names of a
            NumPyro model's arguments, in any pytree for a log-density; or a sequence with one such
            dict or pytree per data set.
        shared: arguments of a NumPyro model that are the same for all. Sizes belong here: in `datasets`
            even a number is traced.
        init: a point of a log-density, as in `fit`.

    Raises:
        InputError: if the data sets differ in shape or do not fit the model.
    """
    if not callable(model) or isinstance(model, Target):
        raise InputError(
            "fit_many takes a NumPyro model or, with init, a JAX log-density of a point and its data; got an "
            f"object of type {type(model).__name__}."
        )
    stacked = _stacked(datasets)
    if init is None:
        targets, usable = _numpyro_family(model, stacked, dict(shared or {}))
    elif shared is not None:
        raise InputError("shared belongs to NumPyro models; a log-density may close over what is the same.")
    else:
        targets, usable = _density_family(model, stacked, init)
    return Family(targets, _faults(model, stacked, dict(shared or {}), init, usable), stacked)


def _numpyro_family(
    model: Callable, stacked: Any, shared: dict[str, Any]
) -> tuple[list[Target], Bool[np.ndarray, " count"]]:
    if not isinstance(stacked, dict):
        raise InputError("datasets of a NumPyro model is a dict: its arguments by name, or a list of these.")
    twice = sorted(set(stacked) & set(shared))
    if twice:
        raise InputError(f"{', '.join(map(repr, twice))} stands in datasets and in shared; give it once.")
    first = read_arguments(model, (), {**shared, **_part(stacked, 0)})
    fixed = {name: first.kwargs[name] for name in shared}
    try:
        try:
            return _programs(model, stacked, fixed)
        except (jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError):
            # As in `from_numpyro`: NumPy arrays first, whose values may be sizes, then arrays of JAX.
            return _programs(model, stacked, jax.tree.map(jnp.asarray, fixed))
    except InputError:
        raise
    except Exception as error:  # whatever a user's own code raises is told as a fault of model or data
        raise _explained(error, model, first.named) from error


def _programs(
    model: Callable, stacked: dict[str, Any], fixed: dict[str, Any]
) -> tuple[list[Target], Bool[np.ndarray, " count"]]:
    """The targets of a NumPyro model, and which of them are usable."""

    def program(data: dict[str, Any], sites: Any) -> Program:
        kwargs = {**fixed, **data}
        return Program(model, Arguments((), kwargs, kwargs), sites)

    def run(data: dict[str, Any]):
        trace, _ = trace_prior(model, program(data, sites).arguments, jax.random.key(0))
        params = {name: unconstrained_param(trace[name]) for name in sites.params}
        observed = {name: jnp.asarray(trace[name]["value"]) for name in sites.observed}
        search = find_start(
            lambda xi: program(data, sites).probe(xi, params), trial_points(sites), len(observed)
        )
        return params, observed, search.usable

    def bind(data: dict[str, Any]) -> Target:
        return program_target(program(data, sites), {}, {}, {})

    first = jax.tree.map(jnp.asarray, _part(stacked, 0))
    sites = probe_program(model, program(first, None).arguments)[0].sites
    with jax.default_matmul_precision("highest"):
        params, observed, usable = jax.jit(jax.vmap(run))(stacked)
    observed = jax.tree.map(np.asarray, observed)
    constants = {
        n: np.asarray(v) for n, v in fixed.items() if isinstance(v, np.ndarray | jax.Array | int | float)
    }
    template = bind(first)
    return [
        dataclasses.replace(
            template,
            params=_part(params, i),
            observed=_part(observed, i),
            constant={**constants, **_unobserved(_part(stacked, i), _part(observed, i))},
            data=jax.tree.map(jnp.asarray, _part(stacked, i)),
            _bind=bind,
        )
        for i in range(len(usable))
    ], np.asarray(usable)


def _unobserved(data: dict[str, np.ndarray], observed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: value
        for name, value in data.items()
        if not any(value.shape == y.shape and np.array_equal(value, y) for y in observed.values())
    }


def _density_family(
    log_density: Callable, stacked: Any, init: Any
) -> tuple[list[Target], Bool[np.ndarray, " count"]]:
    point = read_point(init)

    def bind(data: Any) -> Target:
        return bare_target(point.coordinates, point.density(lambda x: log_density(x, data)), point.start)

    def usable(data: Any):
        density = bind(data)._log_density
        return find_start(
            lambda xi: (density(xi, {}, None), jnp.zeros((0,), int)), point.trial_points(), 0
        ).usable

    try:
        with jax.default_matmul_precision("highest"):
            found = np.asarray(jax.jit(jax.vmap(usable))(stacked))
    except InputError:
        raise
    except Exception as error:  # whatever the user's own code raises is told as a fault of function or data
        raise _explained(error, log_density, point.leaves) from error
    template = bind(_part(stacked, 0))
    return [
        dataclasses.replace(template, data=jax.tree.map(jnp.asarray, _part(stacked, i)), _bind=bind)
        for i in range(len(found))
    ], found


def _explained(error: Exception, model: Callable, values: dict[str, Any]) -> InputError:
    told = explain_failure(error, model, "one data set", values)
    if isinstance(error, jax.errors.JAXTypeError):
        told = InputError(f"{told} What gives the model its sizes belongs in shared.")
    return told


def _stacked(datasets: Any) -> Any:
    """Data sets as one pytree of arrays with a leading axis."""
    if isinstance(datasets, Sequence) and len(datasets) > 0 and isinstance(datasets[0], Mapping):
        datasets = _stack(datasets)
    datasets = dict(datasets) if isinstance(datasets, Mapping) else datasets
    tree = jax.tree.map(_array, datasets, is_leaf=lambda value: isinstance(value, list))
    leaves = jax.tree.leaves(tree)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise InputError(
            "datasets has to hold arrays whose first axis counts the data sets, or be a list with one dict "
            "per data set; what is the same for all goes in shared."
        )
    lengths = {leaf.shape[0] for leaf in leaves}
    if len(lengths) > 1 or 0 in lengths:
        raise InputError(
            f"The first axis of every array in datasets counts the data sets; got lengths {sorted(lengths)}."
        )
    return tree


def _stack(datasets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(datasets[0])
    for i, data in enumerate(datasets):
        if not isinstance(data, Mapping) or set(data) != set(names):
            raise InputError(f"Every data set has to hold {names}; number {i} does not.")
    try:
        return {
            name: jax.tree.map(
                lambda *parts: np.stack([_array(p) for p in parts]), *(d[name] for d in datasets)
            )
            for name in names
        }
    except ValueError as error:
        raise InputError(f"All data sets must have the same shapes: {error}.") from error


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"datasets has to hold numbers, got an array of {array.dtype}.")
    return in_default_width("datasets", array)


def _part(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)


def _faults(
    model: Callable, stacked: Any, shared: dict[str, Any], init: Any, usable: np.ndarray
) -> dict[int, str]:
    """The reason for each data set that cannot be used; the first few in full."""
    faults = {}
    for i in np.flatnonzero(~usable):
        reason = "no start has a finite log-density and gradient."
        if len(faults) < EXPLAINED:
            data = _part(stacked, int(i))
            try:
                if init is None:
                    as_target(model, data={**shared, **data})
                else:
                    as_target(lambda x, data=data: model(x, data), init=init)
            except InputError as error:
                reason = str(error)
            else:  # alone, a data set has more tries, and starts of its own
                reason = (
                    f"{reason[:-1]} among the {TRIES.first} that data sets share; fit it alone, by dmvi.fit."
                )
        faults[int(i)] = reason
    return faults
