"""What a caller hands to a model: does it fit the signature, and in which arrays."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmvi._errors import InputError


class Arguments(NamedTuple):
    """Arguments of a model, ready for the call.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        named: all of them under the names of their parameters, for messages.
    """

    args: tuple
    kwargs: dict[str, Any]
    named: dict[str, Any]

    def call(self, model: Callable) -> Any:
        """Run the model."""
        return model(*self.args, **self.kwargs)

    def on_jax(self) -> "Arguments":
        """The same with every NumPy array as a JAX array, which traced indices can address."""
        args, kwargs = jax.tree.map(_as_jax, (self.args, self.kwargs))
        return Arguments(args, kwargs, self.named)


def read_arguments(model: Callable, args: Any, data: Any) -> Arguments:
    """Fit positional `args` and keyword `data` to a model and make arrays of lists and tables.

    Raises:
        InputError: if a keyword is unknown, an argument missing or given twice, or an array not numeric.
    """
    if not isinstance(args, tuple | list):
        raise InputError(f"args has to be a tuple of positional values, got {_kind(args)}: write args=(y,).")
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise InputError(f"data has to be a dict of named values, got {_kind(data)}: write dict(y=y).")
    args = tuple(_as_numpy(f"args[{i}]", value) for i, value in enumerate(args))
    kwargs = {name: _as_numpy(name, value) for name, value in data.items()}
    return Arguments(args, kwargs, _check_signature(model, args, kwargs))


def _check_signature(model: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):  # a few builtins have none; the call itself will tell
        return {**{f"args[{i}]": value for i, value in enumerate(args)}, **kwargs}
    parameters = signature.parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        _check_known(list(parameters), kwargs)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise InputError(f"Arguments for {_name(model)}{signature}: {error}; check args and data.") from error
    missing = [name for name, p in parameters.items() if name not in given and _is_required(p)]
    if missing:
        raise InputError(
            f"The model is {_name(model)}{signature}; it misses {', '.join(map(repr, missing))}. Give "
            f"{missing[0]!r} in data, or by position in args. "
            "If the function is a JAX log-density and not a NumPyro model, pass init."
        )
    return {**given, **kwargs}  # the keywords again, as a **kwargs of the model keeps them in one dict


def _check_known(parameters: list[str], data: dict[str, Any]) -> None:
    for name in data:
        if name not in parameters:
            by_lower = {parameter.lower(): parameter for parameter in parameters}
            close = difflib.get_close_matches(name.lower(), by_lower, n=1)
            hint = f"Did you mean {by_lower[close[0]]!r}?" if close else "Rename or drop it."
            known = ", ".join(map(repr, parameters)) or "none"
            raise InputError(f"The model has no argument {name!r}; its arguments are: {known}. {hint}")


def _as_numpy(name: str, value: Any) -> Any:
    """A list or table of numbers becomes a NumPy array; floats take JAX's default width.

    Everything else is handed on as it came, so a model may take flags, names and structures.
    """
    array = value.to_numpy() if hasattr(value, "to_numpy") else value  # a column or table of a data frame
    if isinstance(value, list):
        array = _list_to_numpy(value)
    if not isinstance(array, np.ndarray):
        return value
    if array.dtype.kind in "OUS":
        raise InputError(
            f"Data {name!r} is an array of {array.dtype} values, numbers were expected; "
            "encode labels as integers (numpy.unique(..., return_inverse=True)) and fill or mask gaps."
        )
    return in_default_width(f"Data {name!r}", array)


def in_default_width(what: str, array: np.ndarray) -> np.ndarray:
    """Floats in the width JAX computes in; integers as they are, if they fit into it.

    Raises:
        InputError: for integers that JAX would wrap around without a word, and floats it would call infinite.
    """
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            floats = array.astype(jnp.result_type(float), copy=False)
        if floats.dtype.itemsize < array.dtype.itemsize:
            _check_finite_still(what, array, floats)
        return floats
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    if narrow.itemsize < array.dtype.itemsize and array.size:
        limits = np.iinfo(narrow)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(
                f"{what} holds integers from {array.min():,} to {array.max():,}, beyond the {narrow} that "
                "JAX computes with; pass floats, or set jax_enable_x64 before anything else."
            )
    return array


def _check_finite_still(what: str, array: np.ndarray, floats: np.ndarray) -> None:
    beyond = np.isinf(floats)
    if beyond.any() and np.isfinite(array[beyond]).any():
        largest = np.max(np.abs(array[beyond & np.isfinite(array)]))
        raise InputError(
            f"{what} holds numbers up to {largest:.3g}, beyond the {floats.dtype} that JAX computes with; "
            "rescale them, or set jax_enable_x64 before anything else."
        )


def _list_to_numpy(value: list) -> Any:
    """The array of a rectangular list of numbers, gaps (None) as NaN; any other list as it is."""
    try:
        array = np.asarray(value)
        array = np.asarray(value, dtype=float) if array.dtype.kind == "O" else array
    except (TypeError, ValueError):
        return value
    return array if array.dtype.kind in "biuf" else value


def _as_jax(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def describe_nonfinite(values: dict[str, Any]) -> dict[str, str]:
    """How many entries are NaN or infinite, for each array that is not all finite."""
    found = {}
    for name, value in values.items():
        array = np.asarray(value) if isinstance(value, np.ndarray | jax.Array | float) else np.zeros(())
        if jnp.issubdtype(array.dtype, jnp.floating):
            counts = {"NaN": int(np.isnan(array).sum()), "infinite": int(np.isinf(array).sum())}
            if any(counts.values()):
                numbers = " and ".join(f"{n} {kind}" for kind, n in counts.items() if n)
                found[name] = f"{numbers} {'entry' if sum(counts.values()) == 1 else 'entries'}"
    return found


def describe_shapes(values: dict[str, Any]) -> str:
    """The shapes of the arrays among the values: y (8,), sigma (8,)."""
    arrays = {n: v for n, v in values.items() if isinstance(v, np.ndarray | jax.Array)}
    return ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items()) or "no arrays"


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variadic


def _name(model: Callable) -> str:
    return getattr(model, "__name__", type(model).__name__)


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__name__}"
