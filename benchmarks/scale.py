"""Past one fit on one machine: many rows, many groups, many fits, many draws, several devices.

    python -m benchmarks.scale
    python -m benchmarks.scale --parts rows --sizes 100000 1000000 --folder /scratch

Every fit to many rows runs in a process of its own, whose peak memory is read at its end. Its data are
written to .npy files in `--folder` first; "NumPy pass" reads the same files in blocks and sums the
log-likelihood at one point; the "pass for the slope" is the quickest of those with which the warm start sums
the log-likelihood and its gradient. The reference is Laplace's approximation from Newton steps over all
rows in double precision, or, for the groups, the exact posterior.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.rows import (
    BATCH,
    COEFFICIENTS,
    GROUPS,
    fit_rows,
    logistic_model,
    write_groups,
    write_logistic,
)

SIZES = (100_000, 1_000_000, 10_000_000)
GROUP_ROWS = 1_000_000
PROCESS_ROWS = 1_000_000
FITS = (1, 16, 256)
LOOPED = 4  # fits of the loop that are timed
PARTICLES = (256, 1024, 4096, 16_384)
PARTS = ("rows", "groups", "many", "draws", "devices", "processes")
DEVICES = 4
DEVICE_PARTICLES = (128, 1024, 4096)
PROCESSES = 2


def rows_table(kind: str, folder: Path, sizes: list[int]) -> list[dict[str, float]]:
    """Fits of several sizes, each in a process of its own."""
    print(
        "| rows | seconds | of them diagnostics | steps | rows read | million rows/s | NumPy pass, million "
        "rows/s | ratio | pass for the slope, million rows/s | peak GiB | gap | "
        "mean off, sds: rms, largest | sd off: rms, largest |\n" + "|---" * 13 + "|"
    )
    found = []
    for size in sizes:
        (write_logistic if kind == "rows" else write_groups)(folder, size)
        command = [sys.executable, "-m", "benchmarks.scale", "--one", kind, "--sizes", str(size)]
        done = subprocess.run(
            [*command, "--folder", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            continue
        row = json.loads(done.stdout.strip().splitlines()[-1])
        found.append(row)
        ours, plain = row["read"] / row["seconds"] / 1e6, size / row["numpy_seconds"] / 1e6
        slope = size / row["pass_seconds"] / 1e6
        print(
            f"| {size:,} | {row['seconds']:.1f} | {row['seconds'] - row['fit_seconds']:.1f} | "
            f"{row['steps']} | {row['read']:,} | {ours:.2f} | {plain:.2f} | {plain / ours:.1f} | "
            f"{slope:.2f} | {row['peak']:.2f} | {row['gap']:.4f} | "
            f"{row['mean_error_rms']:.3f}, {row['mean_error']:.3f} | "
            f"{row['sd_error_rms']:.3f}, {row['sd_error']:.3f} |",
            flush=True,
        )
    return found


def many_table(counts: list[int]) -> list[tuple[int, float]]:
    """Fits per second of `fit_many` beside a loop of `fit`; returns the former."""
    import dmvi

    sigma = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    rng = np.random.default_rng(0)

    def model(sigma, y):
        import numpyro
        import numpyro.distributions as dist

        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    most = max(counts)
    mu, tau = rng.normal(0, 5, most), np.abs(5 * rng.standard_cauchy(most))
    theta = mu[:, None] + tau[:, None] * rng.normal(size=(most, 8))
    y = rng.normal(theta, sigma)
    began = time.perf_counter()
    looped = [
        dmvi.fit(model, {"sigma": sigma, "y": y[i]}, seed=i, progress=False) for i in range(min(LOOPED, most))
    ]
    loop = (time.perf_counter() - began) / len(looped)
    print(f"a loop of fit: {1 / loop:.3f} fits per second, {loop:.1f} s each, {len(looped)} timed\n")
    print(
        "| data sets | seconds | fits per second | times the loop | gap: median, 90 % | below 0.05 | k-hat |"
    )
    print("|---" * 7 + "|")
    found = []
    for count in counts:
        began = time.perf_counter()
        fitted = dmvi.fit_many(model, {"y": y[:count]}, shared={"sigma": sigma}, progress=False)
        seconds = time.perf_counter() - began
        judged = [posterior.diagnostics for posterior in fitted[:64] if isinstance(posterior, dmvi.Posterior)]
        gaps = np.array([one.gap for one in judged])
        found.append((count, count / seconds))
        print(
            f"| {count} | {seconds:.1f} | {count / seconds:.2f} | {loop * count / seconds:.1f} | "
            f"{np.median(gaps):.3f}, {np.quantile(gaps, 0.9):.3f} | "
            f"{np.mean(gaps < 0.05):.0%} of {len(gaps)} | {np.median([one.khat for one in judged]):.2f} |",
            flush=True,
        )
    return found


def device_speeds() -> None:
    """Prints steps per second on one device and on several, in this process."""
    import jax
    import jax.random as jr

    from benchmarks.gpu import CHUNK, best_seconds, step_program
    from dmvi._compile import quick_options

    print(
        f"| particles | one device, steps/s | {DEVICES} forced devices, steps/s | ratio |\n|---|---|---|---|"
    )
    for particles in DEVICE_PARTICLES:
        rates = []
        for devices in (None, DEVICES):
            function = step_program("eight_schools", particles, CHUNK, devices)
            program = jax.jit(function, compiler_options=quick_options())
            rates.append(CHUNK / best_seconds(program, jr.key(0)))
        one, several = rates
        print(f"| {particles:,} | {one:.1f} | {several:.1f} | {several / one:.2f} |", flush=True)


def devices_table() -> None:
    """The same in a process with forced host devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    command = [sys.executable, "-m", "benchmarks.scale", "--one", "devices"]
    done = subprocess.run(
        command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, check=False
    )
    print(done.stdout if done.returncode == 0 else done.stderr)


