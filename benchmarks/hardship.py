"""Hard numbers and bad input: each ends in a good posterior or in a clear statement, never in silent NaN.

    python -m benchmarks.hardship
    python -m benchmarks.hardship --parts numbers --x64
    python -m benchmarks.hardship --parts memory --steps 100000

numbers: fits of models with non-finite densities, overflowing gradients, data without variance, separation,
scales of 1e-8 and 1e8, one and 500 dimensions. refusals: seconds until a mistake is told, before training.
memory: resident memory over a long fit.
"""

import argparse
import json
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm

import dmvi
from benchmarks.machine import describe_machine

PARTS = ("numbers", "refusals", "memory")
TRUSTED = ("TRUST", "RESAMPLE")
ERROR = 0.3  # of a mean, in sds, above which a trusted fit counts as wrong
SPREAD = 0.2  # relative error of an sd, the same


@dataclass(frozen=True)
class Hard:
    """A density with what is known of its posterior: means and sds, or None."""

    log_density: Callable[[Any], Any]
    dim: int
    mean: Any = None
    sd: Any = None
    init: float = 0.0


def _separable(x):
    """Standard normal weights, separated labels: a proper posterior, flat on one side."""
    z = jnp.linspace(-2, 2, 20)
    y = (z > 0) * 1.0
    logits = x[0] + x[1] * z
    return norm.logpdf(x).sum() + jnp.sum(y * logits - jax.nn.softplus(logits))


def _no_variance(x):
    """Twenty equal observations, an unknown scale with a proper prior.

    With l the logarithm of the scale, l ~ N(-19, 1) and x_0 | l ~ N(3, e^2l / 20) nearly.
    """
    return norm.logpdf(x[0], 0, 10) + norm.logpdf(x[1], 0, 1) + norm.logpdf(3.0, x[0], jnp.exp(x[1])) * 20


def by_quadrature(log_density: Callable[[Any], Any], low: float, high: float) -> Hard:
    """A density in two dimensions, with its means and sds from a fine grid."""
    axis = np.linspace(low, high, 801)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = np.asarray(jax.jit(jax.vmap(log_density))(jnp.asarray(x)), float)
    p = np.exp(log_p - log_p.max())
    p = p / p.sum()
    mean = p @ x
    return Hard(log_density, 2, mean, np.sqrt(p @ (x - mean) ** 2))


def hard_numbers() -> dict[str, Hard]:
    """All densities, by name."""
    return {
        "NaN where x < -3": Hard(lambda x: jnp.where(x[0] < -3, jnp.nan, norm.logpdf(x).sum()), 2, 0.0, 1.0),
        "minus infinity where x < 0": Hard(
            lambda x: jnp.where(x[0] < 0, -jnp.inf, norm.logpdf(x).sum()),
            2,
            [0.7979, 0.0],
            [0.6028, 1.0],
            1.0,
        ),
        "exp(exp(x)): overflows from 4.5 on": by_quadrature(
            lambda x: jnp.sum(x - jnp.exp(jnp.exp(x) - 1)), -25.0, 3.0
        ),
        # E[x^2] = Gamma(6) / Gamma(2)
        "gradient infinite at 0": Hard(lambda x: jnp.sum(-jnp.sqrt(jnp.abs(x))), 2, 0.0, 120**0.5),
        "data without variance": Hard(_no_variance, 2, [3.0, -19.0], [np.exp(-18) / 20**0.5, 1.0]),
        "separated logistic regression": by_quadrature(_separable, -8.0, 12.0),
        "scale 1e-8": Hard(lambda x: norm.logpdf(x, 0.0, 1e-8).sum(), 2, 0.0, 1e-8),
        "scale 1e8": Hard(lambda x: norm.logpdf(x, 0.0, 1e8).sum(), 2, 0.0, 1e8),
        "scales 1e-4 and 1e4 together": Hard(
            lambda x: norm.logpdf(x, 0.0, jnp.array([1e-4, 1e4])).sum(), 2, 0.0, [1e-4, 1e4]
        ),
        "mean of 1e6 sds": Hard(lambda x: norm.logpdf(x, 1e6, 1.0).sum(), 2, 1e6, 1.0),
        "one dimension": Hard(lambda x: norm.logpdf(x, 2.0, 0.5).sum(), 1, 2.0, 0.5),
        "500 dimensions": Hard(lambda x: norm.logpdf(x, 1.0, 2.0).sum(), 500, 1.0, 2.0),
        "a constant of 1e30 added": Hard(lambda x: norm.logpdf(x).sum() + 1e30, 2, 0.0, 1.0),
    }


def try_numbers(hard: Hard, guide: str, steps: int) -> dict[str, Any]:
    """How one fit ends."""
    began = time.perf_counter()
    start = jnp.full(hard.dim, hard.init)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = dmvi.fit(hard.log_density, init=start, guide=guide, steps=steps, progress=False)
    except dmvi.InputError as error:
        return {
            "outcome": "refused",
            "words": str(error),
            "fine": True,
            "seconds": time.perf_counter() - began,
        }
    resample = posterior.verdict.name == "RESAMPLE"
    draws = np.asarray(posterior.unconstrained(4000, resample=resample), float)
    finite, trusted = bool(np.isfinite(draws).all()), posterior.verdict.name in TRUSTED
    error = spread = None
    if hard.mean is not None:
        error = float(np.max(np.abs(draws.mean(0) - np.asarray(hard.mean)) / np.asarray(hard.sd)))
        spread = float(np.max(np.abs(draws.std(0) / np.asarray(hard.sd) - 1)))
    right = finite and (error is None or spread is None or (error < ERROR and spread < SPREAD))
    return {
        "outcome": posterior.verdict.name.lower(),
        "words": posterior.judgement.reasons[0],
        "error": error,
        "spread": spread,
        "fine": not trusted or right,
        "seconds": time.perf_counter() - began,
    }


