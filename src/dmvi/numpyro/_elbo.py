"""ELBOs for SVI with the path gradient, which has no variance where the guide is exact."""

from collections.abc import Callable
from typing import Any

import numpyro.distributions as dist
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO
from numpyro.primitives import Messenger

from dmvi._errors import InputError
from dmvi.guides._guide import frozen
from dmvi.numpyro._distribution import GuideDistribution


class PathELBO(Trace_ELBO):
    r"""The ELBO with the path gradient ("sticking the landing"), for use with `SVI`.

    Value and expectation of the gradient are those of `Trace_ELBO`. What is left out, the score of q at
    its own draws, has expectation zero:

        d/d phi (log pi(xi) - log q(xi)) = (d xi / d phi)^T grad_xi (log pi(xi) - log q(xi)),   xi = xi(phi).

    `AutoDiffusion` and `AutoChain` carry grad_xi log q along with the draw. For any other guide each
    reparameterised site is evaluated at parameters held fixed; a flow is inverted for that, and one whose
    network is no part of its pytree keeps its ordinary gradient.

    Args:
        num_particles: draws an update.
        vectorize_particles: as in `Trace_ELBO`.

    Example:
        >>> svi = SVI(model, AutoDiffusion(model), optax.adam(1e-2), PathELBO(num_particles=32))
    """

    def __init__(self, num_particles: int = 1, vectorize_particles: bool = True):
        super().__init__(num_particles=num_particles, vectorize_particles=vectorize_particles)

    def loss_with_mutable_state(self, rng_key, param_map, model, guide, *args, **kwargs):
        """The loss to differentiate; `SVI` calls this."""
        model, guide = _Summed(model), _Along(guide)
        return super().loss_with_mutable_state(rng_key, param_map, model, guide, *args, **kwargs)


class PathEnumELBO(TraceEnum_ELBO):
    """As `PathELBO`, with the model's enumerated discrete sites summed out as in `TraceEnum_ELBO`."""

    def loss(self, rng_key, param_map, model, guide, *args, **kwargs):
        """The loss to differentiate; `SVI` calls this."""
        return super().loss(rng_key, param_map, model, _Along(guide), *args, **kwargs)


class _Summed(Messenger):
    """Refuses sites that are left to enumerate; `Trace_ELBO` would draw them from their prior."""

    def __init__(self, fn: Callable | None = None) -> None:
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["is_observed"] or msg["value"] is not None:
            return
        if msg["infer"].get("enumerate") == "parallel" and msg["fn"].support.is_discrete:
            raise InputError(
                f"PathELBO does not sum over the discrete site {msg['name']!r}, which the model marks for "
                "enumeration; train with dmvi.numpyro.PathEnumELBO or TraceEnum_ELBO."
            )


class _Along(Messenger):
    """Runs a guide with every reparameterised site on its path gradient."""

    def __init__(self, fn: Callable | None = None) -> None:
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and not msg["is_observed"]:
            msg["fn"] = _along(msg["fn"])


def _along(fn: Any) -> Any:
    if isinstance(fn, GuideDistribution):
        return fn.along_path()
    if isinstance(fn, dist.ExpandedDistribution) and isinstance(fn.base_dist, GuideDistribution):
        return fn.base_dist.along_path().expand(fn.batch_shape)
    # The density of a point mass is the model's own change of variables and depends on the draw alone.
    if isinstance(fn, dist.Delta) or not fn.has_rsample:
        return fn
    return _Fixed(fn)


class _Fixed(dist.Distribution):
    """Draws of `fn`, with their density at parameters held fixed."""

    def __init__(self, fn: dist.Distribution):
        self.fn = fn
        super().__init__(fn.batch_shape, fn.event_shape)

    @property
    def support(self):
        return self.fn.support

    def sample(self, key, sample_shape=()):
        return self.fn.sample(key, sample_shape)

    def log_prob(self, value, intermediates=None):
        return frozen(self.fn).log_prob(value)
