"""Files made from the results of a run: tables, figures, the page of the docs."""

from pathlib import Path


def write_tables(folder: Path) -> list[Path]:
    """Tables and figures."""
    return []


def write_page(folder: Path, page: Path) -> Path:
    """The page."""
    return page
