"""Several processes that make one fit together: one leads, the others do what it asks for."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dmvi._errors import InputError, LostProcessError

# What the runtimes say when a connection to another process breaks: Gloo on CPUs, NCCL on GPUs.
_BROKEN = ("gloo", "nccl", "connection", "coordination", "socket", "peer")
_FEWEST_BYTES = 1024


@dataclass(frozen=True)
class Message:
    """What the leading process tells the others.

    Attributes:
        word: what it is about.
        arrays: numbers.
        record: plain values that JSON can hold.
    """

    word: str = ""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Team:
    """The processes of one fit, each with devices of its own.

    Process 0 leads: it alone searches, judges and decides. The others hear what it wants done, so that no
    rounding of another processor can make two of them go different ways.

    Attributes:
        rank: number of this process.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, mesh: Mesh | None) -> "Team":
        """The processes to whose devices a mesh extends.

        Raises:
            InputError: if these are some of several processes, but not all.
        """
        processes = set() if mesh is None else {device.process_index for device in mesh.devices.flat}
        if processes <= {jax.process_index()}:
            return cls()
        if processes != set(range(jax.process_count())):
            raise InputError(
                f"the mesh has devices of {len(processes)} of {jax.process_count()} processes; make it of "
                "all devices, jax.devices(), or of those of one process, jax.local_devices()."
            )
        return cls(jax.process_index(), jax.process_count())

    @property
    def leads(self) -> bool:
        """Whether this process is the one that decides."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.size == 1

    def hear(self, message: Message | None = None) -> Message:
        """The leading process's message, which it gives here and all others wait for here."""
        if self.alone:
            return message or Message()
        sent = _packed(message or Message()) if self.leads else b""
        with self.together():
            length = int(multihost_utils.broadcast_one_to_all(np.array([len(sent)], np.int32))[0])
            # Few sizes, because each has a program of its own.
            room = np.zeros(max(_FEWEST_BYTES, 1 << (length - 1).bit_length()), np.uint8)
            room[: len(sent)] = np.frombuffer(sent, np.uint8)
            found = np.asarray(multihost_utils.broadcast_one_to_all(room), np.uint8)
        return _unpacked(found[:length].tobytes())

    def serve(self, tasks: Mapping[str, Callable[[Message], Any]]) -> Message:
        """Do what the leading process asks for, up to its first message that is no task; gives that one."""
        while (message := self.hear()).word in tasks:
            tasks[message.word](message)
        return message

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sum over processes, in double precision and the same in all of them."""
        values = np.ascontiguousarray(values, np.float64)
        if self.alone:
            return values
        with self.together():  # bit by bit, because JAX would round to its own precision
            bits = multihost_utils.process_allgather(values.reshape(-1).view(np.uint32))
        return np.ascontiguousarray(bits).view(np.float64).sum(axis=0).reshape(values.shape)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around what needs all processes: an error of a broken connection is told as what it is."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if self.alone or not any(word in str(error).lower() for word in _BROKEN):
                raise
            raise LostProcessError(
                f"process {self.rank} of {self.size} has lost another process, which has ended or cannot be "
                "reached; what that one has written last says why. Start all processes again with the same "
                "command: with a checkpoint the fit goes on from the last save, without one from the start. "
                f"({str(error).splitlines()[0]})"
            ) from error


ALONE = Team()


def _packed(message: Message) -> bytes:
    """A line of JSON that describes the arrays, then their bytes."""
    arrays = {name: np.asarray(array, order="C") for name, array in message.arrays.items()}
    shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    head = json.dumps([message.word, shapes, dict(message.record)])
    return b"".join([head.encode(), b"\n", *(array.tobytes() for array in arrays.values())])


def _unpacked(sent: bytes) -> Message:
    head, _, rest = sent.partition(b"\n")
    word, shapes, record = json.loads(head)
    arrays, begin = {}, 0
    for name, (dtype, shape) in shapes.items():
        count = int(np.prod(shape, dtype=int))
        arrays[name] = np.frombuffer(rest, dtype, count, begin).reshape(shape)
        begin += arrays[name].nbytes
    return Message(word, arrays, record)
