"""What the rows of `benchmarks.hard` amount to: the worst seed of each posterior, and the bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
TRUSTED = ("TRUST", "RESAMPLE")
COLUMNS = (
    "posterior", "d", "seed", "verdict", "right", "gap", "ESS", "k-hat", "ELBO", "log evidence", "mean error",
    "log sd error", "gradients", "s", "CPU s", "compiling", "warm start, s", "training, s", "diagnostics, s",
    "error",
)  # fmt: skip
NUTS_COLUMNS = ("posterior", "R-hat", "min ESS", "divergences", "s", "CPU s", "precision", "error")


@dataclass(frozen=True)
class Bars:
    """What is asked for.

    Attributes:
        mean_error: in posterior sds, below which a trusted fit is right; a mean of 400 effective draws, the
            fewest that are trusted, is off by 0.05, and the largest of 1,000 such errors by 0.17.
        mixes: R-hat below which draws of NUTS are a reference.
        evidences: nats within which the log evidences of the seeds lie where there is no reference.
        trusted: posteriors trusted and right on every seed.
        gap: nats, below which a guide is close.
        close: posteriors whose gap is below it on every seed.
        seconds: that a fit may take.
    """

    mean_error: float = 0.3
    mixes: float = 1.03
    evidences: float = 0.2
    trusted: int = 18
    gap: float = 0.1
    close: int = 14
    seconds: float = 120.0


def are_right(rows: Sequence[Row], bars: Bars) -> list[bool | None]:
    """Whether each seed's fit is trusted and right; None where only other seeds could tell.

    With draws to compare with, each seed is judged by its means. Without, the seeds are judged together, by
    their log evidences; where the log evidence is known, it counts as one more.
    """
    trusted = [row.get("verdict") in TRUSTED for row in rows]
    found: list[bool | None] = []
    evidences = [row["log_evidence"] for row in rows if "error" not in row]
    evidences += [row["known"] for row in rows[:1] if row.get("known") is not None]
    agree = max(evidences) - min(evidences) < bars.evidences if len(evidences) > 1 else None
    for row, one in zip(rows, trusted, strict=True):
        if not one:
            found.append(False)
        elif row.get("errors") is not None:
            found.append(row["errors"]["mean_max"] < bars.mean_error)
        else:
            found.append(agree)
    return found


def worst(rows: Sequence[Row], bars: Bars) -> tuple[Row, bool | None]:
    """The worst seed and whether it is right: a failed fit, else one not right, else the largest gap."""

    def badness(pair: tuple[Row, bool | None]) -> tuple:
        row, right = pair
        if "error" in row:
            return (2, 0, 0.0)
        # NaN compares with nothing: no gap is as bad as the largest.
        gap = row["gap"] if row["gap"] == row["gap"] else float("inf")
        return (right is False, row["verdict"] not in TRUSTED, gap)

    return max(zip(rows, are_right(rows, bars), strict=True), key=badness)


def reached(fits: Mapping[str, Sequence[Row]], nuts: Mapping[str, Row], bars: Bars) -> str:
    """How many posteriors pass each bar, and which do not, in a line."""
    total = len(fits)
    wrong = [name for name, rows in fits.items() if not all(are_right(rows, bars))]
    far = [name for name, rows in fits.items() if not all(_below(row, "gap", bars.gap) for row in rows)]
    late = [
        name for name, rows in fits.items() if not all(_below(row, "seconds", bars.seconds) for row in rows)
    ]
    mixes = {name: row for name, row in nuts.items() if name in fits and _below(row, "rhat", bars.mixes)}
    slow = [
        name
        for name, run in mixes.items()
        if not all(_below(row, "seconds", run["seconds"]) for row in fits[name])
    ]
    return (
        f"Trusted and right on every seed: {total - len(wrong)} of {total} "
        f"(bar {bars.trusted} of 21){_but(wrong)}. "
        f"Gap below {bars.gap:g} on every seed: {total - len(far)} of {total} "
        f"(bar {bars.close} of 21){_but(far)}. "
        f"Slower than NUTS where NUTS mixes: {len(slow)} of {len(mixes)} (bar none)"
        f"{': ' + ', '.join(slow) if slow else ''}. "
        f"Within {bars.seconds:g} s on every seed: {total - len(late)} of {total}{_but(late)}."
    )


def _below(row: Row, name: str, bar: float) -> bool:
    """A row without the number, as that of a failed fit, is not below."""
    return "error" not in row and row[name] is not None and row[name] < bar


def _but(names: Sequence[str]) -> str:
    return f"; not {', '.join(names)}" if names else ""


def markdown(rows: Sequence[Row], bars: Bars) -> str:
    """Both tables, the bars, and where and when it was measured."""
    fits: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] == "fit":
            fits.setdefault(row["name"], []).append(row)
    nuts = {row["name"]: row for row in rows if row["kind"] == "nuts"}
    lines = _table(COLUMNS, [fit_cells(*worst(of_one, bars)) for of_one in fits.values()])
    if nuts:
        lines += ["", *_table(NUTS_COLUMNS, [nuts_cells(row) for row in nuts.values()])]
    seeds = sorted({row["seed"] for of_one in fits.values() for row in of_one})
    lines += ["", reached(fits, nuts, bars), "", f"Worst of seeds {', '.join(map(str, seeds))}."]
    lines += list(dict.fromkeys("; ".join(row["machine"].values()) + "." for row in rows))
    return "\n".join(lines) + "\n"


def fit_cells(row: Row, right: bool | None) -> list[Any]:
    """The cells of COLUMNS."""
    errors = row.get("errors") or {}
    log_evidence = row.get("log_evidence")
    numbers = [row.get(name) for name in ("gap", "ess", "khat", "elbo")]
    spread = "" if log_evidence is None else f"{log_evidence:.2f} +- {row['log_evidence_se']:.2f}"
    compiling = None if "error" in row else f"{row['compiling_seconds'] / row['seconds']:.0%}"
    return [
        row["name"],
        row.get("d"),
        row["seed"],
        row.get("verdict", "").lower().replace("_", " "),
        {True: "yes", False: "no", None: "?"}[right],
        *numbers,
        spread,
        errors.get("mean_max"),
        errors.get("log_sd_max"),
        row.get("gradients"),
        f"{row['seconds']:.1f}",
        row.get("cpu_seconds"),
        compiling,
        *(row.get(name) for name in ("warm_start_seconds", "training_seconds", "diagnostics_seconds")),
        row.get("error"),
    ]


def nuts_cells(row: Row) -> list[Any]:
    """The cells of NUTS_COLUMNS."""
    first = [row.get(name) for name in ("rhat", "min_ess", "divergences")]
    return [
        row["name"],
        *first,
        f"{row['seconds']:.1f}",
        row.get("cpu_seconds"),
        row.get("precision"),
        row.get("error"),
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "/")


def reference_rhat(readme: str) -> dict[str, float]:
    """R-hat of the reference draws by posterior: the column "NUTS R-hat" of the suite's own table."""
    found: dict[str, float] = {}
    position = None
    for line in readme.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "NUTS R-hat" in cells:
            position = cells.index("NUTS R-hat")
        elif position is not None and len(cells) > position:
            try:
                found[cells[0]] = float(cells[position])
            except ValueError:  # the ruler below the header, and "not run"
                continue
    return found
