"""Guides with nothing trivial about them and targets of known evidence, which tests of contracts share.

All live in R^3. Guides are wider than the targets, so that weights have a finite variance.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp
from jax.scipy.stats import multivariate_normal, norm

from dmvi.diffusion import MLP, Projected, SparseBends, Stacked, Triangular
from dmvi.guides import (
    ChainGuide,
    Diffusion,
    DiffusionGuide,
    Draw,
    FlowGuide,
    Gaussian,
    GaussianGuide,
    Guide,
    GuideRecipe,
    anchored,
)
from dmvi.guides._affine import Affine
from dmvi.guides._guide import trainable
from dmvi.targets import Target, from_log_density

DIM = 3
LOC = np.array([0.3, -0.2, 0.1])
TRIANGLE = np.array([[1.6, 0.0, 0.0], [0.3, 1.5, 0.0], [-0.2, 0.4, 1.7]])


class Network(eqx.Module):
    """An Equinox module as a user might write it: net(u, t)."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, dim: int, *, key):
        keys = jr.split(key)
        self.first = eqx.nn.Linear(dim + 1, 8, key=keys[0])
        self.second = eqx.nn.Linear(8, dim, key=keys[1])

    def __call__(self, u, t):
        return self.second(jnp.tanh(self.first(jnp.append(u, t))))


def _apply(params, u, t):
    return params["outer"] @ jnp.sin(params["inner"] @ u + t) / 3


def pair(dim: int) -> tuple[dict, Callable]:
    """A plain (params, apply) pair."""
    rng = np.random.default_rng(3)
    params = {
        "inner": jnp.asarray(rng.normal(size=(6, dim))),
        "outer": jnp.asarray(rng.normal(size=(dim, 6))),
    }
    return params, _apply


def recipes(dim: int = DIM) -> dict[str, GuideRecipe]:
    """Every kind of guide by name; a function, as networks take the width of floats of their time."""
    small = MLP(width=8, depth=2)
    return {
        "mean-field": GaussianGuide(full_rank=False),
        "full-rank": GaussianGuide(full_rank=True),
        "projected": DiffusionGuide(network=Projected(rank=2, scale_rank=1, width=8, scale_width=6)),
        "projected, narrow": DiffusionGuide(
            steps=3, network=Projected(rank=3, scale_rank=2, width=8, depth=1)
        ),
        "triangular": DiffusionGuide(
            steps=4,
            network=Stacked(
                Triangular(width=3), Projected(rank=2, scale_rank=1, width=8, scale_width=6), late_steps=2
            ),
        ),
        "sparse bends": DiffusionGuide(
            steps=5,
            network=Stacked(
                Projected(rank=2, scale_rank=1, width=8, scale_width=6),
                SparseBends(width=3, parents=2),
                late_steps=3,
            ),
        ),
        "mlp, order 1": DiffusionGuide(steps=4, order=1, network=small),
        "mlp, order 2": DiffusionGuide(steps=3, order=2, network=small),
        "mlp, order 3": DiffusionGuide(steps=2, order=3, network=small),
        "mlp, layer norm": DiffusionGuide(steps=2, network=MLP(width=8, layer_norm=True, dropout=0.2)),
        "module": DiffusionGuide(steps=3, network=Network(dim, key=jr.key(5))),
        "flow": FlowGuide(layers=2, width=12),
        "flow, three layers": FlowGuide(layers=3, width=7),
        "pair": DiffusionGuide(steps=3, order=2, network=pair(dim)),
        "chain": ChainGuide(steps=3, width=8, drift=False),
        "chain, drift": ChainGuide(steps=2, width=8, depth=1),
        "chain, score": ChainGuide(steps=2, width=8, depth=1, score=True, log_density=mixture),
    }


# How far weights are moved: enough to matter, not so far that a step folds.
SIZES = {
    "mlp, layer norm": 0.04,
    "module": 0.2,
    "pair": 0.15,
    "chain": 0.03,
    "chain, score": 0.03,
    "triangular": 0.05,
}
USUAL_SIZE = 0.08


def base(name: str = "") -> Affine:
    """The Gaussian base in R^3, diagonal for the mean-field guide only."""
    full = name != "mean-field"
    scale = TRIANGLE if full else np.diagonal(TRIANGLE)
    return anchored(jnp.asarray(LOC, float), jnp.asarray(scale, float), full=full)


