"""Mistakes of a caller, told apart from faults of the library."""


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
