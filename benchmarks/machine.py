"""Where and when a measurement was made."""

import datetime
import os
import platform
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
        "versions": f"dmvi {dmvi.__version__}, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in libraries),
    }


def _processor() -> str:
    """The processor's name: Linux writes it where `platform` does not look."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
