"""How much a warm start may do, by what the density costs.

Costs are counted, not timed, so that the same seed gives the same start: a program's numbers are the sizes of
all results it forms. Only where the fit has a time limit does the clock decide too.
"""

import time
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from dmvi._clock import Clock
from dmvi.warmstart._laplace import Surface
from dmvi.warmstart._threads import CALLBACKS


@dataclass(frozen=True)
class EffortSettings:
    """Bounds of a warm start.

    Attributes:
        draws: least of a step; fewer make its noise larger than what it gains.
        draws_per_dimension: of a step, up to `draws_of_matrix`: Stein's matrix has dim^2 entries.
        draws_of_matrix: from which on twice the dimension is enough.
        most_draws: of a step.
        at_once: numbers formed at a time, which bounds the memory.
        in_a_program: numbers formed by one program, so that Ctrl-C is heard within a second or so.
        steps: most steps of one program.
        in_searches: numbers formed by all searches for modes.
        searches: most of them.
        fewest_searches: whatever they cost.
        in_fields: numbers formed by mean fields that climb from further starts.
        fields: most of them; of ten starts one leads where a fifth of all starts do, nine times in ten.
        of_a_field: gradients of such a climb.
        iterations: of each search.
        unbounded: how much more often than once a loop of unknown length is taken to run.
        share: of the time left that a step or a search may take where there is a limit.
        share_of_fields: of the time left that the climbs of further mean fields may take.
        fewest_draws: of a step where there is a limit.
        searching: share of the time left that finding candidates may take, where there is a limit.
        climbing: share of it that the Gaussians after them may take.
        refining: share of it that a base for thousands of dimensions may take.
    """

    draws: int = 128
    draws_per_dimension: int = 8
    draws_of_matrix: int = 512
    most_draws: int = 2048
    at_once: int = 2**23
    in_a_program: int = 2**28
    steps: int = 8
    in_searches: int = 2**32
    searches: int = 32
    fewest_searches: int = 4
    in_fields: int = 2**33
    fields: int = 10
    of_a_field: int = 2**14
    iterations: int = 30
    unbounded: int = 100
    share: float = 0.01
    share_of_fields: float = 0.05
    fewest_draws: int = 16
    searching: float = 0.15
    climbing: float = 0.4
    refining: float = 0.3


@dataclass(frozen=True)
class Effort:
    """What a warm start may do.

    Attributes:
        draws: of a step of a full covariance.
        field_draws: of a step of a mean field.
        at_once: draws whose gradients are computed together.
        steps: in one program.
        searches: for modes.
        fields: mean fields that climb from further starts.
    """

    draws: int
    field_draws: int
    at_once: int
    steps: int
    searches: int
    fields: int = 0


UNKNOWN = frozenset({"while"}) | CALLBACKS


def effort_of(surface: Surface, clock: Clock, settings: EffortSettings | None = None) -> Effort:
    """The effort that suits a density.

    Args:
        surface: the density and what it costs.
        clock: of the fit.
        settings: bounds.
    """
    bounds = EffortSettings() if settings is None else settings
    dim, numbers = surface.dim, max(surface.numbers(), 1)
    if surface.primitives() & UNKNOWN:
        numbers *= bounds.unbounded
    draws = min(bounds.draws_per_dimension * dim, max(bounds.draws_of_matrix, 2 * dim))
    draws = int(np.clip(draws, bounds.draws, bounds.most_draws))
    of_search = numbers * (bounds.iterations + 2 * dim)
    searches = int(np.clip(bounds.in_searches // of_search, bounds.fewest_searches, bounds.searches))
    field_draws = bounds.draws
    fields = min(bounds.in_fields // (numbers * bounds.of_a_field), bounds.fields)
    if clock.limited:
        seconds = max(seconds_of_gradient(surface), 1e-7)
        most = max(int(bounds.share * clock.left / seconds), bounds.fewest_draws)
        draws, field_draws = min(draws, most), min(field_draws, most)
        searches = int(np.clip(most // bounds.iterations, 1, searches))
        fields = min(int(bounds.share_of_fields * clock.left / (seconds * bounds.of_a_field)), fields)
    draws, field_draws = _power_of_two(draws), _power_of_two(field_draws)
    at_once = int(np.clip(_power_of_two(bounds.at_once // numbers), 1, field_draws))
    steps = int(np.clip(bounds.in_a_program // (draws * numbers), 1, bounds.steps))
    return Effort(draws, field_draws, at_once, steps, searches, fields)


def seconds_of_gradient(surface: Surface) -> float:
    """Seconds of one gradient, the shorter of two after the compilation."""
    origin = np.zeros(surface.dim)
    surface.value_and_gradient(origin)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        surface.value_and_gradient(origin)
        times.append(time.perf_counter() - began)
    return min(times)


def _power_of_two(number: int) -> int:
    """The largest power of two that is not above a number; 1 below that."""
    return 1 << max(int(number).bit_length() - 1, 0)


def device(array: np.ndarray):
    """An array in the width of the fit, on the device."""
    return jnp.asarray(np.asarray(array).astype(jnp.result_type(float)))
