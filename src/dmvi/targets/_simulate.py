r"""Data sets simulated from a NumPyro model, and the model of a data set seen twice.

theta* ~ p(theta),   y* ~ p(y | theta*)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro import handlers
from numpyro.infer.util import log_density

from dmvi._errors import InputError
from dmvi.targets._arguments import Arguments, read_arguments
from dmvi.targets._checks import explain_failure
from dmvi.targets._numpyro_handlers import ForgetObservations
from dmvi.targets._numpyro_program import trace_prior
from dmvi.targets._numpyro_sites import Trace, is_latent, is_observation

SEEN_AGAIN = "_seen_again"


@dataclass(frozen=True, eq=False)
class Simulator:
    """A model that data sets can be simulated from.

    Attributes:
        model: the NumPyro model.
        shared: its arguments that are not observed.
        observed: the arguments that are, as given: they say what shape simulated ones have.
        arguments: observed site -> the argument it holds.
        latents: names of the latent sites.
    """

    model: Callable
    shared: dict[str, Any]
    observed: dict[str, Any]
    arguments: dict[str, str]
    latents: tuple[str, ...]

    def simulate(self, keys: PRNGKeyArray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """One draw per key: latent and deterministic sites, and the arguments that are observed.

        Raises:
            InputError: if a prior is improper.
        """
        try:
            sites, data = jax.jit(jax.vmap(lambda key: self._one(key, self.observed)))(keys)
        except NotImplementedError as error:
            raise InputError(
                "a prior of the model cannot be drawn from, as improper ones cannot; give a simulator, or "
                "calibrate around one data set with near=True."
            ) from error
        return jax.tree.map(np.asarray, sites), jax.tree.map(np.asarray, data)

    def _one(
        self, key: PRNGKeyArray, observed: Mapping[str, Any]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        with (
            numpyro.validation_enabled(False),
            handlers.seed(rng_seed=key),
            ForgetObservations(),
            handlers.trace() as trace,
        ):
            self.model(**self.shared, **observed)
        kept = {
            name: jnp.asarray(site["value"])
            for name, site in trace.items()
            if name in self.latents or site["type"] == "deterministic"
        }
        return kept, {argument: trace[name]["value"] for name, argument in self.arguments.items()}

    def check_observed_only(self) -> None:
        """The same draws come out, whatever stands in the observed arguments.

        Raises:
            InputError: if not, as where lags of y explain y: what is simulated would follow the data given.
        """
        key, others = jax.random.key(0), {name: _other(value) for name, value in self.observed.items()}
        try:
            one = self._one(key, self.observed)
        except NotImplementedError:  # an improper prior, told by whoever draws from it
            return
        try:
            same = jax.tree.map(
                lambda a, b: bool(jnp.array_equal(a, b, equal_nan=True)), one, self._one(key, others)
            )
            unused = all(jax.tree.leaves(same))
        except Exception:  # other values are of no use to the model, so it uses them
            unused = False
        if not unused:
            raise InputError(
                "the model uses its observed arguments for more than being observed, as where lags of y "
                "explain y, so data cannot be simulated from it as it stands; give a simulator that returns "
                "the truth and the data."
            )


def log_joint(
    model: Callable, shared: Mapping[str, Any], latents: Sequence[str]
) -> Callable[[dict[str, Any], dict[str, Any]], Float[Array, " draws"]]:
    """A compiled function of draws of the sites and of data: log p(y, theta) of every draw."""

    def one(sites: dict[str, Array], data: dict[str, Array]) -> Array:
        with numpyro.validation_enabled(False):
            return jnp.asarray(log_density(model, (), {**shared, **data}, sites)[0])

    @jax.jit
    def many(sites: dict[str, Array], data: dict[str, Array]) -> Array:
        with jax.default_matmul_precision("highest"):
            return jax.vmap(lambda draw: one(draw, data))(sites)

    return lambda sites, data: many({name: sites[name] for name in latents}, data)


def read_simulator(model: Callable, data: Mapping[str, Any]) -> Simulator:
    """Find out which of the model's arguments are observed.

    Args:
        model: a NumPyro model.
        data: its arguments by name. Values of observed ones do not matter, and a tuple of whole numbers, a
            shape, will do for an array.

    Raises:
        InputError: if an observed site holds no argument as it is, or the model has what cannot be
            simulated: factors, learned parameters, subsampled plates, imputed values.
    """
    if not callable(model):
        raise InputError(f"A NumPyro model is a function, got an object of type {type(model).__name__}.")
    rng = np.random.default_rng(0)
    filled = {name: _filled(value, rng) for name, value in dict(data).items()}
    arguments = read_arguments(model, (), filled)
    trace, plates = _traced(model, arguments)
    if plates:
        raise InputError("calibration needs all rows at once; leave subsample_size out of the plates.")
    _check_sites(trace)
    held = _held(trace, arguments)
    shared = {name: value for name, value in arguments.kwargs.items() if name not in held.values()}
    observed = {name: arguments.kwargs[name] for name in held.values()}
    latents = tuple(name for name, site in trace.items() if is_latent(site))
    simulator = Simulator(model, shared, observed, held, latents)
    simulator.check_observed_only()
    return simulator


def latents_of(model: Callable, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the latent sites of a model with these arguments."""
    trace, _ = _traced(model, read_arguments(model, (), dict(data)))
    return tuple(name for name, site in trace.items() if is_latent(site))


