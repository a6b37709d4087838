r"""One file of plain arrays and JSON: the container that fits are kept in.

A file is a zip archive without compression. Its members are

    manifest.json      format, version, the list of arrays with their SHA-256, and a JSON record
    manifest.sha256    SHA-256 of manifest.json
    arrays/0000.npy    NumPy's own array format, numbers and truth values only

Nothing in it is ever executed: no pickle, no object arrays, no code. What is read is bounded by the
size of the file itself, as nothing is compressed, and every byte is checked before it is understood.
"""

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dmvi._errors import InputError, asks_too_much
from dmvi.posterior._atomic import replaced

FORMAT, VERSION = "dmvi", 1
LARGEST_MANIFEST = 2**24
MOST_ARRAYS = 100_000
_MANIFEST, _MANIFEST_SUM = "manifest.json", "manifest.sha256"
_KINDS = "biuf"  # truth values, integers, floats


class FileError(InputError):
    """A file that is no intact fit."""


class Contents(NamedTuple):
    """What a file holds: arrays by name, and a JSON record."""

    arrays: dict[str, np.ndarray]
    record: dict[str, Any]


def write(path: Path, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any]) -> None:
    """Write a file in one go: whoever reads `path` sees the old file or the new one, never half."""
    listed, members = {}, []
    for i, (name, array) in enumerate(arrays.items()):
        content = _to_bytes(name, array)
        member = f"arrays/{i:04d}.npy"
        listed[name] = {"file": member, "sha256": _sum(content)}
        members.append((member, content))
    manifest = {"format": FORMAT, "version": VERSION, "arrays": listed, "record": record}
    encoded = json.dumps(manifest, allow_nan=False, indent=1).encode()
    members = [(_MANIFEST, encoded), (_MANIFEST_SUM, _sum(encoded).encode()), *members]
    with replaced(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for member, content in members:
            archive.writestr(zipfile.ZipInfo(member), content)  # a fixed date: same fit, same bytes


def read(path: Path) -> Contents:
    """Read a file and check every byte of it that matters.

    Raises:
        FileError: if the file is missing, truncated, altered, of a newer version or not of this format.
    """
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            return _contents(path, archive, size)
    except FileError:
        raise
    except FileNotFoundError as error:
        raise FileError(f"there is no file {str(path)!r}.") from error
    except MemoryError as error:
        raise FileError(asks_too_much(path)) from error
    except Exception as error:  # a parser of untrusted bytes can fail in any way; all mean the same here
        raise FileError(
            f"{str(path)!r} is no intact file of dmvi: {type(error).__name__}: {error}. It may have been cut "
            "short or altered; copy it again, or fit again."
        ) from error


def _contents(path: Path, archive: zipfile.ZipFile, size: int) -> Contents:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise FileError(f"{str(path)!r} has a compressed member, which files of dmvi never have.")
        if info.filename in members:
            raise FileError(f"{str(path)!r} has two members called {info.filename!r}.")
        members[info.filename] = info
    if sum(info.file_size for info in members.values()) > size:
        raise FileError(f"{str(path)!r} claims to hold more than its own size.")

    def content(name: str) -> bytes:
        if name not in members:
            raise FileError(f"{str(path)!r} is no file of dmvi: it has no {name!r}.")
        return archive.read(members[name])

    if _MANIFEST in members and members[_MANIFEST].file_size > LARGEST_MANIFEST:
        raise FileError(f"{str(path)!r} has a manifest of more than {LARGEST_MANIFEST:,} bytes.")
    encoded = content(_MANIFEST)
    if _sum(encoded) != content(_MANIFEST_SUM).decode("ascii"):
        raise FileError(f"{str(path)!r} was altered: the checksum of its manifest does not agree.")
    manifest = json.loads(encoded)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FileError(f"{str(path)!r} is no file of dmvi.")
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FileError(f"{str(path)!r} has no usable version: {version!r}.")
    if version > VERSION:
        raise FileError(
            f"{str(path)!r} has version {version} of the format; this dmvi reads up to {VERSION}. "
            "Upgrade dmvi."
        )
    if len(manifest["arrays"]) > MOST_ARRAYS:
        raise FileError(f"{str(path)!r} lists more than {MOST_ARRAYS:,} arrays.")
    arrays, used = {}, set()
    for name, entry in manifest["arrays"].items():
        if entry["file"] in used:
            raise FileError(f"{str(path)!r} lists {entry['file']!r} twice.")
        used.add(entry["file"])
        raw = content(entry["file"])
        if _sum(raw) != entry["sha256"]:
            raise FileError(f"{str(path)!r} was altered: the checksum of array {name!r} does not agree.")
        arrays[name] = _from_bytes(name, raw)
    if not isinstance(manifest["record"], dict):
        raise FileError(f"{str(path)!r} has no record of a fit.")
    return Contents(arrays, manifest["record"])


def _to_bytes(name: str, array: np.ndarray) -> bytes:
    array = np.asarray(array)
    if array.dtype.kind not in _KINDS:
        raise InputError(f"only numbers can be stored; array {name!r} is of type {array.dtype}.")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _from_bytes(name: str, raw: bytes) -> np.ndarray:
    """The array of a .npy file; shape and type are checked against the bytes before anything is made."""
    buffer = io.BytesIO(raw)
    if np.lib.format.read_magic(buffer) != (1, 0):
        raise FileError(f"array {name!r} is not in version 1.0 of NumPy's format.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy mends headers of Python 2 and says so; there are none here
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(buffer)
    if dtype.kind not in _KINDS or dtype.hasobject:
        raise FileError(f"array {name!r} holds {dtype}, not numbers.")
    start, count = buffer.tell(), 1
    for length in shape:
        count *= length
    if any(length < 0 for length in shape) or count * dtype.itemsize != len(raw) - start:
        raise FileError(f"array {name!r} claims shape {shape}, which does not fit its bytes.")
    flat = np.frombuffer(raw, dtype, count, offset=start)
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
