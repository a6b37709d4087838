"""Functions outside JAX: NumPy, a compiled C library, BridgeStan's interface."""

import ctypes
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dmvi
from dmvi.targets import from_bridgestan, from_value_and_grad
from tests.targets.stan import FakeStan

MEAN, SD = np.array([1.0, -2.0, 0.5]), np.array([0.5, 2.0, 1.0])
LOG_EVIDENCE = float(np.sum(np.log(SD)) + 1.5 * np.log(2 * np.pi))


class Counted:
    """An unnormalised Gaussian that counts its calls and the points of each."""

    def __init__(self):
        self.sizes: list[int] = []

    def __call__(self, x):
        assert x.dtype == np.float64
        self.sizes.append(len(x))
        z = (x - MEAN[None]) / SD[None]
        return -0.5 * (z**2).sum(axis=1), -z / SD[None]


def quadratic(xi):
    return -0.5 * jnp.sum(((xi - MEAN) / SD) ** 2)


def test_a_batch_is_one_call_for_values_and_for_gradients():
    function = Counted()
    target = from_value_and_grad(function, 3)
    xi = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    function.sizes.clear()
    values = jax.jit(jax.vmap(jax.vmap(target.log_density)))(xi)
    jax.block_until_ready(values)
    assert function.sizes == [20]
    function.sizes.clear()
    both = jax.jit(jax.vmap(jax.vmap(jax.value_and_grad(target.log_density))))(xi)
    jax.block_until_ready(both)
    assert function.sizes == [20]
    expected = jax.vmap(jax.vmap(jax.value_and_grad(quadratic)))(xi)
    np.testing.assert_allclose(values, expected[0], rtol=1e-5)
    np.testing.assert_allclose(both[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(both[1], expected[1], rtol=1e-5)


def test_both_modes_of_differentiation_and_the_hessian():
    target = from_value_and_grad(Counted(), 3)
    xi = jnp.array([0.3, -0.4, 2.0])
    np.testing.assert_allclose(jax.jacfwd(target.log_density)(xi), jax.grad(quadratic)(xi), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(target.hessian)(xi), np.diag(-1 / SD**2), atol=1e-5)
    batch = jax.vmap(target.hessian)(jnp.stack([xi, xi + 1]))
    np.testing.assert_allclose(batch[1], np.diag(-1 / SD**2), atol=1e-5)


def test_the_hessian_of_a_curved_function():
    def function(x):
        return -np.cosh(x).sum(axis=1) - (x[:, 0] * x[:, 1]) ** 2, np.stack(
            [-np.sinh(x[:, 0]) - 2 * x[:, 0] * x[:, 1] ** 2, -np.sinh(x[:, 1]) - 2 * x[:, 1] * x[:, 0] ** 2],
            1,
        )

    xi = jnp.array([0.7, -1.2])
    expected = jax.hessian(lambda x: -jnp.cosh(x).sum() - (x[0] * x[1]) ** 2)(xi)
    np.testing.assert_allclose(from_value_and_grad(function, 2).hessian(xi), expected, rtol=1e-4)


C_SOURCE = r"""
#include <math.h>
/* Log-density of a banana, x0 ~ N(0, 1), x1 | x0 ~ N(x0^2, 1/2), and its gradient, for n points. */
void banana(int n, const double *x, double *value, double *gradient) {
    for (int i = 0; i < n; i++) {
        double a = x[2 * i], r = x[2 * i + 1] - a * a;
        value[i] = -0.5 * a * a - 2.0 * r * r - log(2 * M_PI) + log(2.0);
        gradient[2 * i] = -a + 8.0 * a * r;
        gradient[2 * i + 1] = -4.0 * r;
    }
}
"""


@pytest.fixture(scope="module")
def banana(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    folder = tmp_path_factory.mktemp("c")
    (folder / "banana.c").write_text(C_SOURCE)
    library = folder / "banana.so"
    command = [compiler, "-O2", "-shared", "-fPIC", str(folder / "banana.c"), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).banana
    pointer = np.ctypeslib.ndpointer(np.float64, flags="C_CONTIGUOUS")
    function.argtypes = [ctypes.c_int, pointer, pointer, pointer]
    function.restype = None

    def value_and_grad(x):
        value, gradient = np.empty(len(x)), np.empty_like(x)
        function(len(x), x, value, gradient)
        return value, gradient

    return value_and_grad


def test_a_compiled_library_is_fitted(banana):
    posterior = dmvi.fit(dmvi.Target.from_value_and_grad(banana, dim=2), steps=800, progress=False)
    assert posterior.diagnostics.log_evidence == pytest.approx(0.0, abs=0.05)
    x = posterior.sample(4000)["x"]
    assert x.mean(axis=0) == pytest.approx([0, 1], abs=0.15)
    assert x[:, 0].std() == pytest.approx(1, abs=0.1)


def test_names_and_init():
    target = from_value_and_grad(Counted(), 3, init=[1.0, 2.0, 3.0], names=["a", "b", "c"])
    assert target.names == ("a", "b", "c")
    assert set(target.constrain(jnp.zeros(3))) == {"a", "b", "c"}
    assert np.abs(np.asarray(target.start(jax.random.key(0))) - [1, 2, 3]).max() <= 1


@pytest.mark.parametrize(
    ("function", "dim", "keywords", "message"),
    [
        (lambda x: x.sum(axis=1), 3, {}, "pair"),
        (lambda x: (x.sum(), x), 3, {}, r"shape \(20,\)"),
        (lambda x: (x.sum(axis=1), x.T), 3, {}, "gradients of shape"),
        (lambda x: (np.full(len(x), np.nan), x), 3, {}, "not finite at any"),
        (lambda x: (x.sum(axis=1), x * np.nan), 3, {}, "gradient is not"),
        (Counted(), 0, {}, "dim must be"),
        (Counted(), 3, {"names": ["a", "a", "b"]}, "3 different names"),
        (Counted(), 3, {"init": [0.0, 1.0]}, "3 finite numbers"),
        ("density", 3, {}, "no function"),
    ],
)
def test_what_is_refused(function, dim, keywords, message):
    with pytest.raises(dmvi.InputError, match=message):
        from_value_and_grad(function, dim, **keywords)


def test_bridgestan_names_density_and_constraining():
    target = from_bridgestan(FakeStan(), seed=3)
    assert target.names == ("mu", "s[0]", "s[1]")
    xi = np.array([[0.1, 0.2, 0.3], [1.0, -1.0, 0.5]], np.float32)
    values = jax.vmap(target.log_density)(jnp.asarray(xi))
    expected = [FakeStan().log_density_gradient(x.astype(float), propto=False)[0] for x in xi]
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    sites = jax.jit(jax.vmap(target.constrain))(xi)
    np.testing.assert_allclose(sites["s"], np.exp(xi[:, 1:]), rtol=1e-5)
    np.testing.assert_allclose(sites["tau"], np.exp(xi[:, 1:].sum(axis=1)), rtol=1e-5)
    np.testing.assert_allclose(sites["m"][0], [[11.1, 12.1], [21.1, 22.1]], rtol=1e-5)
    np.testing.assert_allclose(target.unpack(xi[0])["s"], xi[0, 1:])
    rejected = jax.value_and_grad(target.log_density)(jnp.full(3, 60.0))
    assert float(rejected[0]) == -np.inf


def test_bridgestan_is_fitted():
    posterior = dmvi.fit(
        dmvi.Target.from_bridgestan(FakeStan()), guide="full-rank", steps=200, progress=False
    )
    assert posterior.diagnostics.log_evidence == pytest.approx(0.0, abs=0.02)
    draws = posterior.sample(4000)
    assert draws["mu"].mean() == pytest.approx(0, abs=0.06)
    assert np.log(draws["s"]).std(axis=0) == pytest.approx(np.sqrt([2, 2]), abs=0.08)


def test_an_object_without_the_interface_is_refused():
    with pytest.raises(dmvi.InputError, match=r"StanModel was expected.*without param_unc_num"):
        from_bridgestan(object())
