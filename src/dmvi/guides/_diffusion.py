"""The diffusion guide: a solver's draws with their exact density."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.diffusion import (
    ORDERS,
    Flow,
    FlowRecipe,
    FlowSequence,
    NetworkFlow,
    Projected,
    Stacked,
    Triangular,
    as_score_network,
)
from dmvi.guides._guide import Draw, Guide, GuideRecipe, frozen, with_path_gradient
from dmvi.guides._noise import in_batches, spread, standard_log_prob, standard_normal
from dmvi.guides._sparse import AnyAffine

GROWN_STEPS = 4
LARGEST_GROWN = 64  # dimensions up to which a guide grows by steps that cost O(dim^2)


class Diffusion(Guide):
    r"""Noise z taken through the solver's steps F and an affine map to the target's coordinates.

    xi = affine(F(z)),   log q(xi) = log N(z) - log |det dF/dz| - log |det S L|

    With the score network at zero F is the identity and the guide is exactly its Gaussian base.
    """

    flow: Flow
    affine: AnyAffine
    dim: int = eqx.field(static=True)

    @property
    def trains_as_it_draws(self) -> bool:
        return not self.flow.may_drop

    def draw(self, key):
        z = self._noise(key)
        u, log_det = self.flow.move_density(z)
        return Draw(self.affine(u), standard_log_prob(z) - log_det - self.affine.log_det(), z)

    def draw_path(self, key, far=None):
        z = spread(self._noise(key), far)
        dropout_key = jr.fold_in(key, 1)
        affine = frozen(self.affine)
        moved = self.flow.move_path(z, -z, dropout_key)
        log_q = standard_log_prob(z) - moved.log_det - affine.log_det()
        w = self.affine.whitened(moved.u)
        log_q = with_path_gradient(log_q, w, affine.whitened_score(moved.score))
        return Draw(self.affine.from_whitened(w), log_q, z)

    def straighter(self, share):
        return eqx.tree_at(lambda guide: guide.flow, self, self.flow.straighter(share))

    @property
    def wants_drivers(self) -> bool:
        return self.flow.wants_drivers

    def driven(self, u, r):
        return eqx.tree_at(lambda guide: guide.flow, self, self.flow.driven(u, r))

    def sample(self, key, shape=()):
        return in_batches(lambda key: self.affine(self.flow.move(self._noise(key))), key, shape)

    def stages(self, key):
        """One draw at the solver's K + 1 times, each in the target's coordinates."""
        z = self._noise(key)
        return jax.vmap(self.affine)(jnp.concatenate([z[None, :], self.flow.stages(z)]))

    def evidence(self, xi, key=None):
        z = self.flow.invert(self.affine.inverse(xi))
        _, log_det = self.flow.move_density(z)
        return standard_log_prob(z) - log_det - self.affine.log_det()

    def _noise(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return standard_normal(key, self.dim, self.affine.loc.dtype)


class DiffusionGuide(GuideRecipe):
    """Recipe of the diffusion guide.

    Args:
        steps: solver steps K.
        order: order of the solver, 1 to 3; the projected network takes order 1.
        network: `dmvi.Projected(...)` (default: exact determinant at low rank, any dimension),
            `dmvi.Triangular(...)` (a network for every coordinate, O(dim^2) a step), `dmvi.SparseBends(...)`
            (a network of few others for every coordinate, O(dim) a step), `dmvi.Stacked(...)` of these,
            `dmvi.MLP(...)`, an Equinox module net(u, t), or a pair (params, apply); the last three go through
            the full Jacobian, O(dim^3) a step.
    """

    steps: int = eqx.field(static=True, default=4)
    order: int = eqx.field(static=True, default=1)
    network: Any = Projected()

    def __check_init__(self):
        if not isinstance(self.steps, int) or self.steps < 1:
            raise InputError(f"DiffusionGuide needs at least one solver step, got steps={self.steps!r}.")
        if self.order not in ORDERS:
            raise InputError(f"DiffusionGuide takes order 1, 2 or 3, got order={self.order}.")
        if self.order > 1 and isinstance(self.network, FlowRecipe):
            raise InputError(
                f"the network {type(self.network).__name__} solves its steps exactly and takes order 1, "
                f"got order={self.order}; use network=dmvi.MLP() for orders 2 and 3."
            )

    @property
    def name(self) -> str:
        return "diffusion"

    @property
    def mixes(self) -> bool:
        return True

    def build(self, affine, *, key):
        dim = affine.dim
        if isinstance(self.network, FlowRecipe):
            flow = self.network.build(dim, self.steps, key=key)
        else:
            network = as_score_network(self.network, dim, key=key)
            flow = NetworkFlow(network=network, steps=self.steps, order=self.order)
        return Diffusion(flow=flow, affine=affine, dim=dim)

    def grown(self, guide, *, key):
        """Triangular steps before its own, where the dimension allows it."""
        if not isinstance(self.network, FlowRecipe) or not isinstance(guide, Diffusion):
            return None
        if guide.dim > LARGEST_GROWN:
            return None
        early = Triangular().build(guide.dim, GROWN_STEPS, key=key)
        network = Stacked(Triangular(), self.network, self.steps)
        recipe = DiffusionGuide(steps=GROWN_STEPS + self.steps, network=network)
        return recipe, eqx.tree_at(lambda g: g.flow, guide, FlowSequence(early, guide.flow))
