"""Gaussians taken uphill by natural gradients: side by side where that is cheap, then the best to the end."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._random import children
from dmvi.guides import AnyAffine
from dmvi.targets import Target
from dmvi.training import Progress
from dmvi.warmstart._candidates import Candidate, Candidates
from dmvi.warmstart._effort import Effort, device
from dmvi.warmstart._natural import Fit, NaturalGradients, Step, again, annealed_rates, begin, natural_steps


class Reached(NamedTuple):
    """The Gaussian a climb has ended in, S a square or a diagonal, and its ELBO."""

    name: str
    loc: Float[np.ndarray, " dim"]
    scale: np.ndarray
    params: dict[str, Array]
    elbo: float


@dataclass(frozen=True)
class ClimbSettings:
    """How long Gaussians climb.

    Attributes:
        few: dimensions up to which all candidates climb to the end as full covariances, side by side.
        finalists: mean fields that go on as full covariances in more dimensions, where they agree.
        agreement: nats for each dimension within which the ELBOs of mean fields agree. Where they do not,
            there are several optima, and that of the best mean field need not be that of the best Gaussian.
        field_steps: of a mean field between two looks at its ELBO.
        field_tolerance: nats for each dimension, as `tolerance`, where a better Gaussian goes on from it.
        first_steps: of each full covariance before the best is chosen.
        look_steps: of full covariances between two looks at the ELBO.
        most_looks: at the ELBO.
        tolerance: nats of ELBO between two looks below which a climb has ended, unless noise is larger.
        noise: standard errors of the ELBO that count as noise.
        annealed: last steps, at falling rates.
        judged: of these, whose mean ELBO is the Gaussian's.
    """

    few: int = 20
    finalists: int = 2
    agreement: float = 0.1
    field_steps: int = 16
    field_tolerance: float = 0.01
    first_steps: int = 8
    look_steps: int = 16
    most_looks: int = 40
    tolerance: float = 0.05
    noise: float = 3.0
    annealed: int = 24
    judged: int = 8


class Climber:
    """Natural-gradient steps of one target, in programs short enough to be interrupted.

    Args:
        target: what to approximate.
        effort: draws and steps.
        key: random key.
        progress: told of the ELBO.
        stop: asked between programs.
        settings: how long to climb.
    """

    def __init__(
        self,
        target: Target,
        effort: Effort,
        key: PRNGKeyArray,
        progress: Progress,
        stop: Callable[[], bool] = lambda: False,
        settings: ClimbSettings | None = None,
    ):
        self._target, self._effort, self._progress, self._stop = target, effort, progress, stop
        self._course = ClimbSettings() if settings is None else settings
        self._settings = NaturalGradients()
        self._key, self._programs = key, 0
        self.gradients, self.gradient_seconds = 0, 0.0

    def best_of(self, candidates: Candidates, *, full: bool) -> Reached:
        """The best Gaussian that the candidates lead to."""
        fields = candidates.fields
        if not full:
            narrow = [c._replace(scale=_diagonal(c.scale)) for c in candidates.full]
            return self._to_the_end([*fields, *candidates.more, *narrow])
        if self._target.dim <= self._course.few:
            wide = [c._replace(scale=np.diag(c.scale)) for c in fields]
            return self._to_the_end([*wide, *candidates.full])
        climbed = self._climbed_fields(fields, candidates.more)
        several = len(climbed) > self._course.finalists
        return self._to_the_end([self._best_start([*climbed, *candidates.full], several)])

    def roughly(self, candidates: Candidates) -> Reached:
        """The best mean field, taken near its plateau, for what goes on from there.

        All take their first steps side by side, and the finalists the rest: with them the best of each other
        kind, since those begun at a mode lead at first and need not end highest.
        """
        narrow = [c._replace(scale=_diagonal(c.scale)) for c in candidates.full]
        starts, course = [*candidates.fields, *narrow], self._course
        fits, _ = self._run(self._begun(starts), course.field_steps)
        elbos = np.nan_to_num(np.asarray(fits.best.elbo, float), nan=-np.inf)
        order = list(np.argsort(-elbos, kind="stable"))
        first = order[: course.finalists]
        for i in order:
            if starts[i].name not in {starts[j].name for j in first}:
                first.append(i)
        fits = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[first]), fits)
        near = course.field_tolerance * self._target.dim
        fits = self._plateau(fits, course.field_steps, tolerance=near)
        return self._best([starts[i] for i in first], fits)

    def finished(self, field: Reached) -> Reached:
        """The mean field at its plateau, from near it."""
        return self._to_the_end([Candidate(field.name, field.loc, field.scale)])

    def refined(self, frame: AnyAffine) -> Reached:
        """The mean field that is best in the coordinates of an affine map."""
        dim = self._target.dim
        start = Candidate("", np.zeros(dim), np.ones(dim))
        return self._to_the_end([start], frame)

    def fitted(self, gaussians: Float[np.ndarray, "modes rows dim"]) -> Float[np.ndarray, "modes rows dim"]:
        """Gaussians, each a row of its location and its scale below, after some steps each.

        Around a skewed mode in a hundred dimensions next to no draw of Laplace's Gaussian is where the mass
        is.
        """
        fits = self._begun([Candidate("", each[0], each[1:]) for each in gaussians])
        fits, _ = self._run(fits, self._course.look_steps)
        loc, scale = np.asarray(fits.best.loc, float), np.asarray(fits.best.scale, float)
        found = np.concatenate([loc[:, None], scale], axis=1)
        usable = np.isfinite(found).all(axis=(1, 2)) & np.isfinite(np.asarray(fits.best.elbo))
        return np.where(usable[:, None, None], found, gaussians)

    def _climbed_fields(self, fields: list[Candidate], more: tuple[Candidate, ...]) -> list[Candidate]:
        """Mean fields near their plateaus, best first: the best few where all agree, else all of them."""
        begun = [self._run(self._begun([field]), self._course.field_steps)[0] for field in fields]
        elbos = np.nan_to_num([float(fits.best.elbo[0]) for fits in begun], nan=-np.inf)
        best = np.argsort(-elbos, kind="stable")[: self._course.finalists]
        climbed = [self._climbed(fields[i].name, begun[i]) for i in best]
        others = [self._climbed(field.name, self._begun([field])) for field in more if not self._stop()]
        everyone = [each for each in (*climbed, *others) if np.isfinite(each[0])]
        reached = [elbo for elbo, _ in everyone]
        wide = self._course.agreement * self._target.dim
        if reached and max(reached) - min(reached) <= wide:
            everyone = sorted(everyone, key=lambda each: -each[0])[: self._course.finalists]
        return [candidate for _, candidate in sorted(everyone or climbed, key=lambda each: -each[0])]

    def _climbed(self, name: str, fits: Fit) -> tuple[float, Candidate]:
        """A mean field near its plateau, and its ELBO there."""
        near = self._course.field_tolerance * self._target.dim
        fits = self._plateau(fits, self._course.field_steps, tolerance=near)
        loc, scale = np.asarray(fits.best.loc[0], float), np.abs(np.asarray(fits.best.scale[0], float))
        return float(fits.best.elbo[0]), Candidate(name, loc, np.diag(scale))

    def _best_start(self, candidates: list[Candidate], several: bool) -> Candidate:
        """The best after some steps of each, one after the other, as one small program does for all.

        Where there are several optima, after as many as it takes: those that end highest may begin lowest.
        """
        best, best_elbo = candidates[0], -np.inf
        for candidate in candidates:
            fits, _ = self._run(self._begun([candidate]), self._course.first_steps)
            if several and np.isfinite(float(fits.best.elbo[0])):
                fits = self._plateau(fits, self._course.look_steps)
            elbo = float(fits.best.elbo[0])
            if elbo > best_elbo:
                loc, scale = np.asarray(fits.best.loc[0], float), np.asarray(fits.best.scale[0], float)
                best, best_elbo = Candidate(candidate.name, loc, scale), elbo
            if self._stop():
                break
        return best

    def _to_the_end(self, candidates: list[Candidate], frame: AnyAffine | None = None) -> Reached:
        """All to their plateaus, then at falling rates; the best of them."""
        fits = self._plateau(self._begun(candidates), self._course.look_steps, frame)
        if not self._stop():
            fits = jax.vmap(lambda fit: again(fit, self._settings))(fits)
            rates = annealed_rates(self._course.annealed)
            fits, steps = self._run(fits, self._course.annealed, frame, rates)
            fits = self._settled(fits, steps)
        return self._best(candidates, fits)

    def _best(self, candidates: list[Candidate], fits: Fit) -> Reached:
        """The best of the Gaussians that the candidates have become."""
        elbos = np.asarray(fits.best.elbo, float)
        winner = int(np.argmax(np.where(np.isfinite(elbos), elbos, -np.inf)))
        best = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[winner]), fits.best)
        self._say(float(elbos[winner]))
        loc, scale = np.asarray(best.loc, float), np.asarray(best.scale, float)
        return Reached(candidates[winner].name, loc, scale, best.params, float(elbos[winner]))

    def _settled(self, fits: Fit, steps: Step) -> Fit:
        """Averages of the annealing in the place of lucky draws, where they are no worse."""
        last = np.asarray(steps.elbo, float)[:, -self._course.judged :].mean(axis=1)
        best, error = np.asarray(fits.best.elbo, float), np.asarray(fits.best.error, float)
        fell = np.asarray(steps.fell)[:, -1]
        better = ~fell & (last >= best - self._course.noise * error - self._settings.slack)
        chosen = fits.best._replace(elbo=jnp.asarray(last, fits.best.elbo.dtype))._replace(
            loc=fits.loc, scale=fits.scale, log_det=fits.log_det, params=fits.params
        )

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return fits._replace(best=jax.tree.map(choose, chosen, fits.best))

    def _plateau(
        self, fits: Fit, steps: int, frame: AnyAffine | None = None, tolerance: float | None = None
    ) -> Fit:
        """Steps until none gains any more."""
        tolerance = self._course.tolerance if tolerance is None else tolerance
        before = np.asarray(fits.best.elbo, float)
        for _ in range(self._course.most_looks):
            if self._stop():
                break
            fits, _ = self._run(fits, steps, frame)
            elbos, errors = np.asarray(fits.best.elbo, float), np.asarray(fits.best.error, float)
            with np.errstate(invalid="ignore"):
                gains = np.nan_to_num(elbos - before, nan=0.0, posinf=np.inf)
            before = elbos
            self._say(float(np.max(elbos)))
            # What cannot catch up any more need not have ended.
            alive = elbos + gains > np.max(elbos) - 1.0
            if not np.any(alive & (gains > np.maximum(tolerance, self._course.noise * errors))):
                break
        return fits

    def _begun(self, candidates: list[Candidate]) -> Fit:
        """The candidates before their first steps, side by side."""
        fits = [
            begin(device(c.loc), device(c.scale), self._target.params, self._settings) for c in candidates
        ]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *fits)

    def _run(
        self, fits: Fit, steps: int, frame: AnyAffine | None = None, rates: Array | None = None
    ) -> tuple[Fit, Step]:
        """So many steps, in programs of the same length."""
        many = fits.scale.ndim == 3
        draws = self._effort.draws if many else self._effort.field_draws
        length = min(self._effort.steps, steps) if many else min(2 * self._effort.steps, steps)
        count = max(steps // length, 1)
        flat = jnp.full(count * length, self._settings.largest_rate, fits.loc.dtype)
        rates = flat if rates is None else jnp.minimum(rates[: count * length], flat)
        seen = []
        for part, key in zip(rates.reshape(count, length), self._keys(count), strict=True):
            at_once = min(self._effort.at_once, draws)
            began = time.perf_counter()
            fits, step = natural_steps(fits, self._target, part, key, draws, at_once, self._settings, frame)
            seen.append(jax.tree.map(np.asarray, step))
            made = fits.loc.shape[0] * length * draws
            self.gradients += made
            # The quickest program: the first ones were compiled too.
            seconds = (time.perf_counter() - began) / made
            self.gradient_seconds = min(self.gradient_seconds or seconds, seconds)
            if self._stop():
                break
        return fits, jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *seen)

    def _keys(self, count: int) -> list[PRNGKeyArray]:
        """Keys that no earlier program has had."""
        self._programs += count
        return children(self._key, self._programs)[-count:]

    def _say(self, elbo: float) -> None:
        self._progress.stage("warm start", elbo=elbo + self._target.offset)


def _diagonal(scale: np.ndarray) -> np.ndarray:
    """Conditional sds of a Gaussian, which are those of its best mean field."""
    if scale.ndim == 1:
        return scale
    inverse = np.linalg.solve(scale, np.eye(len(scale)))
    return 1 / np.sqrt(np.sum(inverse**2, axis=0))
