"""Where and when a measurement was made."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import jax

import dmvi


def describe_machine() -> dict[str, str]:
    """Processor, date and versions, each a phrase that can stand under a table."""
    libraries = ["jax", "jaxlib", "numpyro", "equinox", "optax"]
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores, JAX on {jax.default_backend()}",
        "date": datetime.date.today().isoformat(),
        "versions": f"dmvi {dmvi.__version__}{_commit()}, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in libraries),
    }


def _commit() -> str:
    """Which state of the code was measured, where it lies in a checkout."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" at {found.stdout.strip()}"


def _processor() -> str:
    """The processor's name: Linux writes it where `platform` does not look."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
