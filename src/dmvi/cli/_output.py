"""Files the command line writes, checked before the work and written in one piece."""

import contextlib
import importlib.util
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dmvi._errors import InputError
from dmvi.posterior import Posterior, Verdict, WriteError, told

_DIAGNOSTICS = "dmvi.json"


def check_draws_file(path: Path, force: bool) -> None:
    """Everything that could prevent writing draws to `path`, looked at before training."""
    if path.suffix not in _WRITERS:
        raise InputError(
            "expected an output file that ends in .dmvi (the whole fit), .npz (NumPy) or .nc (netCDF); got "
            f"{str(path)!r}."
        )
    if path.suffix == ".nc" and not any(map(importlib.util.find_spec, ("netCDF4", "h5netcdf"))):
        raise InputError("writing .nc needs a netCDF library: pip install netCDF4, or choose an .npz file.")
    check_file(path, force)


def check_report_file(path: Path, force: bool) -> None:
    """Everything that could prevent writing a report to `path`."""
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"expected a report file that ends in .html; got {str(path)!r}.")
    check_file(path, force)


def check_file(path: Path, force: bool) -> None:
    """Whether a file may be written at `path`; tried out by writing an empty one beside it."""
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder; name a file in it.")
    if path.exists() and not force:
        raise InputError(f"{str(path)!r} exists; add --force to replace it, or choose another name.")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r}; create it first.")
    partial = _partial(path)
    try:
        partial.touch(exist_ok=True)
        partial.unlink()
    except OSError as error:
        raise InputError(f"cannot write into {str(path.parent)!r}: {error.strerror or error}.") from error


@contextlib.contextmanager
def written_whole(path: Path, force: bool) -> Iterator[Path]:
    """A path to write to, which becomes `path` at the end if nothing went wrong.

    Nobody ever sees half a file, and without `force` a file that has appeared in the meantime stays.
    """
    partial = _partial(path)
    try:
        with told(path):
            yield partial
            try:
                _rename(partial, path, force)
            except FileExistsError as error:
                kept = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
                os.replace(partial, kept)
                raise InputError(
                    f"{str(path)!r} has appeared in the meantime and was left alone; wrote {str(kept)!r}."
                ) from error
    finally:
        partial.unlink(missing_ok=True)


def _rename(partial: Path, path: Path, force: bool) -> None:
    if force:
        os.replace(partial, path)
        return
    try:
        os.link(partial, path)  # unlike a rename, this fails where the name is taken
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(path) from None
        os.replace(partial, path)


def write_draws(posterior: Posterior, path: Path, *, draws: int, seed: int, force: bool) -> None:
    """The fit into a .dmvi file, or its draws into an .npz or .nc file, resampled if the verdict says so."""
    try:
        with written_whole(path, force) as partial:
            _WRITERS[path.suffix](posterior, partial, draws, seed)
    except WriteError as error:
        kept = Path(tempfile.gettempdir()) / f"{path.stem}-{os.getpid()}.dmvi"
        posterior.save(kept, n=draws, seed=seed)  # where even that fails, its own words follow
        raise InputError(f"{error} The fit is not lost: it is in {str(kept)!r}.") from error


def _whole(posterior: Posterior, path: Path, draws: int, seed: int) -> None:
    posterior.save(path, n=draws, seed=seed)


def _npz(posterior: Posterior, path: Path, draws: int, seed: int) -> None:
    resample = posterior.verdict is Verdict.RESAMPLE
    arrays = posterior.sample(draws, seed=seed, resample=resample)
    arrays = {**arrays, _DIAGNOSTICS: np.asarray(_record(posterior, resample))}
    # numpy.savez takes names as keywords and so cannot hold a site called "file".
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _netcdf(posterior: Posterior, path: Path, draws: int, seed: int) -> None:
    resample = posterior.verdict is Verdict.RESAMPLE
    tree = posterior.to_arviz(draws, seed=seed, resample=resample)
    tree.attrs[_DIAGNOSTICS] = _record(posterior, resample)
    tree.to_netcdf(path)


_WRITERS: dict[str, Callable[[Posterior, Path, int, int], None]] = {
    ".dmvi": _whole,
    ".npz": _npz,
    ".nc": _netcdf,
}


def _record(posterior: Posterior, resampled: bool) -> str:
    record = {
        "verdict": posterior.verdict.name,
        "reasons": posterior.judgement.reasons,
        "resampled": resampled,
        "guide": posterior.run.guide_name,
        "seed": posterior.run.seed,
        "diagnostics": posterior.diagnostics.to_dict(),
    }
    return json.dumps(record, allow_nan=False)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
