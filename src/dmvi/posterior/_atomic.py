"""Files that appear whole or not at all."""

import contextlib
import os
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


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which becomes `path` at the end if nothing went wrong.

    Whoever reads `path` meanwhile sees the old file; after a failure it is still there.
    """
    check_place(path)
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise WriteError(f"cannot write into {str(path.parent)!r}: {error.strerror or error}.") from error
    try:
        with told(path), os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(partial, 0o666 & ~mask)  # mkstemp lets nobody else read
        with told(path):
            os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """A disk that is full or fails in words that say what is left and what to do."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        before = "What was there before is unchanged." if path.exists() else "Nothing was left there."
        raise WriteError(
            f"{str(path)!r} could not be written: {error.strerror or error}. {before} Make room or choose "
            "another place, and write again."
        ) from error
