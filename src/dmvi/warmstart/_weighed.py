"""Gaussians at modes and their weights, balanced by importance sampling on draws of each."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from scipy.special import logsumexp

from dmvi._compile import compiled
from dmvi._random import children
from dmvi.guides import Affine, Gaussian, Symmetry, anchored, image_log_prob, shared_out
from dmvi.targets import Target
from dmvi.warmstart._laplace import Mode, numbers_of, scale_from_precision

DRAWS = 1000  # of each component, to weigh it
AT_ONCE = 2**23  # numbers that densities of all Gaussians at some draws take, which bounds the memory
OF_THE_TARGET = 2**28  # and those that the target's own density may form
BALANCING = 50
FITTINGS = 4
EVEN = 0.97  # effective share of a component's draws above which moments cannot better it
EXACT = 0.99  # and above which nothing can
LEAST_LOG_WEIGHT = -300.0  # below which a weight could round to nothing
LARGEST_LOG_EXCESS = 30.0


class Modes(NamedTuple):
    """Gaussians of separate modes.

    Attributes:
        affines: the Gaussians, stacked.
        log_weights: their weights.
        unfinished: which of them are not yet right as they are.
        elbo: of their mixture.
        symmetry: permutations of which each Gaussian stands for all images.
    """

    affines: Affine
    log_weights: Float[Array, " modes"]
    unfinished: Bool[Array, " modes"]
    elbo: float
    symmetry: Symmetry | None = None

    @property
    def title(self) -> str:
        """How many there are."""
        count = len(self.log_weights)
        images = "" if self.symmetry is None else f" in {self.symmetry.order} labellings"
        return f"{count} mode{'s' * (count > 1)}{images}"


def gaussians_of(target: Target, modes: list[Mode], symmetry: Symmetry | None, key: PRNGKeyArray) -> Modes:
    """The mixture of the modes' Gaussians, as they are."""
    scales = np.stack([scale_from_precision(mode.precision, full=True) for mode in modes])
    evidences = np.array([mode.log_evidence for mode in modes])
    locs = np.stack([mode.loc for mode in modes])
    return weighed_gaussians(target, locs, scales, evidences, symmetry, key)


def weighed_gaussians(
    target: Target,
    loc: np.ndarray,
    scale: np.ndarray,
    log_weights: np.ndarray,
    symmetry: Symmetry | None,
    key: PRNGKeyArray,
) -> Modes:
    """The mixture of some Gaussians, its weights balanced on draws of each."""
    cloud = cloud_of(target, loc, scale, symmetry, key)
    return cloud.modes(cloud.balanced(log_weights))


def in_all_labellings(target: Target, affine: Affine, symmetry: Symmetry, key: PRNGKeyArray) -> Modes:
    """One Gaussian shared out among its images: of a symmetric target never a worse guide than itself.

    The divergence from the target is convex in the guide, and the same for every image.
    """
    loc, scale = affine.anchor.value, affine.anchor_scale.value
    return weighed_gaussians(
        target, np.asarray(loc)[None], np.asarray(scale)[None], np.zeros(1), symmetry, key
    )


def fitted_gaussians(
    target: Target, modes: list[Mode], symmetry: Symmetry | None, key: PRNGKeyArray
) -> Modes:
    """The mixture of the modes' Gaussians; those that do not fit well are fitted to weighed draws."""
    loc = np.stack([mode.loc for mode in modes])
    scale = np.stack([scale_from_precision(mode.precision, full=True) for mode in modes])
    log_weights = np.array([mode.log_evidence for mode in modes])
    best = None
    for round_key in children(key, FITTINGS):
        cloud = cloud_of(target, loc, scale, symmetry, round_key)
        log_weights = cloud.balanced(log_weights)
        elbo = cloud.elbo(log_weights)
        if best is None or elbo > best.elbo:
            best = cloud.modes(log_weights)
        loc, scale, changed = cloud.fitted(log_weights, loc, scale)
        if not changed:
            break
    assert best is not None
    return best


