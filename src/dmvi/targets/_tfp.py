"""A pinned joint distribution of TensorFlow Probability on JAX as a Target."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.targets._checks import TRIES, check_search, explain_failure
from dmvi.targets._coordinates import Coordinates
from dmvi.targets._starts import further_points, look_for_start, settle, starts_around, uniform_points
from dmvi.targets._target import Batch, Target


def from_tfp(pinned: Any) -> Target:
    r"""Turn a pinned `JointDistribution*` into a Target.

    log pi(xi) = log p(y, theta(xi)) + log |det d theta / d xi|

    where theta(xi) are the unpinned variables through their default event-space bijectors and y the
    pinned ones.

    Args:
        pinned: `joint.experimental_pin(y=y)` of `tensorflow_probability.substrates.jax`.

    Raises:
        InputError: if a variable is discrete, the joint has a batch shape, or no start has a finite
            log-density.
    """
    try:
        program = _Program(pinned)
        starts = uniform_points(TRIES.first, program.coordinates.dim, seed=0)
        search = look_for_start(program.alone, starts, 0)
        found = settle(search, starts, program.further_points, program.alone)
    except InputError:
        raise
    except Exception as error:  # whatever the joint's own code raises is told as a fault of the model
        raise explain_failure(error, from_tfp, "data", _pins(pinned)) from error
    check_search(found.search, double_only=found.double_only)
    observed = _pins(pinned)
    return Target(
        dim=program.coordinates.dim,
        names=program.coordinates.labels,
        params={},
        observed=observed,
        dims={},
        data_size=sum(np.size(value) for value in observed.values()) if observed else None,
        subsampled=False,
        _log_density=program.log_density,
        _constrain=program.constrain,
        _constrain_params=lambda params: {},
        _log_likelihood=program.log_likelihood,
        _start=starts_around(program.start, found.centre),
        _draw_batch=lambda key: None,
        _unpack=program.coordinates.split,
        _prior=program.prior,
    )


class _Program:
    """The functions of a pinned joint, in flat coordinates."""

    def __init__(self, pinned: Any):
        self.pinned = pinned
        shapes = pinned.event_shape
        self.names = list(_named(shapes, pinned._flat_resolve_names()))
        _check(pinned, self.names)
        self.bijector = pinned.experimental_default_event_space_bijector()
        inner = self.bijector.inverse_event_shape(shapes)
        leaves, self.structure = jax.tree.flatten(inner, is_leaf=lambda leaf: hasattr(leaf, "as_list"))
        self.coordinates = Coordinates(
            {name: tuple(shape) for name, shape in zip(self.names, leaves, strict=True)}
        )

    def _unconstrained(self, xi: Array) -> Any:
        return jax.tree.unflatten(self.structure, list(self.coordinates.split(xi).values()))

    def log_density(self, xi: Array, params: dict[str, Array], batch: Batch) -> Array:
        """log pi(xi)."""
        inner = self._unconstrained(xi)
        theta = self.bijector.forward(inner)
        log_det = self.bijector.forward_log_det_jacobian(inner)
        return jnp.asarray(self.pinned.unnormalized_log_prob(theta) + log_det, xi.dtype)

    def constrain(self, xi: Array, params: dict[str, Array]) -> dict[str, Array]:
        """The unpinned variables by name."""
        theta = self.bijector.forward(self._unconstrained(xi))
        return dict(zip(self.names, jax.tree.leaves(theta), strict=True))

    def log_likelihood(self, xi: Array, params: dict[str, Array]) -> dict[str, Array]:
        """log p(y | theta) of the pinned variables, as finely as the joint's own events go."""
        theta = self.bijector.forward(self._unconstrained(xi))
        parts = self.pinned.unnormalized_log_prob_parts(theta)
        names = [name for name in self.pinned.distribution._flat_resolve_names() if name in self.pinned.pins]
        return {name: jnp.asarray(value) for name, value in _named(parts.pinned, names).items()}

    def prior(self, key: PRNGKeyArray, params: dict[str, Array]) -> Array:
        """The coordinates xi of unpinned variables drawn from the joint."""
        inner = self.bijector.inverse(self.pinned.sample_unpinned(seed=key))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(inner)])

    def start(self, key: PRNGKeyArray) -> Array:
        """A point of (-2, 2)^dim."""
        return jax.random.uniform(key, (self.coordinates.dim,), minval=-TRIES.radius, maxval=TRIES.radius)

    def alone(self, xi: Array) -> tuple[Array, Array]:
        """log pi(xi) in the form in which starts are looked for."""
        return self.log_density(xi, {}, None), jnp.zeros((0,), int)

    def further_points(self, count: int) -> np.ndarray:
        """Further starts: of (-2, 2)^dim and draws of the prior."""
        draw = jax.jit(jax.vmap(lambda key: self.prior(key, {})))
        return further_points(
            count, self.coordinates.dim, lambda number: draw(jax.random.split(jax.random.key(1), number))
        )


def _check(pinned: Any, names: list[str]) -> None:
    if not names:
        raise InputError("Every variable of the joint distribution is pinned; leave some free to infer.")
    dtypes = [np.dtype(dtype) for dtype in jax.tree.leaves(pinned.dtype)]
    for name, dtype in zip(names, dtypes, strict=True):
        if dtype.kind in "biu":
            raise InputError(
                f"Variable {name!r} of the joint distribution is discrete, which has no gradient; sum it "
                "out, with MixtureSameFamily for example."
            )
    batch = jax.tree.leaves(pinned.batch_shape, is_leaf=lambda leaf: hasattr(leaf, "as_list"))
    if any(tuple(shape) for shape in batch):
        raise InputError(
            f"The joint distribution has batch shape {tuple(batch[0])}, one density was expected; wrap its "
            "parts in tfd.Independent or tfd.Sample, or use a JointDistribution*AutoBatched."
        )


def _pins(pinned: Any) -> dict[str, np.ndarray]:
    return {str(name): np.asarray(value) for name, value in pinned.pins.items()}


def _named(values: Any, names: Sequence[str]) -> dict[str, Any]:
    """A joint's values by name, in the order in which JAX flattens them: a dict's is that of its keys."""
    if isinstance(values, dict):
        return {name: values[name] for name in sorted(values)}
    return dict(zip(names, values, strict=True))
