"""Where the time of a training step goes: the default guide on one lab target, by kind of operation.

    python -m benchmarks.step
    python -m benchmarks.step --target hierarchy_100 --particles 256

Times come from XLA's own profiler, which slows the program down; shares are of the time spent inside
operations. "Matrix arithmetic" is every operation that holds a matrix product, with what is fused to it.
"""

import argparse
import gzip
import json
import re
import tempfile
import time
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr

from benchmarks.machine import describe_machine
from benchmarks.targets import TARGETS
from dmvi._choice import CHOICE
from dmvi._compile import quick_options
from dmvi._fit import PARTICLES, STEPS, training_settings
from dmvi.guides import anchored
from dmvi.targets import as_target
from dmvi.training import Trained, initial_state, run_chunk

REPEATS = 5
SHOWN = 8
KINDS = (
    ("matrix arithmetic", r"dot|ynn|gemm"),
    ("solves and determinants", r"triangular|lu|cholesky|custom-call"),
    ("copies and layout", r"copy|transpose|bitcast|slice|concatenate|broadcast|pad|gather|reshape"),
)


def kind_of(name: str) -> str:
    """The kind of an operation, by its name in the compiled program."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "elementwise and reductions")


def chunk_program(target_name: str, particles: int):
    """A chunk of training as `fit` runs it, with its arguments bound, and its number of steps."""
    lab = TARGETS[target_name]()
    target = as_target(lab.log_density, args=(), data=None, init=jnp.zeros(lab.dim))
    affine = anchored(jnp.zeros(lab.dim), jnp.eye(lab.dim), full=True)
    trained = Trained(CHOICE.guide(lab.dim).build(affine, key=jr.key(0)), target.params)
    settings = training_settings(CHOICE.guide(lab.dim), STEPS, particles, None, None)
    state = initial_state(trained, settings)
    program = jax.jit(
        lambda key: run_chunk(state, trained, target, settings, key), compiler_options=quick_options()
    )
    return program, settings.chunk


def profile(program, key) -> Counter[str]:
    """Microseconds spent in each operation of one run."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(program(key))
        (path,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spent: Counter[str] = Counter()
    for event in events:
        name = event.get("name", "")
        # Operations carry the name of the compiled module; loops would count their bodies twice.
        if "hlo_op" in event.get("args", {}) and not re.match(r"while|call|conditional", name):
            spent[name] += event["dur"]
    return spent


def main(arguments: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Where the time of a training step goes.")
    parser.add_argument("--target", default="eight_schools", choices=list(TARGETS))
    parser.add_argument("--particles", type=int, default=PARTICLES)
    chosen = parser.parse_args(arguments)
    program, steps = chunk_program(chosen.target, chosen.particles)
    jax.block_until_ready(program(jr.key(0)))
    began = time.perf_counter()
    for repeat in range(REPEATS):
        jax.block_until_ready(program(jr.key(repeat)))
    milliseconds = 1e3 * (time.perf_counter() - began) / (REPEATS * steps)
    spent = profile(program, jr.key(1))
    total = sum(spent.values())
    kinds: Counter[str] = Counter()
    for name, duration in spent.items():
        kinds[kind_of(name)] += duration
    print(f"{chosen.target}, {chosen.particles} particles: {milliseconds:.2f} ms a step, unprofiled\n")
    print("| kind of operation | share |\n|---|---|")
    for kind, duration in kinds.most_common():
        print(f"| {kind} | {duration / total:.0%} |")
    print(f"\nlargest: {', '.join(f'{name} {d / total:.0%}' for name, d in spent.most_common(SHOWN))}")
    print(f"\n{'; '.join(describe_machine().values())}.")


if __name__ == "__main__":
    main()
