"""The flow of sparse bends: its algebra for any levels, and the drivers that draws show."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi import InputError
from dmvi.diffusion import Projected, SparseBends, SparseBendsFlow, Stacked
from dmvi.diffusion._drivers import Drivers, DriverSettings
from tests.guides.registry import perturbed


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def random_flow(dim, *, steps=4, seed=0, size=0.3):
    """A flow with random weights whose levels and parents are random too."""
    rng = np.random.default_rng(seed)
    flow = SparseBends(width=3, parents=4).build(dim, steps, key=jr.key(seed))
    drivers = flow.drivers
    count = len(drivers.strongest)
    drivers = Drivers(
        jnp.asarray(rng.permutation(dim)[:count]),
        jnp.asarray(rng.integers(0, count, drivers.places.shape)),
        jnp.asarray(rng.random(drivers.found.shape) < 0.8),
        jnp.asarray(rng.integers(0, dim, drivers.back.shape)),
        jnp.asarray(rng.random(drivers.found_back.shape) < 0.8),
        drivers.settings,
    )
    return perturbed(eqx.tree_at(lambda flow: flow.drivers, flow, drivers), size=size, seed=seed)


@pytest.mark.parametrize("dim", [1, 2, 5, 17, 70])
def test_density_score_and_inverse_against_autodiff(dim):
    flow = random_flow(dim)

    @jax.jit
    def look(z):
        moved, log_det = flow.move_density(z)
        path = flow.move_path(z, -z)
        jacobian = jax.jacfwd(flow.move)(z)
        slope = jax.grad(lambda z: flow.move_density(z)[1])(z)
        return moved, log_det, path, jacobian, jnp.linalg.solve(jacobian.T, -z - slope), flow.invert(moved)

    z = jnp.asarray(np.random.default_rng(1).normal(size=dim))
    moved, log_det, path, jacobian, score, back = look(z)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(path.log_det, log_det, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(path.u, moved, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(path.score, score, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(back, z, rtol=1e-7, atol=1e-8)
    if dim > 2:
        assert np.abs(jacobian - np.diag(np.diag(jacobian))).max() > 1e-3


def test_path_gradient_of_weights_is_that_of_the_draws():
    """The derivative written out by hand against finite differences along a random direction."""
    flow = random_flow(17)
    moving, fixed = eqx.partition(flow, eqx.is_inexact_array)
    rng = np.random.default_rng(2)
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), moving)
    z, weights = (jnp.asarray(rng.normal(size=(6, 17))) for _ in range(2))

    @jax.jit
    def value(moving):
        flow = eqx.combine(moving, fixed)
        return jnp.sum(weights * jax.vmap(lambda z: flow.move_path(z, -z).u)(z))

    gradient = jax.jit(jax.grad(value))(moving)
    along = sum(jax.tree.leaves(jax.tree.map(lambda g, v: jnp.sum(g * v), gradient, direction)))
    ahead, behind = (
        value(jax.tree.map(lambda leaf, v, step=step: leaf + step * v, moving, direction))
        for step in (1e-6, -1e-6)
    )
    np.testing.assert_allclose(along, (ahead - behind) / 2e-6, rtol=1e-6)


def test_steps_are_triangles_in_the_levels_one_way_and_the_other():
    """The part off the diagonal is nilpotent: one power for each level."""
    flow = random_flow(40)
    level, u = np.asarray(flow.drivers.levels()), jnp.asarray(np.random.default_rng(3).normal(size=40))
    assert np.bincount(level).tolist() == [2, 4, 8, 16, 10]
    for step, backward in enumerate([False, False, True, False]):
        knot = jax.tree.map(lambda leaf, step=step: leaf[step], flow.knots())
        jacobian = np.asarray(jax.jit(jax.jacfwd(lambda u, knot=knot: flow.step(knot, u)))(u))
        rows, columns = np.nonzero(jacobian - np.diag(np.diag(jacobian)))
        assert len(rows) > 20
        assert np.all(level[rows] < level[columns] if backward else level[rows] > level[columns])
        np.testing.assert_array_equal(
            np.linalg.matrix_power(jacobian - np.diag(np.diag(jacobian)), 1 + level.max()), 0
        )
        assert np.min(np.diag(jacobian)) > 0


@pytest.mark.parametrize("dim", [1, 2, 3, 30])
def test_a_new_flow_is_the_identity(dim):
    flow = SparseBends().build(dim, 4, key=jr.key(0))
    rng = np.random.default_rng(0)
    u = jnp.asarray(rng.normal(size=(500, dim)))
    for flow_ in (flow, flow.driven(u, 0.5 * u[:, :1] * u)):
        moved, log_det = jax.jit(jax.vmap(flow_.move_density))(u)
        np.testing.assert_allclose(moved, u, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(log_det, 0, atol=1e-12)


def test_without_measurement_coordinates_keep_to_themselves():
    flow = perturbed(SparseBends(width=3).build(9, 4, key=jr.key(0)), size=0.5)
    jacobian = np.asarray(jax.jacfwd(flow.move)(jnp.ones(9)))
    np.testing.assert_array_equal(jacobian, np.diag(np.diag(jacobian)))


def funnel_residuals(count, others, *, seed=0):
    """Draws and residual scores of the standard Gaussian under log sd = v / 2 of `others` coordinates."""
    u = np.random.default_rng(seed).normal(size=(count, others + 1))
    v, x = u[:, :1], u[:, 1:]
    gradient = np.concatenate(
        [-v + 0.5 * np.sum(x**2 * np.exp(-v) - 1, axis=1, keepdims=True), -x * np.exp(-v)], 1
    )
    return jnp.asarray(u), jnp.asarray(gradient + u)


def test_the_scale_of_a_funnel_is_found():
    u, r = funnel_residuals(4000, 20)
    flow = SparseBends(parents=3).build(21, 4, key=jr.key(0)).driven(u, r)
    drivers = flow.drivers
    assert int(drivers.strongest[0]) == 0
    others = np.asarray(drivers.levels()) > 0
    first_parents = np.asarray(drivers.strongest)[np.asarray(drivers.places)[0]]
    assert np.all(first_parents[others] == 0)
    assert np.all(np.asarray(drivers.found)[0, others])


def two_scales(count, *, seed=0):
    """Coordinate 7 drives the scales of 0-4 and 8-19, half as strongly coordinate 3 those of 20-29."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(count, 30))
    r = 0.05 * rng.normal(size=u.shape)
    strong, weak = [*range(3), 4, *range(8, 20)], [*range(20, 30)]
    r[:, strong] += 0.6 * u[:, [7]] * u[:, strong]
    r[:, weak] += 0.3 * u[:, [3]] * u[:, weak]
    r[:, 5] += 0.5 * (u[:, 20] ** 2 - 1)  # one mean is bent
    return u, r, strong, weak


