"""JAX log-densities over pytrees."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmvi._errors import InputError
from dmvi.targets import from_log_density


def sum_of_squares(tree):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))


class Pair(NamedTuple):
    left: float
    right: np.ndarray


class Module(eqx.Module):
    weight: jax.Array
    bias: jax.Array


@pytest.mark.parametrize(
    ("init", "names"),
    [
        (0.5, ("x",)),
        (3, ("x",)),
        (np.zeros(2), ("x[0]", "x[1]")),
        (np.zeros((2, 2)), ("x[0,0]", "x[0,1]", "x[1,0]", "x[1,1]")),
        ({"mu": 0.0, "theta": np.zeros(2)}, ("mu", "theta[0]", "theta[1]")),
        ({"a": {"b": np.zeros(1), "c": 1}}, ("a.b[0]", "a.c")),
        ({"a": [0.0, np.zeros(2)]}, ("a[0]", "a[1][0]", "a[1][1]")),
        ((0.0, {"mu": 1.0}), ("x[0]", "x[1].mu")),
        (Pair(0.0, np.zeros(2)), ("left", "right[0]", "right[1]")),
        (Module(jnp.zeros(2), jnp.zeros(())), ("weight[0]", "weight[1]", "bias")),
    ],
)
def test_names_follow_the_paths(init, names):
    target = from_log_density(sum_of_squares, init)
    assert target.names == names
    assert target.dim == len(names)
    xi = np.arange(target.dim, dtype=np.float32)
    np.testing.assert_allclose(jax.jit(target.log_density)(xi), -0.5 * np.sum(xi**2))


def test_density_sees_the_structure_of_init():
    def log_density(point):
        assert set(point) == {"mu", "nested"}
        return -(point["mu"] ** 2) - jnp.sum(point["nested"]["theta"] @ jnp.array([1.0, 2.0]))

    target = from_log_density(log_density, {"mu": 1, "nested": {"theta": np.zeros((3, 2))}})
    xi = np.arange(7, dtype=np.float32) / 4
    expected = -(xi[0] ** 2) - np.sum(xi[1:].reshape(3, 2) @ [1, 2])
    np.testing.assert_allclose(jax.jit(target.log_density)(xi), expected, rtol=1e-6)
    values = target.constrain(jnp.asarray(xi))
    assert set(values) == {"mu", "nested.theta"}
    np.testing.assert_array_equal(values["nested.theta"], xi[1:].reshape(3, 2))


def test_vectorised_and_differentiable():
    target = from_log_density(sum_of_squares, {"mu": 0.0, "theta": np.zeros(2)})
    points = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(target.log_density)))(points), -points)


def test_starts_scatter_around_init_near_and_far():
    init = np.array([3.0, -100.0])
    target = from_log_density(lambda x: -0.5 * jnp.sum((x - init) ** 2), init)
    distance = np.abs(jax.vmap(target.start)(jax.random.split(jax.random.key(0), 1000)) - init)
    assert np.median(distance) < 0.2
    assert 0.5 < np.quantile(distance, 0.99) < 4.0


def test_init_itself_is_tried():
    """A density that is finite at init and almost nowhere else is accepted."""
    log_density = jax.jit(lambda x: jnp.where(jnp.abs(x - 5.0) < 1e-6, -(x**2), -jnp.inf))
    assert from_log_density(log_density, 5.0).dim == 1


def test_what_a_log_density_does_not_have():
    target = from_log_density(sum_of_squares, 0.0)
    assert target.params == {}
    assert target.observed == {}
    assert target.dims == {}
    assert target.data_size is None
    assert not target.subsampled
    assert target.draw_batch(jax.random.key(0)) is None
    assert target.log_likelihood(jnp.zeros(1)) == {}
    assert target.constrained_params() == {}


def test_traced_once_at_construction():
    calls = []

    def log_density(x):
        calls.append(1)
        return -(x**2)

    from_log_density(log_density, 0.0)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("log_density", "init", "words"),
    [
        (lambda x: -(x**2), np.zeros(3), r"shape \(3,\).*jnp.sum"),
        (lambda x: (-jnp.sum(x), x), np.zeros(3), "one real number, got a tuple"),
        (lambda x: None, 0.0, "one real number, got a NoneType"),
        (lambda x: jnp.sum(x) + 1j, np.zeros(3), "complex64"),
        (lambda x: jnp.sum(x > 0), np.zeros(3), "int32"),
        (lambda x: jnp.log(-jnp.exp(x)), 0.0, "not finite at any of 100 starts"),
        (lambda x: jnp.sqrt(0.0 * x), 0.0, "gradient"),
        (lambda x: np.exp(x), 0.0, "TracerArrayConversionError.*jax.numpy"),
        (lambda x: -jnp.sum((x - jnp.zeros(4)) ** 2), np.zeros(3), r"(?s)test_log_density.py.*x \(3,\)"),
        (lambda x: -x["nu"], {"mu": 0.0}, "KeyError: 'nu'"),
        (sum_of_squares, {}, "no numbers"),
        (sum_of_squares, np.zeros(0), "no numbers"),
        (sum_of_squares, {"mu": 1j}, "'mu' is of type complex128"),
        (sum_of_squares, {"mu": True}, "'mu' is of type bool"),
        (sum_of_squares, {"mu": "zero"}, "'mu' is of type str"),
        (sum_of_squares, {"mu": np.array(["a"])}, "'mu' is of type <U1"),
        (sum_of_squares, {"mu": np.array([0.0, np.nan])}, "'mu' holds NaN"),
        (sum_of_squares, {"a.b": 0.0, "a": {"b": 1.0}}, "same name"),
        ("density", 0.0, "has to be a function, got a str"),
    ],
)
def test_bad_input(log_density, init, words):
    with pytest.raises(InputError, match=words):
        from_log_density(log_density, init)
