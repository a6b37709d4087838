"""PyMC models: what they hold, minibatches, imputation, ArviZ, and what importing them changes."""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dmvi
from dmvi.targets import as_target

pm = pytest.importorskip("pymc", reason="PyMC is not installed: pip install dmvi[pymc]")

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCHOOLS = list("abcdefgh")


@pytest.fixture(scope="module")
def schools():
    with pm.Model(coords={"school": SCHOOLS}) as model:
        sigma = pm.Data("sigma", SIGMA, dims="school")
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfNormal("tau", 5)
        z = pm.Normal("z", dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Potential("narrow", -0.1 * mu**2)
        pm.Normal("y", theta, sigma, observed=Y, dims="school")
    return model


@pytest.fixture(scope="module")
def posterior(schools):
    with schools:
        return dmvi.fit(steps=300, progress=False)


def test_density_is_that_of_pymc(schools):
    target = as_target(schools)
    assert target.names[:3] == ("mu", "tau", "z[0]")
    theirs = schools.compile_logp()
    for xi in np.random.default_rng(0).normal(size=(5, 10)).astype(np.float32):
        point = {"mu": xi[0].astype(float), "tau_log__": xi[1].astype(float), "z": xi[2:].astype(float)}
        assert float(target.log_density(xi)) == pytest.approx(float(theirs(point)), rel=1e-5)
        sites = target.constrain(xi)
        np.testing.assert_allclose(sites["theta"], xi[0] + np.exp(xi[1]) * xi[2:], rtol=1e-5, atol=1e-5)


def test_arviz_is_what_pm_sample_gives(posterior, schools):
    draws = posterior.to_arviz(200, log_likelihood=True)
    theta = draws["posterior"]["theta"]
    assert theta.dims == ("chain", "draw", "school")
    assert list(theta["school"].values) == SCHOOLS
    assert set(draws["posterior"].data_vars) == {"mu", "tau", "z", "theta"}
    np.testing.assert_array_equal(draws["constant_data"]["sigma"], SIGMA)
    np.testing.assert_array_equal(draws["observed_data"]["y"], Y)
    ours = draws["log_likelihood"]["y"].values
    theirs = pm.compute_log_likelihood(posterior.to_arviz(200), model=schools, progressbar=False)
    np.testing.assert_allclose(theirs["log_likelihood"]["y"].values, ours, rtol=1e-4)
    predicted = pm.sample_posterior_predictive(draws, model=schools, random_seed=0, progressbar=False)
    assert predicted["posterior_predictive"]["y"].shape == (1, 200, 8)
    with pytest.raises(dmvi.InputError, match=r"pm\.sample_posterior_predictive"):
        posterior.predictive()


def test_dimensions_and_coordinates_are_those_of_pm_sample():
    """Some dimensions have no name, some coordinates no variable, and two dimensions are of one length."""
    with pm.Model(coords={"row": [10, 20], "column": ["a", "b"], "unused": [1, 2, 3]}) as model:
        x = pm.Data("x", np.eye(2), dims=("row", "column"))
        slope = pm.Normal("slope", dims="column")
        pm.Normal("free", shape=(2, 3))
        pm.Normal("y", x @ slope, 1, observed=pm.Data("given", [0.5, 1.0], dims="row"), dims="row")
    ours = dmvi.fit(model, guide="full-rank", steps=50, progress=False).to_arviz(20)
    theirs = pm.sample(
        5, tune=5, chains=1, cores=1, model=model, progressbar=False, compute_convergence_checks=False
    )
    for group in ("posterior", "observed_data", "constant_data"):
        left, right = ours[group], theirs[group]
        assert set(left.data_vars) == set(right.data_vars)
        assert {n: v.dims for n, v in left.items()} == {n: v.dims for n, v in right.items()}
        assert {n: v.dtype for n, v in left.items()} == {n: v.dtype for n, v in right.items()}
        for name in set(right.coords) - {"chain", "draw"}:
            np.testing.assert_array_equal(left[name], right[name])


def test_a_model_is_read_again_after_predicting(posterior, schools):
    """PyMC 5 lists the observed variables once more in the model each time it predicts."""
    before = as_target(schools)
    pm.sample_posterior_predictive(posterior.to_arviz(5), model=schools, progressbar=False)
    after = as_target(schools)
    assert float(after.log_density(jnp.ones(10))) == float(before.log_density(jnp.ones(10)))
    assert set(after.observed) == {"y"}


def regression(x, y, size=None):
    with pm.Model() as model:
        if size:
            x, y = pm.Minibatch(x, y, batch_size=size)
        slope = pm.Normal("slope", 0, 1, shape=2)
        noise = pm.HalfNormal("noise", 1)
        pm.Normal("y", x @ slope, noise, observed=y, total_size=50 if size else None)
    return model


RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 2))
LINE = X @ [1.0, -2.0] + 0.5 * RNG.normal(size=50)