def as_vector(tree: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """phi, every number that is trained, and the way back from it."""
    moving, fixed = eqx.partition(tree, trainable(tree))
    phi, unravel = ravel_pytree(moving)
    return phi, lambda phi: eqx.combine(unravel(phi), fixed)


def perturbed(tree: Any, *, size: float = 0.15, seed: int = 0) -> Any:
    """The guide or flow with noise added to every number it trains."""
    phi, rebuild = as_vector(tree)
    noise = size * np.random.default_rng(seed).normal(size=phi.shape)
    return rebuild(phi + jnp.asarray(noise, phi.dtype))


def untrained(name: str) -> Guide:
    """The guide as its recipe builds it, having seen draws in which two coordinates drive the third."""
    u = np.random.default_rng(4).normal(size=(400, DIM))
    r = np.stack(
        [0 * u[:, 0], 0.2 * u[:, 0] * u[:, 2], 0.5 * u[:, 0] * u[:, 2] + 0.4 * (u[:, 1] ** 2 - 1)], 1
    )
    guide = recipes()[name].build(base(name), key=jr.key(1))
    return guide.driven(jnp.asarray(u, float), jnp.asarray(r, float))


def trained_like(name: str) -> Guide:
    """The guide with weights that are not trivial."""
    return perturbed(untrained(name), size=SIZES.get(name, USUAL_SIZE))


@eqx.filter_jit
def draw_many(guide: Guide, count: int, *, seed: int = 0) -> Draw:
    """Draws side by side; guides of one kind share one compiled program."""
    return jax.vmap(guide.draw)(jr.split(jr.key(seed), count))


def from_noise(guide: Guide, noise: jax.Array) -> jax.Array:
    """The guide's map from noise to draw, as a function one can differentiate."""
    flow = getattr(guide, "flow", None)
    return guide.affine(noise if flow is None else flow.move(noise))  # pyright: ignore[reportAttributeAccessIssue]


def log_q_from_noise(guide: Guide, noise: jax.Array) -> jax.Array:
    """log q at the draw that the noise gives, as a function one can differentiate."""
    log_det = guide.flow.move_density(noise)[1] if isinstance(guide, Diffusion) else 0.0
    return jnp.sum(norm.logpdf(noise)) - log_det - guide.affine.log_det()  # pyright: ignore[reportAttributeAccessIssue]


MEAN = np.array([0.5, -0.3, 0.2])
COVARIANCE = np.array([[1.0, 0.35, -0.2], [0.35, 0.5, 0.1], [-0.2, 0.1, 1.4]])


def gaussian(x):
    return 1.5 + multivariate_normal.logpdf(x, jnp.asarray(MEAN, x.dtype), jnp.asarray(COVARIANCE, x.dtype))


def mixture(x):
    near = jnp.sum(norm.logpdf(x, -1.0, 0.8)) + jnp.log(0.3)
    far = jnp.sum(norm.logpdf(x, 1.0, 0.6)) + jnp.log(0.7)
    return -2.0 + logsumexp(jnp.stack([near, far]))


def funnel(x):
    """Widths between exp(-0.4) and exp(0.4), governed by x_0: bounded, so that Gaussian tails suffice."""
    width = jnp.exp(0.4 * jnp.tanh(x[0]))
    return 0.7 + norm.logpdf(x[0]) + jnp.sum(norm.logpdf(x[1:], 0.0, width))


LOG_DENSITIES = {"gaussian": gaussian, "mixture": mixture, "funnel": funnel}
LOG_EVIDENCE = {"gaussian": 1.5, "mixture": -2.0, "funnel": 0.7}

GUIDES = tuple(recipes())
CHAINS = tuple(name for name in GUIDES if name.startswith("chain"))
EXACT = tuple(name for name in GUIDES if name not in CHAINS)  # with a density of xi alone
DIFFUSIONS = tuple(name for name in EXACT if name not in ("mean-field", "full-rank"))


def target(name: str) -> Target:
    """A target of known evidence in R^3; the same object every time, so that nothing compiles twice."""
    return _target(name, jnp.zeros(()).dtype)


@functools.cache
def _target(name: str, dtype: Any) -> Target:
    with jax.numpy_rank_promotion("allow"):  # what targets do with their starts is not under test here
        return from_log_density(LOG_DENSITIES[name], jnp.zeros(DIM, dtype))


def exact_gaussian() -> Gaussian:
    """The guide that is the Gaussian target itself, up to its evidence."""
    root = np.linalg.cholesky(COVARIANCE)
    affine = anchored(jnp.asarray(MEAN, float), jnp.asarray(root, float), full=True)
    return Gaussian(affine=affine, dim=DIM)
