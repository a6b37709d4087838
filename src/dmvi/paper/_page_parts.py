"""What the pages' sections are made of: tables, spans, and what was asked for beside what was missed."""

import math
from collections.abc import Sequence

from dmvi.paper._aggregate import Line
from dmvi.paper._methods import METHODS
from dmvi.paper._tables import number

OURS = "diffusion"
OWN = ("printed", "own")
DMVI = [name for name, method in METHODS.items() if method.configuration is not None]
PUBLISHED = [name for name, method in METHODS.items() if method.published is not None]
SIZES = (100, 1000)
# Models on the authors' data whose published training has an end, so that the paper's values come out again.
LANDING = ("mean", "hierarchical_1", "hierarchical_2")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def with_error(value: float, error: float, style: str) -> str:
    """A figure and its standard error."""
    text = number(value, style)
    return f"{text} ± {number(error, style)}" if math.isfinite(value) and math.isfinite(error) else text


def span(values: Sequence[float], style: str) -> str:
    """Least and largest of some figures."""
    finite = [value for value in values if not math.isnan(value)]
    if not finite:
        return ""
    ends = [number(min(finite), style), number(max(finite), style)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def of_all(text: str, dmvi: Sequence[Line]) -> str:
    """Figures of DMVI, with the number of configurations where these are not all."""
    return f"{text} ({len(dmvi)} of {len(DMVI)})" if 0 < len(dmvi) < len(DMVI) else text


def missed(asked: str, misses: Sequence[str]) -> str:
    """What figures are held against, and those that do not come up to it."""
    return f"Asked for: {asked}. Missed: {'; '.join(misses) if misses else 'nothing'}.\n"