def test_minibatches_are_replaced_by_ours():
    whole, batched = as_target(regression(X, LINE)), as_target(regression(X, LINE, size=7))
    assert batched.subsampled
    assert not whole.subsampled
    np.testing.assert_array_equal(batched.observed["y"], LINE)
    xi = jnp.array([0.5, -1.0, -0.2])
    assert float(batched.log_density(xi)) == pytest.approx(float(whole.log_density(xi)), rel=1e-5)
    np.testing.assert_allclose(batched.log_likelihood(xi)["y"], whole.log_likelihood(xi)["y"], rtol=1e-5)
    keys = jax.random.split(jax.random.key(0), 4000)
    estimates = np.asarray(
        jax.jit(jax.vmap(lambda key: batched.log_density(xi, batched.draw_batch(key))))(keys), np.float64
    )
    error = estimates.std() / np.sqrt(len(estimates))
    assert error > 0
    assert abs(estimates.mean() - float(whole.log_density(xi))) < 4 * error


def test_a_minibatched_fit_finds_the_slope():
    posterior = dmvi.fit(regression(X, LINE, size=10), guide="full-rank", steps=400, progress=False)
    expected = np.linalg.lstsq(X, LINE)[0]
    np.testing.assert_allclose(posterior.sample(2000)["slope"].mean(axis=0), expected, atol=0.08)


def test_data_of_two_minibatches_do_not_belong_together():
    with pm.Model() as model:
        x, y = pm.Minibatch(X, batch_size=5), pm.Minibatch(LINE, batch_size=5)
        slope = pm.Normal("slope", 0, 1, shape=2)
        pm.Normal("y", x @ slope, 1.0, observed=y, total_size=50)
    with pytest.raises(dmvi.InputError, match=r"'y'.*2 calls of pm\.Minibatch.*one call"):
        as_target(model)


@pytest.mark.filterwarnings("ignore:Data in y contains missing")
def test_missing_values_are_imputed():
    """With y_3 missing, y_3 | rest ~ N(mu, 1), so that its posterior is that of mu, wider."""
    y = np.array([1.0, 2.0, 3.0, np.nan])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu, 1, observed=np.ma.masked_invalid(y))
    posterior = dmvi.fit(model, guide="full-rank", steps=200, progress=False)
    assert posterior.target.names == ("mu", "y_unobserved[0]")
    draws = posterior.sample(4000)
    assert draws["y"].shape == (4000, 4)
    np.testing.assert_allclose(draws["y"][:, :3], np.broadcast_to(y[:3], (4000, 3)))
    assert draws["y"][:, 3].std() == pytest.approx(np.sqrt(1 + 1 / 3.01), abs=0.06)


def test_what_is_refused(schools):
    with pm.Model() as discrete:
        pm.Bernoulli("kind", 0.5)
    with pytest.raises(dmvi.InputError, match=r"'kind'.*discrete.*pm\.Mixture"):
        dmvi.fit(discrete)
    with pm.Model() as empty:
        pm.Normal("y", 0, 1, observed=1.0)
    with pytest.raises(dmvi.InputError, match="no free variables"):
        dmvi.fit(empty)
    with pytest.raises(dmvi.InputError, match="holds its data already"):
        dmvi.fit(schools, data={"y": Y})
    with pytest.raises(dmvi.InputError, match=r"no model to fit.*pm\.Model"):
        dmvi.fit()
    with pm.Model() as impossible:
        scale = pm.HalfNormal("scale", 1)
        pm.Exponential("y", scale, observed=-1.0)
    with pytest.raises(dmvi.InputError, match="not finite"):
        dmvi.fit(impossible)


SCRIPT = """
import warnings
warnings.simplefilter("ignore")
import pymc as pm
import dmvi
with pm.Model() as model:
    mu = pm.Normal("mu", 0, 1)
    pm.Normal("y", mu, 1, observed=1.0)
target = dmvi.targets.as_target(model)
import jax
print(jax.device_count(), jax.config.jax_enable_x64, target.log_density(jax.numpy.zeros(1)).dtype)
"""


@pytest.mark.parametrize("wide", [False, True])
def test_devices_and_float_width_stay_as_they_are(wide):
    script = SCRIPT.replace(
        "import dmvi\n", f"import dmvi, jax\njax.config.update('jax_enable_x64', {wide})\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", str(wide), "float64" if wide else "float32"]


def test_double_precision_ends_with_its_context():
    script = SCRIPT.replace("import dmvi\n", "import dmvi, jax\n").replace(
        "target = ", "with jax.enable_x64(True):\n    target = "
    )
    assert "with jax" in script
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", "False", "float32"]