def parents_of(drivers, i):
    """Coordinates that are the parents of i, strongest first."""
    places, found = np.asarray(drivers.places)[:, i], np.asarray(drivers.found)[:, i]
    return np.asarray(drivers.strongest)[places[found]].tolist()


def test_two_scales_are_found_in_order():
    u, r, strong, weak = two_scales(4000)
    drivers = (
        SparseBends(parents=2).build(30, 4, key=jr.key(0)).driven(jnp.asarray(u), jnp.asarray(r)).drivers
    )
    assert np.asarray(drivers.strongest)[:3].tolist() == [7, 3, 20]
    level = np.asarray(drivers.levels())
    assert level[[7, 3, 20]].tolist() == [0, 0, 1]
    assert all(parents_of(drivers, i)[0] == 7 for i in strong if level[i])
    assert all(parents_of(drivers, i)[0] == 3 for i in weak if level[i])
    if level[5] > 1:
        assert parents_of(drivers, 5)[0] == 20
    # The other way round each of the two is bent by what stands above it.
    assert np.all(level[np.asarray(drivers.back)[:, :2]] > 0)


def test_nothing_is_found_where_the_base_is_exact():
    u = jnp.asarray(np.random.default_rng(0).normal(size=(500, 12)))
    drivers = SparseBends().build(12, 4, key=jr.key(0)).driven(u, jnp.zeros_like(u)).drivers
    assert not np.any(drivers.found)
    assert not np.any(drivers.found_back)


