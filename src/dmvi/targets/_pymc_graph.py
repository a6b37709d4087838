"""PyTensor graphs of a PyMC model as JAX functions, with minibatches chosen from outside."""

# PyMC and PyTensor declare few of their names and types.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc.data
import pytensor.tensor as pt
from jaxtyping import Array
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.mode import JAX
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors, io_toposort

Function = Callable[..., Array]


@dataclass(frozen=True, eq=False)
class Minibatch:
    """One call of `pm.Minibatch`.

    Attributes:
        outputs: the batches, as the model's graph has them.
        wholes: the data sets they are cut from, in the same places.
        name: what its indices are called.
        size: number N of rows of the data.
        count: number B of rows of a batch.
    """

    outputs: tuple[Any, ...]
    wholes: tuple[Any, ...]
    name: str
    size: int
    count: int

    def chosen(self) -> tuple[Any, dict[Any, Any]]:
        """Symbolic indices, and replacements that give the model those rows of its data."""
        index = pt.tensor(self.name, dtype="int32", shape=(self.count,))
        return index, {out: whole[index] for out, whole in zip(self.outputs, self.wholes, strict=True)}

    def blocks(self) -> np.ndarray:
        """All rows in order, in blocks of B; the last is filled up from the beginning."""
        rows = np.arange(-(-self.size // self.count) * self.count) % self.size
        return rows.reshape(-1, self.count).astype(np.int32)

    def over_all(self, function: Callable[[Array], Array]) -> Array:
        """`function` of the rows of a batch, over all rows.

        A graph with batches has their length written into it in many places, so that all data have to
        go through it in blocks of that length.
        """
        parts = jax.vmap(function)(jnp.asarray(self.blocks()))
        return jnp.reshape(parts, (-1, *parts.shape[2:]))[: self.size]


def find_minibatches(graph: Sequence[Any]) -> list[Minibatch]:
    """The calls of `pm.Minibatch` that a graph depends on; each has a random generator of its own."""
    calls: dict[Any, dict[Any, Any]] = {}
    for variable in ancestors(graph):
        node = variable.owner
        if node is not None and isinstance(node.op, pymc.data.MinibatchOp):
            *wholes, generator = node.inputs  # PyMC copies graphs, so that one call may have several nodes
            calls.setdefault(generator, {}).update(zip(node.outputs[: len(wholes)], wholes, strict=True))
    return [_minibatch(generator, wholes) for generator, wholes in calls.items()]


def _minibatch(generator: Any, wholes: dict[Any, Any]) -> Minibatch:
    batch, whole = next(iter(wholes.items()))
    size, count = (int(value_of(data.shape[0])) for data in (whole, batch))
    return Minibatch(tuple(wholes), tuple(wholes.values()), f"minibatch_{generator.auto_name}", size, count)


def total_size(variable: Any) -> int | None:
    """The `total_size` of an observed variable, by which PyMC scales its likelihood; None without."""
    node = variable.owner
    if not isinstance(node.op, MinibatchRandomVariable):
        return None
    given = [value_of(size) for size in node.inputs[1:] if hasattr(size, "ndim")]
    return int(np.prod(given)) if given else None


def value_of(variable: Any) -> Any:
    """The value of data in a graph."""
    if isinstance(variable, SharedVariable):
        return variable.get_value()
    return variable.data if hasattr(variable, "data") else variable.eval(mode="FAST_COMPILE")


def rebuild(outputs: Sequence[Any], replacements: dict[Any, Any]) -> list[Any]:
    """The graph with some variables replaced."""
    known = dict(replacements)
    for node in io_toposort(list(replacements), list(outputs)):
        inputs = [known.get(variable, variable) for variable in node.inputs]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            copy = node.clone_with_new_inputs(inputs, strict=False)
            known |= {
                old: new for old, new in zip(node.outputs, copy.outputs, strict=True) if old not in known
            }
    return [known.get(variable, variable) for variable in outputs]


def as_jax(inputs: Sequence[Any], output: Any) -> Function:
    """A JAX function of the inputs; shared data become constants, as they are now."""
    shared = {v: pt.constant(v.get_value()) for v in ancestors([output]) if isinstance(v, SharedVariable)}
    graph = FunctionGraph(list(inputs), rebuild([output], shared), clone=True)
    JAX.optimizer.rewrite(graph)
    with _quiet():
        function = _funcify()(graph)

    def call(*values: Array) -> Array:
        with _quiet():
            return function(*values)[0]

    return call


def _funcify() -> Callable:
    """PyTensor's translator to JAX, imported without its change of JAX's float width."""
    # A thread of its own knows nothing of a `with jax.enable_x64(...)` around this call, which ends there.
    with ThreadPoolExecutor(1) as elsewhere:
        wide = bool(elsewhere.submit(jax.config.read, "jax_enable_x64").result())
    try:
        from pytensor.link.jax.dispatch import jax_funcify
    finally:
        jax.config.update("jax_enable_x64", wide)
    return jax_funcify


def _quiet() -> warnings.catch_warnings:
    """PyTensor asks for 64 bits by name and says that it drops assertions; neither is a fault here."""
    context = warnings.catch_warnings(action="ignore", category=UserWarning)
    return context
