"""Any model that Hypothesis can think of: density, supports, round trips and files hold."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
import dataclasses
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpyro import handlers
from numpyro.distributions import biject_to

import dmvi
from dmvi._recipes import describe_base, describe_recipe
from dmvi.guides import anchored
from dmvi.posterior import Posterior
from dmvi.targets import as_target
from tests.posterior.gaussians import a_run
from tests.properties.programs import Spec, specs

FEW = settings(
    max_examples=4, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
MANY = settings(FEW, max_examples=150)
points = st.integers(0, 2**31 - 1)


def traced(spec: Spec, latents: dict[str, np.ndarray]) -> dict:
    """The model's trace at given latents."""
    with handlers.seed(rng_seed=0), handlers.substitute(data=latents), handlers.trace() as trace:
        spec.model()(**spec.data)
    return trace


def check_density(spec: Spec, seed: int) -> None:
    """log pi(xi) is the sum of the sites' log-densities and of the bijections' log-determinants."""
    target = as_target(spec.model(), data=spec.data)
    rng = np.random.default_rng(seed)
    xi = jnp.asarray(rng.uniform(-1.5, 1.5, target.dim).astype(np.float32))
    sites, free = jax.jit(target.constrain)(xi), target.unpack(xi)
    log_density, slope = jax.jit(jax.value_and_grad(target.log_density))(xi)
    latents = {f"z{i}": sites[f"z{i}"] for i in range(len(spec.nodes))}
    trace, total = traced(spec, latents), 0.0
    for name, value in latents.items():
        fn = trace[name]["fn"]
        assert np.all(fn.support(value)), f"{name} left its support: {value}"
        transform = biject_to(fn.support)
        again = transform.inv(value)
        np.testing.assert_allclose(np.ravel(again), np.ravel(free[name]), rtol=2e-3, atol=2e-3)
        total += jnp.sum(fn.log_prob(value)) + jnp.sum(transform.log_abs_det_jacobian(again, value))
    total += jnp.sum(trace["y"]["fn"].log_prob(trace["y"]["value"]))
    assert np.isfinite(total)
    assert float(log_density) == pytest.approx(float(total), rel=1e-3, abs=5e-3)
    assert np.all(np.isfinite(slope))
    np.testing.assert_allclose(sites["loc"], trace["loc"]["value"], rtol=1e-6, atol=1e-6)


def check_files(spec: Spec, seed: int) -> None:
    """Draws lie in their supports, and a posterior is the same after a file: every draw, every number."""
    target = as_target(spec.model(), data=spec.data)
    recipe = dmvi.GaussianGuide(full_rank=True)
    guide = recipe.build(
        anchored(jnp.zeros(target.dim), jnp.ones(target.dim), full=True), key=jax.random.key(0)
    )
    base = {"guide": describe_recipe(recipe), "base": describe_base(guide)}
    run = dataclasses.replace(a_run(), settings=base, guide_name=recipe.name)
    posterior = Posterior(target, guide, run, jax.random.key(seed))
    with tempfile.TemporaryDirectory() as folder:
        path = posterior.save(Path(folder) / "fit.dmvi", n=8)
        again = dmvi.load(path, spec.model(), data=spec.data)
        stored = dmvi.load(path)
    for name, values in posterior.sample(8).items():
        assert np.all(np.isfinite(values))
        np.testing.assert_array_equal(again.sample(8)[name], values)
        np.testing.assert_array_equal(stored.sample()[name], values)
    draws = posterior.sample(8)
    for i in range(4):
        latents = {f"z{k}": draws[f"z{k}"][i] for k in range(len(spec.nodes))}
        trace = traced(spec, latents)
        for name, value in latents.items():
            assert np.all(trace[name]["fn"].support(value)), f"a draw of {name} left its support: {value}"
    assert stored.diagnostics == posterior.diagnostics
    assert repr(stored).splitlines()[0] == repr(posterior).splitlines()[0]


@FEW
@given(specs(), points)
def test_density_support_and_round_trip(spec, seed):
    check_density(spec, seed)


@settings(FEW, max_examples=1)
@given(specs(), points)
def test_files(spec, seed):
    check_files(spec, seed)


@pytest.mark.slow
@MANY
@given(specs(), points)
def test_density_support_and_round_trip_of_many(spec, seed):
    check_density(spec, seed)


@pytest.mark.slow
@settings(MANY, max_examples=30)
@given(specs(), points)
def test_files_of_many(spec, seed):
    check_files(spec, seed)
