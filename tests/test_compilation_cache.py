"""Programs compiled by one process are there for the next, where the user has named a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = """
import collections, json, jax, jax.numpy as jnp
import dmvi

events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.rsplit("/", 1)[-1]]))
normal = lambda x: -0.5 * jnp.sum(x**2)
posterior = dmvi.fit(normal, init=jnp.zeros(2), guide="mean-field", steps=32, progress=False)
posterior.sample(100)
print(json.dumps(events))
"""


def compilations(folder: Path) -> dict[str, int]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_the_second_process_compiles_nothing_anew(tmp_path):
    first, second = compilations(tmp_path), compilations(tmp_path)
    assert first["cache_misses"] > 10
    assert second.get("cache_misses", 0) == 0
    assert second["cache_hits"] >= first["cache_misses"]
