"""Several devices do what one does."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from dmvi import InputError
from dmvi.training import as_mesh

ROOT = Path(__file__).parents[2]
# Four forced host devices can be had in a process of their own only: JAX counts them when it starts.
SCRIPT = """
import sys, numpy as np, jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, dmvi
from jax.sharding import Mesh
import dmvi._start
assert len(jax.devices()) == 4
dmvi._start.NOTHING_TO_GAIN = -1.0  # train, although the regression's posterior is all but Gaussian

def funnel(x):
    return -0.5 * (x[0] / 1.5) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - x[0]

def regression(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    # With a Gaussian likelihood batches are without noise, and Adam's steps as large as rounding makes them.
    numpyro.sample("y", dist.StudentT(4.0, x @ beta, 1.0), obs=y)

rng = np.random.default_rng(0)
x = rng.normal(size=(400, 2))
data = dict(x=x, y=x.sum(1) + rng.normal(size=400))
square = Mesh(np.array(jax.devices()).reshape(2, 2), ("particles", "rows"))
found = {}
for name, mesh in (("one", None), ("four", 4)):
    fitted = dmvi.fit(funnel, init=jnp.zeros(3), steps=48, particles=8, progress=False, mesh=mesh)
    found["history_" + name], found["draws_" + name] = fitted.run.history, fitted.sample(50)["x"]
for name, mesh in (("one", None), ("four", square)):
    fitted = dmvi.fit(regression, data, batch_size=40, steps=48, particles=8, progress=False, mesh=mesh)
    found["rows_history_" + name], found["rows_draws_" + name] = fitted.run.history, fitted.sample(50)["beta"]
np.savez(sys.argv[1], **found)
"""


@pytest.mark.slow
def test_four_devices_give_what_one_gives(tmp_path):
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    # In single precision 48 steps multiply the rounding of sums taken in another order a thousandfold.
    kind = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    environment = {**os.environ, "PYTHONPATH": path, "XLA_FLAGS": flags, **kind}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "found.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    for kind in ("history", "draws", "rows_history", "rows_draws"):
        np.testing.assert_allclose(found[f"{kind}_four"], found[f"{kind}_one"], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("mesh", "particles", "batch_size", "message"),
    [
        (1000, 32, None, "more devices"),
        ("all", 32, None, "must be a number"),
        (Mesh(np.array(jax.devices()[:1]), ("model",)), 32, None, "axes 'particles' and 'rows'"),
        (Mesh(np.array(jax.devices()[:1]), ("rows",)), 32, None, "do not divide batch_size=None"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(mesh, particles, batch_size, message):
    with pytest.raises(InputError, match=message):
        as_mesh(mesh, particles, batch_size)


def test_one_device_is_a_mesh():
    mesh = as_mesh(1, 32, None)
    assert mesh is not None
    assert dict(mesh.shape) == {"particles": 1}
