"""Compiling for programs that run for seconds: on CPUs most of a fit's time would be the compiler's."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

# Measured on the training program: half the time to compile, about an eighth more to run; and matrix products
# handed one by one to the library that computes them, as what XLA fuses to them there runs many times slower.
_QUICK = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
}

Function = TypeVar("Function", bound=Callable)


def compiled(function: Function) -> Function:
    """`equinox.filter_jit` with a compiler told to be quick where that pays, which is on CPUs."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return _program(function)(*args)

    return call  # pyright: ignore[reportReturnType]


@functools.cache
def _program(function: Callable) -> Callable:
    return eqx.filter_jit(function, compiler_options=quick_options())  # pyright: ignore[reportCallIssue]


@functools.cache
def quick_options() -> dict[str, Any]:
    """Those of _QUICK that this version of XLA knows: they come and go."""
    if jax.default_backend() != "cpu":
        return {}
    return {name: value for name, value in _QUICK.items() if _known({name: value})}


def _known(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
