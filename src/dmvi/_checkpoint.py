"""Checkpoints: a fit that is interrupted goes on, bit for bit, when the same call is made again."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from dmvi._clock import Clock
from dmvi._errors import InputError
from dmvi._grow import Pilot, larger_guide
from dmvi._recipes import describe_base, guide_from
from dmvi._start import Start, anchor_of, anchored
from dmvi.guides import GuideRecipe
from dmvi.posterior import WriteError, digest, library_versions
from dmvi.posterior._container import read, write
from dmvi.targets import Target, prior_target
from dmvi.training import Snapshot, Trainer

FILE = "training.dmvi"
PROBED = 2  # points at which the log-density must be the same
AGREE = 1e-4  # nats
RELATIVE = {"float32": 1e-5, "float64": 1e-10}  # other machines add up in another order
_FREE = ("time_limit",)  # settings that may differ from call to call


class Found(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        recipe: of the guide.
        start: the structure of the guide, whose numbers are in the snapshot, and the target.
        seconds: how long the fit had run.
        snapshot: where training stood.
        pilot: the first training, where this is of a guide that has grown.
    """

    recipe: GuideRecipe
    start: Start
    seconds: float
    snapshot: Snapshot
    pilot: Pilot | None


class Checkpoint:
    """A folder in which a fit is saved, every so many seconds, on SIGTERM and at its end.

    Used as a context: on SIGTERM training is saved after the chunk of steps that is running, and the process
    ends with status 143; before training there is nothing to save, and it ends at once.

    Args:
        folder: where; made where it is not there.
        every: seconds between two saves.
        target: the model.
        settings: how the fit is made; a checkpoint made otherwise is refused.
        clock: of the fit.
    """

    def __init__(
        self, folder: str | Path, every: float, target: Target, settings: Mapping[str, Any], clock: Clock
    ):
        self._path, self._every, self._clock = _folder(folder) / FILE, _interval(every), clock
        self._target = target
        self._settings = {name: value for name, value in settings.items() if name not in _FREE}
        self._saved = time.monotonic()
        self._warm_start: str | None = None
        self._base: dict[str, int] = {}
        self._anchor: dict[str, np.ndarray] = {}
        self._visited: dict[str, np.ndarray] = {}
        self._offset, self._gradients = 0.0, 0
        self._pilot: Pilot | None = None
        self._terminated = False
        self._before: Any = None

    def __enter__(self) -> "Checkpoint":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _on_sigterm(self, *_: object) -> None:
        self._terminated = True
        if self._warm_start is None:
            raise SystemExit(128 + signal.SIGTERM)

    def found(self, recipe: GuideRecipe) -> Found | None:
        """What an earlier call has left, if it was the same call.

        Raises:
            InputError: if it was a call with another model, data or version, and says in what they differ.
        """
        if not self._path.exists():
            return None
        arrays, record = read(self._path)
        reason = self._difference(arrays, record)
        if reason is not None:
            raise InputError(
                f"the checkpoint in {str(self._path.parent)!r} is of another fit: {reason}. Make the call it "
                "was made with, or give another folder, or delete this one to begin anew."
            )
        guide = guide_from(recipe, record["base"], self._target.dim)
        pilot = Pilot.recalled(arrays, record["pilot"]) if record["pilot"] else None
        larger = None if pilot is None else larger_guide(recipe, guide, jr.key(0))
        if larger is not None:
            recipe, guide = larger
        target = self._target
        if "anchor" in arrays:
            target = anchored(target, arrays["anchor"], record["offset"])
        start = Start(
            guide, record["warm_start"], target, arrays.get("visited"), gradients=record["gradients"]
        )
        self._clock = self._clock.after(record["seconds"])
        return Found(recipe, start, record["seconds"], Snapshot(arrays, record["course"]), pilot)

    def begin(self, start: Start, pilot: Pilot | None = None) -> None:
        """From here on there is something to save, after a pilot where the guide has grown."""
        self._pilot = pilot
        self._warm_start, self._base = start.name, describe_base(start.guide)
        self._offset, self._anchor = start.target.offset, anchor_of(start.target)
        self._gradients = start.gradients
        self._visited = {} if start.visited is None else {"visited": start.visited}

    def watch(self, trainer: Trainer) -> None:
        """Save where it is time to."""
        if self._terminated or trainer.done or time.monotonic() - self._saved >= self._every:
            self._save(trainer)
        self.stop_if_asked()

    def stop_if_asked(self, _: Trainer | None = None) -> None:
        """End the process where SIGTERM has asked for it; what is saved stays."""
        if self._terminated:
            raise SystemExit(128 + signal.SIGTERM)

    def _save(self, trainer: Trainer) -> None:
        """Save; a full disk does not end training, and leaves the last checkpoint that could be written."""
        try:
            self._write(trainer)
        except WriteError as error:
            warnings.warn(f"no checkpoint was saved, and training goes on: {error}", stacklevel=2)
        self._saved = time.monotonic()

    def _write(self, trainer: Trainer) -> None:
        arrays, course = trainer.snapshot()
        record = {
            "checkpoint": 7,
            "versions": library_versions(),
            "names": list(self._target.names),
            "data": self._data(),
            "settings": self._settings,
            "warm_start": self._warm_start,
            "base": self._base,
            "offset": self._offset,
            "seconds": self._clock.seconds,
            "course": course,
            "pilot": None,
            "gradients": self._gradients,
        }
        arrays = {**arrays, **self._anchor, **self._visited, "density": self._density()}
        if self._pilot is not None:
            kept, record["pilot"] = self._pilot.memory()
            arrays |= kept
        write(self._path, arrays, record)

    def _difference(self, arrays: dict[str, np.ndarray], record: dict[str, Any]) -> str | None:
        """In what a checkpoint differs from this call; None where it does not."""
        if record.get("checkpoint") != 7:
            return "it is no checkpoint of this format"
        for name, version in library_versions().items():
            if record["versions"].get(name) != version:
                return f"it was made with {name} {record['versions'].get(name)}, this is {version}"
        if record["names"] != list(self._target.names):
            return "the model has other variables"
        if record["data"] != self._data():
            return "the data are not the same"
        for name in sorted({*record["settings"], *self._settings}):
            then, now = record["settings"].get(name), self._settings.get(name)
            if then != now:
                return f"{name} was {then!r}, and is {now!r}"
        relative = RELATIVE[str(jnp.result_type(float))]
        if not np.allclose(arrays["density"], self._density(), rtol=relative, atol=AGREE, equal_nan=True):
            return "the log-density has other values, so the model or its data have changed"
        return None

    def _data(self) -> str:
        if self._target.stream is not None:
            return self._target.stream.rows.fingerprint()
        return digest({**self._target.constant, **self._target.observed})

    def _density(self) -> np.ndarray:
        """log pi at a few fixed points; on many rows the prior too, which their likelihood would drown."""
        points = np.random.default_rng(0).uniform(-1, 1, (PROBED, self._target.dim))
        points = points.astype(jnp.result_type(float))
        densities = [self._target.log_density]
        densities += [] if self._target.stream is None else [prior_target(self._target).log_density]
        return np.array([float(density(jnp.asarray(point))) for density in densities for point in points])


def _folder(folder: str | Path) -> Path:
    if not isinstance(folder, str | Path) or not str(folder):
        raise InputError(f"checkpoint must be the name of a folder, got {folder!r}.")
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"checkpoint: no folder can be made at {str(path)!r}: {error.strerror}.") from error
    if not os.access(path, os.W_OK):
        raise InputError(f"checkpoint: the folder {str(path)!r} cannot be written to.")
    return path


def _interval(every: float) -> float:
    if isinstance(every, bool) or not isinstance(every, int | float) or not every >= 0:
        raise InputError(f"checkpoint_every must be a number of seconds, got {every!r}.")
    return float(every)
