"""Posteriors with reference draws: default `dmvi.fit` beside NumPyro's NUTS, scored against the reference.

    python -m benchmarks.gold FOLDER
    python -m benchmarks.gold FOLDER --posteriors garch11 --seeds 0 --no-nuts --out results

FOLDER holds `models.py` (POSTERIORS: name to a NumPyro model with data) and `score.py` (score(draws, name):
errors of means, sds and distributions in posterior sds, and whether all are within what a good sampler
achieves, `gold`). Every fit and every run starts with empty compilation caches, so its seconds include
compilation. The table shows the worst seed of each column.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS, init_to_uniform

import dmvi
from benchmarks.machine import describe_machine

DRAWS = 4_000
CHAINS, WARM_UP, KEPT = 4, 1_000, 1_000
SECONDS_BAR = 45.0
SCORES = ("mean_err_max", "log_sd_max", "w1_max", "energy")
COLUMNS = ("posterior", "gold", *SCORES, "k-hat", "ESS", "precision", "seconds", "NUTS gold", "NUTS seconds")


@dataclass(frozen=True)
class Result:
    """One fit or one run of NUTS.

    Attributes:
        seed: seed of the fit.
        seconds: wall time, compilation and warm start included; of the draws as well for NUTS.
        scores: what score.py says of 4,000 draws.
        khat: shape of the weights' Pareto tail; None for NUTS.
        ess: effective share of the weights; None for NUTS.
        precision: of the arithmetic.
        verdict: the posterior's own; None for NUTS.
    """

    seed: int
    seconds: float
    scores: dict[str, float | bool | None]
    khat: float | None = None
    ess: float | None = None
    precision: str = "float32"
    verdict: str | None = None


def measure_dmvi(posterior, score, seed: int) -> Result:
    """Fits the posterior with every default and scores its draws."""
    data = posterior.load()
    jax.clear_caches()
    begin = time.perf_counter()
    fit = dmvi.fit(posterior.model, data=data, seed=seed, progress=False)
    seconds = time.perf_counter() - begin
    draws = {name: np.asarray(values) for name, values in fit.sample(DRAWS).items()}
    found = fit.diagnostics
    return Result(
        seed=seed,
        seconds=seconds,
        scores=score(draws, posterior.name),
        khat=float(found.khat),
        ess=float(found.ess),
        precision=str(fit.run.settings["precision"]),
        verdict=fit.verdict.name.lower(),
    )


def measure_nuts(posterior, score, seed: int) -> Result:
    """Runs NUTS with the settings the posterior needs, four chains one after another."""
    data = posterior.load()
    jax.clear_caches()
    begin = time.perf_counter()
    kernel = NUTS(
        posterior.model, init_strategy=init_to_uniform(radius=posterior.init_radius), **posterior.nuts
    )
    sampler = MCMC(
        kernel, num_warmup=WARM_UP, num_samples=KEPT, num_chains=CHAINS, chain_method="sequential",
        progress_bar=False,
    )  # fmt: skip
    sampler.run(jax.random.key(seed), **data)
    draws = {name: np.asarray(values) for name, values in sampler.get_samples().items()}
    return Result(seed, time.perf_counter() - begin, score(draws, posterior.name))


def row_of(name: str, fits: Sequence[Result], runs: Sequence[Result]) -> dict:
    """The worst seed of each measure, as the table's cells."""
    return {
        "posterior": name,
        "gold": f"{sum(bool(fit.scores['gold']) for fit in fits)}/{len(fits)}",
        **{key: _worst([fit.scores[key] for fit in fits]) for key in SCORES},
        "k-hat": _worst([fit.khat for fit in fits]),
        "ESS": min((fit.ess for fit in fits if fit.ess is not None), default=None),
        "precision": ", ".join(sorted({fit.precision for fit in fits})),
        "seconds": _worst([fit.seconds for fit in fits]),
        "NUTS gold": f"{sum(bool(run.scores['gold']) for run in runs)}/{len(runs)}" if runs else None,
        "NUTS seconds": min((run.seconds for run in runs), default=None),
    }


def _worst(values: Sequence[float | bool | None]) -> float | None:
    """The largest; NaN where any is missing, None where all are."""
    if all(value is None for value in values):
        return None
    return float(np.max([np.nan if value is None else value for value in values]))


def misses(row: dict, fits: Sequence[Result]) -> list[str]:
    """What a posterior does not reach, in words."""
    found = []
    if not all(fit.scores["gold"] for fit in fits):
        found.append(f"{row['posterior']}: gold on {row['gold']} seeds")
    bar = min(SECONDS_BAR, row["NUTS seconds"] if row["NUTS seconds"] is not None else SECONDS_BAR)
    if row["seconds"] > bar:
        found.append(f"{row['posterior']}: {row['seconds']:.1f} s where {bar:.1f} s were allowed")
    return found


def markdown(
    rows: Sequence[dict], missed: Sequence[str], machine: dict[str, str], seeds: Sequence[int]
) -> str:
    """The table, the bars that were missed, and where and when it was measured."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row[column]) for column in COLUMNS) + " |")
    lines += ["", "Bars missed: " + ("; ".join(missed) if missed else "none") + "."]
    lines += ["", f"Worst of seeds {', '.join(map(str, seeds))}. " + "; ".join(machine.values()) + "."]
    return "\n".join(lines) + "\n"


def _cell(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.3g}"


def run(folder: ModuleType, score, names: Sequence[str], seeds: Sequence[int], out: Path, nuts: bool) -> str:
    """Measures the posteriors one after another; files are rewritten after each, so nothing is lost."""
    out.mkdir(parents=True, exist_ok=True)
    machine, rows, missed, record, table = describe_machine(), [], [], [], ""
    for name in names:
        posterior = folder.POSTERIORS[name]
        fits, runs = [], []
        for seed in seeds:
            fits.append(measure_dmvi(posterior, score, seed))
            print(f"{name}, seed {seed}: {fits[-1]}", flush=True)
            if nuts:
                runs.append(measure_nuts(posterior, score, seed))
                print(f"{name}, seed {seed}: NUTS {runs[-1]}", flush=True)
        rows.append(row_of(name, fits, runs))
        missed += misses(rows[-1], fits)
        record.append(
            {"fits": [asdict(fit) for fit in fits], "nuts": [asdict(one) for one in runs]} | rows[-1]
        )
        table = markdown(rows, missed, machine, seeds)
        (out / "gold.md").write_text(table)
        (out / "gold.json").write_text(json.dumps({"machine": machine, "rows": record}, indent=2) + "\n")
    return table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gold", description="Reference posteriors.")
    parser.add_argument("folder", type=Path, help="folder of models.py and score.py")
    parser.add_argument("--posteriors", nargs="+", metavar="NAME", help="some of them")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of the fits")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results"), help="folder of gold.md, gold.json"
    )
    parser.add_argument("--no-nuts", action="store_true", help="leave NUTS out")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.folder.resolve()))
    models, score = importlib.import_module("models"), importlib.import_module("score").score
    names = arguments.posteriors or list(models.POSTERIORS)
    print("\n" + run(models, score, names, arguments.seeds, arguments.out, not arguments.no_nuts))


if __name__ == "__main__":
    main()
