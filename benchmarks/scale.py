"""Past one fit on one machine: many rows, many groups, many fits, many draws, several devices.

    python -m benchmarks.scale
    python -m benchmarks.scale --parts rows --sizes 100000 1000000 --folder /scratch

Every fit to many rows runs in a process of its own, whose peak memory is read at its end. Its data are
written to .npy files in `--folder` first; "NumPy pass" reads the same files in blocks and sums the
log-likelihood at one point. The reference is Laplace's approximation from Newton steps over all rows in
double precision, or the exact posterior.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine

SIZES = (100_000, 1_000_000, 10_000_000)
COEFFICIENTS = 50
GROUPS = 1_000
GROUP_ROWS = 1_000_000
BATCH = 1_000
BLOCK = 100_000
FITS = (1, 16, 256)
LOOPED = 4  # fits of the loop that are timed
PARTICLES = (256, 1024, 4096, 16_384)
PARTS = ("rows", "groups", "many", "draws", "devices")
DEVICES = 4
DEVICE_PARTICLES = (128, 1024, 4096)
DRAWS = 4_000


def write_logistic(folder: Path, count: int) -> tuple[Path, Path]:
    """Rows of a logistic regression in two .npy files, unless they are there."""
    x_path, y_path = folder / f"x{count}.npy", folder / f"y{count}.npy"
    if y_path.exists():
        return x_path, y_path
    rng = np.random.default_rng(0)
    beta = rng.normal(size=COEFFICIENTS) / np.sqrt(COEFFICIENTS)
    x = np.lib.format.open_memmap(x_path, "w+", "float32", (count, COEFFICIENTS))
    y = np.lib.format.open_memmap(y_path, "w+", "int8", (count,))
    for begin in range(0, count, BLOCK):
        block = rng.standard_normal((min(BLOCK, count - begin), COEFFICIENTS), dtype=np.float32)
        x[begin : begin + len(block)] = block
        y[begin : begin + len(block)] = rng.uniform(size=len(block)) < 1 / (1 + np.exp(-block @ beta))
    return x_path, y_path


def write_groups(folder: Path, count: int) -> tuple[Path, Path]:
    """Rows of a hierarchical model with GROUPS groups: the group's number and the value."""
    g_path, y_path = folder / f"g{count}.npy", folder / f"v{count}.npy"
    if y_path.exists():
        return g_path, y_path
    rng = np.random.default_rng(1)
    theta = rng.normal(1.0, 0.5, GROUPS)
    g = rng.integers(0, GROUPS, count).astype(np.int32)
    np.save(g_path, g)
    np.save(y_path, rng.normal(theta[g], 2.0).astype(np.float32))
    return g_path, y_path


def blocks(paths: tuple[Path, Path]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Both files in blocks, read and not mapped."""
    headers = [np.load(path, mmap_mode="r") for path in paths]
    files = [path.open("rb") for path in paths]
    for file, header in zip(files, headers, strict=True):
        file.seek(header.offset)
    for begin in range(0, len(headers[0]), BLOCK):
        rows = min(BLOCK, len(headers[0]) - begin)
        x, y = (
            np.fromfile(file, header.dtype, rows * int(np.prod(header.shape[1:], dtype=int)))
            for file, header in zip(files, headers, strict=True)
        )
        yield x.reshape(rows, *headers[0].shape[1:]), y
    for file in files:
        file.close()


def numpy_pass(paths: tuple[Path, Path]) -> float:
    """Seconds of one plain pass that sums the log-likelihood."""
    began, beta, total = time.perf_counter(), np.zeros(COEFFICIENTS, np.float32), 0.0
    for x, y in blocks(paths):
        logits = x @ beta
        total += float(np.sum(y * logits - np.logaddexp(0.0, logits)))
    return time.perf_counter() - began


def logistic_laplace(paths: tuple[Path, Path]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd by Laplace over all rows, prior N(0, 1)."""
    mode = np.zeros(COEFFICIENTS)
    precision = np.eye(COEFFICIENTS)
    for _ in range(8):
        slope, precision = -mode, np.eye(COEFFICIENTS)
        for x, y in blocks(paths):
            x = x.astype(float)
            p = np.asarray(1 / (1 + np.exp(-x @ mode)))
            slope += x.T @ (y - p)
            precision += (x * (p * (1 - p))[:, None]).T @ x
        step = np.linalg.solve(precision, slope)
        mode += step
        if slope @ step < 1e-6:
            break
    return mode, np.sqrt(np.diagonal(np.linalg.inv(precision)))


def logistic_model(x: Any, y: Any) -> None:
    """Logistic regression."""
    import numpyro
    import numpyro.distributions as dist

    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def groups_model(g: Any, y: Any, groups: int) -> None:
    """Values around the means of their groups."""
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", groups):
        theta: Any = numpyro.sample("theta", dist.Normal(mu, tau))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(theta[g], 2.0), obs=y)


