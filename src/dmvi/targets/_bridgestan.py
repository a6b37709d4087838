"""A Stan model compiled by BridgeStan as a Target."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from dmvi._errors import InputError
from dmvi.targets._external import from_value_and_grad
from dmvi.targets._target import Target

_METHODS = ("param_unc_num", "param_unc_names", "param_names", "param_constrain", "log_density_gradient")


def from_bridgestan(model: Any, *, seed: int = 0) -> Target:
    """Turn a `bridgestan.StanModel` into a Target.

    The density is Stan's own on the unconstrained scale, Jacobian and constants included, so that the
    evidence is that of the model's densities as written with `target +=` or `_lupdf`-free statements.
    Draws are Stan's parameters, transformed parameters and generated quantities.

    Args:
        model: a `bridgestan.StanModel` with its data.
        seed: of Stan's generator, for generated quantities.

    Raises:
        InputError: if the object lacks BridgeStan's methods or no start has a finite log-density.
    """
    missing = [name for name in _METHODS if not callable(getattr(model, name, None))]
    if missing:
        raise InputError(
            f"A bridgestan.StanModel was expected, which has {', '.join(_METHODS)}; got an object of type "
            f"{type(model).__name__} without {', '.join(missing)}."
        )
    dim = int(model.param_unc_num())
    if dim == 0:
        raise InputError("The Stan model has no parameters, so there is no posterior to infer.")
    labels = tuple(_label(name) for name in model.param_unc_names())
    target = from_value_and_grad(_Density(model, dim), dim)
    inner = _layout(list(model.param_unc_names()))
    outer = _layout(list(model.param_names(include_tp=True, include_gq=True)))
    rng = model.new_rng(seed) if hasattr(model, "new_rng") else None
    constrain = _Constrain(model, rng, outer)
    return dataclasses.replace(
        target,
        names=labels,
        _constrain=lambda xi, params: constrain(xi),
        _unpack=lambda xi: {name: xi[index] for name, index in inner.items()},
    )


class _Density:
    """Stan's log-density and gradient over a batch of points."""

    def __init__(self, model: Any, dim: int):
        self.model = model
        self.dim = dim

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = np.full(len(points), -np.inf), np.zeros_like(points)
        for i, point in enumerate(points):
            try:
                values[i], gradients[i] = self.model.log_density_gradient(
                    np.ascontiguousarray(point), propto=False, jacobian=True
                )
            except RuntimeError:  # Stan rejects the point: its density is zero there
                continue
        return values, gradients


class _Constrain:
    """Stan's constrained variables at a point, through a callback."""

    def __init__(self, model: Any, rng: Any, layout: dict[str, np.ndarray]):
        self.model = model
        self.rng = rng
        self.layout = layout
        self.size = sum(index.size for index in layout.values())

    def __call__(self, xi: Array) -> dict[str, Array]:
        shape = jax.ShapeDtypeStruct((self.size,), xi.dtype)
        flat = jax.pure_callback(self._many, shape, xi, vmap_method="broadcast_all")
        return {name: flat[index] for name, index in self.layout.items()}

    def _many(self, xi: Any) -> np.ndarray:
        points = np.asarray(xi)
        rows = [
            self.model.param_constrain(
                np.ascontiguousarray(point, np.float64), include_tp=True, include_gq=True, rng=self.rng
            )
            for point in points.reshape(-1, points.shape[-1])
        ]
        return np.asarray(rows).reshape(*points.shape[:-1], self.size).astype(points.dtype)


def _layout(names: list[str]) -> dict[str, np.ndarray]:
    """Where each variable's elements lie in Stan's flat vector: "omega.1.2" is element (0, 1) of "omega"."""
    places: dict[str, dict[tuple[int, ...], int]] = {}
    for position, name in enumerate(names):
        stem, *index = name.split(".")
        places.setdefault(stem, {})[tuple(int(i) - 1 for i in index)] = position
    layout = {}
    for stem, found in places.items():
        shape = tuple(np.max(list(found), axis=0).astype(int) + 1) if () not in found else ()
        layout[stem] = np.zeros(shape, int)
        for index, position in found.items():
            layout[stem][index] = position
    return layout


def _label(name: str) -> str:
    """Stan's "theta.3" as "theta[2]": dmvi counts from zero."""
    stem, *index = name.split(".")
    return stem + (f"[{','.join(str(int(i) - 1) for i in index)}]" if index else "")
