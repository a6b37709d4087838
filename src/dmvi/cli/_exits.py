"""How a command ends: exit codes, and messages instead of tracebacks for a user's mistakes."""

import contextlib
import enum
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import typer

from dmvi._errors import InputError, LostProcessError, is_out_of_memory

NO_MEMORY = "there is not enough memory."


class Exit(enum.IntEnum):
    """Exit codes; 1, a fault of dmvi with its traceback, is Python's own."""

    FINE = 0
    MISTAKE = 2
    DO_NOT_TRUST = 3
    UNFINISHED = 4
    LOST = 5
    INTERRUPTED = 130


@contextlib.contextmanager
def explained(user_file: Path | None = None) -> Iterator[None]:
    """Turn a user's mistake into one message on standard error and an exit code.

    A mistake is an `InputError`, or any exception raised by the code in `user_file`. Everything
    else is a fault of dmvi and keeps its traceback.
    """
    try:
        yield
    except InputError as error:
        _end(f"error: {error}", Exit.MISTAKE)
    except LostProcessError as error:
        _end(f"error: {error}", Exit.LOST)
    except MemoryError as error:
        _end(f"error: {error or NO_MEMORY}", Exit.MISTAKE)
    except KeyboardInterrupt:
        _end("interrupted", Exit.INTERRUPTED)
    except Exception as error:
        if is_out_of_memory(error):
            _end(f"error: {NO_MEMORY}", Exit.MISTAKE)
        line = line_within(error, user_file)
        if line is None:
            raise
        _end(f"error: {user_file}, line {line}: {type(error).__name__}: {error}", Exit.MISTAKE)


def line_within(error: BaseException, file: Path | None) -> int | None:
    """The last line of `file` that an exception passed through, None where it did not."""
    if file is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == file and frame.lineno is not None]
    return lines[-1] if lines else None


def _end(message: str, code: Exit) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
