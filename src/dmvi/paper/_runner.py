"""Runs a plan: jobs on all cores, finished cells remembered, time limits kept."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dmvi.paper._cells import Job, Plan, Store, check_plan, check_same_data
from dmvi.paper._estimate import STARTING, expected_seconds, spoken, total_seconds
from dmvi.paper._pool import Pool, Told, cores
from dmvi.paper._work import run_job

LISTEN = 1.0  # seconds between looks at the clock


@dataclass
class Clock:
    """How long a run has gone on, how long it may, and how fast it really is.

    Attributes:
        limit: seconds that it may take; None where it may take any.
        crowd: processes that share a core.
        began: when it did.
        expected: seconds of one core that finished jobs were expected to take.
        taken: those that they took.
    """

    limit: float | None
    crowd: float = 1.0
    began: float = field(default_factory=time.monotonic)
    expected: float = 0.0
    taken: float = 0.0

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return float("inf") if self.limit is None else self.limit - (time.monotonic() - self.began)

    @property
    def pace(self) -> float:
        """Seconds really taken for one expected; 1 until something is known."""
        return (self.taken + 30.0) / (self.expected + 30.0)

    def learn(self, job: Job, seconds: float) -> None:
        """A job has taken so long, on a core that it may have shared."""
        self.expected += expected_seconds(job)
        self.taken += seconds / self.crowd

    def lasts(self, job: Job) -> float:
        """Seconds until a job ends that begins now."""
        return self.crowd * self.pace * expected_seconds(job)


@dataclass(frozen=True)
class Summary:
    """How a run ended: cells done now, cells still to do, jobs that failed."""

    done: int
    left: int
    failed: int


def run(
    plan: Plan,
    folder: Path,
    *,
    processes: int | None = None,
    time_limit: float | None = None,
    say: Callable[[str], None] = print,
) -> Summary:
    """Run what is not done yet of a plan.

    Args:
        plan: what to run.
        folder: where finished cells are kept.
        processes: how many to use; as many as there are cores where it is None.
        time_limit: seconds after which to stop; what is not finished then is done by the next run.
        say: told of progress, a line at a time.
    """
    check_plan(plan)
    handler = _end_as_if_interrupted()
    store = Store(folder)
    try:
        every = plan.jobs()
        check_same_data(every, store)
        jobs = [left for job in every if (left := job.without(store.cells)) is not None]
        total = sum(len(job.replicates) for job in jobs)
        known = sum(len(job.replicates) for job in every) - total
        size = min(processes or len(cores()), max(len(jobs), 1))
        say(_announcement(jobs, total, known, _at_once(size)))
        if not jobs:
            return Summary(0, 0, 0)
        before = len(store.cells)
        clock = Clock(time_limit, crowd=size / _at_once(size))
        failed = _work_through(jobs, store, size, clock, say)
        done = len(store.cells) - before
        return Summary(done, total - done, failed)
    finally:
        store.close()
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _end_as_if_interrupted() -> Any:
    """A request to end is to leave as tidy a folder as Ctrl-C does; returns what was done on it before."""
    if threading.current_thread() is threading.main_thread():
        return signal.signal(signal.SIGTERM, signal.default_int_handler)
    return None


def _at_once(size: int) -> int:
    """Of so many processes, how many a core is there for: the others share theirs."""
    return min(size, len(cores()))


def _announcement(jobs: list[Job], cells: int, known: int, at_once: int) -> str:
    """What there is to do, by how many cores, and how long it is expected to take."""
    if not jobs:
        return "everything is done already"
    there = f", {known} done before" if known else ""
    expected = STARTING + total_seconds(jobs) / at_once
    on = "one core" if at_once == 1 else f"{at_once} cores"
    return f"{cells} cells to do{there}; expected time on {on}: {spoken(expected)}"


def _work_through(jobs: list[Job], store: Store, size: int, clock: Clock, say: Callable[[str], None]) -> int:
    """Give jobs to processes and keep what they find; returns the number of jobs that failed."""
    # Those that others wait for, then the longest: what is short fills the gaps at the end.
    waited_for = {key for job in jobs for key in job.reference_keys()}
    waiting = sorted(
        jobs, key=lambda job: (job.key(job.replicates[0]) not in waited_for, -expected_seconds(job))
    )
    started: dict[Job, float] = {}
    failed = 0
    pool = Pool(size, run_job)
    try:
        while True:
            while pool.idle and (job := _next(waiting, store, clock)) is not None:
                waiting.remove(job)
                started[job] = time.monotonic()
                pool.give(job, {key: store.cells[key]["reference"] for key in job.reference_keys()})
            if not pool.running or clock.left <= 0:
                return failed
            for told in pool.listen(min(LISTEN, clock.left)):
                if told.kind == "cell":
                    store.add(told.content)
                    continue
                if told.kind == "done":  # one that failed at once would make all others look quick
                    clock.learn(told.job, time.monotonic() - started[told.job])
                failed += told.kind == "failed"
                say(_line(told, clock, [*waiting, *pool.running], _at_once(size)))
    except KeyboardInterrupt:
        say("interrupted; run the same command again to go on")
        return failed
    finally:
        pool.close()


def _next(waiting: list[Job], store: Store, clock: Clock) -> Job | None:
    """The longest job that has its references and is expected to end in time."""
    for job in waiting:
        ready = all(key in store.cells for key in job.reference_keys())
        if ready and clock.lasts(job) < clock.left:
            return job
    return None


def _line(told: Told, clock: Clock, left: list[Job], at_once: int) -> str:
    """What a finished job is worth saying."""
    how = "failed" if told.kind == "failed" else "done"
    text = f"{told.job}: {how}"
    if left:
        seconds = clock.pace * total_seconds(left) / at_once
        text += f"; {sum(len(job.replicates) for job in left)} cells left, about {spoken(seconds)}"
    return f"{text}\n{told.content}" if told.kind == "failed" else text
