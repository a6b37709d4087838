"""Processes that do jobs, one core and one JAX each."""

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from dmvi.paper._cells import Job


class Told(NamedTuple):
    """What a process says: a finished "cell", "done" with its job, or "failed" with a traceback."""

    kind: str
    job: Job
    content: Any


class Pool:
    """Processes started afresh (not forked: JAX has threads), each kept to one core.

    Args:
        size: number of processes.
        work: does a job; a function that can be imported by name.
    """

    def __init__(self, size: int, work: Callable[[Job, Any], Iterator[dict]]):
        self._context = multiprocessing.get_context("spawn")
        self._work = work
        self._cores = cores()
        self._busy: dict[Connection, Job] = {}
        self._processes: dict[Connection, Any] = {}
        # Cells are measured on CPUs, where the paper's were; and an accelerator could not be shared.
        os.environ["JAX_PLATFORMS"] = "cpu"
        for number in range(size):
            self._start(self._cores[number % len(self._cores)])

    def _start(self, core: int) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, core, self._work), daemon=True)
        process.start()
        theirs.close()
        self._processes[ours] = (process, core)

    @property
    def idle(self) -> int:
        """Processes without a job."""
        return len(self._processes) - len(self._busy)

    @property
    def running(self) -> list[Job]:
        """Jobs that are being done."""
        return list(self._busy.values())

    def give(self, job: Job, references: Any) -> None:
        """Hand a job to an idle process."""
        connection = next(c for c in self._processes if c not in self._busy)
        self._busy[connection] = job
        connection.send((job, references))

    def listen(self, timeout: float) -> list[Told]:
        """What processes have to say within some seconds; one that died is replaced."""
        told = []
        for connection in wait(list(self._busy), timeout):
            assert isinstance(connection, Connection)
            job = self._busy[connection]
            try:
                kind, content = connection.recv()
            except (EOFError, OSError):
                kind, content = "failed", "the process died, as it does when memory runs out"
                self._replace(connection)
            if kind in ("done", "failed"):
                self._busy.pop(connection, None)
            told.append(Told(kind, job, content))
        return told

    def _replace(self, connection: Connection) -> None:
        self._busy.pop(connection, None)
        process, core = self._processes.pop(connection)
        process.join()
        self._start(core)

    def close(self) -> None:
        """End all processes, with what they are doing."""
        for connection, (process, _) in self._processes.items():
            connection.close()
            process.terminate()
        for process, _ in self._processes.values():
            process.join()


def cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _serve(connection: Connection, core: int, work: Callable[[Job, Any], Iterator[dict]]) -> None:
    """Do jobs as they come until the connection closes."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})  # before JAX counts the cores it has
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            job, references = connection.recv()
            try:
                for cell in work(job, references):
                    connection.send(("cell", cell))
            except Exception:  # told to the parent, which goes on with other jobs
                connection.send(("failed", traceback.format_exc()))
            else:
                connection.send(("done", None))
