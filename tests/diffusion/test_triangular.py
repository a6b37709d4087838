"""The triangular flow's own algebra."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi import InputError
from dmvi.diffusion import Projected, Stacked, Triangular
from tests.guides.registry import perturbed


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def jacobian_of(flow, step, u):
    knot = jax.tree.map(lambda leaf: leaf[step], flow.knots())
    return np.asarray(jax.jit(jax.jacfwd(lambda u: flow.step(knot, u)))(u))


def test_steps_are_triangles_in_one_order_and_the_other():
    flow = perturbed(Triangular(width=3).build(5, 2, key=jr.key(0)), size=0.5)
    u = jnp.asarray(np.random.default_rng(0).normal(size=5))
    natural, reverse = jacobian_of(flow, 0, u), jacobian_of(flow, 1, u)
    np.testing.assert_array_equal(np.triu(natural, 1), 0)
    np.testing.assert_array_equal(np.tril(reverse, -1), 0)
    assert np.min(np.abs(natural[np.tril_indices(5, -1)])) > 0
    assert np.min(np.abs(reverse[np.triu_indices(5, 1)])) > 0


def test_no_weights_make_it_fold():
    """However wild the weights, slopes stay positive; the projected flow's shift would fold."""
    points = jnp.asarray(3 * np.random.default_rng(1).normal(size=(200, 4)))
    wild = {
        "triangular": perturbed(Triangular(width=4).build(4, 2, key=jr.key(0)), size=3.0),
        "projected": perturbed(Projected(width=4, scale_width=4).build(4, 2, key=jr.key(0)), size=3.0),
    }
    log_dets = {name: jax.jit(jax.vmap(flow.move_density))(points)[1] for name, flow in wild.items()}
    assert np.all(np.isfinite(log_dets["triangular"]))
    assert not np.all(np.isfinite(log_dets["projected"]))


@pytest.mark.parametrize("dim", [1, 2, 20])
def test_any_dimension(dim):
    flow = perturbed(
        Stacked(Triangular(width=3), Projected(width=6, scale_width=6)).build(dim, 3, key=jr.key(0)),
        size=0.08,
    )

    @jax.jit
    def look(u):
        moved, log_det = flow.move_density(u)
        return flow.invert(moved), log_det, jax.jacfwd(lambda u: flow.move(u))(u), flow.stages(u)

    u = jnp.asarray(np.random.default_rng(1).normal(size=dim))
    inverted, log_det, jacobian, stages = look(u)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(inverted, u, rtol=1e-7, atol=1e-8)
    assert stages.shape == (3, dim)
    np.testing.assert_allclose(stages[-1], flow.move(u), rtol=1e-12)
    assert abs(float(log_det)) > 1e-4


def test_inverse_in_single_precision_and_many_dimensions():
    """Coordinates that are not yet placed must not grow beyond the finite meanwhile."""
    with jax.enable_x64(False):
        flow = perturbed(Triangular(width=4).build(60, 1, key=jr.key(0)), size=0.3)
        u = jnp.asarray(np.random.default_rng(0).normal(size=(32, 60)), jnp.float32)
        back = jax.jit(jax.vmap(lambda u: flow.invert(flow.move(u))))(u)
    np.testing.assert_allclose(back, u, atol=1e-3)


def test_steps_of_nested_sequences_are_counted():
    network = Stacked(Triangular(), Stacked(Projected(), Triangular(), 1), 4)
    assert network.build(3, 8, key=jr.key(0)).steps == 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Triangular(width=0), "width to be an integer of at least 1, got 0"),
        (lambda: Stacked(Projected(), "mlp"), "got Projected and str"),  # pyright: ignore[reportArgumentType]
        (lambda: Stacked(Projected(), Triangular(), 0), "late_steps to be at least 1, got 0"),
        (lambda: Stacked(Projected(), Triangular(), 2).build(3, 2, key=jr.key(0)), "of 2 solver steps 2"),
    ],
)
def test_what_cannot_be_built_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
