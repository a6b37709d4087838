r"""A mixture of guides, one for each of several separate modes.

    k ~ w,   xi ~ q_k

Each component is a whole guide on the Gaussian of its own mode, so that its network sees coordinates of
unit scale. The index k is an auxiliary variable: with any conditional distribution r(k | xi),

    log_q = log w_k + log q_k(xi) - log r(k | xi)   has   E[pi(xi) exp(-log_q)] = int pi sum_k r(k | xi) = Z,

so weights, evidence and ELBO are exact for every r, and no draw needs the inverse of another component's
flow. r is taken from the Gaussian bases g_k of the components, r(k | xi) = w_k g_k(xi) / sum_j w_j g_j(xi).
Where the components are those Gaussians log_q is the density of the whole mixture; where modes are far
apart r is one. In between, r shares the posterior out among the components, smoothly: the gap is zero once
every q_k is r(k | .) pi normalised.

Where the posterior is symmetric under P permutations T_p (`dmvi.guides.Symmetry`) a component stands for all
of its images: a draw is moved by a random one of them, p is a second auxiliary variable, and

    log_q(T_p xi) = log q_k(xi) - log g_k(xi) + log sum_j w_j h_j(xi),   h_j(xi) = 1/P sum_p g_j(T_p xi).
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dmvi.diffusion import lower_inverse
from dmvi.guides._affine import Affine
from dmvi.guides._guide import Draw, Frozen, Guide, GuideRecipe, frozen, with_path_gradient
from dmvi.guides._noise import in_batches, standard_log_prob
from dmvi.guides._symmetry import Symmetry


class Mixture(Guide):
    """Stacked guides of one kind and their weights, which gradients do not train; see the module.

    Reverse KL would train weights through draws that never cross from one mode to another; the starts set
    them by importance weights instead. Components have parameters of their own, so each can be trained on any
    number of draws: those of `draw_path` are spread evenly over the components that are unfinished, and
    the others, exact as they are, do not move.
    """

    exact: ClassVar[bool] = False  # where components overlap, log_q is that of a draw and its component
    components: Any  # one guide whose arrays have the components as leading axis
    log_weights: Frozen
    unfinished: Frozen  # which components are to be trained
    dim: int = eqx.field(static=True)
    symmetry: Symmetry | None = None

    @property
    def trains_as_it_draws(self) -> bool:
        return False

    def draw(self, key):
        k = self._index(key, jnp.exp(self.log_weights.value))
        draw = self._component(k).draw(key)
        log_q = draw.log_q + self._log_ratio(k, draw.xi)
        return Draw(self._moved(key, draw.xi), log_q, draw.noise)

    def draw_path(self, key, far=None):
        unfinished = self.unfinished.value
        weights = jnp.exp(self.log_weights.value)
        k = self._index(key, jnp.where(jnp.any(unfinished), unfinished.astype(weights.dtype), weights))
        # A draw is left where its component made it: its images are worth the same.
        component = jax.tree.map(
            lambda leaf: (
                jnp.where(unfinished[k], leaf, jax.lax.stop_gradient(leaf)) if eqx.is_array(leaf) else leaf
            ),
            self._component(k),
        )
        draw = component.draw_path(key, far)
        ratio, slope = jax.value_and_grad(frozen(self)._log_ratio, argnums=1)(
            k, jax.lax.stop_gradient(draw.xi)
        )
        return Draw(draw.xi, draw.log_q + with_path_gradient(ratio, draw.xi, slope), draw.noise)

    def straighter(self, share):
        return eqx.tree_at(lambda guide: guide.components, self, self.components.straighter(share))

    def sample(self, key, shape=()):
        weights = jnp.exp(self.log_weights.value)

        def one(key: PRNGKeyArray) -> Float[Array, " dim"]:
            return self._moved(key, self._component(self._index(key, weights)).sample(key))

        return in_batches(one, key, shape)

    def evidence(self, xi, key=None):
        """log_q of xi as a draw of the component, and by the permutation, that it most likely came from."""
        each = self.log_weights.value[None] + image_log_prob(self.components.affine, xi, self.symmetry)
        p, k = jnp.unravel_index(jnp.argmax(each), each.shape)
        image = _images(self.symmetry, xi)[p]
        return self._component(k).evidence(image) + self._log_ratio(k, image)

    def round_trip(self, key):
        """That of the component, whose map is what has to be injective."""
        return self._component(self._index(key, jnp.exp(self.log_weights.value))).round_trip(key)

    def _index(self, key: PRNGKeyArray, weights: Float[Array, " components"]) -> Int[Array, ""]:
        ends = jnp.cumsum(weights)
        place = jr.uniform(jr.fold_in(key, 7), (), ends.dtype)
        return jnp.minimum(jnp.sum(place >= ends / ends[-1]), ends.shape[0] - 1)

    def _component(self, k: Int[Array, ""]) -> Guide:
        return jax.tree.map(lambda leaf: leaf[k] if eqx.is_array(leaf) else leaf, self.components)

    def _moved(self, key: PRNGKeyArray, xi: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """xi moved by a random permutation."""
        if self.symmetry is None:
            return xi
        number = jr.randint(jr.fold_in(key, 8), (), 0, self.symmetry.order)
        return self.symmetry.image(xi, jnp.asarray(self.symmetry.permutations)[number])

    def _log_ratio(self, k: Int[Array, ""], xi: Float[Array, " dim"]) -> Float[Array, ""]:
        """log sum_j w_j h_j(xi) - log g_k(xi): without a symmetry, log w_k - log r(k | xi)."""
        each = image_log_prob(self.components.affine, xi, self.symmetry)
        return jax.nn.logsumexp(self.log_weights.value + shared_out(each)) - each[0, k]


def image_log_prob(
    affines: Affine, xi: Float[Array, " dim"], symmetry: Symmetry | None
) -> Float[Array, "order components"]:
    """log g_k(T_p xi) of stacked Gaussian bases, the identity first."""
    return jax.vmap(lambda image: base_log_prob(affines, image))(_images(symmetry, xi))


def shared_out(each: Float[Array, "order components"]) -> Float[Array, " components"]:
    """log h_k(xi): the mean over images."""
    return jax.nn.logsumexp(each, axis=0) - math.log(len(each))


def _images(symmetry: Symmetry | None, xi: Float[Array, " dim"]) -> Float[Array, "order dim"]:
    """T_p xi of every permutation; xi alone where nothing is symmetric."""
    return xi[None] if symmetry is None else symmetry.images(xi)


def base_log_prob(affines: Affine, xi: Float[Array, " dim"]) -> Float[Array, " components"]:
    """log g_k(xi) of stacked Gaussian bases."""

    def one(affine: Affine) -> Float[Array, ""]:
        # A product with L^-1, which is formed once for many xi, is quicker than to solve with L for each.
        with jax.default_matmul_precision("highest"):
            scale, centred = affine.rebased().in_order(xi)
            u = centred / scale if scale.ndim == 1 else lower_inverse(scale) @ centred
        return standard_log_prob(u) - affine.log_det()

    return jax.vmap(one)(affines)


def mixture(
    recipe: GuideRecipe,
    affines: Affine,
    log_weights: Array,
    unfinished: Array,
    *,
    symmetry: Symmetry | None = None,
    key: PRNGKeyArray,
) -> Mixture:
    """The recipe's guide on each of the stacked Gaussians: at the start exactly their mixture."""
    count, dim = affines.loc.shape
    guides = [
        recipe.build(jax.tree.map(lambda leaf, k=k: leaf[k], affines), key=jr.fold_in(key, k))
        for k in range(count)
    ]
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *guides
    )
    return Mixture(
        components=stacked,
        log_weights=Frozen(log_weights),
        unfinished=Frozen(unfinished),
        dim=dim,
        symmetry=symmetry,
    )


def repeated(guide: Guide, count: int, symmetry: Symmetry | None = None) -> Mixture:
    """A guide mixed with itself: what the arrays of any mixture of so many fit into, made once."""
    components = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)) if eqx.is_array(leaf) else leaf, guide
    )
    even = Frozen(jnp.zeros(count) - math.log(count))
    return Mixture(
        components=components,
        log_weights=even,
        unfinished=Frozen(jnp.zeros(count, bool)),
        dim=guide.dim,
        symmetry=symmetry,
    )
