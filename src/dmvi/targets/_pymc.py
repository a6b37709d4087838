"""A PyMC model as a Target."""

# PyMC and PyTensor declare few of their names and types.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc
import pytensor
import xarray as xr
from jaxtyping import Array, PRNGKeyArray
from pymc.initial_point import make_initial_point_fn
from pymc.util import is_transformed_name

from dmvi._errors import InputError
from dmvi.targets._checks import TRIES, check_search, explain_failure
from dmvi.targets._coordinates import Coordinates
from dmvi.targets._pymc_graph import (
    Function,
    Minibatch,
    as_jax,
    find_minibatches,
    rebuild,
    total_size,
    value_of,
)
from dmvi.targets._starts import Found, further_points, look_for_start, settle, starts_around
from dmvi.targets._subsets import draw_without_replacement, least_share
from dmvi.targets._target import Batch, Target

RADIUS = 1.0  # starts lie this far around PyMC's initial point, as in pm.sample


def from_pymc(model: pymc.Model) -> Target:
    r"""Turn a PyMC model into a Target.

    log pi(xi) = log p(y, theta(xi)) + sum of potentials + log |det d theta / d xi|

    where xi are PyMC's own transformed values. `pm.Data` are read now; `pm.Minibatch` gives way to
    batches that dmvi draws, and evaluations on the full data use all of it.

    Raises:
        InputError: if a free variable is discrete, there is none, or no start has a finite log-density.
    """
    _check_free(model)
    try:
        with pytensor.config.change_flags(mode="FAST_COMPILE"):  # small graphs, each run once
            program = _read(model)
        found = _settled(model, program)
    except InputError:
        raise
    except Exception as error:  # whatever a model's own graph raises is told as a fault of the model
        raise explain_failure(error, from_pymc, "data", program_data(model)) from error
    check_search(found.search, double_only=found.double_only)
    return _as_target(model, program, found.centre)


@dataclass(frozen=True, eq=False)
class _Part:
    """One variable as a function of the free ones and, where it depends on a minibatch, of its rows.

    `total` is the number of rows that the likelihood stands for, `scale` what PyMC multiplied it by.
    """

    function: Function
    minibatch: Minibatch | None
    total: int
    scale: float

    def on_all(self, at: list[Array]) -> Array:
        """The variable on the full data."""
        if self.minibatch is None:
            return self.function(*at)
        return self.minibatch.over_all(lambda rows: self.function(*at, rows)) / self.scale

    def weighed(self, at: list[Array], batch: Batch) -> Array:
        """The sum over rows, scaled to `total` rows."""
        assert self.minibatch is not None
        if batch is None:
            return jnp.sum(self.on_all(at)) * (self.total / self.minibatch.size)
        rows = self.function(*at, batch[self.minibatch.name]) / self.scale
        return jnp.sum(rows) * (self.total / self.minibatch.count)


def _part(values: list[Any], graph: Any, name: str, total: int | None) -> _Part:
    found = find_minibatches([graph])
    if not found:
        return _Part(as_jax(values, graph), None, 1, 1.0)
    if len(found) > 1:
        raise InputError(
            f"Variable {name!r} of the PyMC model depends on {len(found)} calls of pm.Minibatch, whose rows "
            "do not belong together; cut all its data in one call, pm.Minibatch(x, y, batch_size=...)."
        )
    minibatch = found[0]
    index, rows = minibatch.chosen()
    function = as_jax([*values, index], rebuild([graph], rows)[0])
    scale = 1.0 if total is None else total / minibatch.count
    return _Part(function, minibatch, minibatch.size if total is None else total, scale)


