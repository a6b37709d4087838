"""The ten lab targets: default `dmvi.fit` beside NumPyro's inverse autoregressive flow.

    python -m benchmarks.lab
    python -m benchmarks.lab --targets funnel banana --seeds 0 --no-peer --out results

Every fit of either method starts with empty compilation caches, so its seconds include compilation. The gap
is log Z - ELBO in nats; log Z is exact where it is known, else the importance-sampling estimate pooled over
the seeds' dmvi fits. The table shows the worst seed of each column. "steps" are those of the fit over those
it needed to come within 0.01 nats of its final ELBO, by the gap that the looks of training show: as log Z is
one number, gaps differ as ELBOs do, and far less of their difference is chance.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoIAFNormal

import dmvi
from benchmarks.clock import Seen, timed
from benchmarks.machine import describe_machine
from benchmarks.targets import TARGETS, LabTarget
from dmvi.guides import Guide

DRAWS = 20_000
CHUNK = 4_000
PEER_STEPS = 8_000
PEER_PARTICLES = 64
KHAT_BAR = 0.7
ESS_BAR = 0.5
RATIO_BAR = 1.2
DRAW_SECONDS_BAR = 0.2
DENSITY_SECONDS_BAR = 1.0
NEARLY = 0.01  # nats
OVERRUN_BAR = 1.3
COLUMNS = (
    "target",
    "d",
    "gap",
    "bar",
    "k-hat",
    "ESS",
    "seconds",
    "IAF gap",
    "IAF seconds",
    "time ratio",
    "steps",
    "20,000 draws, CPU s",
    "with density, CPU s",
)


@dataclass(frozen=True)
class GuideResult:
    """One default fit of dmvi.

    Attributes:
        seed: seed of the fit.
        seconds: wall time, compilation and warm start included.
        elbo: mean log-weight of fresh draws.
        log_evidence: log of the mean weight of the same draws.
        khat: shape of the weights' Pareto tail, as the posterior reports it.
        ess: effective share of the draws, as the posterior reports it.
        round_trip_error: largest error of log q when the solver is inverted, in nats.
        steps: optimiser steps.
        needed: steps after which no look showed a gap more than 0.01 nats above that of the fit.
        status: why training ended.
        draw_seconds: CPU time of 20,000 draws without density, after compilation.
        density_seconds: CPU time of 20,000 draws with density, after compilation.
    """

    seed: int
    seconds: float
    elbo: float
    log_evidence: float
    khat: float
    ess: float
    round_trip_error: float
    steps: int
    needed: int
    status: str
    draw_seconds: float
    density_seconds: float


@dataclass(frozen=True)
class PeerResult:
    """One fit of NumPyro's AutoIAFNormal: seed, wall time with compilation, ELBO on fresh draws."""

    seed: int
    seconds: float
    elbo: float


@dataclass(frozen=True)
class Row:
    """The worst seed of each measure on one target; peer columns are None without the peer."""

    target: LabTarget
    log_evidence: float
    gap: float
    khat: float
    ess: float
    seconds: float
    draw_seconds: float
    density_seconds: float
    peer_gap: float | None
    peer_seconds: float | None
    ratio: float | None
    overrun: float


def measure_dmvi(target: LabTarget, seed: int) -> GuideResult:
    """Fits the target with every default and measures the result on fresh draws."""
    jax.clear_caches()
    begin = time.perf_counter()
    fit = partial(dmvi.fit, target.log_density, init=jnp.zeros(target.dim), seed=seed)
    posterior, clock = timed(fit)
    seconds = time.perf_counter() - begin
    guide, found = posterior.guide, posterior.diagnostics
    # A key no fit derives from its seed: the draws are fresh.
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**31 - 1), DRAWS)
    log_weights = _log_weights(guide, target, keys)
    return GuideResult(
        seed=seed,
        seconds=seconds,
        elbo=float(log_weights.mean()),
        log_evidence=_log_mean_exp(log_weights),
        khat=float(found.khat),
        ess=float(found.ess),
        round_trip_error=float(found.round_trip_error),
        steps=int(found.steps),
        needed=steps_needed(clock.looks, found.gap),
        status=found.status.name.lower(),
        draw_seconds=_cpu_seconds(jax.jit(lambda key: guide.sample(key, (DRAWS,))), keys[0]),
        density_seconds=_cpu_seconds(jax.jit(jax.vmap(guide.draw)), keys),
    )