def _model(y, scale=1.0):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


def _discrete(y):
    numpyro.sample("k", dist.Poisson(3.0))
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


def _outside(y):
    rate = numpyro.sample("rate", dist.Exponential(1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def _raises(y):
    raise ZeroDivisionError("in the model")


Y = np.ones(5)
MISTAKES: dict[str, Callable[[], Any]] = {
    "no such argument": lambda: dmvi.fit(_model, {"z": Y}),
    "argument missing": lambda: dmvi.fit(_model, {}),
    "NaN in the data": lambda: dmvi.fit(_model, {"y": np.array([1.0, np.nan])}),
    "text in the data": lambda: dmvi.fit(_model, {"y": np.array(["a", "b"])}),
    "shapes that do not fit": lambda: dmvi.fit(_model, {"y": np.ones(3), "scale": np.ones(4)}),
    "a negative scale": lambda: dmvi.fit(_model, {"y": Y, "scale": -1.0}),
    "a discrete latent": lambda: dmvi.fit(_discrete, {"y": Y}),
    "data outside their support": lambda: dmvi.fit(_outside, {"y": -Y}),
    "a model that raises": lambda: dmvi.fit(_raises, {"y": Y}),
    "no guide of that name": lambda: dmvi.fit(_model, {"y": Y}, guide="best"),
    "steps below one": lambda: dmvi.fit(_model, {"y": Y}, steps=0),
    "a density that is never finite": lambda: dmvi.fit(lambda x: x * jnp.nan, init=0.0),
    "a density of two numbers": lambda: dmvi.fit(lambda x: -(x**2), init=jnp.zeros(2)),
    "a file that is none": lambda: dmvi.load("no_such_file.dmvi"),
    "nothing to calibrate": lambda: dmvi.calibrate(_model, {}),
}


def try_mistake(mistake: Callable[[], Any]) -> dict[str, Any]:
    """Seconds until a mistake is told, and the words."""
    jax.clear_caches()
    began = time.perf_counter()
    try:
        mistake()
    except dmvi.InputError as error:
        return {"seconds": time.perf_counter() - began, "words": str(error), "fine": True}
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        return {"seconds": time.perf_counter() - began, "words": words, "fine": False}
    return {"seconds": time.perf_counter() - began, "words": "nothing was said", "fine": False}


def resident() -> float:
    """MiB of this process in memory now; where the system does not tell, the most there ever were."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def watch_memory(steps: int) -> list[tuple[int, float]]:
    """Resident MiB after each sixteenth of a fit that no plateau ends before its last step."""
    found = []

    def note(trainer: Any) -> None:
        found.append((int(trainer._state.step), resident()))

    from dmvi._fit import GUIDES, fit_keys, training_settings
    from dmvi.guides import anchored
    from dmvi.targets import as_target
    from dmvi.training import Budget, Trainer, progress_for
    from dmvi.training._stopping import Plateau

    Plateau.reached = lambda *_: False  # pyright: ignore[reportAttributeAccessIssue]

    def banana(x):
        return norm.logpdf(x[0], 0.0, 2.0) + norm.logpdf(x[1], 0.5 * x[0] ** 2 - 2.0, 0.3)

    recipe, keys = GUIDES["auto"], fit_keys(0)
    guide = recipe.build(anchored(jnp.zeros(2), jnp.eye(2), full=True), key=keys[1])
    settings = training_settings(recipe, steps, 8, None, None)
    target = as_target(banana, init=jnp.zeros(2))
    Trainer(
        guide, target, settings, Budget(steps), key=keys[2], progress=progress_for(False), watch=note
    ).run()
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hardship", description="Hard numbers, bad input."
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--guide", default="auto")
    parser.add_argument("--fit-steps", type=int, default=3600, help="of the fits of hard numbers")
    parser.add_argument("--steps", type=int, default=100_000, help="of the fit whose memory is watched")
    parser.add_argument("--x64", action="store_true", help="double precision")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    a = parser.parse_args()
    jax.config.update("jax_enable_x64", a.x64)
    a.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"machine": describe_machine(), "precision": "float64" if a.x64 else "float32"}
    if "refusals" in a.parts:
        record["refusals"] = {name: try_mistake(mistake) for name, mistake in MISTAKES.items()}
        print("\n| mistake | seconds | told |\n|---|---|---|")
        for name, found in record["refusals"].items():
            told = found["words"] if found["fine"] else "NOT: " + found["words"]
            print(f"| {name} | {found['seconds']:.2f} | {told} |")
    if "numbers" in a.parts:
        print("\n| density | outcome | error | spread | fine | seconds | words |\n" + "|---" * 7 + "|")
        record["numbers"] = {}
        for name, hard in hard_numbers().items():
            found = record["numbers"][name] = try_numbers(hard, a.guide, a.fit_steps)
            error, spread = (
                "" if found.get(of) is None else f"{found[of]:.3f}" for of in ("error", "spread")
            )
            fine = "yes" if found["fine"] else "NO"
            words = found["words"].replace("|", "/")
            cells = [name, found["outcome"], error, spread, fine, f"{found['seconds']:.1f}", words]
            print("| " + " | ".join(cells) + " |", flush=True)
    if "memory" in a.parts:
        record["memory"] = watch_memory(a.steps)
        print("\n| step | resident MiB |\n|---|---|")
        for step, size in record["memory"]:
            print(f"| {step:,} | {size:.0f} |")
    name = f"hardship_{record['precision']}_{'_'.join(a.parts)}.json"
    (a.out / name).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
