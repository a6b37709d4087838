"""What an autoguide sees of a model before training: which sites it takes, which it refuses and why."""

from collections.abc import Callable
from typing import Any

import jax.random as jr
from numpyro.primitives import Messenger

from dmvi._errors import InputError


class WithoutEnumerated(Messenger):
    """A model without the discrete sites that it marks for enumeration.

    Such a site is the ELBO's to sum out. Here it takes one value of its own, which nobody else sees.
    """

    def __init__(self, fn: Callable | None = None) -> None:
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["is_observed"] or not msg["fn"].support.is_discrete:
            return
        if msg["value"] is None and not msg["fn"].has_enumerate_support:
            raise InputError(
                f"The discrete site {msg['name']!r} is {type(msg['fn']).__name__}, whose values cannot be "
                "enumerated; sum it out of the model, or put a continuous variable in its place."
            )
        if msg["infer"].get("enumerate") == "parallel":
            msg["value"] = msg["fn"].sample(jr.key(0)) if msg["value"] is None else msg["value"]
            msg["stop"] = True


def explain_prototype(guide: str, trace: dict[str, Any], error: Exception) -> InputError | None:
    """What to tell when NumPyro refuses a model for a guide; None leaves NumPyro's own words."""
    latents = [site for site in trace.values() if site["type"] == "sample" and not site["is_observed"]]
    if trace and not latents:
        return InputError(f"{guide} found no latent variables; use an empty guide instead.")
    sizes = {name: site["args"][0] for name, site in trace.items() if site["type"] == "plate"}
    for site in latents:
        name = site["name"]
        if site["fn"].support.is_discrete:
            return InputError(
                f"{guide} cannot guide the discrete site {name!r}. Mark it for enumeration, "
                "numpyro.sample(..., infer={'enumerate': 'parallel'}) or "
                "numpyro.contrib.funsor.config_enumerate(model), and train with TraceEnum_ELBO or "
                "dmvi.numpyro.PathEnumELBO; or sum it out of the model."
            )
        for frame in site["cond_indep_stack"]:
            if frame.size != sizes.get(frame.name, frame.size):
                return InputError(
                    f"{guide} does not support local latent variables: {name!r} is inside plate "
                    f"{frame.name!r}, of which {frame.size} of {sizes[frame.name]} entries are subsampled. "
                    f"Drop subsample_size from {frame.name!r}, or move {name!r} out of the plate."
                )
    return None
