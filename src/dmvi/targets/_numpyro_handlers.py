"""Effect handlers that make a NumPyro model a plain density: its plates and its imputed values."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.primitives import Messenger

from dmvi._errors import InputError


class ChoosePlateIndices(Messenger):
    """Gives subsampled plates the indices of a batch, or all indices when there is none.

    With batch indices I of a plate of size N, NumPyro itself scales the sites inside by N / |I|.

    Attributes:
        subsampled: sizes (N, |I|) of the subsampled plates met so far, by name.
    """

    def __init__(self, batch: dict[str, Array] | None = None) -> None:
        super().__init__(None)
        self.batch = batch
        self.subsampled: dict[str, tuple[int, int]] = {}

    def process_message(self, msg) -> None:
        """Answer a plate that has not chosen its indices yet."""
        if msg["type"] != "plate" or msg["value"] is not None:
            return
        name, (size, subsample_size) = msg["name"], msg["args"]
        if subsample_size > size:
            raise InputError(f"Plate {name!r} has subsample_size {subsample_size} above its size {size}.")
        self.subsampled[name] = (size, subsample_size)
        msg["args"] = (size, None)  # otherwise the full plate would warn about its promised subsample_size
        msg["value"] = jnp.arange(size) if self.batch is None else self.batch[name]


class GiveImputedValuesTheirPrior(Messenger):
    r"""Makes `numpyro.sample(..., obs_mask=...)` a normalisable density.

    NumPyro imputes with a latent copy z of the whole site whose density is masked out where
    y is observed, which leaves those entries of z flat. Here they keep their own density p(z_i),
    which integrates to one: the posterior of everything else and the evidence are unchanged.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.seen: set[str] = set()

    def process_message(self, msg) -> None:
        """Unmask the latent half of a partly observed site."""
        if msg["type"] != "sample":
            return
        name = msg["name"]
        self.seen.add(name)
        if name.endswith("_unobserved") and name.removesuffix("_unobserved") + "_observed" in self.seen:
            msg["fn"] = _unmasked(msg["fn"])


class ForgetObservations(Messenger):
    """Lets observed sites be drawn again instead of holding their data.

    Values that a site broadcasts over, as n values of one scalar distribution, count: the new draw has
    their shape where they still fit.
    """

    def __init__(self) -> None:
        super().__init__(None)

    def process_message(self, msg) -> None:
        """Take the data out of an observed site; factors stay as they are."""
        auxiliary = msg.get("infer", {}).get("is_auxiliary", False)
        if msg["type"] != "sample" or not msg["is_observed"] or auxiliary:
            return
        shape = jnp.shape(msg["value"])
        batch_shape = shape[: len(shape) - msg["fn"].event_dim]
        if len(batch_shape) > len(msg["fn"].batch_shape):
            msg["fn"] = msg["fn"].expand(batch_shape)
        msg["value"], msg["is_observed"] = None, False


def _unmasked(fn: dist.Distribution) -> dist.Distribution:
    if isinstance(fn, dist.ExpandedDistribution):
        return _unmasked(fn.base_dist).expand(fn.batch_shape)
    return fn.base_dist if isinstance(fn, dist.MaskedDistribution) else fn
