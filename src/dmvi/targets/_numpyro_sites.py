"""What one trace of a NumPyro model says about its sites."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints

from dmvi._errors import InputError
from dmvi.targets._coordinates import Coordinates

Site = dict[str, Any]  # a message as NumPyro records it
Trace = dict[str, Site]


@dataclass(frozen=True)
class Sites:
    """The static structure of a model.

    Attributes:
        coordinates: unconstrained latents, in the order in which the model samples them.
        deterministics: names of the deterministic sites.
        observed: names of the observed sites; factors are not among them.
        params: names of the `numpyro.param` sites.
        dims: plates of each latent, deterministic and observed site, outermost first.
        data_size: number of observed events; None without observed sites.
        plates: size and subsample size of each subsampled plate.
    """

    coordinates: Coordinates
    deterministics: tuple[str, ...]
    observed: tuple[str, ...]
    params: tuple[str, ...]
    dims: dict[str, tuple[str, ...]]
    data_size: int | None
    plates: dict[str, tuple[int, int]]


def read_sites(trace: Trace, plates: dict[str, tuple[int, int]]) -> Sites:
    """Read the structure from a trace in which every plate is full.

    Raises:
        InputError: for a model dmvi cannot fit, naming the site and the fix.
    """
    latents = {name: site for name, site in trace.items() if is_latent(site)}
    observed = {name: site for name, site in trace.items() if is_observation(site)}
    deterministics = {name: site for name, site in trace.items() if site["type"] == "deterministic"}
    if not latents:
        raise InputError(
            "The model has no latent sites, so there is no posterior to infer; sample a site without obs. "
            "If the function is a JAX log-density and not a NumPyro model, pass init."
        )
    for site in latents.values():
        _check_latent(site, plates)
    for site in observed.values():
        _check_observed_shape(site)
    return Sites(
        coordinates=Coordinates({name: _unconstrained_shape(site) for name, site in latents.items()}),
        deterministics=tuple(deterministics),
        observed=tuple(observed),
        params=tuple(name for name, site in trace.items() if site["type"] == "param"),
        dims={name: _plate_dims(site) for name, site in {**latents, **deterministics, **observed}.items()},
        data_size=sum(math.prod(_batch_shape(site)) for site in observed.values()) if observed else None,
        plates=plates,
    )


def is_latent(site: Site) -> bool:
    """Whether the site is sampled and not observed."""
    return site["type"] == "sample" and not site["is_observed"]


def is_observation(site: Site) -> bool:
    """Whether the site is observed data; `numpyro.factor` also makes an observed site, of no data."""
    return site["type"] == "sample" and site["is_observed"] and not site["infer"].get("is_auxiliary", False)


def unconstrained_param(site: Site) -> Any:
    """The initial value of a `numpyro.param` site in unconstrained coordinates, as float.

    The value may be a pytree, as the weights of a network are; those are real already.
    """
    constraint = site["kwargs"].get("constraint", constraints.real)
    value = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), site["value"])
    return value if constraint is constraints.real else biject_to(constraint).inv(value)


def constrained_param(site: Site, value: Any) -> Any:
    """The inverse of `unconstrained_param`: the value on the support of the site."""
    constraint = site["kwargs"].get("constraint", constraints.real)
    return value if constraint is constraints.real else biject_to(constraint)(value)


def log_prob(site: Site) -> Array:
    """Log-probabilities of the events of a site, without NumPyro's checks of value and support."""
    with numpyro.validation_enabled(False):
        return site["fn"].log_prob(site["value"])


def inside_support(site: Site) -> Any:
    """Which observed events lie inside their support; None if certainly all. Masked events are inside.

    The support of a whole vector of reals, as a simplex, is left out: rounding breaks its equalities.
    """
    fn, support = site["fn"], site["fn"].support
    value = site["value"] if isinstance(site["value"], jax.Array) else np.asarray(site["value"])
    inside: Any
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.real or (support.event_dim > 0 and not support.is_discrete):
        return None
    try:
        inside = support(value)
    except jax.errors.TracerArrayConversionError:  # NumPy data against bounds that depend on a latent
        inside = support(jnp.asarray(value))
    except NotImplementedError:  # a support that only the distribution's own code knows
        return None
    extra = fn.event_dim - support.event_dim
    inside = inside.all(axis=tuple(range(-extra, 0))) if extra > 0 else inside
    inside = inside | (log_prob(site) == 0) if _is_masked(fn) else inside
    return None if isinstance(inside, np.ndarray | np.bool_) and inside.all() else inside


def _is_masked(fn: dist.Distribution) -> bool:
    while not isinstance(fn, dist.MaskedDistribution):
        if not isinstance(fn, dist.Independent | dist.ExpandedDistribution):
            return False
        fn = fn.base_dist
    return True


def _check_latent(site: Site, plates: dict[str, tuple[int, int]]) -> None:
    name, fn = site["name"], site["fn"]
    if fn.support.is_discrete:
        fix = "sum it out, with numpyro.distributions.MixtureSameFamily or a logsumexp in numpyro.factor"
        if name.endswith("_unobserved"):
            fix = "leave missing values out with numpyro.handlers.mask instead of obs_mask"
        kind = type(fn).__name__
        raise InputError(f"Site {name!r} is a discrete latent ({kind}), which has no gradient; {fix}.")
    if isinstance(fn, dist.Delta):
        raise InputError(f"Latent site {name!r} has a Delta distribution; use numpyro.deterministic.")
    for frame in site["cond_indep_stack"]:
        if frame.name in plates:
            raise InputError(
                f"Latent site {name!r} is inside plate {frame.name!r}, which is subsampled: one latent per "
                f"data point cannot be fitted on minibatches. Drop subsample_size from {frame.name!r}."
            )


def _check_observed_shape(site: Site) -> None:
    """Observed values and distribution have to agree up to broadcasting one of them.

    Values of shape (N, 1) against a distribution of shape (N,) would silently make N^2 terms.
    """
    value, expected = jnp.shape(site["value"]), tuple(site["fn"].shape())
    try:
        joint = jnp.broadcast_shapes(value, expected)
    except ValueError:
        joint = None
    if joint not in (value, expected):
        raise InputError(
            f"The observed values of site {site['name']!r} have shape {value}, but its distribution has "
            f"shape {expected}; pass data of that shape, or change the model."
        )


def _unconstrained_shape(site: Site) -> tuple[int, ...]:
    return tuple(biject_to(site["fn"].support).inverse_shape(jnp.shape(site["value"])))


def _batch_shape(site: Site) -> tuple[int, ...]:
    """Shape of the events of a site: that of its log-probabilities."""
    shape = jnp.broadcast_shapes(jnp.shape(site["value"]), tuple(site["fn"].shape()))
    return shape[: len(shape) - site["fn"].event_dim]


def _plate_dims(site: Site) -> tuple[str, ...]:
    """Plates of the leading dimensions of a value, up to the first that is no plate."""
    frames, shape = site["cond_indep_stack"], jnp.shape(site["value"])
    if site["type"] == "sample":
        shape = shape[: len(shape) - site["fn"].event_dim]
    else:  # a deterministic site does not say where its plates end: they come first
        shape = shape[: max((-frame.dim for frame in frames), default=0)]
    names: list[str | None] = [None] * len(shape)
    for frame in frames:
        if -frame.dim <= len(shape) and shape[frame.dim] == frame.size:
            names[frame.dim] = frame.name
    end = names.index(None) if None in names else len(names)
    return tuple(name for name in names[:end] if name is not None)
