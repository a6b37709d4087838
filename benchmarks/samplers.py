"""Public targets of neural samplers: default `dmvi.fit` beside NumPyro's guides, and growth with dimension.

    python -m benchmarks.samplers DATA_FOLDER
    python -m benchmarks.samplers DATA_FOLDER --targets sonar funnel --seeds 0 --peers IAF --no-growth

Every fit starts with empty compilation caches, so its seconds include compilation. ELBOs are on fresh draws;
the tables show the worst seed, and each fit is told on standard error as it ends. "published" is the best
figure of a neural sampler that we know of.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoBNAFNormal, AutoDAIS, AutoGuide, AutoIAFNormal, AutoMultivariateNormal

import dmvi
from benchmarks.machine import describe_machine
from benchmarks.public import PUBLIC, bent
from benchmarks.targets import LabTarget

BARS = {"sonar": -108.55, "ionosphere": -111.70, "seeds": -73.5, "funnel": -0.015, "cox": 490.0}
PUBLISHED = {"sonar": -109.05, "ionosphere": -111.92, "seeds": -73.45, "funnel": -0.23, "cox": 487.0}
GROWTH = (10, 30, 100, 300, 1000)
GROWTH_GUIDES = ("diffusion", "chain")
PEER_STEPS = 4_000
PEER_PARTICLES = 32
PEER_RATE = 2e-3
JUDGED = 4_000
JUDGED_CHUNK = 500

PEERS: dict[str, Callable[[Callable], AutoGuide]] = {
    "IAF": lambda model: AutoIAFNormal(model, num_flows=3),
    "BNAF": AutoBNAFNormal,
    "DAIS": AutoDAIS,
    "full-rank": AutoMultivariateNormal,
}


@dataclass(frozen=True)
class Result:
    """One fit: ELBO on fresh draws and wall time with compilation."""

    elbo: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.elbo:.3f} ({self.seconds:.0f} s)"


def measure_dmvi(target: LabTarget, guide: str, seed: int) -> Result:
    """A fit with every default but the guide."""
    jax.clear_caches()
    began = time.perf_counter()
    posterior = dmvi.fit(
        target.log_density, init=jnp.zeros(target.dim), guide=guide, seed=seed, progress=False
    )
    seconds = time.perf_counter() - began
    return Result(posterior.diagnostics.elbo, seconds)


def measure_peer(target: LabTarget, name: str, seed: int) -> Result:
    """A fit of one of NumPyro's guides with a cosine decay from PEER_RATE."""

    def model():
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (target.dim,)))
        numpyro.factor("log_density", target.log_density(jnp.asarray(x)))

    def rate(step):
        return 0.5 * PEER_RATE * (1.0 + jnp.cos(jnp.pi * step / PEER_STEPS)) + 1e-6

    jax.clear_caches()
    began = time.perf_counter()
    guide = PEERS[name](model)
    svi = SVI(model, guide, numpyro.optim.ClippedAdam(rate), Trace_ELBO(num_particles=PEER_PARTICLES))
    fitted = svi.run(jax.random.key(seed), PEER_STEPS, progress_bar=False)
    jax.block_until_ready(fitted.params)
    seconds = time.perf_counter() - began
    judge = Trace_ELBO(num_particles=JUDGED_CHUNK)
    loss = jax.jit(lambda key: judge.loss(key, fitted.params, model, guide))
    keys = jax.random.split(jax.random.key(seed + 10_000), JUDGED // JUDGED_CHUNK)
    return Result(-float(np.mean([loss(key) for key in keys])), seconds)


def worst(results: Sequence[Result]) -> Result:
    """Lowest ELBO and longest time; NaN counts as the lowest."""
    elbos = [-np.inf if np.isnan(result.elbo) else result.elbo for result in results]
    return Result(min(elbos), max(result.seconds for result in results))


def samplers(folder: Path, names: Sequence[str], seeds: Sequence[int], peers: Sequence[str]) -> None:
    """Prints the table of the public targets, one row as soon as it is measured."""
    print("| target | d | dmvi | bar | published | " + " | ".join(peers) + " |")
    print("|---" * (5 + len(peers)) + "|", flush=True)
    for name in names:
        target = PUBLIC[name](folder)
        ours = _worst(f"{name}, dmvi", seeds, functools.partial(measure_dmvi, target, "auto"))
        cells = [target.title, str(target.dim), str(ours), f"{BARS[name]:g}", f"{PUBLISHED[name]:g}"]
        for peer in peers:
            measure = functools.partial(measure_peer, target, peer)
            cells.append(str(_worst(f"{name}, {peer}", seeds, measure)))
        print("| " + " | ".join(cells) + " |", flush=True)


def _worst(title: str, seeds: Sequence[int], measure: Callable[[int], Result]) -> Result:
    """The worst seed, every one told as it ends."""
    results = []
    for seed in seeds:
        results.append(measure(seed))
        print(f"{title}, seed {seed}: {results[-1]}", file=sys.stderr, flush=True)
    return worst(results)


def growth(dims: Sequence[int], seed: int) -> None:
    """Prints how gap and time of the guides grow with the dimension."""
    print("\n| d | " + " | ".join(f"{guide}: gap, seconds" for guide in GROWTH_GUIDES) + " |")
    print("|---" * (1 + len(GROWTH_GUIDES)) + "|", flush=True)
    for dim in dims:
        target = bent(dim)
        assert target.log_evidence is not None
        found = [measure_dmvi(target, guide, seed) for guide in GROWTH_GUIDES]
        cells = [f"{target.log_evidence - result.elbo:.3f}, {result.seconds:.0f}" for result in found]
        print(f"| {dim} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers")
    parser.add_argument("folder", type=Path, help="folder of sonar.npz, ionosphere.npz and pines.csv")
    parser.add_argument("--targets", nargs="*", choices=list(PUBLIC), default=list(PUBLIC), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--dims", nargs="*", type=int, default=GROWTH, help="dimensions of the growth table")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), metavar="NAME")
    parser.add_argument("--no-growth", action="store_true", help="leave the growth table out")
    arguments = parser.parse_args()
    samplers(arguments.folder, arguments.targets, arguments.seeds, arguments.peers)
    if not arguments.no_growth:
        growth(arguments.dims, arguments.seeds[0])
    print("\n" + "; ".join(describe_machine().values()) + ".")


if __name__ == "__main__":
    main()
