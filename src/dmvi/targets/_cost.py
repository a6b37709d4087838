"""What a gradient costs, and whether batches of rows would cost less."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dmvi._compile import quick_options
from dmvi._errors import InputError
from dmvi.targets._stream import from_rows
from dmvi.targets._target import Target


@dataclass(frozen=True)
class Costly:
    """From when on batches are worth a word.

    Attributes:
        seconds: of one gradient; a fit takes 10^5 and more, so that these are minutes.
        rows: of data; on fewer, batches of any use are no small part of them.
        batch_size: of the batches that the model is tried with.
        repeats: gradients timed, of which the quickest counts: others may use the machine too.
    """

    seconds: float = 0.005
    rows: int = 100_000
    batch_size: int = 1_000
    repeats: int = 3


DEFAULT = Costly()


class SlowGradient(NamedTuple):
    """Seconds of one gradient of log pi, and the rows it goes through."""

    seconds: float
    rows: int

    def __str__(self) -> str:
        return (
            f"a gradient takes {1000 * self.seconds:.0f} ms over {self.rows:,} rows: fit(..., "
            "batch_size=...) goes through them in batches"
        )


def gradient_seconds(
    target: Target, *, repeats: int = DEFAULT.repeats, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds that log pi and its gradient take at one point, compiled, on all rows; the least of a few."""
    xi = target.start(jax.random.key(0))
    point = jnp.asarray(xi, jnp.result_type(float))
    gradient = jax.jit(jax.value_and_grad(target.log_density), compiler_options=quick_options())
    jax.block_until_ready(gradient(point))
    seconds = []
    for _ in range(repeats):
        began = clock()
        jax.block_until_ready(gradient(point))
        seconds.append(clock() - began)
    return min(seconds)


def slow_gradient(
    model: Any,
    data: Any,
    target: Target,
    settings: Costly = DEFAULT,
    measure: Callable[[Target], float] = gradient_seconds,
) -> SlowGradient | None:
    """What a gradient costs, where it is much and the model could be gone through in batches; else None.

    Args:
        model: as given to `fit`.
        data: likewise.
        target: the two as a target on all rows.
        settings: what is much.
        measure: from a target to the seconds of a gradient.
    """
    whole = not (target.subsampled or target.params) and isinstance(data, Mapping)
    if not whole or isinstance(model, Target) or not callable(model):
        return None
    if (target.data_size or 0) < settings.rows:
        return None
    seconds = measure(target)
    if seconds < settings.seconds:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever is to be said of the model was said of the target
            rows = from_rows(model, data, settings.batch_size).data_size
    except InputError:
        return None
    return SlowGradient(seconds, rows) if rows is not None and rows >= settings.rows else None
