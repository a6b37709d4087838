"""Looks at a guide between chunks: its ELBO, at the draws that trained it or at fresh ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy.special import logsumexp

from dmvi.guides._guide import Guide
from dmvi.objectives._weights import chunk_keys, chunk_size, piece_size, weigh_pieces
from dmvi.targets._target import Target
from dmvi.training._state import Seen

LOOK_DRAWS = 2000
ENOUGH = 500  # draws of training from which a look may be taken
USABLE = 0.9  # share of finite weights below which a guide counts as broken
LOST = 50.0  # nats that a draw of no finite weight counts below the others


class Effort(NamedTuple):
    """What a look at fresh draws may take.

    Attributes:
        draws: how many.
        seconds: that one takes with its density; zero where that is not known.
        longest: seconds that one program may run.
    """

    draws: int = LOOK_DRAWS
    seconds: float = 0.0
    longest: float = np.inf


@dataclass(frozen=True)
class LooksOnAllRows:
    """Looks where training sees batches: they alone go through all rows.

    Attributes:
        work: rows times draws of one: a second or so, a fraction of what the diagnostics take in the end.
        fewest: draws all the same, which leave the ELBO a standard error of a tenth of the root of the gap.
    """

    work: int = 2**27
    fewest: int = 250


ON_ALL_ROWS = LooksOnAllRows()


@dataclass(frozen=True)
class LooksInManyDimensions:
    """Looks at fresh draws where each has thousands of coordinates, and takes time in proportion.

    Attributes:
        above: dimensions.
        coordinates: of all draws of a look together.
        fewest: draws all the same.
    """

    above: int = 2000
    coordinates: int = 4_000_000
    fewest: int = 250

    def draws(self, dim: int) -> int:
        """How many in so many dimensions."""
        if dim <= self.above:
            return LOOK_DRAWS
        return int(np.clip(self.coordinates // dim, self.fewest, LOOK_DRAWS))


IN_MANY_DIMENSIONS = LooksInManyDimensions()


class Look(NamedTuple):
    """An estimate of the ELBO, its standard error, and log Z - ELBO as far as the same draws show it.

    `rest` is the estimate from the finite log-weights alone where too many were not finite; else NaN.
    """

    elbo: float
    error: float
    gap: float = 0.0
    rest: float = np.nan

    @property
    def worth(self) -> float:
        """What guides are compared by: the ELBO, or what there is of it; minus infinity where nothing is."""
        if np.isfinite(self.elbo):
            return self.elbo
        return self.rest if np.isfinite(self.rest) else -np.inf

    @classmethod
    def at(cls, log_weights: Float[np.ndarray, " n"]) -> "Look":
        """From log-weights; those that are not finite count against it, too many make it minus infinity."""
        finite = log_weights[np.isfinite(log_weights)]
        if finite.size == 0:
            return cls(-np.inf, 0.0, np.inf)
        mean, lost = float(finite.mean()), 1 - finite.size / log_weights.size
        elbo, error = mean - LOST * lost, float(finite.std() / np.sqrt(finite.size))
        if finite.size <= USABLE * log_weights.size:
            return cls(-np.inf, error, np.inf, elbo)
        gap = float(logsumexp(finite - mean) - np.log(finite.size)) + LOST * lost
        return cls(elbo, error, gap)


def look_back(seen: Seen, enough: int = ENOUGH) -> Look | None:
    """From the second half of a chunk: its own draws were fresh when they were made; None if they are few."""
    half = len(seen.own) // 2
    own = np.asarray(seen.own)[half:]
    return Look.at(np.asarray(seen.log_weights, float)[half:][own]) if own.sum() >= enough else None


def look_at(
    guide: Guide, target: Target, key: PRNGKeyArray, effort: Effort, goes_on: Callable[[int], bool]
) -> Look:
    """The ELBO of `guide` on fresh draws, of which there are fewer where something else is more urgent.

    Args:
        guide: whose.
        target: of what.
        key: random key.
        effort: how many, and what one takes.
        goes_on: told after each program of how many draws it was, and asked whether there may be another.
    """
    chunk = chunk_size(target.dim, target.terms)
    piece = piece_size(chunk, effort.seconds, effort.longest)
    found: list[np.ndarray] = []
    for part in chunk_keys(key, effort.draws, chunk):
        for weighed in weigh_pieces(guide, target, part, chunk, piece):
            found.append(weighed.log_w)
            if not goes_on(len(found[-1])) or sum(map(len, found)) >= effort.draws:
                return Look.at(np.concatenate(found))
    return Look.at(np.concatenate(found))


def look_draws(target: Target, settings: LooksOnAllRows = ON_ALL_ROWS) -> int:
    """Fresh draws of a look: LOOK_DRAWS, or fewer where rows in batches are many or draws are wide."""
    if not target.subsampled:
        return IN_MANY_DIMENSIONS.draws(target.dim)
    return int(np.clip(settings.work // max(target.terms or 1, 1), settings.fewest, LOOK_DRAWS))