def cloud_of(
    target: Target, loc: np.ndarray, scale: np.ndarray, symmetry: Symmetry | None, key: PRNGKeyArray
) -> "Cloud":
    """DRAWS draws of each of some Gaussians."""
    dtype, (modes, dim) = jnp.result_type(float), loc.shape
    images = 1 if symmetry is None else symmetry.order
    at_once = min(AT_ONCE // (images * modes * modes * dim), OF_THE_TARGET // (modes * numbers_of(target)))
    affines, xi, log_pi, log_g, log_own = _draw(
        target,
        jnp.asarray(loc.astype(dtype)),
        jnp.asarray(scale.astype(dtype)),
        symmetry,
        int(np.clip(at_once, 1, DRAWS)),
        key,
    )
    log_pi = np.asarray(log_pi, float)
    return Cloud(
        affines,
        symmetry,
        np.asarray(xi, float),
        np.where(np.isfinite(log_pi), log_pi, -np.inf),
        np.asarray(log_g, float),
        np.asarray(log_own, float),
    )


@compiled
def _draw(
    target: Target,
    loc: Float[Array, "modes dim"],
    scale: Float[Array, "modes dim dim"],
    symmetry: Symmetry | None,
    at_once: int,
    key: PRNGKeyArray,
) -> tuple[Affine, Array, Array, Array, Array]:
    """The Gaussians, draws of each, and log pi, every log g_k shared out and every log g_k itself there."""
    affines = jax.vmap(lambda loc, scale: anchored(loc, scale, full=True))(loc, scale)

    def one(affine: Affine, key: PRNGKeyArray):
        xi = Gaussian(affine=affine, dim=target.dim).draw(key).xi
        each = image_log_prob(affines, xi, symmetry)
        return xi, target.log_density(xi), shared_out(each), each[0]

    keys = jr.split(key, (loc.shape[0], DRAWS)).swapaxes(0, 1)
    found = jax.lax.map(lambda keys: jax.vmap(one)(affines, keys), keys, batch_size=at_once)
    return affines, *(part.swapaxes(0, 1) for part in found)


class Cloud(NamedTuple):
    r"""Draws of Gaussians g_k, and what is known there.

    One step of expectation maximisation of the forward divergence of sum_k w_k g_k from pi / Z gives each
    draw of g_j the weight w_j pi / (Z sum_i w_i g_i), shared out by r(k | xi) = w_k g_k / sum_i w_i g_i.
    Where the posterior is symmetric `log_g` are the Gaussians shared out among their images, and only
    `log_own`, those at the draws themselves, say whose a draw is.
    """

    affines: Affine
    symmetry: Symmetry | None
    xi: Float[np.ndarray, "modes draws dim"]
    log_pi: Float[np.ndarray, "modes draws"]
    log_g: Float[np.ndarray, "modes draws modes"]
    log_own: Float[np.ndarray, "modes draws modes"]

    def _log_ratio(self, log_weights: np.ndarray) -> Float[np.ndarray, "modes draws"]:
        """log pi - log sum_k w_k g_k."""
        return self.log_pi - logsumexp(log_weights[None, None] + self.log_g, axis=2)

    def balanced(self, log_weights: np.ndarray) -> Float[np.ndarray, " modes"]:
        """The weights at which w_k = w_k E_{g_k}[pi / sum_i w_i g_i] / Z, by repeating just that."""
        largest = np.max(self.log_g, axis=2)
        g = np.exp(self.log_g - largest[:, :, None])
        for _ in range(BALANCING):
            log_weights = np.maximum(log_weights - logsumexp(log_weights), LEAST_LOG_WEIGHT)
            log_ratio = self.log_pi - largest - np.log(g @ np.exp(log_weights))
            log_weights = log_weights + logsumexp(log_ratio, axis=1)
        return log_weights - logsumexp(log_weights)

    def lacking(
        self, log_weights: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, " count"], Float[np.ndarray, "count dim"]]:
        """So many draws from where the mixture has too little mass, by how much it lacks, and who made them.

        A draw of g_k stands for the mass w_k (pi / (Z q) - 1) where that is positive.
        """
        log_ratio = self._log_ratio(log_weights)
        log_evidence = np.logaddexp.reduce(np.ravel(log_weights[:, None] + log_ratio)) - np.log(DRAWS)
        excess = np.maximum(np.exp(np.minimum(log_ratio - log_evidence, LARGEST_LOG_EXCESS)) - 1, 0)
        mass = np.exp(log_weights)[:, None] * excess + np.finfo(float).tiny
        flat = rng.choice(mass.size, count, p=np.ravel(mass / mass.sum()))
        return flat // DRAWS, self.xi.reshape(-1, self.xi.shape[2])[flat]

    def modes(self, log_weights: np.ndarray) -> Modes:
        """The mixture with these weights."""
        return Modes(
            self.affines,
            jnp.asarray(log_weights.astype(self.affines.loc.dtype)),
            jnp.asarray(self.ess(log_weights) < EXACT),
            self.elbo(log_weights),
            self.symmetry,
        )

    def elbo(self, log_weights: np.ndarray) -> float:
        """sum_k w_k E_{g_k}[log pi - log sum_i w_i g_i]."""
        return float(np.exp(log_weights) @ np.mean(self._log_ratio(log_weights), axis=1))

    def ess(self, log_weights: np.ndarray) -> Float[np.ndarray, " modes"]:
        """Effective share of the draws of each."""
        log_ratio = self._log_ratio(log_weights)
        total, squares = (np.logaddexp.reduce(power * log_ratio, axis=1) for power in (1, 2))
        return np.exp(2 * total - squares) / DRAWS

    def fitted(
        self, log_weights: np.ndarray, loc: np.ndarray, scale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, bool]:
        """Means and scales with those of uneven weights moved to the moments of their share of the draws.

        Even weights say that a Gaussian is right already, and then moments of a few draws are not as good.
        """
        log_ratio = self._log_ratio(log_weights)
        # Among the Gaussians that made the draws: their images made none.
        joint = log_weights[None, None] + self.log_own
        responsibility = np.exp(joint - logsumexp(joint, axis=2, keepdims=True))
        weights = np.exp(log_weights[:, None] + log_ratio - np.max(log_ratio))
        loc, scale, uneven = loc.copy(), scale.copy(), np.flatnonzero(self.ess(log_weights) < EVEN)
        for k in uneven:
            share = weights * responsibility[:, :, k]
            share = share / share.sum()
            loc[k] = np.einsum("jn,jnd->d", share, self.xi)
            centred = self.xi - loc[k]
            covariance = np.einsum("jn,jnd,jne->de", share, centred, centred)
            scale[k] = np.linalg.cholesky(covariance + 1e-6 * np.diag(np.diagonal(covariance)))
        return loc, scale, uneven.size > 0
