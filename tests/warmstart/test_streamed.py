"""Warm starts on rows: in many dimensions too, Laplace's Gaussian has the Hessian of all rows."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportOptionalSubscript=false
import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from dmvi.guides import LowRankAffine
from dmvi.targets import as_target, from_rows
from dmvi.training import Silent
from dmvi.warmstart._streamed import streamed_start

GROUPS, EACH = 210, 100  # more rows than are held in memory, more coordinates than have a base of full rank


def groups(g, y, count):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("groups", count):
        theta = numpyro.sample("theta", dist.Normal(mu, 0.5))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=theta[g]), obs=y)


def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    g = np.tile(np.arange(GROUPS), EACH)
    chance = 1 / (1 + np.exp(-rng.normal(1.0, 0.5, GROUPS)))
    return {"g": g.astype(np.int32), "y": (rng.uniform(size=g.size) < chance[g]).astype(np.int32)}


@pytest.fixture(scope="module")
def start():
    target = from_rows(groups, {**rows(), "count": GROUPS}, 500)
    return streamed_start(target, full=True, key=jr.key(0), progress=Silent(), control_variates=True)


@pytest.mark.slow
def test_many_groups_start_at_the_mode_of_all_rows_with_its_curvature(start):
    affine = start.start.affine
    assert isinstance(affine, LowRankAffine)
    full = as_target(groups, data={**rows(), "count": GROUPS})
    mode = affine(jnp.zeros(GROUPS + 1))
    precision = -jax.hessian(full.log_density)(mode)
    step = jnp.linalg.solve(precision, jax.grad(full.log_density)(mode))
    assert float(step @ precision @ step) < 0.01  # squared sds from the mode
    scale = affine.anchor_scale.value
    np.testing.assert_allclose(scale.T @ precision @ scale, np.eye(GROUPS + 1), atol=2e-3)


def test_batches_are_expanded_to_second_order_there(start):
    """One sd from the mode a batch, with two or three rows of a group, tells log pi with little noise."""
    target = start.target
    xi = start.start.affine(jr.normal(jr.key(1), (GROUPS + 1,)))
    batches = [jax.tree.map(jnp.asarray, target.stream.batch(0, step)) for step in range(20)]

    def noise(data) -> float:
        density = jax.jit(dataclasses.replace(target, data=data).log_density)
        return float(np.std([density(xi, batch) for batch in batches]))

    first_order = {name: value for name, value in target.data.items() if name != "curvature"}
    assert noise(target.data) < 0.2 * noise(first_order)


def test_where_laplace_is_not_close_batches_keep_to_the_first_order(monkeypatch):
    monkeypatch.setattr("dmvi.warmstart._streamed.CLOSE", 0.0)
    monkeypatch.setattr("dmvi.warmstart._streamed.MANY", 10**6)
    target = from_rows(groups, {**rows(), "count": GROUPS}, 500)
    found = streamed_start(target, full=True, key=jr.key(0), progress=Silent(), control_variates=True)
    assert "slope" in found.target.data
    assert "curvature" not in found.target.data
