"""A table of posterior means and quantiles."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

_COLUMNS = ("mean", "sd", "5%", "median", "95%")
_SHOWN_ROWS = 60


@dataclass(frozen=True)
class Row:
    """Posterior of one scalar: mean, standard deviation, and the 5, 50 and 95 % quantiles."""

    name: str
    mean: float
    sd: float
    q5: float
    median: float
    q95: float

    @property
    def values(self) -> tuple[float, float, float, float, float]:
        """The numbers in the order of the printed columns."""
        return self.mean, self.sd, self.q5, self.median, self.q95


@dataclass(frozen=True, repr=False)
class Summary:
    """One row for each scalar element of each site.

    Attributes:
        rows: the rows, in the order of the model's sites.
        draws: number of draws behind them.
        resampled: whether these draws were resampled with their importance weights.
    """

    rows: tuple[Row, ...]
    draws: int
    resampled: bool

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Row name -> column -> value."""
        return {row.name: dict(zip(_COLUMNS, row.values, strict=True)) for row in self.rows}

    def __repr__(self) -> str:
        shown = self.rows[:_SHOWN_ROWS]
        cells = [("", *_COLUMNS)] + [(row.name, *(f"{value:.4g}" for value in row.values)) for row in shown]
        widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS) + 1)]
        lines = [
            "  ".join(
                [line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]
            )
            for line in cells
        ]
        if len(self.rows) > len(shown):
            lines.append(f"... and {len(self.rows) - len(shown):,} more in .rows")
        resampled = ", resampled with their importance weights" if self.resampled else ""
        lines.append(f"{self.draws:,} draws{resampled}")
        return "\n".join(lines)


def summarise(draws: Mapping[str, np.ndarray], resampled: bool) -> Summary:
    """The summary of constrained draws, whose leading axis counts them."""
    rows = []
    n = 0
    for site, values in draws.items():
        n = len(values)
        flat = np.asarray(values, dtype=np.float64).reshape(n, -1)
        quantiles = np.quantile(flat, (0.05, 0.5, 0.95), axis=0)
        spread = flat.std(axis=0, ddof=1) if n > 1 else np.full(flat.shape[1], np.nan)
        for i, index in enumerate(np.ndindex(values.shape[1:])):
            name = f"{site}[{','.join(map(str, index))}]" if index else site
            rows.append(Row(name, float(flat[:, i].mean()), float(spread[i]), *map(float, quantiles[:, i])))
    return Summary(tuple(rows), n, resampled)
