"""Rows of results.csv, gathered into one line for each method on each model and size."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmvi._errors import InputError
from dmvi.paper._cells import COORDINATES, REFERENCE, RESULTS
from dmvi.paper._methods import METHODS
from dmvi.paper._models import MODELS

TEXT = (
    "model",
    "variant",
    "data",
    "method",
    "reference",
    "status",
    "verdict",
    "machine",
    "date",
    "versions",
    "coordinate",
)
EVIDENCE = "diffusion"  # whose importance-sampling estimate stands in where log p(y) is not known


@dataclass(frozen=True)
class Line:
    """One method on one model and size: means over replicates unless it says otherwise.

    Attributes:
        method: its name.
        replicates: how many there are.
        train: CPU seconds to draws.
        sample: CPU seconds of the draws.
        mse: the paper's metric, infinite where draws are not all finite; in the mixture within the truth's
            labelling.
        mse_raw: the same of draws as they are, as the paper's values are of the mixture.
        mse_error: its standard error, for the draws are finitely many.
        reference_mse: that of the exact posterior, or of NUTS in the mixture.
        reference_error: its standard error; zero where it is exact.
        distance: marginal W_1 to the reference in its sds, in the worst coordinate.
        cover50: share of all coordinates of all replicates inside their 50 % interval.
        cover90: the same for 90 %.
        cover50_error: standard error of `cover50`, from its spread over replicates or binomial, whichever is
            larger.
        cover90_error: that of `cover90`.
        gap: log p(y) - ELBO in nats.
        khat: median over replicates.
        sd_ratio: median over coordinates of sd / reference sd.
        trusted: replicates whose own verdict is to trust the draws as they are.
        resampled: those whose verdict is to trust them after resampling.
        judged: replicates that have a verdict.
        finite: replicates whose draws are all finite.
        sample_most: CPU seconds of the draws that took longest.
        step: CPU seconds of training by optimiser step, compilation included; NaN where there are none.
    """

    method: str
    replicates: int
    train: float
    sample: float
    mse: float
    mse_raw: float
    mse_error: float
    reference_mse: float
    reference_error: float
    distance: float
    cover50: float
    cover90: float
    cover50_error: float
    cover90_error: float
    gap: float
    khat: float
    sd_ratio: float
    trusted: int
    resampled: int
    judged: int
    finite: int
    sample_most: float
    step: float

    @property
    def ratio(self) -> float:
        """MSE over the reference's."""
        return self.mse / self.reference_mse

    @property
    def ratio_error(self) -> float:
        """Standard error of the ratio, from the finite number of draws on both sides."""
        return math.hypot(self.mse_error, self.ratio * self.reference_error) / self.reference_mse


Key = tuple[str, str, str, int]  # variant, data, model, n


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The rows of results.csv."""
    return _read(folder / RESULTS)


def read_coordinates(folder: Path) -> list[dict[str, Any]]:
    """The rows of coordinates.csv."""
    return _read(folder / COORDINATES)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="") as file:
            rows = [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]
    except OSError as error:
        raise InputError(
            f"there is no {str(path)!r}; run `dmvi reproduce --out {path.parent}` first."
        ) from error
    if not rows:
        raise InputError(f"there are no results in {str(path)!r}.")
    return rows


def _value(name: str, text: str) -> Any:
    if name in TEXT:
        return text
    if name in ("n", "replicate", "dim", "steps"):
        return int(text)
    return math.nan if text == "" else text == "True" if text in ("True", "False") else float(text)


def gather(rows: Sequence[Mapping[str, Any]]) -> dict[Key, list[Line]]:
    """Lines by variant, kind of data, model and size, in the order of tables."""
    evidence = {_dataset(row): row["log_evidence"] for row in rows if row["method"] == EVIDENCE}
    errors = {_dataset(row): row["mse_error"] for row in rows if row["method"] == REFERENCE}
    groups: dict[Key, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        key = (row["variant"], row["data"], row["model"], row["n"])
        groups.setdefault(key, {}).setdefault(row["method"], []).append(row)
    ordered = sorted(groups, key=lambda key: (key[0] != "printed", key[1], MODELS.index(key[2]), key[3]))
    return {
        key: [_line(name, groups[key][name], evidence, errors) for name in METHODS if name in groups[key]]
        for key in ordered
    }


def _dataset(row: Mapping[str, Any]) -> tuple:
    return row["variant"], row["data"], row["model"], row["n"], row["replicate"]


def _line(
    method: str,
    rows: Sequence[Mapping[str, Any]],
    evidence: Mapping[tuple, float],
    errors: Mapping[tuple, float],
) -> Line:
    """The line of a method; estimates of log p(y) and errors of the reference's MSE are by data set."""

    def mean(name: str) -> float:
        return float(np.mean([row[name] for row in rows]))

    def error_of_mean(errors: Iterable[float]) -> float:
        return float(np.linalg.norm(list(errors))) / len(rows)

    def error_of_coverage(level: float, name: str) -> float:
        """Coordinates of one data set are not independent, data sets are."""
        binomial = math.sqrt(level * (1 - level) / sum(row["dim"] for row in rows))
        if len(rows) < 2:
            return binomial
        spread = float(np.std([row[name] for row in rows], ddof=1)) / math.sqrt(len(rows))
        return max(binomial, spread)

    finite = all(row["finite"] for row in rows)
    estimated = [errors.get(_dataset(row), math.nan) for row in rows if row["reference"] == REFERENCE]

    gaps = []
    for row in rows:
        known = row["reference_log_evidence"]
        gaps.append((evidence.get(_dataset(row), math.nan) if math.isnan(known) else known) - row["elbo"])
    return Line(
        method=method,
        replicates=len(rows),
        train=mean("train_seconds"),
        sample=mean("sample_seconds"),
        mse=mean("mse_labelled") if finite else math.inf,
        mse_raw=mean("mse") if finite else math.inf,
        mse_error=error_of_mean(row["mse_error"] for row in rows),
        reference_mse=mean("reference_mse"),
        reference_error=error_of_mean(estimated),
        distance=mean("wasserstein_max"),
        cover50=mean("cover50"),
        cover90=mean("cover90"),
        cover50_error=error_of_coverage(0.5, "cover50"),
        cover90_error=error_of_coverage(0.9, "cover90"),
        gap=float(np.mean(gaps)),
        khat=float(np.median([row["khat"] for row in rows])),
        sd_ratio=float(np.median([row["sd_ratio_median"] for row in rows])),
        trusted=sum(row.get("verdict") == "trust" for row in rows),
        resampled=sum(row.get("verdict") == "resample" for row in rows),
        judged=sum(bool(row.get("verdict")) for row in rows),
        finite=sum(row["finite"] for row in rows),
        sample_most=max(row["sample_seconds"] for row in rows),
        step=float(
            np.mean([row["train_seconds"] / row["steps"] if row["steps"] else math.nan for row in rows])
        ),
    )


def line_of(lines: Iterable[Line], method: str) -> Line | None:
    """The line of a method, where there is one."""
    return next((line for line in lines if line.method == method), None)
