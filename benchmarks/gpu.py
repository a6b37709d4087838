"""One accelerator: time to the lab's gaps, steps per second against particles, share of the matrix rate.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --parts steps --particles 64 256     # small, for a machine without one

A step's matrix arithmetic is counted from its program, two operations for each product and sum in a matrix
product; the rate of the card is that of one large product of square matrices in the same precision.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import dmvi
from benchmarks.clock import timed
from benchmarks.machine import describe_machine
from benchmarks.step import kind_of, profile
from benchmarks.targets import TARGETS
from dmvi._choice import CHOICE
from dmvi._compile import quick_options
from dmvi._fit import STEPS, training_settings
from dmvi.guides import anchored
from dmvi.targets import as_target
from dmvi.training import Settings, Trained, as_mesh, initial_state, run_chunk

LAB = ("eight_schools", "logistic", "brownian")
PARTICLES = (256, 1024, 4096, 16_384, 65_536)
PARTS = ("gaps", "steps", "draws")
CHUNK = 20
REPEATS = 3
MATRIX = 8192
MATRIX_ON_CPU = 2048


def gaps(seed: int) -> None:
    """Prints how long default fits take until their ELBO is within the lab's bar of the log evidence."""
    print("| target | d | bar | gap at the end | k-hat | s to the bar, first fit | compiled | s in all |")
    print("|---|---|---|---|---|---|---|---|")
    for name in LAB:
        lab = TARGETS[name]()
        target = as_target(lab.log_density, init=jnp.zeros(lab.dim))
        reached, seconds, found = [], [], None
        for _ in range(2):  # the second fit of the same target compiles nothing but the warm start's search
            posterior, clock = timed(functools.partial(dmvi.fit, target, seed=seed))
            found = posterior.diagnostics
            at = [look.moment for look in clock.looks if look.gap <= (lab.gap_bar or 0.0)]
            reached.append(f"{at[0] - clock.began:.1f}" if at else "not reached")
            seconds.append(posterior.run.seconds)
        assert found is not None
        print(
            f"| {lab.title} | {lab.dim} | {lab.gap_bar} | {found.gap:.4f} | {found.khat:.2f} | "
            f"{reached[0]} | {reached[1]} | {seconds[1]:.1f} |",
            flush=True,
        )


def step_program(name: str, particles: int, chunk: int, devices: int | None = None) -> Callable[[Any], Any]:
    """Some training steps of the default guide, to be jitted."""
    lab = TARGETS[name]()
    target = as_target(lab.log_density, init=jnp.zeros(lab.dim))
    affine = anchored(jnp.zeros(lab.dim), jnp.eye(lab.dim), full=True)
    recipe = CHOICE.guide(lab.dim)
    trained = Trained(recipe.build(affine, key=jr.key(0)), target.params)
    whole = training_settings(recipe, STEPS, particles, None, None)
    mesh = as_mesh(devices, particles, None)
    settings = Settings(whole.objective, whole.optimizer, particles, chunk, whole.cooldown_steps, mesh)
    state = initial_state(trained, settings)
    return lambda key: run_chunk(state, trained, target, settings, key)[0].flat


def steps(particles: list[int], name: str) -> None:
    """Prints steps per second, and the share of the card's matrix rate at the largest size."""
    rates = matrix_rates()
    print(
        "matrix products of the card, TFLOP/s: " + ", ".join(f"{k} {v / 1e12:.1f}" for k, v in rates.items())
    )
    print(
        f"\n{name}\n\n"
        "| particles | steps per second | draws per second | matrix GFLOP per step | TFLOP/s | share |"
    )
    print("|---|---|---|---|---|---|")
    for count in particles:
        function = step_program(name, count, CHUNK)
        program = jax.jit(function, compiler_options=quick_options())
        seconds = best_seconds(program, jr.key(0)) / CHUNK
        flops = matrix_flops(jax.make_jaxpr(function)(jr.key(0)).jaxpr) / CHUNK
        rate = flops / seconds
        print(
            f"| {count:,} | {1 / seconds:.1f} | {count / seconds:,.0f} | {flops / 1e9:.3f} | "
            f"{rate / 1e12:.2f} | {rate / rates['default']:.1%} |",
            flush=True,
        )
        if count == particles[-1]:
            _print_profile(program)


def _print_profile(program: Callable) -> None:
    spent = profile(program, jr.key(1))
    total = sum(spent.values())
    kinds: dict[str, int] = {}
    for operation, duration in spent.items():
        kinds[kind_of(operation)] = kinds.get(kind_of(operation), 0) + duration
    print("\n| kind of operation | share of the time at the largest size |\n|---|---|")
    for kind, duration in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"| {kind} | {duration / max(total, 1):.0%} |")
    print("\nlargest: " + ", ".join(f"{name} {d / max(total, 1):.0%}" for name, d in spent.most_common(8)))


def draws(particles: list[int], name: str) -> None:
    """Prints draws per second without and with their density."""
    lab = TARGETS[name]()
    affine = anchored(jnp.zeros(lab.dim), jnp.eye(lab.dim), full=True)
    guide = CHOICE.guide(lab.dim).build(affine, key=jr.key(0))
    print(f"\n{name}\n\n| draws at a time | draws per second | with density |\n|---|---|---|")
    for count in particles:
        keys = jr.split(jr.key(0), count)
        plain = best_seconds(jax.jit(jax.vmap(guide.sample)), keys)
        dense = best_seconds(jax.jit(jax.vmap(guide.draw)), keys)
        print(f"| {count:,} | {count / plain:,.0f} | {count / dense:,.0f} |", flush=True)


def best_seconds(program: Callable, argument: Any) -> float:
    """Wall time of a compiled program, the best of a few."""
    jax.block_until_ready(program(argument))
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(program(argument))
        found.append(time.perf_counter() - began)
    return min(found)


def matrix_rates() -> dict[str, float]:
    """Operations per second of one large matrix product, by precision."""
    size = MATRIX_ON_CPU if jax.default_backend() == "cpu" else MATRIX
    a = jnp.asarray(np.random.default_rng(0).standard_normal((size, size)).astype(np.float32))
    found = {}
    for name in ("default", "highest"):
        program = jax.jit(
            lambda a, name=name: jnp.matmul(a, a, precision=None if name == "default" else name)
        )
        found[name] = 2 * size**3 / best_seconds(program, a)
    return found


def matrix_flops(jaxpr: Any) -> int:
    """Operations in the matrix products of a program; loops count as often as they run."""
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += (
                2
                * int(np.prod(equation.outvars[0].aval.shape))
                * int(np.prod([left[axis] for axis in contracted]))
            )
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += times * matrix_flops(inner)
    return total


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="What one accelerator does.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--particles", nargs="+", type=int, default=list(PARTICLES))
    parser.add_argument("--target", choices=list(TARGETS), default="eight_schools")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    print(f"{jax.devices()[0].device_kind}; {'; '.join(describe_machine().values())}.\n", flush=True)
    if "gaps" in chosen.parts:
        gaps(chosen.seed)
    if "steps" in chosen.parts:
        print()
        steps(chosen.particles, chosen.target)
    if "draws" in chosen.parts:
        draws(chosen.particles, chosen.target)


if __name__ == "__main__":
    main()
