"""Whatever a user calls a model becomes a Target."""

from collections.abc import Callable
from typing import Any

from dmvi._errors import InputError
from dmvi.targets._jax import from_log_density
from dmvi.targets._numpyro import from_numpyro
from dmvi.targets._target import Target


def as_target(
    model: Target | Callable, *, args: tuple = (), data: dict[str, Any] | None = None, init: Any = None
) -> Target:
    """Turn a Target, a NumPyro model or a JAX log-density into a Target.

    Args:
        model: a Target (returned as it is), a function with NumPyro primitives, or, with `init`,
            an unconstrained JAX log-density.
        args: positional arguments of a NumPyro model.
        data: keyword arguments of a NumPyro model.
        init: a point of a JAX log-density; gives the structure of its argument.

    Raises:
        InputError: for any other type, or arguments that do not belong to the type given.
    """
    has_data = data is not None or not isinstance(args, tuple | list) or len(args) > 0
    if isinstance(model, Target):
        if has_data or init is not None:
            raise InputError("A Target holds its data already; drop args, data and init.")
        return model
    if not callable(model):
        raise InputError(
            "The model has to be a Target, a NumPyro model (a function) or a JAX log-density (a function, "
            f"with init); got an object of type {type(model).__name__}."
        )
    if init is None:
        return from_numpyro(model, args, data)
    if has_data:
        raise InputError(
            "init marks the function as a JAX log-density, which takes no args or data: close over the data "
            "(functools.partial does), or drop init if the function is a NumPyro model."
        )
    return from_log_density(model, init)
