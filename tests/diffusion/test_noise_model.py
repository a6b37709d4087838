"""The paper's noise model: its equation layer by layer, its merged form, its masks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.diffusion import NoiseMLP
from dmvi.diffusion._noise_model import SMALL, embedding

DIM, WIDTH, DROPOUT = 3, 16, 0.25


def network() -> NoiseMLP:
    """With weights so large that every layer matters."""
    net = NoiseMLP(DIM, WIDTH, DROPOUT, key=jr.key(0))
    leaves, tree = jax.tree.flatten(net)
    keys = jr.split(jr.key(1), len(leaves))
    return jax.tree.unflatten(
        tree, [leaf + 0.5 * jr.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    )


@pytest.mark.parametrize("time", [0.01, 0.6, 1.0])
def test_the_layers_one_after_another(time):
    """Written out in NumPy, in the order of the published network."""
    net, w = network(), jr.normal(jr.key(2), (DIM,))
    frequencies = np.exp(-np.log(10_000) * np.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    emb = np.concatenate([np.sin(time * frequencies), np.cos(time * frequencies)])
    h = np.asarray(w @ net.first + net.first_bias) + emb
    h = np.asarray(jax.nn.gelu(jnp.asarray(h @ np.asarray(net.second) + np.asarray(net.bias))))
    h = (h - h.mean()) / np.sqrt(h.var() + 1e-5) * np.asarray(net.gain) + np.asarray(net.offset)
    expected = h @ np.asarray(net.out) + np.asarray(net.out_bias)
    np.testing.assert_allclose(net(w, jnp.asarray(time)), expected, rtol=2e-4, atol=2e-5)


def test_masks_keep_their_share_and_the_mean():
    masks = network().masks(jr.key(3), (4000,))
    assert set(np.unique(masks).tolist()) == {0.0, float(np.float32(1 / (1 - DROPOUT)))}
    error = np.sqrt(DROPOUT / (1 - DROPOUT) / masks.size)
    assert abs(float(masks.mean()) - 1) < 4 * error


def test_next_to_no_dropout_leaves_next_to_nothing_out():
    assert np.all(np.asarray(NoiseMLP(DIM, WIDTH, 1e-6, key=jr.key(0)).masks(jr.key(3))) > 0.99)


def test_a_mask_leaves_out_what_the_last_layer_sees():
    net, w, key, time = network(), jr.normal(jr.key(2), (DIM,)), jr.key(4), jnp.asarray(0.5)
    (kept,) = np.nonzero(np.asarray(net.masks(key)))
    slopes = jax.jacfwd(lambda out: eqx.tree_at(lambda net: net.out, net, out)(w, time, key))(net.out)
    (seen,) = np.nonzero(np.abs(np.asarray(slopes)).sum((0, 2)))
    np.testing.assert_array_equal(seen, kept)
    assert np.abs(np.asarray(net(w, time, key) - net(w, time))).max() > 1e-3


def test_all_weights_start_small_and_cut_off():
    net = NoiseMLP(20, 256, 0.1, key=jr.key(0))
    for weights in (net.first, net.second, net.out):
        assert float(jnp.abs(weights).max()) <= 2 * SMALL
    # sd of a normal that is cut off at two sds: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)) = 0.8796
    np.testing.assert_allclose(float(net.second.std()), 0.8796 * SMALL, rtol=0.01)


def test_odd_widths_have_an_embedding_too():
    assert embedding(jnp.asarray(0.3), 7).shape == (7,)