def groups_exact(paths: tuple[Path, Path]) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of the groups, the model's scale and centre integrated out on a grid.

    Given tau all is Gaussian: group means ybar_j ~ N(mu, tau^2 + s_j^2), s_j^2 = 4 / n_j, mu ~ N(0, 2^2).
    """
    g, y = np.load(paths[0]), np.load(paths[1]).astype(float)
    n = np.bincount(g, minlength=GROUPS)
    means, noise = np.bincount(g, y, GROUPS) / n, np.asarray(4.0 / n)
    parts = []
    for tau in np.exp(np.linspace(np.log(0.3), np.log(0.8), 201)):
        variance = tau**2 + noise
        precision = 1 / 4 + np.sum(1 / variance)
        mu, mu_variance = np.sum(means / variance) / precision, 1 / precision
        fit = -0.5 * np.sum(np.log(variance) + (means - mu) ** 2 / variance) - mu**2 / 8
        weight = fit + 0.5 * np.log(mu_variance) - tau**2 / 2 + np.log(tau)
        shrink = tau**2 / variance
        mean = mu + shrink * (means - mu)
        parts.append((weight, mean, shrink * noise + (1 - shrink) ** 2 * mu_variance))
    weights = np.array([part[0] for part in parts])
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    mean = weights @ np.stack([part[1] for part in parts])
    second = weights @ np.stack([part[2] + part[1] ** 2 for part in parts])
    return mean, np.sqrt(second - mean**2)


def fit_rows(kind: str, folder: Path, count: int) -> dict[str, float]:
    """One fit to many rows, in this process, with what it took."""
    import dmvi
    from dmvi.targets import _rows

    read = {"rows": 0}

    def counted(method: Callable, many: bool) -> Callable:
        def draw(self, rng, size, place=None):
            read["rows"] += size
            return method(self, rng, size, place)

        def all_rows(self, size):
            read["rows"] += self.count
            return method(self, size)

        return all_rows if many else draw

    _rows.ArrayRows.draw = counted(_rows.ArrayRows.draw, many=False)
    _rows.ArrayRows.blocks = counted(_rows.ArrayRows.blocks, many=True)
    if kind == "rows":
        paths = write_logistic(folder, count)
        model, data, site = logistic_model, {"x": str(paths[0]), "y": str(paths[1])}, "beta"
    else:
        paths = write_groups(folder, count)
        data = {"g": str(paths[0]), "y": str(paths[1]), "groups": GROUPS}
        model, site = groups_model, "theta"
    began = time.perf_counter()
    posterior = dmvi.fit(model, data, batch_size=BATCH, progress=False)
    fitted = time.perf_counter() - began
    found = posterior.diagnostics
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    draws = posterior.sample(DRAWS)[site]
    mean, sd = logistic_laplace(paths) if kind == "rows" else groups_exact(paths)
    return {
        "rows": count,
        "seconds": seconds,
        "fit_seconds": fitted,
        "read": read["rows"],
        "peak": peak,
        "gap": found.gap,
        "khat": found.khat,
        "mean_error": float(np.max(np.abs(draws.mean(0) - mean) / sd)),
        "mean_error_rms": float(np.sqrt(np.mean(((draws.mean(0) - mean) / sd) ** 2))),
        "sd_error": float(np.max(np.abs(draws.std(0) / sd - 1))),
        "sd_error_rms": float(np.sqrt(np.mean((draws.std(0) / sd - 1) ** 2))),
        "numpy_seconds": numpy_pass(paths) if kind == "rows" else float("nan"),
    }


def rows_table(kind: str, folder: Path, sizes: list[int]) -> list[dict[str, float]]:
    """Fits of several sizes, each in a process of its own."""
    print(
        "| rows | seconds | of them diagnostics | rows read | million rows/s | NumPy pass, million rows/s | "
        "peak GiB | gap | mean off, sds: rms, largest | sd off: rms, largest |\n" + "|---" * 10 + "|"
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
        print(
            f"| {size:,} | {row['seconds']:.1f} | {row['seconds'] - row['fit_seconds']:.1f} | "
            f"{row['read']:,} | {row['read'] / row['seconds'] / 1e6:.2f} | "
            f"{size / row['numpy_seconds'] / 1e6:.2f} | "
            f"{row['peak']:.2f} | {row['gap']:.4f} | {row['mean_error_rms']:.3f}, {row['mean_error']:.3f} | "
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
    parser.add_argument("--one", choices=("rows", "groups", "devices"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.one == "devices":
        device_speeds()
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
    if chosen.plot is not None and rows and many:
        plot(chosen.plot, rows, many)


if __name__ == "__main__":
    main()
