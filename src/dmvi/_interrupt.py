"""Ctrl-C during a fit: the first ends it with the best so far, the second at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interrupt:
    """Whether the user wants the fit to end, for stages to ask between two programs.

    Used as a context: Ctrl-C then sets `asked` and nothing more, and a second one raises `KeyboardInterrupt`.
    A program that runs on the device goes on to its end either way, so each should take a second at most.
    Other threads than the main one get no signals, and a process that ignores Ctrl-C goes on doing so.
    """

    def __init__(self) -> None:
        self._asked = self._twice = self._raises = self._installed = False
        self._before: Any = None

    @property
    def asked(self) -> bool:
        """Whether to end with the best so far."""
        return self._asked

    @property
    def twice(self) -> bool:
        """Whether to end at once, without anything."""
        return self._twice

    def __enter__(self) -> "Interrupt":
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if main else None
        if callable(before):
            self._before, self._installed = before, True
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before)
            self._installed = False
        # Raised within a host function that a program calls, it comes back as an error of that program.
        if self._twice and isinstance(error, Exception):
            raise KeyboardInterrupt from error

    def _on_signal(self, *_: object) -> None:
        at_once = self._raises or self._asked
        self._twice, self._asked = self._asked, True
        if at_once:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Around what never asks: the first Ctrl-C raises `KeyboardInterrupt` there."""
        before, self._raises = self._raises, True
        try:
            yield
        finally:
            self._raises = before
