"""Looks at a guide between chunks: its ELBO, at the draws that trained it or at fresh ones."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy.special import logsumexp

from dmvi.guides._guide import Guide
from dmvi.objectives._weights import chunk_keys, chunk_size, weigh_chunk
from dmvi.targets._target import Target
from dmvi.training._state import Seen

LOOK_DRAWS = 2000
ENOUGH = 500  # draws of training from which a look may be taken
USABLE = 0.9  # share of finite weights below which a guide counts as broken
LOST = 50.0  # nats that a draw of no finite weight counts below the others


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


class Look(NamedTuple):
    """An estimate of the ELBO, its standard error, and log Z - ELBO as far as the same draws show it."""

    elbo: float
    error: float
    gap: float = 0.0

    @classmethod
    def at(cls, log_weights: Float[np.ndarray, " n"]) -> "Look":
        """From log-weights; those that are not finite count against it, too many make it minus infinity."""
        finite = log_weights[np.isfinite(log_weights)]
        if finite.size <= USABLE * log_weights.size or finite.size == 0:
            return cls(-np.inf, 0.0, np.inf)
        mean, lost = float(finite.mean()), 1 - finite.size / log_weights.size
        gap = float(logsumexp(finite - mean) - np.log(finite.size)) + LOST * lost
        return cls(mean - LOST * lost, float(finite.std() / np.sqrt(finite.size)), gap)


def look_back(seen: Seen) -> Look | None:
    """From the second half of a chunk: its own draws were fresh when they were made; None if they are few."""
    half = len(seen.own) // 2
    own = np.asarray(seen.own)[half:]
    return Look.at(np.asarray(seen.log_weights, float)[half:][own]) if own.sum() >= ENOUGH else None


def look_at(guide: Guide, target: Target, key: PRNGKeyArray) -> Look:
    """The ELBO of `guide` on fresh draws, as many as `look_draws` says."""
    chunk = chunk_size(target.dim, target.terms)
    parts = [weigh_chunk(guide, target, part, chunk) for part in chunk_keys(key, look_draws(target), chunk)]
    return Look.at(np.concatenate([part.log_w for part in parts]))


def look_draws(target: Target, settings: LooksOnAllRows = ON_ALL_ROWS) -> int:
    """Fresh draws of a look: LOOK_DRAWS, or fewer where all rows are many and training sees batches."""
    if not target.subsampled:
        return LOOK_DRAWS
    return int(np.clip(settings.work // max(target.terms or 1, 1), settings.fewest, LOOK_DRAWS))
