"""The verdict beside the truth, on fits of mixed quality.

    python -m benchmarks.verdicts
    python -m benchmarks.verdicts --only funnel --seeds 0 1 --out results

The error of a fit is the largest over coordinates of |mean of its draws - mean| / sd, draws resampled where
the verdict says so; of coordinates with one mode whose sd is more than twice what their quartiles say, as in
funnels and heavy tails, that of medians in quartiles' distances. Its spread is the
largest error of a 5 or 95 % quantile, in units of a 3.29th of their distance, an sd where things are normal.
A fit is bad with an error above 0.3, with a separate mode that has less than a tenth of its share of the
draws although a search of its warm start has ended there, or where there is no posterior at all; it is good
if error and spread are below 0.1 and no mode is missed. Finished fits are kept in verdicts.json, so that a
run can be gone on with.
"""

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dmvi
from benchmarks.battery import Case, Known, battery
from benchmarks.machine import describe_machine
from dmvi.posterior import Verdict

TRUTH_DRAWS, DRAWS = 200_000, 20_000
BAD, GOOD = 0.3, 0.1
TRUSTED = ("trust", "resample")
NEAR = 6.0  # sds of a mode within which a draw counts as near it
THIN = 0.1  # part of its share below which a mode is missed
COLUMNS = (
    "kind",
    "fit",
    "error",
    "spread",
    "modes missed",
    "of them visited",
    "k-hat",
    "ESS",
    "truth",
    "verdict",
    "",
)


def errors_of(known: Known, draws: np.ndarray) -> tuple[float, float]:
    """Error and spread; infinite where there is no posterior or a draw is not finite."""
    if known.sample is None or not np.isfinite(draws).all():
        return np.inf, np.inf
    exact = known.sample(np.random.default_rng(0), TRUTH_DRAWS)
    spread = np.diff(np.quantile(exact, [0.25, 0.75], axis=0), axis=0)[0] / 1.349
    # A mean of draws is no measure where one draw in a thousand decides it, as in funnels and heavy tails.
    # Where a second mode makes the sd, the mean is what tells that the mode is missed.
    wild = (np.std(exact, axis=0) > 2 * spread) & (known.modes is None)
    error = np.abs(draws.mean(axis=0) - exact.mean(axis=0)) / np.std(exact, axis=0)
    robust = np.abs(np.median(draws, axis=0) - np.median(exact, axis=0)) / spread
    tails, own = (np.quantile(x, [0.05, 0.95], axis=0) for x in (exact, draws))
    spread_error = np.abs(own - tails) * 3.29 / (tails[1] - tails[0])
    return float(np.max(np.where(wild, robust, error))), float(np.max(spread_error))


def missed_modes(known: Known, draws: np.ndarray, visited: np.ndarray) -> tuple[int, int]:
    """How many separate modes next to no draw is near, and at how many of these a search has ended."""
    if known.modes is None or known.sds is None or known.sample is None:
        return 0, 0
    exact = known.sample(np.random.default_rng(0), DRAWS)
    apart = [float(np.linalg.norm(a - b)) for i, a in enumerate(known.modes) for b in known.modes[:i]]
    missed, seen = [], []
    for mode, sd in zip(known.modes, known.sds, strict=True):
        within = min([NEAR * sd * np.sqrt(known.dim), *(distance / 2 for distance in apart)])
        own, share = (np.mean(np.linalg.norm(x - mode, axis=1) < within) for x in (draws, exact))
        if own < THIN * share:
            missed.append(mode)
            if any(np.linalg.norm(place - mode) < within for place in visited):
                seen.append(mode)
    return len(missed), len(seen)


