"""Log Bayes factors between fits of different models to the same data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dmvi._errors import InputError
from dmvi.posterior._views import Views

# Tail index up to which the evidence is reliable (Vehtari et al., 2024).
_KHAT = 0.7


@dataclass(frozen=True)
class Compared:
    """One model among others.

    Attributes:
        name: as given.
        log_evidence: log p(y).
        log_evidence_se: its standard error.
        log_bayes_factor: log p(y) minus that of the best model; zero for the best.
        log_bayes_factor_se: standard error of this difference, the errors being independent.
        reliable: whether the weights' tail allows to rely on the evidence.
    """

    name: str
    log_evidence: float
    log_evidence_se: float
    log_bayes_factor: float
    log_bayes_factor_se: float
    reliable: bool


@dataclass(frozen=True, repr=False)
class Comparison:
    """Models by their evidence, the best first.

    Attributes:
        rows: one for each model.
        notes: what a reader should know.
    """

    rows: tuple[Compared, ...]
    notes: tuple[str, ...]

    def log_bayes_factor(self, model: str, against: str) -> tuple[float, float]:
        """log p(y | model) - log p(y | against), and its standard error."""
        rows = {row.name: row for row in self.rows}
        for name in (model, against):
            if name not in rows:
                raise InputError(f"expected a model among {list(rows)}; got {name!r}.")
        one, other = rows[model], rows[against]
        error = 0.0 if model == against else math.hypot(one.log_evidence_se, other.log_evidence_se)
        return one.log_evidence - other.log_evidence, error

    def __repr__(self) -> str:
        cells = [("model", "log evidence", "log Bayes factor")]
        for row in self.rows:
            factor = f"{row.log_bayes_factor:.3f} +- {row.log_bayes_factor_se:.3f}"
            cells.append(
                (
                    row.name + ("" if row.reliable else " *"),
                    f"{row.log_evidence:.3f} +- {row.log_evidence_se:.3f}",
                    "best" if row is self.rows[0] else factor,
                )
            )
        widths = [max(len(line[i]) for line in cells) for i in range(3)]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *(line[i].rjust(widths[i]) for i in (1, 2))])
            for line in cells
        ]
        return "\n".join(lines + [f"  Note: {note}." for note in self.notes])


def compare(fits: Mapping[str, Views]) -> Comparison:
    """Compare models of the same data by their log evidence.

    log BF = log p(y | model) - log p(y | best model),   se^2 = se_model^2 + se_best^2

    Args:
        fits: posteriors by a name for their model, at least two.

    Returns:
        The comparison; print it for the table.
    """
    if not isinstance(fits, Mapping) or len(fits) < 2 or not all(isinstance(f, Views) for f in fits.values()):
        raise InputError(
            "expected at least two posteriors by name, as in compare({'pooled': a, 'grouped': b}); "
            f"got {fits if isinstance(fits, Mapping) else type(fits).__name__!r}."
        )
    by_evidence = sorted(fits, key=lambda name: -fits[name].diagnostics.log_evidence)
    best = fits[by_evidence[0]].diagnostics
    rows = []
    for name in by_evidence:
        d = fits[name].diagnostics
        error = 0.0 if d is best else math.hypot(d.log_evidence_se, best.log_evidence_se)
        factor = 0.0 if d is best else d.log_evidence - best.log_evidence
        even = d.khat < _KHAT or d.ess >= 0.99
        rows.append(Compared(name, d.log_evidence, d.log_evidence_se, factor, error, even))
    return Comparison(tuple(rows), _notes(fits, rows))


def _notes(fits: Mapping[str, Views], rows: list[Compared]) -> tuple[str, ...]:
    notes = []
    unreliable = [row.name for row in rows if not row.reliable]
    if unreliable:
        notes.append(
            f"* k-hat of {', '.join(unreliable)} is 0.7 or more: the evidence is likely too low and its "
            "error too small"
        )
    data = {fit.data_digest for fit in fits.values()}
    if None in data:
        notes.append("a log-density does not show its data: be sure that all models see the same, normalised")
    elif len(data) > 1:
        notes.append("the models observe different data, so their evidences cannot be compared")
    return tuple(notes)
