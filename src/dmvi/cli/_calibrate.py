"""dmvi calibrate: simulate, fit, print, write."""

import json
import os
import tempfile
from pathlib import Path

import typer

from dmvi._calibrate import calibrate
from dmvi._errors import InputError
from dmvi.calibration import Calibration
from dmvi.cli._data import read_data
from dmvi.cli._exits import Exit, explained
from dmvi.cli._model import loaded_model, split_model
from dmvi.cli._output import check_file, written_whole
from dmvi.posterior import WriteError

FIGURES = ("ecdf.png", "ranks.png")
RANKS = "calibration.json"


def run_calibrate(
    *,
    model: str,
    data: Path | None,
    n: int,
    near: bool,
    guide: str,
    seed: int,
    steps: int,
    one_by_one: bool,
    out: Path | None,
    force: bool,
    quiet: bool,
) -> Exit:
    """Calibrate, print the verdicts and write figures; the exit code follows the verdicts."""
    path, name = split_model(model)
    if out is not None:
        _check_folder(out, force)
    values = read_data(data) if data is not None else {}
    with loaded_model(path, name) as function, explained(path):
        found = calibrate(
            function,
            values,
            n=n,
            near=near,
            guide=guide,
            seed=seed,
            steps=steps,
            one_by_one=one_by_one,
            resample=None if one_by_one else False,
            progress=not quiet,
        )
    failure = None
    if out is not None:
        try:
            _write_ranks(found, out / RANKS, force)
        except InputError as error:
            failure = error  # told below the verdicts
    typer.echo(repr(found))
    if failure is not None:
        raise failure
    if out is not None:
        for file, plot in zip(FIGURES, (found.plot_ecdf, found.plot_ranks), strict=True):
            with written_whole(out / file, force) as partial:
                plot().savefig(partial, format="png", dpi=150)
        if not quiet:
            typer.echo(f"wrote {', '.join(str(out / file) for file in (*FIGURES, RANKS))}")
    return Exit.FINE if found.calibrated else Exit.DO_NOT_TRUST


def _write_ranks(found: Calibration, path: Path, force: bool) -> None:
    """The work of hours, before any figure is made of it, and elsewhere where it should not fit."""

    def write(place: Path) -> None:
        with written_whole(place, force) as partial:
            partial.write_text(json.dumps(found.to_dict()) + "\n", encoding="utf-8")

    try:
        write(path)
    except WriteError as error:
        kept = Path(tempfile.gettempdir()) / f"{path.stem}-{os.getpid()}{path.suffix}"
        write(kept)  # where even that fails, its own words follow
        raise InputError(f"{error} The calibration is not lost: it is in {str(kept)!r}.") from error


def _check_folder(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is a file; name a folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(out)!r}: {error.strerror or error}.") from error
    for file in (*FIGURES, RANKS):
        check_file(out / file, force)
