"""The normalising flow of the paper's comparison: an inverse autoregressive flow as a guide."""

import equinox as eqx

from dmvi._errors import InputError
from dmvi.guides._autoregressive import AutoregressiveFlow
from dmvi.guides._diffusion import Diffusion
from dmvi.guides._guide import GuideRecipe


class FlowGuide(GuideRecipe):
    """Recipe of an inverse autoregressive flow on the warm start's Gaussian.

    As in the paper: layers with a masked network (MADE) of one hidden layer and gelu, the order of the
    coordinates reversed between them.

    Args:
        layers: autoregressive layers.
        width: hidden units of each.
    """

    layers: int = eqx.field(static=True, default=2)
    width: int = eqx.field(static=True, default=256)

    def __check_init__(self):
        for name in ("layers", "width"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"FlowGuide needs {name} to be an integer of at least 1, got {value!r}.")

    @property
    def name(self) -> str:
        return "flow"

    def build(self, affine, *, key):
        # A diffusion's draws are those of a flow too: steps of known Jacobians between noise and base.
        flow = AutoregressiveFlow(affine.dim, self.width, self.layers, key=key)
        return Diffusion(flow=flow, affine=affine, dim=affine.dim)
