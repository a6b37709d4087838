"""Mistakes of a caller, told apart from faults of the library."""

import contextlib
from collections.abc import Iterator

OUT_OF_MEMORY = (
    "there is not enough memory for this fit. Give fewer particles, a batch_size for long data, or a smaller "
    "guide. Nothing on disk has changed; a checkpoint, if there is one, can be gone on from."
)


class InputError(ValueError):
    """Bad input: the message says what was expected, what came and what to do.

    Every mistake that dmvi can see before training raises this one class, so the command line
    can print the message alone and a script can catch it without hiding real faults.
    """


class LostProcessError(RuntimeError):
    """One of several processes of a fit has ended, so that the others cannot go on."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or JAX ran out of memory."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def asks_too_much(path: object) -> str:
    """What to say of a file that could not be read for lack of memory."""
    return f"{str(path)!r} asks for more memory than there is: it is damaged, or too large for this machine."


@contextlib.contextmanager
def memory_told(words: str = OUT_OF_MEMORY) -> Iterator[None]:
    """Too little memory, wherever it shows, in words that say what to do."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(words) from error
        raise