def _traced(model: Callable, arguments: Arguments) -> tuple[Trace, Any]:
    """The model's sites and plates at a draw of its prior."""
    try:
        with numpyro.validation_enabled(False):
            return trace_prior(model, arguments, jax.random.key(0))
    except InputError:
        raise
    except Exception as error:  # whatever a user's own code raises is told as a fault of model or data
        raise explain_failure(error, model, "data", arguments.named) from error


def seen_twice(model: Callable, sites: Mapping[str, str]) -> Callable:
    r"""The model of data y and further data y' of the same latents, log p(y, theta) + log p(y' | theta).

    Args:
        model: a NumPyro model.
        sites: observed site -> argument of the new model, beside those of the model, that holds y'.
    """

    def both(**data: Any) -> None:
        again = {site: data.pop(argument) for site, argument in sites.items()}
        with handlers.trace() as trace:
            model(**data)
        for site, values in again.items():
            numpyro.sample(site + SEEN_AGAIN, trace[site]["fn"], obs=values)

    return both


def _filled(value: Any, rng: np.random.Generator) -> Any:
    """An array of a shape; numbers that nothing else has, so that it can be told from other arguments."""
    if isinstance(value, tuple) and all(isinstance(n, int) and n >= 0 for n in value):
        return rng.uniform(0.1, 0.9, value).astype(jnp.result_type(float))
    return value


def _other(value: Any) -> np.ndarray:
    """Another array of the same shape and kind."""
    array = np.asarray(value)
    if array.dtype.kind == "b":
        return ~array
    return array + 1 if array.dtype.kind in "iu" else (0.5 * array + 0.25).astype(array.dtype)


def _check_sites(trace: Trace) -> None:
    for name, site in trace.items():
        if site["type"] == "param":
            raise InputError(
                f"{name!r} is a learned parameter without a prior: there is nothing to draw from."
            )
        if site["type"] == "sample" and site.get("infer", {}).get("is_auxiliary", False):
            raise InputError(
                f"the factor {name!r} changes the density but not what the model simulates; give a simulator."
            )
        if site["type"] == "sample" and site.get("scale") is not None:
            raise InputError(
                f"the scale of {name!r} changes the density but not what the model simulates; give a "
                "simulator."
            )
        if name.endswith("_unobserved") and name.removesuffix("_unobserved") + "_observed" in trace:
            raise InputError(
                "data with gaps (obs_mask) cannot be simulated from the model; give a simulator."
            )


def _held(trace: Trace, arguments: Arguments) -> dict[str, str]:
    """Observed site -> the argument it holds."""
    observed = {name: site for name, site in trace.items() if is_observation(site)}
    if not observed:
        raise InputError("the model observes nothing with these arguments; give it the observed ones too.")
    held: dict[str, str] = {}
    for name, site in observed.items():
        same = [n for n, value in arguments.kwargs.items() if value is site["value"]]
        same = same or [n for n, value in arguments.kwargs.items() if _equal(value, site["value"])]
        same = [name] if name in same else same
        if len(same) != 1 or same[0] in held.values():
            raise InputError(
                f"which argument does the observed site {name!r} hold? Expected one of "
                f"{list(arguments.kwargs)} as it is, found {same or 'none'}; give a simulator that returns "
                "the truth and the data."
            )
        held[name] = same[0]
    return held


def _equal(value: Any, other: Any) -> bool:
    if not isinstance(value, np.ndarray | jax.Array | int | float) or isinstance(value, bool):
        return False
    return np.shape(value) == np.shape(other) and np.array_equal(np.asarray(value), np.asarray(other))
