"""Fits to many rows: data in files, references over all rows, and one fit with what it took."""

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

COEFFICIENTS = 50
GROUPS = 1_000
BATCH = 1_000
BLOCK = 100_000
DRAWS = 40_000  # so many that their own error is small beside 0.05 sd, also the largest of 1,000
CENTRES, SCALES, POINTS = 31, 31, 61  # of the grids of the exact posterior


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
    """Rows of a hierarchical model with GROUPS groups: the group's number and whether it happened."""
    g_path, y_path = folder / f"g{count}.npy", folder / f"h{count}.npy"
    if y_path.exists():
        return g_path, y_path
    rng = np.random.default_rng(1)
    theta = rng.normal(1.0, 0.5, GROUPS)
    g = rng.integers(0, GROUPS, count).astype(np.int32)
    np.save(g_path, g)
    np.save(y_path, (rng.uniform(size=count) < 1 / (1 + np.exp(-theta[g]))).astype(np.int8))
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
    theta = np.zeros(GROUPS, np.float32)
    for x, y in blocks(paths):
        logits = theta[x] if x.ndim == 1 else x @ beta
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
    """Hierarchical logistic model: every group has its own log-odds."""
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", groups):
        theta: Any = numpyro.sample("theta", dist.Normal(mu, tau))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=theta[g]), obs=y)


def groups_exact(paths: tuple[Path, Path]) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of the groups' log-odds: a grid over mu and tau, and one over each group's log-odds.

    Given mu and tau the groups are independent, and a group's rows count only by their number n_j and by how
    many happened, k_j:

        p(theta_j | mu, tau, y) ~ N(theta_j; mu, tau^2) exp(k_j theta_j - n_j softplus theta_j).
    """
    g, y = np.load(paths[0]), np.load(paths[1]).astype(float)
    n, k = np.bincount(g, minlength=GROUPS), np.bincount(g, y, GROUPS)
    odds = np.log((k + 0.5) / (n - k + 0.5))
    noise = np.sqrt(1 / (k + 0.5) + 1 / (n - k + 0.5))
    theta = odds[:, None] + noise[:, None] * np.linspace(-7, 7, POINTS)[None, :]
    likelihood = k[:, None] * theta - n[:, None] * np.logaddexp(0.0, theta)
    likelihood -= likelihood.max(axis=1, keepdims=True)
    spread = np.sqrt(np.var(odds) - np.mean(noise**2))
    found = []
    for mu in np.mean(odds) + spread / np.sqrt(GROUPS) * np.linspace(-6, 6, CENTRES):
        for tau in spread * (1 + np.linspace(-6, 6, SCALES) / np.sqrt(2 * GROUPS)):
            density = np.exp(likelihood - 0.5 * ((theta - mu) / tau) ** 2) / tau
            mass = density.sum(axis=1)
            weight = np.sum(np.log(mass)) - mu**2 / 8 - tau**2 / 2
            first = (density * theta).sum(axis=1) / mass
            found.append((weight, first, (density * theta**2).sum(axis=1) / mass))
    weights = np.array([part[0] for part in found])
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    mean = weights @ np.stack([part[1] for part in found])
    second = weights @ np.stack([part[2] for part in found])
    return mean, np.sqrt(second - mean**2)


def _problem(kind: str, folder: Path, count: int) -> tuple[Callable, tuple[Path, Path], dict[str, Any], str]:
    """Model, files, arguments and the site that is compared."""
    if kind == "rows":
        paths = write_logistic(folder, count)
        return logistic_model, paths, {"x": str(paths[0]), "y": str(paths[1])}, "beta"
    paths = write_groups(folder, count)
    return groups_model, paths, {"g": str(paths[0]), "y": str(paths[1]), "groups": GROUPS}, "theta"


def fit_rows(kind: str, folder: Path, count: int) -> dict[str, float]:
    """One fit to many rows, in this process, with what it took."""
    import dmvi
    from dmvi.targets import _rows

    read = {"rows": 0}

    def counted(method: Callable, many: bool) -> Callable:
        def draw(self, rng, size, place=None, part=None):
            read["rows"] += size
            return method(self, rng, size, place, part)

        def all_rows(self, size, share=(0, 1)):
            read["rows"] += self.count // share[1]
            return method(self, size, share)

        return all_rows if many else draw

    _rows.ArrayRows.draw = counted(_rows.ArrayRows.draw, many=False)
    _rows.ArrayRows.blocks = counted(_rows.ArrayRows.blocks, many=True)
    passes = _timed_passes()
    model, paths, data, site = _problem(kind, folder, count)
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
        "numpy_seconds": min(numpy_pass(paths) for _ in range(2)),
        "pass_seconds": min(passes),
        "steps": posterior.run.steps,
    }


def _timed_passes() -> list[float]:
    """Seconds of every pass over all rows for value and slope, filled in as they are made."""
    from dmvi.targets import Stream

    passes, derivatives = [], Stream.derivatives

    def timed(self, xi):
        began = time.perf_counter()
        found = derivatives(self, xi)
        passes.append(time.perf_counter() - began)
        return found

    Stream.derivatives = timed
    return passes
