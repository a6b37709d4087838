"""What a gradient step and 20,000 draws of the paper's DMVI cost here, beside its published code.

    python -m benchmarks.paper_step
    python -m benchmarks.paper_step --model mean --configuration 50 10 1

One replicate, five draws a step, minibatches of 32 rows: the training of `dmvi reproduce`. Seconds are CPU
seconds after compilation, on one core, as cells of `dmvi reproduce` have: matrices this small are not worth
the threads that JAX would share them between. The published code took 1/65 CPU-second a step for (100, 10, 3)
on hierarchical model 5 and 19 CPU-seconds for the draws, on two cores.
"""

import argparse
import os
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from benchmarks.machine import describe_machine
from dmvi._random import children
from dmvi.paper import MODELS, data_set, paper_model
from dmvi.paper._densities import Density
from dmvi.paper._published import Recipe, batches, train

PUBLISHED_STEP = 1 / 65
STEP_BAR = PUBLISHED_STEP / 10
DRAWS_BAR = 0.5
DRAWS = 20_000
CHUNK = 1000
EPOCHS = 500
REPEATS = 3


def cpu_seconds(work: Callable[[], object]) -> float:
    """Least CPU time of some runs; the first one, which compiles, does not count."""
    jax.block_until_ready(work())
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        jax.block_until_ready(work())
        seconds.append(time.process_time() - began)
    return min(seconds)


def measure(model_name: str, configuration: tuple[int, int, int], rows: int) -> tuple[float, float]:
    """CPU seconds of a gradient step and of 20,000 draws."""
    model = paper_model(model_name, "printed")
    y = jnp.asarray(data_set(model, rows, 0, None).y)
    density = Density(model, y.shape[1])
    guide = Recipe("diffusion", *configuration).build(density.dim, jr.key(0))
    moving, static = eqx.partition(guide, eqx.is_inexact_array)
    index, kept = (jnp.asarray(part) for part in batches(rows, np.random.default_rng(0)))

    @jax.jit
    def training(moving):
        trained = train(eqx.combine(moving, static), density, y, index, kept, jr.key(1), EPOCHS)
        return eqx.filter(trained, eqx.is_inexact_array)

    @jax.jit
    def drawing(moving, key):
        return jax.vmap(eqx.combine(moving, static).sample)(jr.split(key, CHUNK))

    trained = training(moving)
    step = cpu_seconds(lambda: training(moving)) / (EPOCHS * len(index))
    keys = children(jr.key(2), DRAWS // CHUNK)
    return step, cpu_seconds(lambda: [drawing(trained, key) for key in keys])


def main(arguments: list[str] | None = None) -> None:
    """Prints both figures and their bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_step")
    parser.add_argument("--model", choices=MODELS, default="hierarchical_5")
    parser.add_argument("--configuration", nargs=3, type=int, default=(100, 10, 3), metavar=("D", "S", "O"))
    parser.add_argument("--rows", type=int, default=100)
    chosen = parser.parse_args(arguments)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX counts the cores it has
    step, draws = measure(chosen.model, tuple(chosen.configuration), chosen.rows)
    print("| figure | measured | bar |\n|---|---|---|")
    print(f"| CPU milliseconds a gradient step | {1e3 * step:.2f} | {1e3 * STEP_BAR:.2f} |")
    print(f"| times quicker than the published code's 1/65 s | {PUBLISHED_STEP / step:.0f} | 10 |")
    print(f"| CPU seconds of {DRAWS:,} draws | {draws:.2f} | {DRAWS_BAR} |")
    print(f"\n{chosen.model}, configuration {tuple(chosen.configuration)}, {chosen.rows} rows.")
    print("; ".join(describe_machine().values()) + ".")


if __name__ == "__main__":
    main()
