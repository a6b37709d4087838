"""Thousands of dimensions: a Cox process on a grid and a hierarchy of many groups.

    python -m benchmarks.high_dimension DATA_FOLDER [--targets NAME ...] [--guides NAME ...] [--steps N]

Prints one line a fit: ELBO, log evidence, seconds and the largest memory of the process so far. The folder
holds pines.csv, 126 points of the unit square, for the Cox process.
"""

import argparse
import dataclasses
import functools
import resource
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

import dmvi
from benchmarks.machine import describe_machine
from benchmarks.public import cox
from benchmarks.targets import LabTarget, hierarchy_100


def _hierarchy(groups: int) -> LabTarget:
    """The lab's centred hierarchy with more groups, under a title that says so."""
    return dataclasses.replace(hierarchy_100(groups=groups), title=f"centred hierarchy, {groups:,} groups")


TARGETS: dict[str, Callable[[Path], LabTarget]] = {
    "cox": cox,
    "hierarchy_1000": lambda folder: _hierarchy(1000),
    "hierarchy_10000": lambda folder: _hierarchy(10_000),
}


def peak_memory() -> float:
    """Largest resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(target: LabTarget, guide: str, seed: int, steps: int | None) -> str:
    """One fit with default settings, or with fewer steps, as one line."""
    fit = dmvi.fit if steps is None else functools.partial(dmvi.fit, steps=steps)
    posterior = fit(target.log_density, init=jnp.zeros(target.dim), guide=guide, seed=seed, progress=False)
    d = posterior.diagnostics
    cells = [
        target.title,
        str(target.dim),
        guide,
        str(seed),
        f"{d.elbo:.2f} +- {d.elbo_se:.2f}",
        f"{d.log_evidence:.2f}",
        f"{d.ess:.3f}",
        f"{d.khat:.2f}",
        str(d.steps),
        f"{d.seconds:.0f}",
        f"{peak_memory():.2f}",
        f"{d.warm_start}, {d.status.name}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.high_dimension")
    parser.add_argument("folder", type=Path, help="folder of pines.csv")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--guides", nargs="+", default=["auto", "chain"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=None)
    arguments = parser.parse_args()
    print("| target | d | guide | seed | ELBO | log evidence | ESS | k-hat | steps | s | peak GiB | how |")
    print("|---" * 12 + "|", flush=True)
    for name in arguments.targets:
        target = TARGETS[name](arguments.folder)
        for guide in arguments.guides:
            for seed in arguments.seeds:
                jax.clear_caches()
                print(measure(target, guide, seed, arguments.steps), flush=True)
    print("; ".join(describe_machine().values()))


if __name__ == "__main__":
    main()
