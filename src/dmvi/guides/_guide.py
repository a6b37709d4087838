"""The contract every variational family keeps."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dmvi.diffusion._flow import frozen as frozen


class Frozen(eqx.Module):
    """An array, or a pytree of them, that belongs to a guide but is not trained by gradients."""

    value: Any


def trainable(tree: Any) -> Any:
    """Filter specification of `tree`: True at the arrays gradients train."""
    return jax.tree.map(
        lambda leaf: not isinstance(leaf, Frozen) and eqx.is_inexact_array(leaf),
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Frozen),
    )


def with_path_gradient(value: Array, xi: Array, slope: Array) -> Float[Array, ""]:
    """`value` with the gradient slope^T (d xi / d phi)."""
    slope, value = jax.lax.stop_gradient((slope, value))
    return value + jnp.sum(slope * (xi - jax.lax.stop_gradient(xi)))


class Draw(NamedTuple):
    """One draw and the log-density that makes its importance weight right.

    E[exp(log pi(xi) - log_q)] = evidence, where pi is the unnormalised target. `noise` is what the
    draw was made from.
    """

    xi: Float[Array, " dim"]
    log_q: Float[Array, ""]
    noise: Float[Array, " dim"]


class Guide(eqx.Module):
    """A distribution q over R^dim; its trainable parameters are its inexact arrays not marked `Frozen`.

    One log-weight, log pi(xi) - log_q, serves the ELBO, the evidence and Pareto-smoothed
    importance sampling; nothing downstream asks which guide it holds. All methods speak of a
    single draw; callers vectorise with `jax.vmap` over keys.

    `exact` says whether `evidence` gives back a draw's `log_q`, which diagnostics then check.
    """

    exact: ClassVar[bool] = True
    dim: eqx.AbstractVar[int]

    @property
    def trains_as_it_draws(self) -> bool:
        """Whether draws of `draw_path` that are not sent far out are q's own, so that they tell its ELBO."""
        return True

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray) -> Draw:
        """One draw with its exact log-density, differentiable in the guide's parameters."""

    @abc.abstractmethod
    def draw_path(self, key: PRNGKeyArray, far: Int[Array, " dim"] | None = None) -> Draw:
        r"""As `draw`, with the path gradient ("sticking the landing").

        The gradient of `log_q` is that of log q(xi(phi)) with q's own parameters held fixed:
        d log_q / d phi = (d xi / d phi)^T grad_xi log q(xi).
        The part left out has expectation zero, and the rest vanishes when q is exact.

        Args:
            key: random key.
            far: the side to which a coordinate of the noise is sent far out, -1 or 1; 0 where it stays. The
                draw then comes from further out than q's own; its density and path gradient are still those
                of q there.
        """

    def straighter(self, share: float) -> "Guide":
        """The guide with its bends taken back by a share, towards its Gaussian base; itself if it has none.

        A step of training falls back on it where a draw shows that the guide folds.
        """
        return self

    @property
    def wants_drivers(self) -> bool:
        """Whether `driven` has something to learn."""
        return False

    def driven(self, u: Float[Array, "draws dim"], r: Float[Array, "draws dim"]) -> "Guide":
        """The guide with the structure that its Gaussian base shows; itself if it has none to choose.

        Args:
            u: draws of the base, in whitened coordinates.
            r: their residual scores S^T grad log pi + u, zero where the base is the posterior.
        """
        return self

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "*shape dim"]:
        """Draws without density: the quick road for predictions."""

    @abc.abstractmethod
    def evidence(self, xi: Float[Array, " dim"], key: PRNGKeyArray | None = None) -> Float[Array, ""]:
        """log q(xi) at a given point; exact here, `key` is for guides that only bound it."""

    def round_trip(self, key: PRNGKeyArray) -> tuple[Float[Array, ""], Float[Array, ""]] | None:
        """log_q of a draw, and log q(xi) found by inversion; None where draws have no inverse.

        They are the same where the map from noise to draws is injective, as `log_q` takes it to be.
        """
        if not self.exact:
            return None
        draw = self.draw(key)
        return draw.log_q, self.evidence(draw.xi)

    def stages(self, key: PRNGKeyArray) -> Float[Array, "stages dim"]:
        """One draw on its way from noise: for a guide without steps the noise, then the draw."""
        draw = self.draw(key)
        return jnp.stack([draw.noise, draw.xi])


class DenoisingTerms(NamedTuple):
    r"""What the paper puts for -log q(xi), in parts; each an estimate from one time and one noise.

    With diffusion + prior + reconstruction = E_r[log r(w | xi) / q(xi, w)] >= -log q(xi).

    Attributes:
        simple: ||eps - eps_phi(w_t, t)||^2 at a random t, the simplified loss.
        diffusion: the divergences of all steps t = 2..T, sum_t KL(r(w_{t-1} | w_t, xi), q(w_{t-1} | w_t)).
        prior: KL(r(w_T | xi), N(0, I)).
        reconstruction: -log q(xi | w_1).
    """

    simple: Float[Array, ""]
    diffusion: Float[Array, ""]
    prior: Float[Array, ""]
    reconstruction: Float[Array, ""]


class DenoisingGuide(Guide):
    """A guide that can also be trained as the paper does, by denoising its own draws."""

    @abc.abstractmethod
    def training_sample(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """One draw without density, differentiable, with dropout as in training."""

    @abc.abstractmethod
    def denoising_terms(self, xi: Float[Array, " dim"], key: PRNGKeyArray) -> DenoisingTerms:
        """The terms at xi."""


class GuideRecipe(eqx.Module):
    """The choices that make a guide, before the dimension is known."""

    @property
    def warm(self) -> bool:
        """Whether the guide starts from the warm start's Gaussian; else that is not looked for."""
        return True

    @property
    def mixes(self) -> bool:
        """Whether the guide may be built once for each of several separate modes."""
        return False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What the guide is called in tables and verdicts."""

    @property
    def pace(self) -> float:
        """Learning rate at which the guide trains best, as a share of the default."""
        return 1.0

    def seeing(self, log_density: Callable[[Array], Array] | None) -> "GuideRecipe":
        """The recipe, having seen a target whose slope guides may use; most do not look.

        Args:
            log_density: log pi on the full data; None where there is no such fixed function.
        """
        return self

    @abc.abstractmethod
    def build(self, affine: Any, *, key: PRNGKeyArray) -> Guide:
        """The guide on the whitened coordinates of `affine`, equal to that Gaussian at the start."""

    def grown(self, guide: Guide, *, key: PRNGKeyArray) -> "tuple[GuideRecipe, Guide] | None":
        """A guide that draws as `guide`, made by this recipe and trained, and can learn more; and its recipe.

        None where there is no such guide.
        """
        return None
