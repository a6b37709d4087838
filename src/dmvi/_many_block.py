"""Many fits at once: warm starts, training of a few, and of the others from where those ended."""

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

from dmvi._compile import compiled
from dmvi._fit import fit_keys, training_settings
from dmvi._run import Status
from dmvi.guides import AnyAffine, GuideRecipe, anchored
from dmvi.objectives import Objective
from dmvi.starts import START_NAMES, WarmStarts, warm_starts
from dmvi.targets import Target
from dmvi.training import (
    Budget,
    LaneOutcome,
    Lanes,
    Progress,
    Settings,
    Trained,
    lanes_look_all,
    lanes_with_flat,
)

PILOTS = 4  # fits trained in full, from whose guides the others begin
LANES_ON_CPU = 8  # fits side by side: more fill no core better, and take more memory
LANES = 256
SHORTER = 9  # a fit that begins from a pilot's guide takes this part of the steps
SHORT_LOOKS = 4
ENOUGH = 0.02  # nats still to gain below which the short training was enough


class Fitted(NamedTuple):
    """One fit in plain arrays.

    Attributes:
        guide: arrays of the guide.
        params: generative parameters.
        training: arrays of the state that training left behind.
        outcome: how it went.
        warm_start: name of the start that won.
    """

    guide: list[np.ndarray]
    params: dict[str, Any]
    outcome: LaneOutcome
    warm_start: str


@dataclass(frozen=True)
class Plan:
    """How to fit, the same for all data sets; the fields are those of `fit_many`."""

    recipe: GuideRecipe
    steps: int
    particles: int
    optimizer: optax.GradientTransformation | None
    objective: Objective | None
    deadline: float | None

    @property
    def full(self) -> Settings:
        """The settings of `fit`."""
        return training_settings(self.recipe, self.steps, self.particles, self.optimizer, self.objective)

    @property
    def short(self) -> tuple[Settings, int]:
        """Those of a training that begins near its end, and its number of steps."""
        full = self.full
        chunk = max(1, self.steps // SHORTER // SHORT_LOOKS)
        settings = Settings(full.objective, full.optimizer, full.particles, chunk, (SHORT_LOOKS - 1) * chunk)
        return settings, SHORT_LOOKS * chunk


class _Keys(NamedTuple):
    """Stacked keys of the fits, of the same meaning as in `fit`."""

    start: Array
    guide: Array
    train: list[PRNGKeyArray]


def fit_block(targets: Sequence[Target], seeds: Sequence[int], plan: Plan, line: Progress) -> list[Fitted]:
    """Fit every target; the fit of one whose density breaks down has an ELBO of minus infinity.

    A few pilots are trained in full. The others begin from the pilot's guide that suits them best, in their
    own whitened coordinates, where that is better than their warm start; what is then still far from its
    target, by its log-weights, is trained in full too.
    """
    stacked = _stack([target.shared() for target in targets])
    keys = _keys(seeds)
    lanes = min(LANES_ON_CPU if jax.default_backend() == "cpu" else LANES, len(targets))
    starts = _starts(stacked, keys.start, plan, lanes, line)
    trained = Trained(_host(_guides(plan.recipe, _device(starts.affine), keys.guide)), starts.params)
    work = _Work(stacked, trained, keys.train, plan, line)
    transfer = plan.recipe.warm and not stacked.params and plan.full.objective.caution is None
    pilots = np.arange(min(PILOTS, len(targets)) if transfer else len(targets))
    work.train_fully(pilots, min(len(pilots), lanes))
    if transfer:
        work.train_shortly(np.arange(len(pilots), len(targets)), pilots, lanes)
        work.train_fully(work.unfinished(), min(PILOTS, lanes))
    guides = _host(lanes_with_flat(_device(trained), work.flats()))
    names = [START_NAMES[int(i)] for i in starts.candidate] if plan.recipe.warm else ["none"] * len(targets)
    return [
        Fitted(
            [leaf[i] for leaf in jax.tree.leaves(eqx.filter(guides.guide, eqx.is_array))],
            _part(guides.params, i),
            work.outcomes[i],
            names[i],
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

    def flats(self) -> np.ndarray:
        return np.stack([self.outcomes[i].flat for i in range(len(self._keys))])

    def unfinished(self) -> np.ndarray:
        """Fits with more to gain."""
        return np.array([i for i, found in self.outcomes.items() if found.status is Status.STEP_LIMIT], int)

    def train_fully(self, which: np.ndarray, lanes: int) -> None:
        """Train as `fit` does, from the warm start or from where a short training ended."""
        budget = Budget(self._plan.steps, self._plan.deadline)
        for block, count in _blocks(which, lanes):
            known = all(int(i) in self.outcomes for i in block)
            begin = np.stack([self.outcomes[int(i)].flat for i in block]) if known else None
            for i, found in zip(
                block[:count], self._run(block, self._plan.full, budget, begin), strict=False
            ):
                self.outcomes[int(i)] = found

    def train_shortly(self, which: np.ndarray, pilots: np.ndarray, lanes: int) -> None:
        """Train from the best pilot's guide."""
        settings, steps = self._plan.short
        flats = np.stack([self.outcomes[int(i)].flat for i in pilots])
        for block, count in _blocks(which, lanes):
            targets, trained = _take(self._targets, block), _take(self._trained, block)
            key = jr.fold_in(self._keys[block[0]], 1)
            elbos = lanes_look_all(flats, trained, targets, key)
            begin = flats[np.argmax(elbos, axis=0)]
            found = self._run(block, settings, Budget(steps, self._plan.deadline), begin)
            self.outcomes |= {int(block[lane]): _judged(found[lane]) for lane in range(count)}

    def _run(self, block: np.ndarray, settings: Settings, budget: Budget, begin: np.ndarray | None):
        return Lanes(
            _take(self._trained, block),
            _take(self._targets, block),
            settings,
            budget,
            [self._keys[i] for i in block],
            begin=begin,
            watch=self._watch,
        ).run()

    def _watch(self, step: int, limit: int) -> None:
        self._line.note(
            f"{len(self.outcomes)} of {len(self._keys)} fits done, next ones at step {step}/{limit}"
        )


def _judged(outcome: LaneOutcome) -> LaneOutcome:
    """A short training that has little left to gain has reached its plateau."""
    done = outcome.status is Status.STEP_LIMIT and outcome.look.gap < ENOUGH
    return outcome._replace(status=Status.CONVERGED) if done else outcome


def _starts(targets: Target, keys: Array, plan: Plan, lanes: int, line: Progress) -> WarmStarts:
    count = keys.shape[0]
    if not plan.recipe.warm:
        zeros = jnp.zeros((count, targets.dim))
        affine = jax.vmap(lambda loc: anchored(loc, loc + 1, full=False))(zeros)
        return _host(WarmStarts(affine, targets.params, jnp.zeros(count, int), jnp.zeros(count)))
    parts = []
    for block, size in _blocks(np.arange(count), lanes):
        line.note(f"warm starts: {block[0]} of {count}")
        found = warm_starts(_take(targets, block), keys[block], plan.recipe.name != "mean-field")
        parts.append(jax.tree.map(lambda leaf, size=size: np.asarray(leaf)[:size], found))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


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
