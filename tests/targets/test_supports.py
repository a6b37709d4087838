"""log pi(xi) = log p(theta(xi)) + log |det d theta / d xi| for every support NumPyro can biject."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.distributions import constraints
from numpyro.infer.util import potential_energy

from dmvi._errors import InputError
from dmvi.targets import from_numpyro


def everything(theta):
    return theta.ravel()


def all_but_last(theta):
    return theta[:-1]


def lower(theta):
    return theta[jnp.tril_indices(theta.shape[-1])]


def strictly_lower(theta):
    return theta[jnp.tril_indices(theta.shape[-1], -1)]


class Support(NamedTuple):
    constraint: constraints.Constraint
    shape: tuple[int, ...]
    dim: int
    free: Callable  # coordinates that determine theta, in which its density is stated


SUPPORTS = {
    "real": Support(constraints.real, (), 1, everything),
    "real_matrix": Support(constraints.real_matrix, (2, 3), 6, everything),
    "positive": Support(constraints.positive, (3,), 3, everything),
    "nonnegative": Support(constraints.nonnegative, (), 1, everything),
    "softplus_positive": Support(constraints.softplus_positive, (2,), 2, everything),
    "greater_than": Support(constraints.greater_than(3.0), (2,), 2, everything),
    "less_than": Support(constraints.less_than(-1.0), (2,), 2, everything),
    "unit_interval": Support(constraints.unit_interval, (2,), 2, everything),
    "interval": Support(constraints.interval(-1.0, 4.0), (2,), 2, everything),
    "open_interval": Support(constraints.open_interval(2.0, 5.0), (), 1, everything),
    "circular": Support(constraints.circular, (2,), 2, everything),
    "simplex": Support(constraints.simplex, (4,), 3, all_but_last),
    "ordered": Support(constraints.ordered_vector, (4,), 4, everything),
    "positive_ordered": Support(constraints.positive_ordered_vector, (3,), 3, everything),
    "l1_ball": Support(constraints.l1_ball, (3,), 3, everything),
    "lower_cholesky": Support(constraints.lower_cholesky, (3, 3), 6, lower),
    "softplus_lower_cholesky": Support(constraints.softplus_lower_cholesky, (3, 3), 6, lower),
    "scaled_unit_lower_cholesky": Support(constraints.scaled_unit_lower_cholesky, (3, 3), 6, lower),
    "positive_definite": Support(constraints.positive_definite, (3, 3), 6, lower),
    "corr_cholesky": Support(constraints.corr_cholesky, (3, 3), 3, strictly_lower),
    "corr_matrix": Support(constraints.corr_matrix, (3, 3), 3, strictly_lower),
    "zero_sum": Support(constraints.zero_sum(1), (4,), 3, all_but_last),
}


def improper(support: Support):
    def model():
        numpyro.sample("theta", dist.ImproperUniform(support.constraint, (), support.shape))

    return model


def evaluate(target, xi, free):
    """theta, log pi and log |det d free(theta) / d xi| by autodiff through the map, in one compilation."""

    @jax.jit
    def all_three(x):
        jacobian = jax.jacobian(lambda x: free(target.constrain(x)["theta"]))(x)
        log_det = jnp.linalg.slogdet(jacobian.reshape(target.dim, target.dim))[1]
        return target.constrain(x)["theta"], target.log_density(x), log_det

    return (np.asarray(value, dtype=float) for value in all_three(xi))


@pytest.mark.parametrize("name", SUPPORTS)
def test_flat_prior_leaves_the_jacobian(name):
    """With p(theta) = 1 the density is |det d theta / d xi|, here by autodiff through the map itself."""
    support = SUPPORTS[name]
    target = from_numpyro(improper(support))
    assert target.dim == support.dim
    assert len(target.names) == support.dim

    xi = np.random.default_rng(1).uniform(-1.5, 1.5, target.dim).astype(np.float32)
    theta, log_density, log_det = evaluate(target, xi, support.free)
    assert theta.shape == support.shape
    assert np.all(
        jax.jit(lambda t: support.constraint(t))(theta.astype(np.float32))
    )  # a constraint has no hash
    if name == "zero_sum":  # measured along the plane sum(theta) = 0, not along the first coordinates
        log_det += 0.5 * np.log(support.shape[0])
    np.testing.assert_allclose(log_density, log_det, rtol=2e-5, atol=2e-5)


def lkj_cholesky_log_prob(theta, eta):
    """log of prod_i L_ii^(K - i + 2 eta - 2), i = 2..K, over its integral, for K = 3."""
    diagonal = np.diagonal(theta)[1:]
    unnormalised = np.sum(np.log(diagonal) * np.array([2 * eta - 1, 2 * eta - 2]))
    # The rows are spherical: row 2 lies on a half circle, row 3 on a half sphere.
    beta = scipy.special.beta
    return unnormalised - np.log(beta(0.5, eta + 0.5)) - np.log(np.pi / eta)


# Distribution, its log-density written by hand at theta(xi), and theta(xi) with its log-Jacobian.
PROPER = {
    "normal": (dist.Normal(1.0, 2.0), lambda t: scipy.stats.norm.logpdf(t, 1, 2), lambda u: (u, 0.0)),
    "gamma": (
        dist.Gamma(3.0, 2.0),
        lambda t: scipy.stats.gamma.logpdf(t, 3, scale=0.5),
        lambda u: (np.exp(u), u),
    ),
    "half_cauchy": (
        dist.HalfCauchy(5.0),
        lambda t: scipy.stats.halfcauchy.logpdf(t, scale=5),
        lambda u: (np.exp(u), u),
    ),
    "beta": (
        dist.Beta(2.0, 3.0),
        lambda t: scipy.stats.beta.logpdf(t, 2, 3),
        lambda u: (scipy.special.expit(u), scipy.special.log_expit(u) + scipy.special.log_expit(-u)),
    ),
    "uniform": (
        dist.Uniform(-1.0, 3.0),
        lambda t: scipy.stats.uniform.logpdf(t, -1, 4),
        lambda u: (
            -1 + 4 * scipy.special.expit(u),
            np.log(4) + scipy.special.log_expit(u) + scipy.special.log_expit(-u),
        ),
    ),
    "pareto": (
        dist.Pareto(2.0, 3.0),
        lambda t: scipy.stats.pareto.logpdf(t, 3, scale=2),
        lambda u: (2 + np.exp(u), u),
    ),
    "von_mises": (
        dist.VonMises(0.5, 1.5),
        lambda t: scipy.stats.vonmises.logpdf(t, 1.5, loc=0.5),
        lambda u: (
            -np.pi + 2 * np.pi * scipy.special.expit(u),
            np.log(2 * np.pi) + scipy.special.log_expit(u) + scipy.special.log_expit(-u),
        ),
    ),
}


@pytest.mark.parametrize("name", PROPER)
def test_scalar_priors_by_hand(name):
    prior, log_prob, bijection = PROPER[name]
    target = from_numpyro(lambda: numpyro.sample("theta", prior))
    u = np.array([-1.3, 0.2, 1.7], dtype=np.float32)
    theta, log_jacobian = bijection(u)
    points = u[:, None]
    np.testing.assert_allclose(jax.jit(jax.vmap(target.constrain))(points)["theta"], theta, rtol=1e-5)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(target.log_density))(points), log_prob(theta) + log_jacobian, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("prior", "free", "log_prob"),
    [
        (
            dist.Dirichlet(jnp.array([2.0, 1.0, 3.0])),
            all_but_last,
            lambda t: scipy.stats.dirichlet.logpdf(t / t.sum(), [2, 1, 3]),
        ),
        (dist.LKJCholesky(3, 2.0), strictly_lower, lambda t: lkj_cholesky_log_prob(t, 2.0)),
        (
            dist.Wishart(5.0, scale_matrix=jnp.eye(2)),
            lower,
            lambda t: scipy.stats.wishart.logpdf(t, 5, np.eye(2)),
        ),
        (
            dist.MultivariateNormal(jnp.ones(2), jnp.array([[2.0, 0.5], [0.5, 1.0]])),
            everything,
            lambda t: scipy.stats.multivariate_normal.logpdf(t, [1, 1], [[2, 0.5], [0.5, 1]]),
        ),
    ],
    ids=["dirichlet", "lkj_cholesky", "wishart", "multivariate_normal"],
)
def test_vector_priors_by_hand(prior, free, log_prob):
    target = from_numpyro(lambda: numpyro.sample("theta", prior))
    theta, log_density, log_det = evaluate(target, np.linspace(-0.7, 0.9, target.dim, dtype=np.float32), free)
    np.testing.assert_allclose(log_density, log_prob(theta) + log_det, rtol=1e-5, atol=1e-4)


def test_vector_priors_inside_plates():
    """Two simplices and three correlation factors: shapes, order of coordinates, sum of densities."""

    def model():
        with numpyro.plate("pair", 2):
            numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("triple", 3):
            numpyro.sample("chol", dist.LKJCholesky(2, 1.0))

    target = from_numpyro(model)
    assert target.names == ("p[0,0]", "p[0,1]", "p[1,0]", "p[1,1]", "chol[0,0]", "chol[1,0]", "chol[2,0]")
    assert target.dims == {"p": ("pair",), "chol": ("triple",)}
    xi = np.linspace(-1.0, 1.0, 7, dtype=np.float32)
    single_p = from_numpyro(lambda: numpyro.sample("p", dist.Dirichlet(jnp.ones(3))))
    single_chol = from_numpyro(lambda: numpyro.sample("chol", dist.LKJCholesky(2, 1.0)))
    expected = np.sum(jax.jit(jax.vmap(single_p.log_density))(xi[:4].reshape(2, 2)))
    expected += np.sum(jax.jit(jax.vmap(single_chol.log_density))(xi[4:, None]))
    np.testing.assert_allclose(jax.jit(target.log_density)(xi), expected, rtol=1e-5)


def test_agrees_with_numpyro():
    def model(y):
        theta = [numpyro.sample(name, prior) for name, (prior, _, _) in PROPER.items()]
        chol = numpyro.sample("chol", dist.LKJCholesky(4, 1.5))
        p = numpyro.sample("p", dist.Dirichlet(jnp.full(5, 0.8)))
        numpyro.sample("y", dist.Normal(sum(theta) + p[0], 1.0 + chol[3, 0] ** 2), obs=y)

    y = np.array([0.3, -0.2])
    target = from_numpyro(model, data={"y": y})
    xi = np.linspace(-1.0, 1.0, target.dim, dtype=np.float32)
    n = len(PROPER)
    point = {**dict(zip(PROPER, xi[:n], strict=True)), "chol": xi[n : n + 6], "p": xi[n + 6 :]}
    expected = -jax.jit(lambda point: potential_energy(model, (), {"y": y}, point))(point)
    np.testing.assert_allclose(jax.jit(target.log_density)(xi), expected, rtol=1e-6)


def test_sphere_is_refused_with_the_reparameterisation_to_use():
    with pytest.raises(InputError, match=r"'v'.*ProjectedNormalReparam"):
        from_numpyro(lambda: numpyro.sample("v", dist.ProjectedNormal(jnp.ones(3))))


def test_double_precision_when_jax_has_it_on():
    jax.config.update("jax_enable_x64", True)
    try:
        target = from_numpyro(lambda: numpyro.sample("theta", dist.Gamma(3.0, 2.0)))
        value = target.log_density(jnp.array([0.3]))
        assert value.dtype == jnp.float64
        np.testing.assert_allclose(
            value, scipy.stats.gamma.logpdf(np.exp(0.3), 3, scale=0.5) + 0.3, rtol=1e-12
        )
    finally:
        jax.config.update("jax_enable_x64", False)