def test_blocks_give_what_the_whole_matrix_gives():
    u, r, _, _ = two_scales(1000)
    whole = Drivers.none(30, 4, DriverSettings())
    small = Drivers.none(30, 4, dataclasses.replace(DriverSettings(), block=7))
    found = [drivers.measured(jnp.asarray(u), jnp.asarray(r)) for drivers in (whole, small)]
    for left, right in zip(*(jax.tree.leaves(drivers) for drivers in found), strict=True):
        np.testing.assert_array_equal(left, right)


def test_draws_that_are_not_finite_do_not_count_and_wild_ones_count_little():
    u, r, _, _ = two_scales(4000)
    none = Drivers.none(30, 2, DriverSettings())
    plain = none.measured(jnp.asarray(u), jnp.asarray(r))
    bad_u, bad_r = np.vstack([u, u[:5]]), np.vstack([r, r[:5]])
    bad_r[-5:, 3], bad_u[-1, 2] = np.nan, np.inf
    for left, right in zip(
        jax.tree.leaves(plain),
        jax.tree.leaves(none.measured(jnp.asarray(bad_u), jnp.asarray(bad_r))),
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)
    wild = r.copy()
    wild[0] *= 300
    strongest = np.asarray(none.measured(jnp.asarray(u), jnp.asarray(wild)).strongest)
    assert strongest[:2].tolist() == [7, 3]


def test_measured_under_jit_and_for_flows_side_by_side():
    pairs = [two_scales(1000, seed=seed)[:2] for seed in (0, 1)]
    u, r = (jnp.asarray(np.stack(parts)) for parts in zip(*pairs, strict=True))
    flow = SparseBends(width=2, parents=3).build(30, 3, key=jr.key(0))
    both = eqx.filter_jit(eqx.filter_vmap(lambda u, r: flow.driven(u, r).drivers))(u, r)
    for k in range(2):
        alone = flow.driven(u[k], r[k]).drivers
        np.testing.assert_array_equal(both.strongest[k], alone.strongest)
        np.testing.assert_array_equal(both.places[k], alone.places)
        np.testing.assert_array_equal(both.back[k], alone.back)


def test_arrays_of_a_measured_flow_fit_into_a_new_one():
    """A file holds arrays; the recipe makes the flow they are put into."""
    recipe = Stacked(Projected(rank=2, width=4), SparseBends(width=2), late_steps=4)
    u, r = funnel_residuals(500, 20)
    flow = recipe.build(21, 6, key=jr.key(0))
    measured = perturbed(flow.driven(u, r), size=0.1)
    leaves, structure = jax.tree.flatten(measured)
    fresh, same = jax.tree.flatten(recipe.build(21, 6, key=jr.key(1)))
    assert same == structure
    assert [(leaf.shape, leaf.dtype) for leaf in fresh] == [(leaf.shape, leaf.dtype) for leaf in leaves]
    again = jax.tree.unflatten(same, leaves)
    np.testing.assert_array_equal(again.move(u[0]), measured.move(u[0]))
    assert flow.steps == 6
    sparse = [part.second for part in (measured, flow)]
    seen, unseen = (part.drivers.found for part in sparse if isinstance(part, SparseBendsFlow))
    assert np.any(seen)
    assert not np.any(unseen)


def test_inverse_in_single_precision_and_many_dimensions():
    """Coordinates that are not yet placed must not grow beyond the finite meanwhile."""
    with jax.enable_x64(False):
        flow = random_flow(150, steps=3, size=0.2)
        u = jnp.asarray(np.random.default_rng(0).normal(size=(32, 150)), jnp.float32)
        back = jax.jit(jax.vmap(lambda u: flow.invert(flow.move(u))))(u)
    np.testing.assert_allclose(back, u, atol=2e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparseBends(width=0), "width to be an integer of at least 1, got 0"),
        (lambda: SparseBends(parents=2.5), "parents to be an integer of at least 1, got 2.5"),  # pyright: ignore[reportArgumentType]
        (lambda: SparseBends(turn=0), "turn to be an integer of at least 1, got 0"),
        (lambda: SparseBends(spread=-1.0), "spread to be a positive number, got -1.0"),
    ],
)
def test_what_cannot_be_built_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
