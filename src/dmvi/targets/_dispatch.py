"""Whatever a user calls a model becomes a Target."""

import sys
from collections.abc import Callable
from typing import Any, cast

from dmvi._errors import InputError
from dmvi.targets._jax import from_log_density
from dmvi.targets._numpyro import from_numpyro
from dmvi.targets._target import Target


def as_target(
    model: Any = None, *, args: tuple = (), data: dict[str, Any] | None = None, init: Any = None
) -> Target:
    """Turn whatever describes a posterior into a Target.

    Args:
        model: a Target (returned as it is), a PyMC model (None: the one whose context is open), a pinned
            joint distribution of TFP on JAX, a function with NumPyro primitives, or, with `init`,
            an unconstrained JAX log-density.
        args: positional arguments of a NumPyro model.
        data: keyword arguments of a NumPyro model.
        init: a point of a JAX log-density; gives the structure of its argument.

    Raises:
        InputError: for any other type, or arguments that do not belong to the type given.
    """
    model = _open_pymc_model() if model is None else model
    has_data = data is not None or not isinstance(args, tuple | list) or len(args) > 0
    for kind, convert in _HOLDERS.items():
        if _is_instance(model, kind):
            if has_data or init is not None:
                raise InputError(f"A {kind[-1]} holds its data already; drop args, data and init.")
            return convert(model)
    if hasattr(model, "experimental_pin"):
        raise InputError(
            f"The {type(model).__name__} has no data yet; pin them, dmvi.fit(joint.experimental_pin(y=y))."
        )
    if not callable(model):
        raise InputError(
            "The model has to be a Target, a NumPyro model (a function), a JAX log-density (a function, "
            "with init), a PyMC model or a pinned joint distribution of TFP on JAX; "
            f"got an object of type {type(model).__name__}."
        )
    if init is None:
        return from_numpyro(model, args, data)
    if has_data:
        raise InputError(
            "init marks the function as a JAX log-density, which takes no args or data: close over the data "
            "(functools.partial does), or drop init if the function is a NumPyro model."
        )
    return from_log_density(cast(Callable[[Any], Any], model), init)


def _from_pymc(model: Any) -> Target:
    from dmvi.targets._pymc import from_pymc

    return from_pymc(model)


def _from_tfp(model: Any) -> Target:
    from dmvi.targets._tfp import from_tfp

    return from_tfp(model)


# Module and path of the classes that hold their data; nothing is imported to look.
_HOLDERS: dict[tuple[str, ...], Callable[[Any], Target]] = {
    ("dmvi.targets._target", "Target"): lambda target: target,
    ("pymc", "Model"): _from_pymc,
    (
        "tensorflow_probability.substrates.jax",
        "experimental",
        "distributions",
        "JointDistributionPinned",
    ): _from_tfp,
}


def _is_instance(model: Any, kind: tuple[str, ...]) -> bool:
    """Whether the model is of that class; whoever made it has imported its module already."""
    found: Any = sys.modules.get(kind[0])
    for name in kind[1:]:
        found = getattr(found, name, None)
    return found is not None and isinstance(model, found)


def _open_pymc_model() -> Any:
    try:
        return sys.modules["pymc"].modelcontext(None)
    except (KeyError, TypeError):  # PyMC is not there, or no context is open
        raise InputError(
            "There is no model to fit; give one, or call fit() inside `with pm.Model():`."
        ) from None
