"""A hostile set-up: what only works by luck fails here."""

import os
import shutil
import tempfile
from pathlib import Path

# Many tests fit one model at one size, some in processes of their own: a program is compiled once for all.
os.environ["DMVI_TESTED_PROGRAMS"] = os.environ.get("DMVI_TESTED_PROGRAMS") or tempfile.mkdtemp(
    prefix="dmvi-"
)
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["DMVI_TESTED_PROGRAMS"]  # workers inherit it
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

# Most of a test's time is the compiler's, and what runs once needs no optimising. Read when JAX and PyTensor
# are imported.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Every core has a test of its own: splitting one compilation over several is a cost without a gain.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("PYTENSOR_FLAGS", "mode=FAST_COMPILE")

import jax
import pytest

# Where all the arithmetic is our own. Models of users broadcast as they please, so tests of targets and of
# whole fits cannot forbid it.
OWN_ARITHMETIC = {"diffusion", "guides", "objectives", "training"}


def pytest_unconfigure():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def _programs_are_forgotten():
    """Thousands of compiled programs in one process would use up the memory maps that Linux gives it."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _no_silent_broadcasting(request):
    """A vector that meets a matrix by accident is the commonest silent fault in array code."""
    strict = request.path.relative_to(Path(__file__).parent).parts[0] in OWN_ARITHMETIC
    with jax.numpy_rank_promotion("raise" if strict else "allow"):
        yield
