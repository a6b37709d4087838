"""Where training starts: exact for Gaussians of any scale, finite where the mode is useless."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from dmvi.guides import AnyAffine, Gaussian
from dmvi.targets import Target, from_log_density
from dmvi.training import Silent
from dmvi.warmstart import warm_start
from dmvi.warmstart._laplace import LARGEST_SD, Surface, laplace, scale_from_precision


def start_of(target: Target, *, full: bool = True):
    return warm_start(target, full=full, key=jr.key(0), progress=Silent())


def log_weights(affine: AnyAffine, target: Target, n: int = 2000) -> np.ndarray:
    @eqx.filter_jit
    def weigh(keys):
        def one(key):
            draw = Gaussian(affine=affine, dim=affine.dim).draw(key)
            return target.log_density(draw.xi) - draw.log_q

        return jax.vmap(one)(keys)

    return np.asarray(weigh(jr.split(jr.key(1), n)), float)


def test_scale_from_precision_is_its_inverse_root():
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    precision = rotation @ np.diag(np.logspace(-4, 4, 5)) @ rotation.T
    scale = scale_from_precision(precision, full=True)
    np.testing.assert_allclose(scale @ scale.T @ precision, np.eye(5), atol=1e-6)
    np.testing.assert_array_equal(scale, np.tril(scale))
    assert np.all(np.diagonal(scale) > 0)
    np.testing.assert_allclose(
        scale_from_precision(precision, full=False), np.diagonal(precision) ** -0.5, rtol=1e-12
    )


@pytest.mark.parametrize("full", [True, False])
def test_directions_without_curvature_are_cut(full):
    scale = scale_from_precision(np.diag([4.0, 0.0, -3.0]), full=full)
    diagonal = np.diagonal(scale) if full else scale
    np.testing.assert_allclose(diagonal, [0.5, LARGEST_SD, LARGEST_SD])


def gaussian_of_many_scales() -> tuple[Target, np.ndarray, np.ndarray]:
    """Standard deviations from 1e-2 to 1e2, and correlated: a condition number above 1e8."""
    sds = np.logspace(-2, 2, 5)
    mean = 3 * sds * np.array([1, -1, 1, -1, 1])
    root = np.diag(sds) @ np.linalg.cholesky(0.5 * np.eye(5) + 0.5)

    def log_density(x):
        z = jax.scipy.linalg.solve_triangular(
            jnp.asarray(root, x.dtype), x - jnp.asarray(mean, x.dtype), lower=True
        )
        return -0.5 * jnp.sum(z**2)

    return from_log_density(log_density, jnp.zeros(5)), mean, root


def test_laplace_is_exact_for_a_gaussian_of_condition_1e8():
    target, mean, root = gaussian_of_many_scales()
    assert np.linalg.cond(root @ root.T) > 1e8
    mode = laplace(Surface(target), np.zeros(5))
    np.testing.assert_allclose(np.linalg.solve(root, mode.loc - mean), 0, atol=0.02)
    np.testing.assert_allclose(root.T @ mode.precision @ root, np.eye(5), atol=1e-3)
    log_z = np.linalg.slogdet(root)[1] + 2.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(mode.log_evidence, log_z, atol=1e-2)


def test_laplace_where_the_search_leaves_the_finite():
    """Nothing finite but at the start: the start itself with unit curvature, and no evidence."""
    target = from_log_density(lambda x: jnp.where(jnp.sum(x**2) > 0, jnp.nan, 0.0) + x[0], jnp.zeros(2))
    mode = laplace(Surface(target), np.array([0.3, 0.1]))
    np.testing.assert_array_equal(mode.loc, [0.3, 0.1])
    np.testing.assert_array_equal(mode.precision, np.eye(2))
    assert mode.log_evidence == -np.inf


def test_warm_start_of_a_gaussian_of_condition_1e8():
    target, mean, root = gaussian_of_many_scales()
    start = start_of(target)
    affine = start.affine
    np.testing.assert_array_equal(affine.loc, 0)
    np.testing.assert_array_equal(affine.log_diagonal, 0)
    # log Z = log |det root| + 5/2 log 2 pi, and an exact start has no gap to it.
    log_z = np.linalg.slogdet(root)[1] + 2.5 * np.log(2 * np.pi)
    assert log_z - log_weights(affine, target).mean() < 0.02
    np.testing.assert_allclose(np.linalg.solve(root, np.asarray(affine(jnp.zeros(5))) - mean), 0, atol=0.1)


def test_improper_flat_priors_are_ordinary():
    """A regression without any prior, columns of scales 1, 1e3 and 1e-3: exactly least squares."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)) * [1.0, 1e3, 1e-3]
    y = x @ [1.0, 2e-3, -500.0] + rng.normal(size=30)
    covariance = np.linalg.inv(x.T @ x)
    mean = covariance @ x.T @ y
    design, response = jnp.asarray(x, float), jnp.asarray(y, float)
    target = from_log_density(lambda beta: -0.5 * jnp.sum((response - design @ beta) ** 2), jnp.zeros(3))
    affine = start_of(target).affine
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((np.asarray(affine(jnp.zeros(3))) - mean) / sd, 0, atol=0.1)
    scale = np.asarray(affine.anchor_scale.value, float)
    np.testing.assert_allclose(np.sqrt(np.sum(scale**2, axis=1)) / sd, 1, atol=0.1)


def test_a_hierarchy_whose_mode_is_degenerate():
    """log pi grows without bound as log tau falls with theta = mu; the start stays finite and useful."""
    y = jnp.asarray([0.1, -0.2, 0.05, 0.0])

    def log_density(x):
        tau = jnp.exp(x["log_tau"])
        inner = -0.5 * jnp.sum((x["theta"] - x["mu"]) ** 2) / tau**2 - 4 * x["log_tau"]
        outer = -0.5 * jnp.sum((y - x["theta"]) ** 2)
        prior = -0.5 * x["mu"] ** 2 / 25 + x["log_tau"] - jnp.log1p((tau / 5) ** 2)
        return inner + outer + prior

    target = from_log_density(log_density, {"mu": 0.0, "log_tau": 0.0, "theta": jnp.zeros(4)})
    start = start_of(target)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(start.affine))
    weights = log_weights(start.affine, target)
    assert np.isfinite(weights).all()
    # A width of the population that data allow, neither zero nor without bound.
    log_tau = float(start.affine(jnp.zeros(6))[list(target.names).index("log_tau")])
    assert -5 < log_tau < 3


def test_mean_field_start_has_a_diagonal():
    """Gaussian of correlation 0.9: the best mean-field has the conditional standard deviations."""
    precision = jnp.asarray(np.linalg.inv([[1.0, 0.9], [0.9, 1.0]]), float)
    target = from_log_density(lambda x: -0.5 * x @ precision @ x, jnp.ones(2))
    affine = start_of(target, full=False).affine
    assert affine.lower is None  # pyright: ignore[reportAttributeAccessIssue]
    assert affine.anchor_scale.value.shape == (2,)
    np.testing.assert_allclose(affine.anchor_scale.value, np.sqrt(1 - 0.81), rtol=0.05)
    np.testing.assert_allclose(affine(jnp.zeros(2)), 0, atol=0.05)