@dataclass(frozen=True, eq=False)
class _Program:
    """The JAX functions of a model.

    log pi(xi) = rest(xi) + sum over observed variables of weight * sum of log p(y_i | theta), where the sum
    runs over a batch or all rows; `rest` is everything that no minibatch touches.
    """

    coordinates: Coordinates
    origin: np.ndarray
    rest: Function
    parts: dict[str, _Part]
    constrained: dict[str, _Part]
    likelihoods: dict[str, _Part]

    def log_density(self, xi: Array, params: dict[str, Array], batch: Batch) -> Array:
        """log pi(xi), on a batch of rows if one is given."""
        at = list(self.coordinates.split(xi).values())
        value = self.rest(*at)
        for part in self.parts.values():
            value = value + part.weighed(at, batch)
        return jnp.asarray(value, xi.dtype)

    def constrain(self, xi: Array, params: dict[str, Array]) -> dict[str, Array]:
        """The model's variables by name."""
        return self._named(self.constrained, xi)

    def log_likelihood(self, xi: Array, params: dict[str, Array]) -> dict[str, Array]:
        """log p(y_i | theta) by observed variable."""
        return self._named(self.likelihoods, xi)

    def _named(self, parts: dict[str, _Part], xi: Array) -> dict[str, Array]:
        at = list(self.coordinates.split(xi).values())
        return {name: jnp.asarray(part.on_all(at)) for name, part in parts.items()}


def _read(model: pymc.Model) -> _Program:
    point = model.initial_point(random_seed=0)
    names = [str(rv.name) for rv in model.free_RVs]
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    coordinates = Coordinates({n: np.shape(point[v.name]) for n, v in zip(names, values, strict=True)})
    origin = np.concatenate([np.ravel(point[value.name]) for value in values])

    observed = _observed_variables(model)
    pointwise = model.logp(vars=observed, jacobian=False, sum=False) if observed else []
    likelihoods = {
        str(rv.name): _part(values, graph, str(rv.name), total_size(rv))
        for rv, graph in zip(observed, pointwise, strict=True)
    }
    batched = {name: part for name, part in likelihoods.items() if part.minibatch is not None}
    whole = [*model.free_RVs, *(rv for rv in observed if rv.name not in batched), *model.potentials]
    rest = model.logp(vars=whole)
    if find_minibatches([rest]):
        raise InputError(
            "A potential or a free variable of the PyMC model depends on pm.Minibatch, so it cannot be "
            "scaled to the full data; write it as an observed variable with total_size."
        )
    variables = [v for v in model.unobserved_value_vars if not is_transformed_name(v.name)]
    constrained = {str(v.name): _part(values, v, str(v.name), None) for v in variables}
    return _Program(
        coordinates,
        origin.astype(jnp.result_type(float)),
        as_jax(values, rest),
        batched,
        constrained,
        likelihoods,
    )


def _as_target(model: pymc.Model, program: _Program, centre: np.ndarray | None) -> Target:
    origin = jnp.asarray(program.origin)
    observed = {str(rv.name): _observed(model.rvs_to_values[rv]) for rv in _observed_variables(model)}
    minibatches = {part.minibatch.name: part.minibatch for part in program.parts.values() if part.minibatch}

    def draw_batch(key: PRNGKeyArray) -> Batch:
        keys = jax.random.split(key, len(minibatches))
        named = zip(keys, minibatches.items(), strict=True)
        return {name: draw_without_replacement(k, batch.size, batch.count) for k, (name, batch) in named}

    def start(key: PRNGKeyArray) -> Array:
        return origin + jax.random.uniform(key, origin.shape, origin.dtype, -RADIUS, RADIUS)

    dims = {n: tuple(d) for n, d in model.named_vars_to_dims.items() if d and None not in d}
    return Target(
        dim=program.coordinates.dim,
        names=program.coordinates.labels,
        params={},
        observed=observed,
        dims=dims,
        data_size=sum(np.size(value) for value in observed.values()) if observed else None,
        subsampled=bool(minibatches),
        _log_density=program.log_density,
        _constrain=program.constrain,
        _constrain_params=lambda params: {},
        _log_likelihood=program.log_likelihood,
        _start=starts_around(start, centre),
        _draw_batch=draw_batch if minibatches else lambda key: None,
        _unpack=program.coordinates.split,
        _export=as_inference_data,
        coords={name: np.asarray(values) for name, values in model.coords.items() if values is not None},
        constant=_constant(model),
        batch_rows=least_share((batch.size, batch.count) for batch in minibatches.values()),
        exports_likelihood=False,  # pm.compute_log_likelihood adds it, and refuses where it is already
    )


