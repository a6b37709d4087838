"""A NumPyro model as a Target."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype
from jaxtyping import Array, PRNGKeyArray

from dmvi._compile import quick_options
from dmvi._errors import InputError
from dmvi.targets._arguments import Arguments, describe_nonfinite, read_arguments
from dmvi.targets._checks import TRIES, Search, check_search, explain_failure, find_start
from dmvi.targets._numpyro_predictive import constant_data, predictive
from dmvi.targets._numpyro_program import Program, trace_prior
from dmvi.targets._numpyro_sites import Sites, read_sites, unconstrained_param
from dmvi.targets._starts import Found, further_points, settle, starts_around, uniform_points
from dmvi.targets._subsets import draw_without_replacement, least_share
from dmvi.targets._target import Batch, Target


def from_numpyro(model: Callable, args: tuple = (), data: dict[str, Any] | None = None) -> Target:
    r"""Turn a NumPyro model and its data into a Target.

    log pi(xi) = log p(y, theta(xi); psi) + log |det d theta / d xi|

    where theta are the latent sites, each mapped from R^d by the bijection of its support, y the
    observed sites and psi the `numpyro.param` sites. Improper priors are allowed. Plates with a
    `subsample_size` are full unless a batch is given; then NumPyro's scaling by N / B makes the
    density unbiased.

    Args:
        model: a function with NumPyro primitives, handlers such as `reparam` included.
        args: positional arguments of the model.
        data: keyword arguments of the model, usually the data.

    Returns:
        The target, checked: its density and gradient are finite at some random start, a draw of the prior,
        or uphill of one of these.

    Raises:
        InputError: if arguments and model do not fit, a latent is discrete or inside a
            subsampled plate, or no start has a finite log-density.
    """
    if not callable(model):
        raise InputError(f"A NumPyro model is a function, got an object of type {type(model).__name__}.")
    arguments = read_arguments(model, args, {} if data is None else data)
    try:
        try:
            program, probe = probe_program(model, arguments)
        except (jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError):
            # A NumPy array cannot be indexed by a plate's traced indices, as in y[idx]. A JAX array can, but
            # a model that computes sizes from it, as in int(group.max()), fails: hence the order.
            program, probe = probe_program(model, arguments.on_jax())
    except InputError:
        raise
    except Exception as error:  # whatever a user's own code raises is told as a fault of model or data
        raise explain_failure(error, model, "data", arguments.named) from error
    found = settle_probe(program, probe)
    check_probe(program, probe, found, describe_nonfinite(arguments.named))
    # Constants of a model may come back in the width JAX first met them in, whatever it is set to now.
    observed = {name: np.asarray(v, canonicalize_dtype(v.dtype)) for name, v in probe.observed.items()}
    return program_target(program, probe.params, observed, constant_data(program, observed), found.centre)


class Probe(NamedTuple):
    """What one compiled run tells about a model."""

    params: dict[str, Any]
    observed: dict[str, Array]
    search: Search


def probe_program(model: Callable, arguments: Arguments) -> tuple[Program, Probe]:
    """Read the structure of the model and look for a usable start, in one compilation."""
    programs = []

    def run(key: PRNGKeyArray) -> Probe:
        trace, plates = trace_prior(model, arguments, key)
        program = Program(model, arguments, read_sites(trace, plates))
        programs.append(program)
        params = {name: unconstrained_param(trace[name]) for name in program.sites.params}
        observed = {name: trace[name]["value"] for name in program.sites.observed}
        search = find_start(lambda xi: program.probe(xi, params), trial_points(program.sites), len(observed))
        return Probe(params, observed, search)

    with jax.default_matmul_precision("highest"):
        probe = jax.jit(run, compiler_options=quick_options())(jax.random.key(0))
    return programs[-1], probe


def trial_points(sites: Sites) -> Array:
    """Starts for the first check, in order."""
    return jnp.asarray(uniform_points(TRIES.first, sites.coordinates.dim, seed=0), jnp.result_type(float))


def settle_probe(program: Program, probe: Probe) -> Found:
    """The start of the first check, or one that is looked for further, draws of the prior among the tries."""

    def prior(count: int) -> np.ndarray:
        keys = jax.random.split(jax.random.key(1), count)
        draws = jax.jit(
            jax.vmap(lambda key: program.prior(key, probe.params)), compiler_options=quick_options()
        )
        return np.asarray(draws(keys))

    def more(count: int) -> np.ndarray:
        return further_points(count, program.sites.coordinates.dim, prior)

    def density(xi: Array) -> tuple[Array, Array]:
        return program.probe(xi, probe.params)

    return settle(probe.search, np.asarray(trial_points(program.sites)), more, density)


def check_probe(program: Program, probe: Probe, found: Found, bad_data: dict[str, str]) -> None:
    """Raise an InputError that says why no start is usable, if none is."""
    for name, value in probe.params.items():
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(value)):
            raise InputError(
                f"Param site {name!r} starts outside its constraint or at its edge; change its init_value."
            )
    search = found.search
    if search.usable:
        return
    finite = jax.jit(jax.vmap(lambda xi: program.is_finite(xi, probe.params)))(trial_points(program.sites))
    nonfinite = [name for name, is_finite in finite.items() if not is_finite.any()]
    counts = zip(program.sites.observed, search.outside, strict=True)
    outside = {name: int(n) for name, n in counts if n}
    check_search(search, outside, nonfinite, bad_data, double_only=found.double_only)


def program_target(
    program: Program,
    params: dict[str, Any],
    observed: Mapping[str, np.ndarray],
    constant: Mapping[str, np.ndarray],
    centre: np.ndarray | None = None,
) -> Target:
    """The target of a program; its arguments may be traced.

    Args:
        program: the model with its arguments.
        params: its generative parameters, unconstrained.
        observed: values of its observed sites.
        constant: data that are not random variables.
        centre: a usable point, where few random starts are.
    """
    sites, radius = program.sites, TRIES.radius

    def uniform(key: PRNGKeyArray) -> Array:
        return jax.random.uniform(key, (sites.coordinates.dim,), minval=-radius, maxval=radius)

    def draw_batch(key: PRNGKeyArray) -> Batch:
        keys = jax.random.split(key, len(sites.plates))
        return {
            name: draw_without_replacement(k, size, count)
            for k, (name, (size, count)) in zip(keys, sites.plates.items(), strict=True)
        }

    return Target(
        dim=sites.coordinates.dim,
        names=sites.coordinates.labels,
        params=params,
        observed=observed,
        dims=sites.dims,
        data_size=sites.data_size,
        subsampled=bool(sites.plates),
        _log_density=program.log_density,
        _constrain=program.constrain,
        _constrain_params=jax.jit(program.constrain_params),
        _log_likelihood=program.log_likelihood,
        _start=starts_around(uniform, centre),
        _draw_batch=draw_batch if sites.plates else lambda key: None,
        _unpack=sites.coordinates.split,
        constant=constant,
        batch_rows=least_share(sites.plates.values()),
        _predictive=lambda data: predictive(program, params, data),
        _prior=program.prior,
    )
