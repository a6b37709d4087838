"""Files made from the CSV files of a run, and from nothing else."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dmvi._errors import InputError
from dmvi.paper._aggregate import gather, read_coordinates, read_results
from dmvi.paper._cells import refresh
from dmvi.paper._page import reproduction_page
from dmvi.paper._tables import latex, markdown, page, table_title, tables_of

FIGURES = "figures"


def write_tables(folder: Path) -> list[Path]:
    """Tables in Markdown, LaTeX and HTML, and one figure for each model.

    Args:
        folder: that of a run, with results.csv and coordinates.csv.

    Returns:
        The files that were written.
    """
    refresh(folder)
    tables = tables_of(gather(read_results(folder)))
    figures = draw_figures(read_coordinates(folder), folder / FIGURES)
    names = {title: f"{FIGURES}/{path.name}" for title, path in figures.items()}
    written = {
        folder / "tables.md": markdown(tables),
        folder / "tables.tex": latex(tables),
        folder / "tables.html": page(tables, names),
    }
    for path, text in written.items():
        _write(path, text)
    return [*written, *figures.values()]


def draw_figures(rows: Sequence[Mapping[str, Any]], where: Path) -> dict[str, Path]:
    """Figures of rows of coordinates.csv by the titles of their tables; none where there is no Matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    from dmvi.paper._figures import draw_figure

    where.mkdir(exist_ok=True)
    found = {}
    for variant, data, model in dict.fromkeys((row["variant"], row["data"], row["model"]) for row in rows):
        path = where / f"{model}-{variant}{'' if data == 'own' else '-fixed'}.png"
        own = [row for row in rows if (row["variant"], row["data"], row["model"]) == (variant, data, model)]
        draw_figure(own, model, path)
        found[table_title(variant, data, model)] = path
    return found


def check_page(path: Path, made: Path | None = None) -> None:
    """Whether a page can be written there; a mistake is to be seen before hours of work.

    Args:
        path: the page.
        made: a folder that will be there by then.
    """
    there = path.parent.is_dir()
    promised = made is not None and path.parent.resolve() == made.resolve()
    if path.suffix != ".md" or path.is_dir() or not (there or promised):
        raise InputError(f"expected a page that ends in .md, in a folder that exists; got {str(path)!r}.")
    if there and not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {str(path.parent)!r}.")


def write_page(folder: Path, path: Path) -> Path:
    """The page of the docs with its figures beside it; `folder` is that of a run."""
    check_page(path)
    refresh(folder)
    results, coordinates = read_results(folder), read_coordinates(folder)
    where = path.parent / FIGURES / path.stem
    where.mkdir(parents=True, exist_ok=True)
    kept = [row for row in coordinates if (row["variant"], row["data"]) == ("printed", "own")]
    figures = {path.stem.split("-")[0]: path for path in draw_figures(kept, where).values()}
    links = {model: str(figure.relative_to(path.parent)) for model, figure in figures.items()}
    _write(path, reproduction_page(results, links))
    return path


def _write(path: Path, text: str) -> None:
    """In one piece: nobody sees half a file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    os.replace(partial, path)