def measure(case: Case, seed: int) -> dict[str, Any]:
    """One fit with its truth and its verdict."""
    jax.clear_caches()
    began = time.perf_counter()
    row: dict[str, Any] = {"kind": case.kind, "name": case.name, "seed": seed}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = dmvi.fit(
                case.known.log_density,
                init=jnp.zeros(case.known.dim),
                seed=seed,
                progress=False,
                **case.settings,
            )
    except dmvi.InputError as refused:
        return row | {"error": None, "missed": 0, "truth": "none", "verdict": "refused", "why": str(refused)}
    d = posterior.diagnostics
    resample = posterior.verdict is Verdict.RESAMPLE
    draws = np.asarray(posterior.unconstrained(DRAWS, seed=1, resample=resample), float)
    error, spread = errors_of(case.known, draws)
    missed, seen = missed_modes(case.known, draws, posterior.run.visited[:, 0])
    truth = (
        "bad" if error > BAD or seen else "good" if max(error, spread) < GOOD and not missed else "between"
    )
    return row | {
        "error": error if np.isfinite(error) else None,
        "spread": spread if np.isfinite(spread) else None,
        "missed": missed,
        "visited": seen,
        "khat": d.khat,
        "ess": d.ess,
        "gap": d.gap,
        "truth": truth,
        "verdict": posterior.verdict.name.lower(),
        "why": posterior.judgement.reasons[0],
        "seconds": time.perf_counter() - began,
    }


def right(row: dict[str, Any]) -> bool:
    """Whether the verdict suits the truth: anything does in between."""
    trusted = row["verdict"] in TRUSTED
    return not (row["truth"] == "bad" and trusted) and not (row["truth"] == "good" and not trusted)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The confusion table, then every fit, then where they were made."""
    truths, verdicts = ("good", "between", "bad", "none"), ("trust", "resample", "do_not_trust", "refused")
    lines = ["| truth | fits | " + " | ".join(verdicts) + " |", "|---" * 6 + "|"]
    for truth in truths:
        own = [row for row in rows if row["truth"] == truth]
        if own:
            counts = [str(sum(row["verdict"] == verdict for row in own)) for verdict in verdicts]
            lines.append(f"| {truth} | {len(own)} | " + " | ".join(counts) + " |")
    lines += ["", "| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        number, spread = (_number(row.get(name)) for name in ("error", "spread"))
        khat, ess = (f"{row[name]:.2f}" if name in row else "-" for name in ("khat", "ess"))
        cells = [
            row["kind"],
            row["name"],
            number,
            spread,
            str(row["missed"]),
            str(row.get("visited", 0)),
            khat,
            ess,
            row["truth"],
            row["verdict"],
        ]
        lines.append("| " + " | ".join([*cells, "" if right(row) else "wrong"]) + " |")
    made = [f"{machine}." for machine in dict.fromkeys(row.get("machine", "") for row in rows) if machine]
    return "\n".join([*lines, "", *_otherwise(rows), "", *made]) + "\n"


def _otherwise(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What other definitions of good and bad would give."""
    near = [row for row in rows if row.get("error") is not None and row["error"] < GOOD]
    far = [row for row in rows if row["truth"] == "bad" or (row.get("spread") or 0.0) > BAD]
    counts = [(len(fits), sum(row["verdict"] in TRUSTED for row in fits)) for fits in (near, far)]
    return [
        "Good by the error of means alone: {} fits, {} of them trusted.".format(*counts[0]),
        f"Bad by a spread above {BAD} too: {{}} fits, {{}} of them trusted.".format(*counts[1]),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def run(only: str, seeds: Sequence[int], out: Path, again: bool) -> str:
    """Fits case by case; files are rewritten after each, so nothing is lost."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "verdicts.json"
    rows = {} if not file.exists() else json.loads(file.read_text())["rows"]
    machine = "; ".join(describe_machine().values())
    for seed in seeds:
        for case in battery():
            key = f"{case.kind}/{case.name}/{seed}"
            if only not in key or (key in rows and not again):
                continue
            rows[key] = measure(case, seed) | {"machine": machine}
            print(rows[key], flush=True)
            file.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
            (out / "verdicts.md").write_text(markdown(list(rows.values())))
    return markdown(list(rows.values()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description="Verdicts and truth.")
    parser.add_argument("--only", default="", help="fits whose kind or name contains this")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of the fits")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--again", action="store_true", help="fit anew what is there")
    a = parser.parse_args()
    print("\n" + run(a.only, a.seeds, a.out, a.again))


if __name__ == "__main__":
    main()