def _check_free(model: pymc.Model) -> None:
    if not model.free_RVs:
        raise InputError("The PyMC model has no free variables, so there is no posterior to infer.")
    for rv in model.free_RVs:
        if rv.type.numpy_dtype.kind in "biu":
            raise InputError(
                f"Variable {rv.name!r} of the PyMC model is discrete, which has no gradient; sum it out, "
                "with pm.Mixture or pymc_extras.marginalize."
            )


def _settled(model: pymc.Model, program: _Program) -> Found:
    """A usable start: near PyMC's initial point, of (-2, 2)^dim, or a draw of the prior."""

    def density(xi: Array) -> tuple[Array, Array]:
        return program.log_density(xi, {}, None), jnp.zeros((0,), int)

    def more(count: int) -> np.ndarray:
        return further_points(count, program.origin.size, lambda number: _prior_points(model, number))

    starts = _starts(program.origin)
    return settle(look_for_start(density, starts, 0), starts, more, density)


def _starts(origin: np.ndarray) -> np.ndarray:
    """Starts for the check, PyMC's initial point first."""
    noise = np.random.default_rng(0).uniform(-RADIUS, RADIUS, (TRIES.first, origin.size))
    noise[0] = 0.0
    return (origin[None] + noise).astype(origin.dtype)


def _prior_points(model: pymc.Model, count: int) -> np.ndarray:
    """Draws of the prior in PyMC's transformed coordinates."""
    prior: Any = dict.fromkeys(model.free_RVs, "prior")  # over any initval
    draw = make_initial_point_fn(model=model, overrides=prior, jitter_rvs=set())
    points = [draw(seed) for seed in range(count)]
    values = [model.rvs_to_values[rv].name for rv in model.free_RVs]
    return np.array([np.concatenate([np.ravel(point[name]) for name in values]) for point in points])


def _observed_variables(model: pymc.Model) -> list[Any]:
    """Each once: `pm.sample_posterior_predictive` lists them in the model again."""
    return list(dict.fromkeys(model.observed_RVs))


def _observed(value: Any) -> np.ndarray:
    """The observed data of a variable, whole where the model takes batches of it."""
    for minibatch in find_minibatches([value]):
        return np.asarray(value_of(minibatch.wholes[minibatch.outputs.index(value)]))
    return np.asarray(value_of(value))


def _constant(model: pymc.Model) -> dict[str, np.ndarray]:
    """Data that are no observations."""
    observed = set(model.rvs_to_values.values())
    return {str(var.name): np.asarray(value_of(var)) for var in model.data_vars if var not in observed}


def program_data(model: pymc.Model) -> dict[str, Any]:
    """The model's data by name, for messages."""
    return {str(var.name): np.asarray(value_of(var)) for var in model.data_vars}


def as_inference_data(tree: xr.DataTree) -> Any:
    """What `pm.sample` returns: an `arviz.InferenceData` up to PyMC 5, a DataTree after."""
    import arviz

    groups = {name: child.to_dataset() for name, child in tree.children.items()}
    wide = {name: group.map(_widened, keep_attrs=True) for name, group in groups.items()}
    kind: Any = getattr(arviz, "InferenceData", xr.DataTree)
    return xr.DataTree.from_dict(wide) if issubclass(kind, xr.DataTree) else kind(**wide)


def _widened(array: xr.DataArray) -> xr.DataArray:
    """PyMC's own functions expect floats of 64 bits."""
    return array.astype(np.float64) if array.dtype == np.float32 else array
