"""The contract between a model and everything downstream."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.targets._differences import second_derivative_along, second_derivatives

Batch = Any  # a pytree of plate name -> indices; None stands for the full data
# From a key, xi (None: a draw of the prior) and psi to observed and deterministic sites.
Predict = Callable[[PRNGKeyArray, Array | None, dict[str, Array]], dict[str, Array]]


class _Record(Mapping[str, Any]):
    """A read-only dict with a hash, equal to no other record, as static fields of compiled code must be."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, _Record) else self._values == other

    def __hash__(self) -> int:
        return id(self)


_NOTHING = _Record({})


def _record(values: Mapping[str, Any]) -> _Record:
    return values if isinstance(values, _Record) else _Record(values)


class Target(eqx.Module):
    r"""An unnormalised log-density on R^dim with the way back to the model's own variables.

    log pi(xi) = log p(y, theta(xi); psi) + log |det d theta / d xi|

    for latent variables theta = theta(xi), data y and generative parameters psi = `params`.
    Methods speak of one point and can be jitted and vmapped.

    Attributes:
        dim: number of unconstrained coordinates.
        names: one label per coordinate, "theta[3]" style.
        params: generative parameters psi, unconstrained, learned together with the guide.
        observed: observed values by site name, for predictive checks and ArviZ.
        dims: names of the dimensions (plates) of each site, outermost first.
        data_size: number of observations behind the density; None where it is not known.
        subsampled: whether `draw_batch` gives minibatches.
        coords: labels along the dimensions named in `dims`, for ArviZ.
        constant: data that are not random variables, for ArviZ.
        exports_likelihood: whether draws in ArviZ's form have the pointwise log-likelihood beside them.
        stream: the rows of data that are gone through in batches (`dmvi.targets.Stream`), where they are.
        offset: a constant left out of `log_density`, which would swamp single precision.
        data: arrays that the density takes anew at each call, where targets differ in their data alone and
            share every compiled program (`dmvi.targets.family`); None where the data are part of the density.
        batch_rows: rows of one batch and rows in all, where there are batches; of several plates that of
            which a batch sees the smallest share.
        anchor: where batches are corrected by control variates (`dmvi.targets.Anchor`), if they are.
    """

    dim: int = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    params: dict[str, Array]
    observed: Mapping[str, np.ndarray] = eqx.field(static=True, converter=_record)
    dims: Mapping[str, tuple[str, ...]] = eqx.field(static=True, converter=_record)
    data_size: int | None = eqx.field(static=True)
    subsampled: bool = eqx.field(static=True)
    _log_density: Callable[[Array, dict[str, Array], Batch], Array] = eqx.field(static=True)
    _constrain: Callable[[Array, dict[str, Array]], dict[str, Array]] = eqx.field(static=True)
    _constrain_params: Callable[[dict[str, Array]], dict[str, Array]] = eqx.field(static=True)
    _log_likelihood: Callable[[Array, dict[str, Array]], dict[str, Array]] = eqx.field(static=True)
    _start: Callable[[PRNGKeyArray], Array] = eqx.field(static=True)
    _draw_batch: Callable[[PRNGKeyArray], Batch] = eqx.field(static=True)
    _unpack: Callable[[Array], dict[str, Array]] | None = eqx.field(static=True, default=None)
    _hessian: Callable[[Array], Array] | None = eqx.field(static=True, default=None)
    _export: Callable[[Any], Any] | None = eqx.field(static=True, default=None)
    coords: Mapping[str, Any] = eqx.field(static=True, converter=_record, default=_NOTHING)
    constant: Mapping[str, np.ndarray] = eqx.field(static=True, converter=_record, default=_NOTHING)
    exports_likelihood: bool = eqx.field(static=True, default=True)
    _predictive: Callable[[Mapping[str, Any] | None], Predict] | None = eqx.field(static=True, default=None)
    data: Any = None
    _bind: Callable[[Any], "Target"] | None = eqx.field(static=True, default=None)
    _prior: Callable[[PRNGKeyArray, dict[str, Array]], Array] | None = eqx.field(static=True, default=None)
    stream: Any = eqx.field(static=True, default=None)
    offset: float = eqx.field(static=True, default=0.0)
    batch_rows: tuple[int, int] | None = eqx.field(static=True, default=None)
    anchor: Any = eqx.field(static=True, default=None)

    def __hash__(self) -> int:
        return id(self)  # so that jax.jit takes the methods below

    def __repr__(self) -> str:
        shown = self.names if len(self.names) <= 8 else (*self.names[:4], "...", self.names[-1])
        data = "" if self.data_size is None else f", {self.data_size} observations"
        return f"Target({self.dim} dimensions: {', '.join(shown)}{data})"

    def log_density(self, xi: Float[Array, " dim"], batch: Batch = None) -> Float[Array, ""]:
        """log pi(xi); with a batch, the unbiased estimate whose likelihood is scaled by N / B.

        Matrix products run at highest precision: TF32 moves a log-density by 0.01 nats.
        """
        with jax.default_matmul_precision("highest"):
            return self._bound()._log_density(xi, self.params, batch)

    def hessian(self, xi: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """Second derivatives of log pi at xi; by differences where the density has first ones only."""
        return second_derivatives(self.log_density, xi) if self._hessian is None else self._hessian(xi)

    def hessian_product(self, xi: Float[Array, " dim"], v: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The Hessian of log pi at xi times v; by a difference where the density has first ones only."""
        return second_derivative_along(self.log_density, xi, v)

    def constrain(self, xi: Float[Array, " dim"]) -> dict[str, Array]:
        """The model's variables at xi: every latent and deterministic site by name."""
        return self._bound()._constrain(xi, self.params)

    def constrained_params(self) -> dict[str, Array]:
        """The generative parameters psi on their own supports."""
        return self._bound()._constrain_params(self.params)

    def log_likelihood(self, xi: Float[Array, " dim"]) -> dict[str, Array]:
        """Pointwise log-likelihood of each observed site on the full data."""
        return self._bound()._log_likelihood(xi, self.params)

    def unpack(self, xi: Float[Array, " dim"]) -> dict[str, Array]:
        """The unconstrained coordinates of each latent site by name, before `constrain` maps them."""
        return {"xi": xi} if self._unpack is None else self._unpack(xi)

    def export(self, tree: Any) -> Any:
        """Draws in ArviZ's form as the model's own library would return them."""
        return tree if self._export is None else self._export(tree)

    def predictive(self, data: Mapping[str, Any] | None = None) -> Predict:
        """A function that draws what the model could have observed, and its deterministic sites.

        Args:
            data: arguments of the model to replace, by name; None keeps those of the fit.

        Returns:
            (key, xi, params) -> sites by name; where xi is None, latents come from their prior.
        """
        draw = self._bound()._predictive
        if draw is None:
            raise InputError(
                "This target does not say how observations come about, so there are no predictive draws. "
                "Write a log-density with NumPyro primitives to get them; for a PyMC model call "
                "pm.sample_posterior_predictive(posterior.to_arviz(), model=model)."
            )
        return draw(data)

    def start(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """A random starting point; not every one need have a finite density."""
        return self._start(key)

    def prior(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """A draw of the prior.

        Raises:
            NotImplementedError: for a target that knows none, or an improper one.
        """
        draw = self._bound()._prior
        if draw is None:
            raise NotImplementedError("this target has no prior that can be drawn from")
        return draw(key, self.params)

    @staticmethod
    def from_value_and_grad(
        function: Callable[[np.ndarray], tuple[Any, Any]], dim: int, *, init: Any = None, names: Any = None
    ) -> "Target":
        """A NumPy function of a batch of points as a Target; see `dmvi.targets.from_value_and_grad`."""
        from dmvi.targets._external import from_value_and_grad

        return from_value_and_grad(function, dim, init=init, names=names)

    @staticmethod
    def from_bridgestan(model: Any, *, seed: int = 0) -> "Target":
        """A compiled Stan model as a Target; see `dmvi.targets.from_bridgestan`."""
        from dmvi.targets._bridgestan import from_bridgestan

        return from_bridgestan(model, seed=seed)

    @property
    def terms(self) -> int | None:
        """Number of observations that one evaluation of `log_density` goes through."""
        if self.stream is None:
            return self.data_size
        return len(jax.tree.leaves(self.data["rows"])[0])

    def shared(self) -> "Target":
        """The target without the labels of its own data: equal, as compiled code sees it, in a family."""
        if self.data is None:
            return self
        return dataclasses.replace(self, observed=_NOTHING, constant=_NOTHING)

    def _bound(self) -> "Target":
        """The target with `data` closed over, whose functions are then its own."""
        return self if self._bind is None else self._bind(self.data)

    def draw_batch(self, key: PRNGKeyArray) -> Batch:
        """Indices of one minibatch, or None when the density uses the full data."""
        return self._draw_batch(key)
