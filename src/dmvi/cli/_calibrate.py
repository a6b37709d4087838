"""dmvi calibrate: simulate, fit, print, write."""

import json
from pathlib import Path

import typer

from dmvi._calibrate import calibrate
from dmvi._errors import InputError
from dmvi.cli._data import read_data
from dmvi.cli._exits import Exit, explained
from dmvi.cli._model import loaded_model, split_model
from dmvi.cli._output import check_file, written_whole

FILES = ("ecdf.png", "ranks.png", "calibration.json")


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
    typer.echo(repr(found))
    if out is not None:
        for file, figure in ((FILES[0], found.plot_ecdf()), (FILES[1], found.plot_ranks())):
            with written_whole(out / file, force) as partial:
                figure.savefig(partial, format="png", dpi=150)
        with written_whole(out / FILES[2], force) as partial:
            partial.write_text(json.dumps(found.to_dict()) + "\n", encoding="utf-8")
        if not quiet:
            typer.echo(f"wrote {', '.join(str(out / file) for file in FILES)}")
    return Exit.FINE if found.calibrated else Exit.DO_NOT_TRUST


def _check_folder(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is a file; name a folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(out)!r}: {error.strerror or error}.") from error
    for file in FILES:
        check_file(out / file, force)