def steps_needed(looks: Sequence[Seen], gap: float) -> int:
    """The first of the steps from which on no look shows a gap more than NEARLY nats above that of the fit.

    Steps count on where the guide has grown and its looks begin anew.
    """
    if not looks:
        return 1
    each = np.diff([look.step for look in looks], prepend=0)
    steps = np.cumsum(np.where(each > 0, each, [look.step for look in looks]))
    wide = np.flatnonzero(~(np.array([look.gap for look in looks]) <= gap + NEARLY))
    return max(1, int(steps[min(wide[-1] + 1, len(steps) - 1) if wide.size else 0]))


def measure_peer(target: LabTarget, seed: int, steps: int = PEER_STEPS) -> PeerResult:
    """Fits NumPyro's AutoIAFNormal: three flows, cosine decay from 2e-3."""

    def model():
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (target.dim,)))
        numpyro.factor("log_density", target.log_density(jnp.asarray(x)))

    def learning_rate(step):
        return 1e-3 * (1.0 + jnp.cos(jnp.pi * step / steps)) + 1e-6

    jax.clear_caches()
    begin = time.perf_counter()
    guide = AutoIAFNormal(model, num_flows=3, hidden_dims=[max(64, target.dim + 2)] * 2)
    optimizer = numpyro.optim.ClippedAdam(learning_rate)
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=PEER_PARTICLES))
    fitted = svi.run(jax.random.key(seed), steps, progress_bar=False)
    jax.block_until_ready(fitted.params)
    seconds = time.perf_counter() - begin

    chunk_loss = jax.jit(lambda key: Trace_ELBO(num_particles=CHUNK).loss(key, fitted.params, model, guide))
    keys = jax.random.split(jax.random.key(seed + 10_000), DRAWS // CHUNK)
    return PeerResult(seed, seconds, -float(np.mean([chunk_loss(key) for key in keys])))


def _log_weights(guide: Guide, target: LabTarget, keys: Array) -> Float[np.ndarray, " draws"]:
    """log pi(xi) - log q(xi) of one draw per key, some thousands at a time."""

    def log_weight(key):
        draw = guide.draw(key)
        return target.log_density(draw.xi) - draw.log_q

    return np.asarray(jax.jit(partial(jax.lax.map, log_weight, batch_size=CHUNK))(keys))


def _log_mean_exp(values: Float[np.ndarray, " count"]) -> float:
    return float(logsumexp(values) - np.log(values.size))


def _cpu_seconds(call, random: Array) -> float:
    """CPU time of a compiled call with a key or keys: the first one compiles, the second one is measured."""
    jax.block_until_ready(call(random))
    begin = time.process_time()
    jax.block_until_ready(call(random))
    return time.process_time() - begin


def summarise(target: LabTarget, fits: Sequence[GuideResult], peers: Sequence[PeerResult]) -> Row:
    """The worst seed of each measure.

    Every seed draws equally often, so the pooled estimate of Z is the mean of the seeds' estimates.
    """
    log_evidence = target.log_evidence
    if log_evidence is None:
        log_evidence = _log_mean_exp(np.array([fit.log_evidence for fit in fits]))
    return Row(
        target=target,
        log_evidence=log_evidence,
        gap=log_evidence - _lowest(fit.elbo for fit in fits),
        khat=_highest(fit.khat for fit in fits),
        ess=_lowest(fit.ess for fit in fits),
        seconds=_highest(fit.seconds for fit in fits),
        draw_seconds=_highest(fit.draw_seconds for fit in fits),
        density_seconds=_highest(fit.density_seconds for fit in fits),
        peer_gap=log_evidence - _lowest(peer.elbo for peer in peers) if peers else None,
        peer_seconds=_highest(peer.seconds for peer in peers) if peers else None,
        ratio=_highest(fit.seconds / peer.seconds for fit, peer in zip(fits, peers, strict=True))
        if peers
        else None,
        overrun=_highest(fit.steps / fit.needed for fit in fits),
    )


def _highest(values) -> float:
    """The maximum, NaN if any value is: a failed seed is the worst one."""
    return float(np.max(list(values)))


def _lowest(values) -> float:
    """The minimum, NaN if any value is."""
    return float(np.min(list(values)))


def misses(row: Row) -> list[str]:
    """What a row with a bar does not reach, in words; NaN reaches nothing."""
    bars = [("steps", row.overrun, row.overrun <= OVERRUN_BAR)]
    if row.target.gap_bar is not None:
        bars.append(("gap", row.gap, row.gap <= row.target.gap_bar))
    if row.target.hard:
        return [_miss(row, name, value) for name, value, reached in bars if not reached]
    bars += [
        ("k-hat", row.khat, row.khat < KHAT_BAR),
        ("ESS", row.ess, row.ess > ESS_BAR),
        ("draws", row.draw_seconds, row.draw_seconds < DRAW_SECONDS_BAR),
        ("draws with density", row.density_seconds, row.density_seconds < DENSITY_SECONDS_BAR),
    ]
    if row.ratio is not None:
        bars.append(("time ratio", row.ratio, row.ratio <= RATIO_BAR))
    return [_miss(row, name, value) for name, value, reached in bars if not reached]


def _miss(row: Row, name: str, value: float) -> str:
    return f"{row.target.title}: {name} {value:.3g}"


def markdown(rows: Sequence[Row], machine: dict[str, str], seeds: Sequence[int]) -> str:
    """The table, the bars that were missed, and where and when it was measured."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        cells = [
            row.target.title,
            str(row.target.dim),
            f"{row.gap:.4f}",
            _cell(row.target.gap_bar, "g"),
            f"{row.khat:.2f}",
            f"{row.ess:.2f}",
            f"{row.seconds:.1f}",
            _cell(row.peer_gap, ".3f"),
            _cell(row.peer_seconds, ".1f"),
            _cell(row.ratio, ".2f"),
            f"{row.overrun:.2f}",
            f"{row.draw_seconds:.3f}",
            f"{row.density_seconds:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    missed = [miss for row in rows for miss in misses(row)]
    lines += ["", "Bars missed: " + ("; ".join(missed) if missed else "none") + "."]
    lines += ["", f"Worst of seeds {', '.join(map(str, seeds))}. " + "; ".join(machine.values()) + "."]
    return "\n".join(lines) + "\n"


def _cell(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def run(names: Sequence[str], seeds: Sequence[int], out: Path, with_peer: bool) -> str:
    """Measures the targets one after another; files are rewritten after each, so nothing is lost."""
    out.mkdir(parents=True, exist_ok=True)
    machine, rows, record, table = describe_machine(), [], [], ""
    for name in names:
        target = TARGETS[name]()
        fits, peers = [], []
        for seed in seeds:
            fits.append(measure_dmvi(target, seed))
            print(f"{name}, seed {seed}: {fits[-1]}", flush=True)
            if with_peer:
                peers.append(measure_peer(target, seed))
                print(f"{name}, seed {seed}: {peers[-1]}", flush=True)
        row = summarise(target, fits, peers)
        rows.append(row)
        measured = {key: value for key, value in vars(row).items() if key != "target"}
        record.append(
            {"target": name, "dim": target.dim, "gap_bar": target.gap_bar, **measured, "misses": misses(row)}
            | {"fits": [asdict(fit) for fit in fits], "peers": [asdict(peer) for peer in peers]}
        )
        table = markdown(rows, machine, seeds)
        (out / "lab.md").write_text(table)
        (out / "lab.json").write_text(json.dumps({"machine": machine, "rows": record}, indent=2) + "\n")
    return table


def main() -> None:
    """The command line."""
    names = list(TARGETS)
    out = Path("benchmarks/results")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab", description="The ten lab targets.")
    parser.add_argument("--targets", nargs="+", choices=names, default=names, metavar="NAME", help=str(names))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of the fits")
    parser.add_argument("--out", type=Path, default=out, help="folder of lab.md and lab.json")
    parser.add_argument("--no-peer", action="store_true", help="leave NumPyro's flow out")
    arguments = parser.parse_args()
    print("\n" + run(arguments.targets, arguments.seeds, arguments.out, not arguments.no_peer))


if __name__ == "__main__":
    main()
