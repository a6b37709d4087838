"""Files that appear whole or not at all."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dmvi._errors import InputError


class WriteError(InputError, OSError):
    """A file that could not be written; what was there before is unchanged."""


def check_place(path: Path) -> None:
    """Whether there can be a file at `path`; asked before work is done for it."""
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder; name a file in it.")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r}; create it first.")
    handle, partial = _beside(path)
    os.close(handle)
    Path(partial).unlink()


def _beside(path: Path) -> tuple[int, str]:
    """A new file in the same folder."""
    try:
        return tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise WriteError(f"cannot write into {str(path.parent)!r}: {error.strerror or error}.") from error


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which becomes `path` at the end if nothing went wrong.

    Whoever reads `path` meanwhile sees the old file; after a failure it is still there. A link stays one,
    and an old file's permissions are the new one's.
    """
    path = path.resolve()
    check_place(path)
    handle, partial = _beside(path)
    try:
        with told(path), os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, _mode(path))  # mkstemp lets nobody else read
        with told(path):
            os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)


def _mode(path: Path) -> int:
    """Permissions of the file at `path`, or those of any new one."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """A disk that is full or fails in words that say what is left and what to do.

    Of several around each other the outermost speaks: its path is the one that the user has named.
    """
    try:
        yield
    except OSError as error:
        cause = error.__cause__ if isinstance(error, WriteError) else error
        reason = cause.strerror or cause if isinstance(cause, OSError) else cause
        before = "What was there before is unchanged." if path.exists() else "Nothing was left there."
        raise WriteError(
            f"{str(path)!r} could not be written: {reason}. {before} Make room or choose another place, and "
            "write again."
        ) from cause
