"""A NumPyro model evaluated at unconstrained points."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import init_to_uniform
from numpyro.infer.util import potential_energy

from dmvi._errors import InputError
from dmvi.targets._arguments import Arguments
from dmvi.targets._numpyro_handlers import ChoosePlateIndices, ForgetObservations, GiveImputedValuesTheirPrior
from dmvi.targets._numpyro_sites import Site, Sites, Trace, constrained_param, inside_support, log_prob
from dmvi.targets._target import Batch


@dataclass(frozen=True, eq=False)  # a program is equal to itself only
class Program:
    """A model with its arguments and its structure.

    Attributes:
        model: the function with NumPyro primitives.
        arguments: what it is called with; concrete values, never traced.
        sites: its structure.
    """

    model: Callable
    arguments: Arguments
    sites: Sites

    def evaluate(self, xi: Array, params: dict[str, Any], batch: Batch = None) -> tuple[Array, Trace]:
        """log pi(xi; psi) and the trace of the model there; one run of the model gives both.

        NumPyro's validation is off: it would check at every evaluation that latents lie in the supports
        they were just mapped to, with an eigendecomposition for a covariance, and take rounding for a
        fault. What it is right about, data outside a support that moves with a latent, is done here.
        """
        model = handlers.substitute(self.model, substitute_fn=_learned(params))
        latents = self.sites.coordinates.split(xi)
        with numpyro.validation_enabled(False), _effects(ChoosePlateIndices(batch)) as trace:
            energy = potential_energy(model, self.arguments.args, self.arguments.kwargs, latents)
        value = -jnp.asarray(energy, xi.dtype)
        for name in self.sites.observed:
            inside = inside_support(trace[name])
            value = value if inside is None else jnp.where(jnp.all(inside), value, -jnp.inf)
        return value, trace

    def log_density(self, xi: Array, params: dict[str, Any], batch: Batch = None) -> Array:
        """log pi(xi; psi), on a batch of the data if one is given."""
        return self.evaluate(xi, params, batch)[0]

    def constrain(self, xi: Array, params: dict[str, Any]) -> dict[str, Array]:
        """Latent and deterministic sites in the order of the model."""
        wanted = {*self.sites.coordinates.shapes, *self.sites.deterministics}
        trace = self.evaluate(xi, params)[1]
        return {name: jnp.asarray(site["value"]) for name, site in trace.items() if name in wanted}

    def constrain_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """The `numpyro.param` sites on their supports, which only the running model knows."""
        if not params:
            return {}
        trace = self.evaluate(jnp.zeros(self.sites.coordinates.dim), params)[1]
        return {name: trace[name]["value"] for name in self.sites.params}

    def log_likelihood(self, xi: Array, params: dict[str, Any]) -> dict[str, Array]:
        """log p(y_i | theta) of every observed event, by site."""
        trace, values = self.evaluate(xi, params)[1], {}
        for name in self.sites.observed:
            value, inside = log_prob(trace[name]), inside_support(trace[name])
            values[name] = value if inside is None else jnp.where(inside, value, -jnp.inf)
        return values

    def latents(self, xi: Array, params: dict[str, Any]) -> dict[str, Array]:
        """Latent sites on their supports."""
        names = self.sites.coordinates.shapes
        return {name: value for name, value in self.constrain(xi, params).items() if name in names}

    def predict(
        self, key: PRNGKeyArray, latents: dict[str, Array], params: dict[str, Any]
    ) -> dict[str, Array]:
        """One draw of every site that is no latent; latents not given come from their prior."""
        names, learned = self.sites.coordinates.shapes, _learned(params)

        def known(site: Site) -> Any:
            return latents.get(site["name"]) if site["type"] == "sample" else learned(site)

        model = handlers.substitute(self.model, substitute_fn=known)
        plates, imputed, forget = ChoosePlateIndices(), GiveImputedValuesTheirPrior(), ForgetObservations()
        with (
            numpyro.validation_enabled(False),
            handlers.seed(rng_seed=key),
            imputed,
            plates,
            forget,
            handlers.trace() as trace,
        ):
            self.arguments.call(model)
        _check_latent_shapes(trace, latents)
        return {
            name: jnp.asarray(site["value"]) for name, site in trace.items() if _is_predicted(site, names)
        }

    def prior(self, key: PRNGKeyArray, params: dict[str, Any]) -> Array:
        """The coordinates xi of latents drawn from their priors, which must be proper."""
        model = handlers.seed(handlers.substitute(self.model, substitute_fn=_learned(params)), key)
        with numpyro.validation_enabled(False), _effects(ChoosePlateIndices()) as trace:
            self.arguments.call(model)
        latents = [trace[name] for name in self.sites.coordinates.shapes]
        inner = [biject_to(site["fn"].support).inv(site["value"]) for site in latents]
        return jnp.concatenate([jnp.ravel(xi).astype(jnp.result_type(float)) for xi in inner])

    def probe(self, xi: Array, params: dict[str, Any]) -> tuple[Array, Array]:
        """log pi(xi; psi) and, for each observed site, the number of events outside its support."""
        value, trace = self.evaluate(xi, params)
        outside = jnp.zeros(len(self.sites.observed), int)
        for i, name in enumerate(self.sites.observed):
            inside = inside_support(trace[name])
            outside = outside if inside is None else outside.at[i].set(jnp.sum(jnp.logical_not(inside)))
        return value, outside

    def is_finite(self, xi: Array, params: dict[str, Any]) -> dict[str, Array]:
        """Whether the log-probability of each site, factors included, is finite."""
        trace = self.evaluate(xi, params)[1]
        sampled = {name: site for name, site in trace.items() if site["type"] == "sample"}
        return {name: jnp.all(jnp.isfinite(log_prob(site))) for name, site in sampled.items()}


def _learned(params: dict[str, Any]) -> Callable[[Site], Any]:
    """For `handlers.substitute`: param sites at learned values, on their supports."""

    def value(site: Site) -> Any:
        known = site["type"] == "param" and site["name"] in params
        return constrained_param(site, params[site["name"]]) if known else None

    return value


def _is_predicted(site: Site, latents: Container[str]) -> bool:
    factor = site.get("infer", {}).get("is_auxiliary", False)
    return site["type"] == "deterministic" or (
        site["type"] == "sample" and site["name"] not in latents and not factor
    )


def _check_latent_shapes(trace: Trace, latents: dict[str, Array]) -> None:
    """New data must not ask for latents that were never fitted, as those of a new group."""
    for name, value in latents.items():
        site = trace.get(name)
        if site is not None and tuple(site["fn"].shape()) != jnp.shape(value):
            raise InputError(
                f"With the new data, latent site {name!r} has shape {tuple(site['fn'].shape())}; the fit "
                f"knows it with shape {jnp.shape(value)}. Predict for groups the fit has seen, or fit again."
            )


def trace_prior(
    model: Callable, arguments: Arguments, key: PRNGKeyArray
) -> tuple[Trace, dict[str, tuple[int, int]]]:
    """One run of the model with full plates at random latents, and the sizes of its subsampled plates.

    Latents are uniform in (-2, 2) before the bijection, as improper priors cannot be sampled from.
    """
    plates = ChoosePlateIndices()
    with _effects(plates) as trace:
        arguments.call(handlers.substitute(handlers.seed(model, key), substitute_fn=init_to_uniform))
    return trace, plates.subsampled


@contextmanager
def _effects(plates: ChoosePlateIndices) -> Iterator[Trace]:
    """Record what a model does, with plates chosen and a fixed key for models that ask for one."""
    fixed_key = handlers.seed(rng_seed=0, hide_types=["sample", "plate", "control_flow"])
    with fixed_key, GiveImputedValuesTheirPrior(), plates, handlers.trace() as trace:
        yield trace