def one_process(folder: Path, rank: int, processes: int, port: int) -> None:
    """One of several processes that fit PROCESS_ROWS rows together; the first prints what it took."""
    import jax
    from jax.sharding import Mesh

    import dmvi

    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    x, y = write_logistic(folder, PROCESS_ROWS)
    mesh = Mesh(np.array(jax.devices()), ("rows",)) if processes > 1 else None
    began = time.perf_counter()
    data = {"x": str(x), "y": str(y)}
    posterior = dmvi.fit(logistic_model, data, batch_size=BATCH, mesh=mesh, progress=False)
    fitted = time.perf_counter() - began
    evidence = posterior.diagnostics.log_evidence
    if rank == 0:
        print(json.dumps([fitted, time.perf_counter() - began - fitted, evidence]))


def processes_table(folder: Path) -> None:
    """One fit to many rows by one process and by several over loopback."""
    print("| processes | fit, s | diagnostics, s | log evidence |\n|---|---|---|---|")
    for processes in (1, PROCESSES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.scale", "--folder", str(folder), "--one"]
        running = [
            subprocess.Popen(
                [*command, f"process {rank} {processes} {port}"], stdout=subprocess.PIPE, text=True
            )
            for rank in range(processes)
        ]
        printed = [process.communicate()[0] for process in running]
        fitted, judged, evidence = json.loads(printed[0].strip().splitlines()[-1])
        print(f"| {processes} | {fitted:.1f} | {judged:.1f} | {evidence:.3f} |", flush=True)


def plot(path: Path, rows: list[dict[str, float]], many: list[tuple[int, float]]) -> None:
    """Rows and fits per second against their number."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.loglog(
        [row["rows"] for row in rows], [row["read"] / row["seconds"] for row in rows], "o-", label="dmvi.fit"
    )
    left.loglog(
        [row["rows"] for row in rows],
        [row["rows"] / row["numpy_seconds"] for row in rows],
        "s--",
        label="NumPy pass",
    )
    left.set(xlabel="rows of the data", ylabel="rows read per second")
    left.legend()
    right.loglog([count for count, _ in many], [rate for _, rate in many], "o-")
    right.set(xlabel="data sets", ylabel="fits per second, dmvi.fit_many")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="Past one fit on one machine.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--fits", nargs="+", type=int, default=list(FITS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dmvi-scale")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.one == "devices":
        device_speeds()
        return
    if chosen.one and chosen.one.startswith("process"):
        one_process(chosen.folder, *map(int, chosen.one.split()[1:]))
        return
    if chosen.one:
        print(json.dumps(fit_rows(chosen.one, chosen.folder, chosen.sizes[0])))
        return
    print(f"{'; '.join(describe_machine().values())}.\n", flush=True)
    rows: list[dict[str, float]] = []
    many: list[tuple[int, float]] = []
    if "rows" in chosen.parts:
        print(f"logistic regression, {COEFFICIENTS} coefficients, batches of {BATCH:,}\n")
        rows = rows_table("rows", chosen.folder, chosen.sizes)
    if "groups" in chosen.parts:
        print(f"\nhierarchical model, {GROUPS:,} groups, batches of {BATCH:,}\n")
        rows_table("groups", chosen.folder, [GROUP_ROWS])
    if "many" in chosen.parts:
        print("\ncentred eight schools\n")
        many = many_table(chosen.fits)
    if "draws" in chosen.parts:
        from benchmarks.gpu import draws

        draws(list(PARTICLES), "eight_schools")
    if "devices" in chosen.parts:
        print("\ncentred eight schools\n")
        devices_table()
    if "processes" in chosen.parts:
        print(f"\nlogistic regression, {PROCESS_ROWS:,} rows\n")
        processes_table(chosen.folder)
    if chosen.plot is not None and rows and many:
        plot(chosen.plot, rows, many)


if __name__ == "__main__":
    main()
