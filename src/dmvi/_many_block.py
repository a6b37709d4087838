"""Many fits at once: warm starts, then training in rounds until each is good enough."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from dmvi._clock import Clock
from dmvi._compile import compiled
from dmvi._fit import fit_keys, training_settings
from dmvi._run import Status
from dmvi.guides import AnyAffine, GuideRecipe, anchored
from dmvi.objectives import Objective
from dmvi.targets import Target
from dmvi.training import (
    Budget,
    LaneOutcome,
    Lanes,
    Progress,
    Settings,
    Trained,
    lanes_with_flat,
)
from dmvi.warmstart import START_NAMES, WarmStarts, visited_by, warm_starts, with_drivers_of_each

LANES_ON_CPU = 8  # fits side by side: more fill no core better, and take more memory
LANES = 256
ROUNDS = 3  # parts of the steps, after each of which fits that are good enough end
ROUND_LOOKS = 4
ENOUGH = 0.05  # nats between log evidence and ELBO


class Fitted(NamedTuple):
    """One fit in plain arrays.

    Attributes:
        guide: arrays of the guide.
        params: generative parameters.
        outcome: how it went.
        warm_start: name of the start that won.
        visited: separate modes that its searches ended in, as in `Run`; None where there were not several.
        gradients: evaluations of the warm start; zero where they were not counted.
    """

    guide: list[np.ndarray]
    params: dict[str, Any]
    outcome: LaneOutcome
    warm_start: str
    visited: np.ndarray | None
    gradients: int = 0


@dataclass(frozen=True)
class Plan:
    """How to fit, the same for all data sets; the fields are those of `fit_many`."""

    recipe: GuideRecipe
    steps: int
    particles: int
    optimizer: optax.GradientTransformation | None
    objective: Objective | None
    clock: Clock

    @functools.cached_property
    def settings(self) -> Settings:
        """Those of `fit` for one round, which is all of the training where the ELBO does not steer it."""
        whole = training_settings(self.recipe, self.steps, self.particles, self.optimizer, self.objective)
        if whole.objective.caution is not None:
            return whole
        chunk = max(1, self.steps // (ROUNDS * ROUND_LOOKS))
        return Settings(whole.objective, whole.optimizer, whole.particles, chunk, (ROUND_LOOKS - 1) * chunk)

    @property
    def rounds(self) -> int:
        """How often a fit may be trained."""
        return ROUNDS if self.settings.objective.caution is None else 1


class _Keys(NamedTuple):
    """Stacked keys of the fits, of the same meaning as in `fit`."""

    start: Array
    guide: Array
    train: list[PRNGKeyArray]


def fit_block(targets: Sequence[Target], seeds: Sequence[int], plan: Plan, line: Progress) -> list[Fitted]:
    """Fit every target; the fit of one whose density breaks down has an ELBO of minus infinity.

    All are trained for one round; what is then still far from its target, as its log-weights show, goes on
    from there, annealed in every round.
    """
    stacked = _stack([target.shared() for target in targets])
    keys = _keys(seeds)
    lanes = min(LANES_ON_CPU if jax.default_backend() == "cpu" else LANES, len(targets))
    starts, visited = _starts(stacked, keys.start, plan, lanes, line)
    guides = _guides(plan.recipe, _device(starts.affine), keys.guide)
    if guides.wants_drivers:
        guides = with_drivers_of_each(guides, _device(stacked), keys.guide)
    trained = Trained(_host(guides), starts.params)
    work = _Work(stacked, trained, keys.train, plan, line)
    for number in range(plan.rounds):
        if not work.interrupted:
            work.train(number, lanes)
    guides = _host(lanes_with_flat(_device(trained), work.flats()))
    names = [START_NAMES[int(i)] for i in starts.candidate] if plan.recipe.warm else ["none"] * len(targets)
    return [
        Fitted(
            [leaf[i] for leaf in jax.tree.leaves(eqx.filter(guides.guide, eqx.is_array))],
            _part(guides.params, i),
            work.outcomes[i],
            names[i],
            visited[i],
        )
        for i in range(len(targets))
    ]


class _Work:
    """What has been trained so far."""

    def __init__(
        self, targets: Target, trained: Trained, keys: list[PRNGKeyArray], plan: Plan, line: Progress
    ):
        self._targets, self._trained, self._keys, self._plan, self._line = targets, trained, keys, plan, line
        self.outcomes: dict[int, LaneOutcome] = {}
        self.interrupted = False

    def flats(self) -> np.ndarray:
        return np.stack([self.outcomes[i].flat for i in range(len(self._keys))])

    def train(self, number: int, lanes: int) -> None:
        """One round of all fits, or of those that are neither good enough nor out of time.

        After an interruption the others are left as they are, which in the first round is their warm start.
        """
        left = [i for i in range(len(self._keys)) if number == 0 or self._unfinished(self.outcomes[i])]
        for block, count in _blocks(np.array(left, int), lanes):
            if self.interrupted and number:
                return
            begin = np.stack([self.outcomes[int(i)].flat for i in block]) if number else None
            found = self._run(block, number, begin)
            for lane in range(count):
                i = int(block[lane])
                self.outcomes[i] = _after(self.outcomes.get(i), _judged(found[lane]))

    def _unfinished(self, outcome: LaneOutcome) -> bool:
        return outcome.status in (Status.STEP_LIMIT, Status.WARM_START) and outcome.look.gap >= ENOUGH

    def _run(self, block: np.ndarray, number: int, begin: np.ndarray | None) -> list[LaneOutcome]:
        training = Lanes(
            _take(self._trained, block),
            _take(self._targets, block),
            self._plan.settings,
            Budget(self._plan.steps // self._plan.rounds, self._plan.clock),
            [jr.fold_in(self._keys[i], number) for i in block],
            begin=begin,
            watch=self._watch,
        )
        found = training.untrained() if self.interrupted else training.run()
        self.interrupted = training.interrupted
        return found

    def _watch(self, step: int, limit: int) -> None:
        done = f"{len(self.outcomes)} of {len(self._keys)} fits done"
        self._line.note(f"{done}, the next ones at step {step}/{limit}")


def _judged(outcome: LaneOutcome) -> LaneOutcome:
    """Training that has led close to its target counts as converged, whatever the step."""
    done = outcome.status is Status.STEP_LIMIT and outcome.look.gap < ENOUGH
    return outcome._replace(status=Status.CONVERGED) if done else outcome


def _after(earlier: LaneOutcome | None, later: LaneOutcome) -> LaneOutcome:
    """Two rounds as one."""
    if earlier is None:
        return later
    return later._replace(
        steps=earlier.steps + later.steps,
        skipped=earlier.skipped + later.skipped,
        gradients=earlier.gradients + later.gradients,
        history=np.concatenate([earlier.history, later.history]),
        history_steps=np.concatenate([earlier.history_steps, earlier.steps + later.history_steps]),
    )


def _starts(
    targets: Target, keys: Array, plan: Plan, lanes: int, line: Progress
) -> tuple[WarmStarts, list[np.ndarray | None]]:
    """Warm starts, and for each the separate modes that its searches ended in."""
    count = keys.shape[0]
    if not plan.recipe.warm:
        zeros = jnp.zeros((count, targets.dim))
        affine = jax.vmap(lambda loc: anchored(loc, loc + 1, full=False))(zeros)
        start = WarmStarts(affine, targets.params, jnp.zeros(count, int), jnp.zeros(count), None)
        return _host(start), [None] * count
    parts, visited = [], []
    for block, size in _blocks(np.arange(count), lanes):
        line.note(f"warm starts: {block[0]} of {count}")
        found = warm_starts(_take(targets, block), keys[block], plan.recipe.name != "mean-field")
        found = jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], found)
        # With parameters to learn along, modes move.
        visited += [None] * size if targets.params else visited_by(found.searched)
        parts.append(found._replace(searched=None))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), visited


@compiled
def _guides(recipe: GuideRecipe, affine: AnyAffine, keys: PRNGKeyArray):
    return eqx.filter_vmap(lambda affine, key: recipe.build(affine, key=key))(affine, keys)


def _keys(seeds: Sequence[int]) -> _Keys:
    start, guide, train, _ = zip(*(fit_keys(seed) for seed in seeds), strict=True)
    return _Keys(jnp.stack(start), jnp.stack(guide), list(train))


def _blocks(which: np.ndarray, lanes: int) -> Iterator[tuple[np.ndarray, int]]:
    """Blocks of one size, the last filled up with repetitions, and how many of each are real."""
    for begin in range(0, len(which), lanes):
        block = which[begin : begin + lanes]
        yield np.resize(block, lanes), len(block)


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)


def _take(tree: Any, index: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[index]) if eqx.is_array(leaf) else leaf, tree)


def _part(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)


def _host(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def _device(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)
