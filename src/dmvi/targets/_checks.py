"""Is there a point where the density can be used, and if not, why."""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Bool, Float, Int

from dmvi._errors import InputError
from dmvi.targets._arguments import describe_shapes


@dataclass(frozen=True)
class Tries:
    """How long a usable start is looked for.

    Attributes:
        first: tries in the first program; nearly every model needs one or two.
        most: tries in all, as many as those of Stan and of NumPyro.
        radius: uniform starts lie in (-radius, radius)^dim, as Stan's and NumPyro's do.
        few: where the start found is a later one than this, random starts are seldom usable, and half of
            them are then drawn around it.
        uphill: steps in double precision, from a start that only double precision can use.
    """

    first: int = 20
    most: int = 100
    radius: float = 2.0
    few: int = 4
    uphill: int = 200


TRIES = Tries()


class Search(NamedTuple):
    """Outcome of the search for a usable start.

    Attributes:
        tried: how many starts were looked at.
        usable: whether density and gradient are finite and all data inside their supports at one of them.
        finite: whether the density was finite at one of them.
        outside: number of events outside the support of each observed site, the least over the starts.
    """

    tried: Int[Array, ""]
    usable: Bool[Array, ""]
    finite: Bool[Array, ""]
    outside: Int[Array, " sites"]


def find_start(
    density: Callable[[Array], tuple[Array, Array]], starts: Float[Array, "starts dim"], num_sites: int
) -> Search:
    """Look at one start after the other until one is usable.

    A loop inside the compiled code: cheap to compile, and large data are gone through once only.

    Args:
        density: gives log pi(xi) and, for each observed site, the number of events outside its support.
        starts: points to try, in order.
        num_sites: number of observed sites.
    """
    value_and_grad = jax.value_and_grad(density, has_aux=True)

    def body(search: Search) -> Search:
        (value, outside), gradient = value_and_grad(starts[search.tried])
        usable = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient)) & jnp.all(outside == 0)
        finite = search.finite | jnp.isfinite(value)
        return Search(search.tried + 1, usable, finite, jnp.minimum(search.outside, outside))

    zero, false = jnp.zeros((), int), jnp.zeros((), bool)
    none = Search(zero, false, false, jnp.full((num_sites,), jnp.iinfo(zero.dtype).max))
    return jax.lax.while_loop(lambda search: (search.tried < len(starts)) & ~search.usable, body, none)


def check_search(
    search: Search,
    outside: dict[str, int] | None = None,
    nonfinite: Sequence[str] = (),
    bad_data: dict[str, str] | None = None,
    *,
    double_only: bool = False,
) -> None:
    """Raise the InputError that names the cause when no start was usable.

    Args:
        search: outcome of `find_start`.
        outside: number of events outside their support, for the observed sites that have any.
        nonfinite: sites whose log-probability is not finite at any start.
        bad_data: what is wrong ("3 NaN entries") with the data arrays that are not all finite.
        double_only: whether double precision could use a start.
    """
    if search.usable:
        return
    outside, bad_data = outside or {}, bad_data or {}
    where = f"at any of {int(search.tried)} starts"
    if bad_data and (nonfinite or outside):
        held = "; ".join(f"{name!r} holds {what}" for name, what in bad_data.items())
        sites = _quoted(dict.fromkeys([*nonfinite, *outside]))
        raise InputError(
            f"Data {held}, and the log-probability of site {sites} is not usable {where}. "
            "Drop those entries, or leave them out with numpyro.handlers.mask or obs_mask."
        )
    if double_only:
        raise InputError(
            f"The log-density or its gradient is not finite {where} in single precision, but is in double. "
            'Call jax.config.update("jax_enable_x64", True) first, or measure in other units.'
        )
    if outside:
        name, number = next(iter(outside.items()))
        raise InputError(
            f"Site {name!r} has {number} observed value{'s' * (number > 1)} outside the support of its "
            f"distribution {where}; correct the data or choose a distribution whose support holds them."
        )
    if not search.finite:
        sites = f" Not finite is the log-probability of site {_quoted(nonfinite)}." if nonfinite else ""
        raise InputError(
            f"The log-density is not finite {where}.{sites} Check that data and priors allow each other: "
            "scales above zero, no division by zero, no log or sqrt of a negative number."
        )
    raise InputError(
        f"The log-density is finite, but its gradient is not {where}. Look for sqrt, log or a power at zero, "
        "and for jnp.where around a branch that is not finite."
    )


def explain_failure(error: Exception, function: Callable, what: str, values: dict[str, Any]) -> InputError:
    """What to tell when the user's own function raises: the site, the line, the shapes it was given.

    Args:
        error: what it raised.
        function: the model or log-density.
        what: what `values` are, "data" or "init".
        values: what it was given, by name.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    names = [frame.f_locals["name"] for frame, _ in frames if frame.f_code is numpyro.sample.__code__]
    site = f" at site {names[-1]!r}" if names else ""
    file = getattr(getattr(_innermost(function), "__code__", None), "co_filename", "")
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    place = f" (line {lines[-1]} of {Path(file).name})" if lines else ""
    reason = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
    return InputError(
        f"The model could not be evaluated{site}{place}: {type(error).__name__}: {reason}. "
        f"Shapes of {what}: {describe_shapes(values)}. {_hint(error, what, bool(names))}"
    )


def _hint(error: Exception, what: str, at_site: bool) -> str:
    if at_site and what == "init":
        return "init marks the function as a JAX log-density; drop it for a NumPyro model."
    if isinstance(error, jax.errors.JAXTypeError):
        return "The function has to be traceable by JAX: use jax.numpy for what depends on its variables."
    if at_site and isinstance(error, NotImplementedError):
        return (
            "NumPyro may have no map from R^d to the support of this site: reparameterise it with "
            "numpyro.handlers.reparam or choose another distribution."
        )
    return f"Check that model and {what} fit each other."


def _innermost(function: Callable) -> Callable:
    function = inspect.unwrap(function)
    return _innermost(function.func) if isinstance(function, functools.partial) else function


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
