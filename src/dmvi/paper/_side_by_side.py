"""Replicates of the published training, side by side in one program each for training, draws and weights."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float

from dmvi._random import children
from dmvi.paper._densities import Density, many_sites
from dmvi.paper._models import DataSet, PaperModel
from dmvi.paper._published import BATCH, EPOCHS, Recipe, batches, train
from dmvi.posterior._diagnostics import Weights, weigh

WEIGHED = 2000  # draws with density: that of the solver takes d x d Jacobians
CHUNK = 1000  # draws made at a time


class PublishedFit(NamedTuple):
    """One replicate: draws of u, CPU seconds (its share of the program's), weights, steps."""

    u: Float[np.ndarray, "draws dim"]
    train_seconds: float
    sample_seconds: float
    weights: Weights
    steps: int


def fit_published(
    recipe: Recipe,
    model: PaperModel,
    data: Sequence[DataSet],
    seeds: Sequence[int],
    *,
    draws: int,
    epochs: int = EPOCHS,
) -> Iterator[PublishedFit]:
    """Train on all data sets together, then draw and weigh for each.

    Args:
        recipe: the guide.
        model: the model.
        data: one data set for each replicate, of one shape.
        seeds: one seed for each replicate.
        draws: number of draws.
        epochs: length of the training.
    """
    rows = len(data[0].y)
    density = Density(model, data[0].y.shape[1])
    keys = jnp.stack([jr.key(seed) for seed in seeds])
    began = time.process_time()
    guides, static = _stacked([recipe.build(density.dim, jr.key(seed)) for seed in seeds])
    orders = [batches(rows, np.random.default_rng(seed)) for seed in seeds]
    index, kept = (jnp.asarray(np.stack(part)) for part in zip(*orders, strict=True))
    y = jnp.asarray(np.stack([one.y for one in data]))

    def trained(moving, y, index, kept, key):
        guide = train(eqx.combine(moving, static), density, y, index, kept, jr.fold_in(key, 0), epochs)
        return eqx.filter(guide, eqx.is_inexact_array)

    program = jax.jit(jax.vmap(trained), compiler_options=_options())
    guides = jax.block_until_ready(program(guides, y, index, kept, keys))
    train_seconds = (time.process_time() - began) / len(seeds)
    sample, weigh_draws = _samplers(density, static)
    for i, key in enumerate(keys):
        guide = jax.tree.map(lambda leaf, i=i: leaf[i], guides)
        sample_key, weight_key = children(jr.fold_in(key, 1), 2)
        jax.block_until_ready(sample(guide, jr.fold_in(sample_key, draws)))  # compiles
        began = time.process_time()
        xi = np.concatenate([np.asarray(sample(guide, key)) for key in children(sample_key, draws // CHUNK)])
        sample_seconds = time.process_time() - began
        log_w = [np.asarray(weigh_draws(guide, y[i], key)) for key in children(weight_key, WEIGHED // CHUNK)]
        u = model.coordinates(many_sites(density, xi))
        weights = weigh(np.concatenate(log_w).astype(np.float64))
        yield PublishedFit(u, train_seconds, sample_seconds, weights, epochs * -(-rows // BATCH))


def _options() -> dict[str, str]:
    """None, but on CPUs from JAX 0.11 on: what XLA fuses to matrix products there loses memory."""
    leaks = jax.default_backend() == "cpu" and jax.__version_info__ >= (0, 11)
    return {"xla_cpu_experimental_ynn_fusion_type": ""} if leaks else {}


def _stacked(guides: Sequence[Any]) -> tuple[Any, Any]:
    """The arrays of guides of one kind, stacked, and what is static in all of them."""
    moving = [eqx.filter(guide, eqx.is_inexact_array) for guide in guides]
    static = eqx.filter(guides[0], eqx.is_inexact_array, inverse=True)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *moving), static


def _samplers(density: Density, static: Any):
    """Programs that make a chunk of draws, and that make and weigh one on the full data."""

    @jax.jit
    def sample(moving, key):
        return jax.vmap(eqx.combine(moving, static).sample)(jr.split(key, CHUNK))

    @jax.jit
    def log_weights(moving, y, key):
        def one(key):
            xi, log_q = eqx.combine(moving, static).draw(key)
            return density.log_density(xi, y) - log_q

        return jax.lax.map(one, jr.split(key, CHUNK), batch_size=CHUNK // 10)

    return sample, log_weights
