"""The chain guide: a stochastic diffusion, weighed by whole paths."""

import math
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.diffusion import ReverseChain, build_chain
from dmvi.guides._guide import Draw, Guide, GuideRecipe, frozen, with_path_gradient
from dmvi.guides._noise import in_batches, spread, standard_log_prob, standard_normal
from dmvi.guides._sparse import AnyAffine

LARGEST_SCORE = 50.0  # at which the score feature is cut
EVIDENCE_PATHS = 64

LogDensity = Callable[[Array], Array]


class Chain(Guide):
    r"""Noise u_K taken through K stochastic steps and an affine map to the target's coordinates.

    xi = affine(u_0),   log_q = log q(u_{0:K}) - log r(u_{1:K} | u_0) - log |det S L|

    The density of xi alone is an integral over paths; `log_q` weighs draw and path together. Then
    E[exp(log pi - log_q)] is the evidence, E[log pi - log_q] the path-space bound of its logarithm, and
    the same draws and weights serve k-hat, ESS and resampling. With its networks at zero the guide is
    exactly its Gaussian base, and `log_q` that Gaussian's log-density.

    The score feature, where `log_density` is given, is clip(grad_u log pi(a + S u) + u): in the fixed
    coordinates of the anchor the slope of the target over that of the base.
    """

    exact: ClassVar[bool] = False
    chain: ReverseChain
    affine: AnyAffine
    dim: int = eqx.field(static=True)
    log_density: LogDensity | None = None

    def draw(self, key):
        z = self._start(key)
        u, log_ratio = self.chain.move_density(z, self._noise(key), self._feature())
        return Draw(self.affine(u), standard_log_prob(z) + log_ratio - self.affine.log_det(), z)

    def draw_path(self, key, far=None):
        z = spread(self._start(key), far)
        # Away from q's own start the law of the path given its end is not r, whose parameters must then rest.
        sent = jnp.zeros((), bool) if far is None else jnp.any(far != 0)
        live = jnp.where(sent, 0.0, 1.0).astype(z.dtype)
        fixed = frozen(self)
        end = self.chain.move_path(z, self._noise(key), fixed.chain, self._feature(), live)
        log_q = standard_log_prob(z) + end.log_ratio - fixed.affine.log_det()
        # In q the affine map is fixed as well: what it moves, it moves against q's slope at u_0.
        slope = end.slope - jnp.where(sent, end.read_slope, 0.0)
        landed = self.affine.whitened(jax.lax.stop_gradient(end.u))
        by_affine = with_path_gradient(jnp.zeros_like(log_q), landed, fixed.affine.whitened_score(slope))
        return Draw(self.affine(end.u), log_q + by_affine, z)

    def sample(self, key, shape=()):
        def one(key):
            return self.affine(self.chain.move(self._start(key), self._noise(key), self._feature()))

        return in_batches(one, key, shape)

    def evidence(self, xi, key=None):
        r"""Estimate of log q(xi) from paths that r draws from xi.

        log (1/n) sum_j q(u_0, path_j) / r(path_j | u_0): unbiased before the logarithm, hence below
        log q(xi) in expectation. Exact where r is the reversal of q.
        """
        if key is None:
            raise InputError("a chain only estimates log q(xi), by random paths: call evidence(xi, key).")
        u = self.affine.inverse(xi)
        feature = self._feature()

        def one(key):
            end, log_ratio = self.chain.read_path(u, self._noise(key), feature)
            return standard_log_prob(end) + log_ratio

        log_ratios = jax.vmap(one)(jr.split(key, EVIDENCE_PATHS))
        return logsumexp(log_ratios) - math.log(EVIDENCE_PATHS) - self.affine.log_det()

    def _start(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return standard_normal(key, self.dim, self.affine.loc.dtype)

    def _noise(self, key: PRNGKeyArray) -> Float[Array, "steps dim"]:
        steps = self.chain.steps
        flat = standard_normal(jr.fold_in(key, 1), steps * self.dim, self.affine.loc.dtype)
        return flat.reshape(steps, self.dim)

    def _feature(self) -> Callable[[Array], Array] | None:
        log_density = self.log_density
        if log_density is None:
            return None
        anchor = self.affine.untrained()

        def feature(u):
            slope = jax.grad(lambda u: log_density(anchor(u)))(u)
            return jnp.clip(jnp.nan_to_num(slope + u), -LARGEST_SCORE, LARGEST_SCORE)

        return feature


class ChainGuide(GuideRecipe):
    """Recipe of the chain guide.

    Args:
        steps: steps K of the chain.
        width: hidden units of its networks.
        depth: hidden layers of its networks.
        drift: learn drift and scale of the noising process too, which tightens the bound.
        score: give the network the target's own slope. Each step then costs a gradient of the model, and
            training its second derivative. Off where the model has minibatches or parameters to learn.
        log_density: the target, which `fit` fills in for the score.
    """

    steps: int = eqx.field(static=True, default=8)
    width: int = eqx.field(static=True, default=64)
    depth: int = eqx.field(static=True, default=2)
    drift: bool = eqx.field(static=True, default=True)
    score: bool = eqx.field(static=True, default=False)
    log_density: LogDensity | None = None

    def __check_init__(self):
        for name in ("steps", "width", "depth"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"ChainGuide needs {name} to be an integer of at least 1, got {value!r}.")

    @property
    def name(self) -> str:
        return "chain"

    @property
    def pace(self) -> float:
        return 1 / 3

    def seeing(self, log_density):
        return eqx.tree_at(lambda recipe: recipe.log_density, self, log_density, is_leaf=lambda x: x is None)

    def build(self, affine, *, key):
        log_density = self.log_density if self.score else None
        chain = build_chain(
            affine.dim,
            self.steps,
            self.width,
            self.depth,
            drift=self.drift,
            gain=log_density is not None,
            key=key,
        )
        return Chain(chain=chain, affine=affine, dim=affine.dim, log_density=log_density)
