"""Data files of the command line."""

import csv
import json
import math
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dmvi._errors import InputError, asks_too_much
from dmvi.targets import TABLES

# An archive of a few bytes must not fill the memory: beyond a GiB, members packed a hundredfold are refused.
LARGEST_UNPACKED, MOST_PACKED = 2**30, 100


def name_data(path: Path) -> dict[str, Any] | str:
    """Arguments of a model whose rows will be read in batches.

    The file may be a Parquet or Arrow table too, whose name is given back, and a .json file may name .npy
    files, beside itself, instead of holding lists.
    """
    if path.suffix.lower() in TABLES:
        return str(path)
    return read_data(path, named=True)


def read_data(path: Path, *, named: bool = False) -> dict[str, Any]:
    """Arguments of a model by name, from a .json, .npz or .csv file.

    Single numbers stay Python numbers, which models need for sizes; lists and columns become arrays.

    Args:
        path: the file.
        named: whether a .json file may name .npy files; their names are given back.
    """
    readers: dict[str, Callable[[Path], dict[str, Any]]] = {".json": _json, ".npz": _npz, ".csv": _csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"expected a data file that ends in .json, .npz or .csv; got {str(path)!r}.")
    if not path.is_file():
        raise InputError(
            f"there is no data file {str(path)!r}; check the path, which starts from {Path.cwd()}."
        )
    try:
        return _with_files(path) if named and reader is _json else reader(path)
    except OSError as error:
        raise InputError(f"the data file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the data file {str(path)!r} is not text in UTF-8; save it as UTF-8.") from error
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(asks_too_much(path)) from error
    except Exception as error:  # as lists nested thousands deep, or numbers of thousands of digits
        raise InputError(
            f"the data file {str(path)!r} cannot be understood ({type(error).__name__}: "
            f"{_shorten(str(error))}); check that it is what its name says."
        ) from error


def _with_files(path: Path) -> dict[str, Any]:
    """A .json file in which a text that ends in .npy names a file with the values."""
    content = _object(path)
    named = {
        name: str(path.parent / value)
        for name, value in content.items()
        if isinstance(value, str) and value.endswith(".npy")
    }
    rest = {name: value for name, value in content.items() if name not in named}
    return named | {name: _json_value(path, name, value) for name, value in rest.items()}


def _json(path: Path) -> dict[str, Any]:
    return {name: _json_value(path, name, value) for name, value in _object(path).items()}


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON: {error.msg} at line {error.lineno}.") from error
    if not isinstance(content, dict):
        raise InputError(
            f'expected {path} to hold an object of arguments by name, {{"y": [1.2, 3.4]}}; '
            f"got a {type(content).__name__}."
        )
    return content


def _json_value(path: Path, name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    try:
        array = np.asarray(value) if isinstance(value, list) else None
    except ValueError:  # rows of different lengths
        array = None
    if array is None or array.dtype.kind not in "biuf":
        raise InputError(
            f"expected {name!r} in {path} to be a number or a list of numbers whose rows are equally long; "
            f"got {_shorten(json.dumps(value))}. Take out or code missing values (null) and text."
        )
    return array


def _npz(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            raise InputError(f"{path} holds a single array without a name; write it with numpy.savez.")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_unpacked(path, sum(info.file_size for info in archive.infolist()))
            arrays = {info.filename: _member(path, archive, info) for info in archive.infolist()}
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(asks_too_much(path)) from error
    except Exception as error:  # a parser of bytes from anywhere can fail in any way
        raise InputError(f"{path} is not a NumPy archive ({error}); write it with numpy.savez.") from error
    named = {name.removesuffix(".npy"): array for name, array in arrays.items()}
    return {name: array.item() if array.ndim == 0 else array for name, array in named.items()}


def _check_unpacked(path: Path, unpacked: int) -> None:
    """How much an archive claims to hold, beside its size on disk, the one number that cannot lie."""
    packed = path.stat().st_size
    if unpacked > LARGEST_UNPACKED and unpacked > MOST_PACKED * packed:
        raise InputError(
            f"{path} would unpack to {unpacked:,} bytes from {packed:,}; write it without compression, with "
            "numpy.savez."
        )


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One array of an archive; its size and type are looked at before it is made."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy mends headers of Python 2 and says so
            shape, fortran, dtype = read[version[0]](file)
        if dtype.hasobject:
            raise InputError(
                f"{info.filename!r} in {path} holds Python objects, not numbers; dmvi never unpickles. Save "
                "numeric arrays with numpy.savez."
            )
        if dtype.kind not in "biuf":
            name = info.filename.removesuffix(".npy")
            raise InputError(f"expected numbers in {name!r} of {path}; got an array of type {dtype}.")
        if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize > info.file_size:
            raise InputError(f"{info.filename!r} in {path} claims shape {shape}, more than it holds.")
        values = np.frombuffer(file.read(math.prod(shape) * dtype.itemsize), dtype)
    return values.reshape(shape, order="F" if fortran else "C").copy()


def _csv(path: Path) -> dict[str, Any]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = [row for row in csv.reader(file) if row]
        except csv.Error as error:
            raise InputError(f"{path} is not valid CSV: {error}.") from error
    if len(rows) < 2:
        raise InputError(f"expected {path} to have a line of column names and at least one line of numbers.")
    header = [name.strip() for name in rows[0]]
    if any(_number(name) is not None for name in header) or "" in header:
        raise InputError(
            f"expected the first line of {path} to name its columns; got {_shorten(','.join(header))}."
        )
    if len(set(header)) < len(header):
        raise InputError(
            f"expected every column of {path} to have a name of its own; got {', '.join(header)}."
        )
    columns: dict[str, list[int | float]] = {name: [] for name in header}
    for count, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise InputError(f"expected {len(header)} values in row {count} of {path}; got {len(row)}.")
        for name, cell in zip(header, row, strict=True):
            number = _number(cell)
            if number is None:
                raise InputError(
                    f"expected a number in row {count}, column {name!r} of {path}; got {cell!r}. "
                    "Columns are separated by commas and decimals by points."
                )
            columns[name].append(number)
    return {name: np.asarray(values) for name, values in columns.items()}


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[:length]}..."
