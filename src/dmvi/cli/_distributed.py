"""One fit by several processes, on one machine or on many, joined through jax.distributed."""

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np
import typer
from jax.sharding import Mesh

from dmvi._errors import InputError
from dmvi._team import Message, Team
from dmvi.cli._exits import Exit, explained
from dmvi.posterior import Posterior

SILENCE = 40  # seconds without a sign of life after which a process counts as dead
WRITTEN = "all is written"
# JAX ends a process whose peers have died without asking Python, so a helper has to say what happened.
_LAST_WORDS = "import sys; sys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"


@dataclass(frozen=True)
class Company:
    """How processes find each other; what is None is taken from SLURM or Open MPI.

    Attributes:
        coordinator: address and port of process 0.
        processes: how many.
        process_id: number of this one.
    """

    coordinator: str | None
    processes: int | None
    process_id: int | None


@contextlib.contextmanager
def joined(company: Company) -> Iterator[Team]:
    """This process as one of several; at the end, good or bad, the process is over.

    An orderly end waits for all processes. After an error it does not, so that the others notice at once.
    """
    with explained():
        team = _join(company)
    words = _last_words(team)
    if not team.leads:  # process 0 decides what an interruption means
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with explained():
            yield team
        jax.distributed.shutdown()
        code = int(Exit.FINE)
    except typer.Exit as end:
        code = end.exit_code
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    words.communicate(b"spoken")
    if code != Exit.FINE:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def mesh_of_all(batches: bool) -> Mesh:
    """All devices of all processes, over which rows are spread, or draws where rows come in no batches."""
    return Mesh(np.array(jax.devices()), ("rows" if batches else "particles",))


def finish(team: Team, code: Exit) -> Exit:
    """Process 0 has written all there is to write, and the others may go."""
    team.hear(Message(WRITTEN, record={"code": int(code)}))
    return code


def attend(posterior: Posterior, team: Team) -> Exit:
    """Share the passes over the rows that process 0 makes, until it has written all there is to write."""
    stream = posterior.target.stream
    return Exit((team.hear() if stream is None else stream.serve()).record["code"])


def _join(company: Company) -> Team:
    try:
        jax.distributed.initialize(
            company.coordinator, company.processes, company.process_id, heartbeat_timeout_seconds=SILENCE
        )
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"the processes cannot be joined: {error} Give every process --coordinator HOST:PORT (of process "
            "0, the same for all), --processes N and --process-id 0 to N-1, or start them with srun or "
            "mpirun."
        ) from error
    return Team(jax.process_index(), jax.process_count())


def _last_words(team: Team) -> subprocess.Popen:
    """A helper that speaks when this process has ended without a word of its own."""
    words = (
        f"error: process {team.rank} of {team.size} was ended from outside, or because another process has "
        f"died or could not be reached for {SILENCE} seconds. Start all processes again with the same "
        "command: with --checkpoint the fit goes on from the last save, without it from the start."
    )
    command = [sys.executable, "-S", "-E", "-c", _LAST_WORDS, words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
