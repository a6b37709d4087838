"""Fits of mixed quality whose truth is known: every target has an exact sampler.

A target without a posterior, as an improper one, has none: there the only right verdict is not to trust.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jax.scipy.stats import t as student
from jaxtyping import Array, Float

import dmvi

Draws = Float[np.ndarray, "draws dim"]
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@dataclass(frozen=True)
class Known:
    """A log-density with exact draws.

    Attributes:
        dim: number of coordinates.
        log_density: log pi(x), unnormalised.
        sample: exact draws; None where there is no posterior.
        modes: centres of separate modes, each of which must hold some draws of a good fit.
        sds: of the modes.
    """

    dim: int
    log_density: Callable[[Array], Array]
    sample: Callable[[np.random.Generator, int], Draws] | None
    modes: Float[np.ndarray, "modes dim"] | None = None
    sds: Float[np.ndarray, " modes"] | None = None


def gaussian(dim: int, condition: float, seed: int = 0, shift: float = 0.0, scale: float = 1.0) -> Known:
    """A Gaussian whose variances span `condition`, in random directions."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    sds = scale * np.logspace(0, -0.5 * np.log10(condition), dim)
    mean, inverse = shift * scale * np.ones(dim), jnp.asarray((directions / sds).T)

    def log_density(x):
        return -0.5 * jnp.sum((inverse @ (x - mean)) ** 2)

    return Known(dim, log_density, lambda rng, n: mean + (rng.normal(size=(n, dim)) * sds) @ directions.T)


def banana(bend: float = 0.5, noise: float = 0.3) -> Known:
    """x_1 ~ N(0, 2^2), x_2 ~ N(bend x_1^2 - 2, noise^2)."""

    def log_density(x):
        return norm.logpdf(x[0], 0.0, 2.0) + norm.logpdf(x[1], bend * x[0] ** 2 - 2.0, noise)

    def sample(rng, n):
        first = 2 * rng.normal(size=n)
        return np.stack([first, bend * first**2 - 2 + noise * rng.normal(size=n)], axis=1)

    return Known(2, log_density, sample)


def funnel(dim: int = 10, width: float = 3.0) -> Known:
    """Neal's funnel."""

    def log_density(x):
        return norm.logpdf(x[0], 0.0, width) + norm.logpdf(x[1:], 0.0, jnp.exp(x[0] / 2)).sum()

    def sample(rng, n):
        neck = width * rng.normal(size=(n, 1))
        return np.concatenate([neck, np.exp(neck / 2) * rng.normal(size=(n, dim - 1))], axis=1)

    return Known(dim, log_density, sample)


def mixture(centres: Any, sds: Any, weights: Any) -> Known:
    """Spherical Gaussians."""
    centres, sds, weights = np.asarray(centres, float), np.asarray(sds, float), np.asarray(weights, float)

    def log_density(x):
        parts = norm.logpdf(x[None], jnp.asarray(centres), jnp.asarray(sds)[:, None]).sum(axis=1)
        return logsumexp(parts + jnp.log(jnp.asarray(weights)))

    def sample(rng, n):
        which = rng.choice(len(weights), n, p=weights / weights.sum())
        return centres[which] + sds[which, None] * rng.normal(size=(n, centres.shape[1]))

    return Known(centres.shape[1], log_density, sample, centres, sds)


def labels(places: Sequence[float], weights: Any = 1.0) -> Known:
    """Components in a row, one coordinate each, in every order: as likely as any other, or weighed."""
    orders = np.array(list(itertools.permutations(places)))
    return mixture(orders, np.ones(len(orders)), np.ones(len(orders)) * weights)


def scaled(parts: tuple[Any, Any, Any], scale: float) -> Known:
    """A mixture in other units."""
    centres, sds, weights = parts
    return mixture(scale * np.asarray(centres), scale * np.asarray(sds), weights)


def pair_of_units() -> Known:
    """Two modes in coordinates of very different scale."""
    units, unit = np.array([12_000.0, 1.0]), scaled(PAIR, 1.0)
    assert unit.sample is not None
    assert unit.modes is not None
    draw = unit.sample
    return Known(
        2,
        lambda x: unit.log_density(x / jnp.asarray(units)),
        lambda rng, n: units * draw(rng, n),
        units * unit.modes,
        np.full(2, units[0]),
    )


def skewed_pair(dim: int) -> Known:
    """Two modes far apart in the first coordinate; the others as in `skewed`."""
    places = np.array([-60.0, 60.0])

    def log_density(x):
        return logsumexp(norm.logpdf(x[0], jnp.asarray(places))) + jnp.sum(x[1:] - jnp.exp(x[1:]))

    def sample(rng, n):
        first = rng.choice(places, n) + rng.normal(size=n)
        return np.column_stack([first, np.log(rng.exponential(size=(n, dim - 1)))])

    return Known(dim, log_density, sample, np.pad(places[:, None], ((0, 0), (0, dim - 1))), np.full(2, 1.3))


def student_t(dim: int, df: float) -> Known:
    """Independent Student t."""
    return Known(dim, lambda x: student.logpdf(x, df).sum(), lambda rng, n: rng.standard_t(df, size=(n, dim)))


def skewed(dim: int) -> Known:
    """Logarithms of exponential variables: a long left tail, a short right one."""
    return Known(
        dim, lambda x: jnp.sum(x - jnp.exp(x)), lambda rng, n: np.log(rng.exponential(size=(n, dim)))
    )


def eight_schools(centred: bool = True) -> Known:
    """Centred or not: p(tau | y) on a fine grid, then mu and theta, which are Gaussian given tau."""

    def log_density(x):
        mu, log_tau = x[0], x[1]
        v = log_tau - jnp.log(5.0)
        prior = norm.logpdf(mu, 0.0, 5.0) - jax.nn.softplus(2 * v) + v
        theta = x[2:] if centred else mu + jnp.exp(log_tau) * x[2:]
        groups = norm.logpdf(x[2:], mu, jnp.exp(log_tau)) if centred else norm.logpdf(x[2:])
        return prior + groups.sum() + norm.logpdf(jnp.asarray(Y), theta, jnp.asarray(SIGMA)).sum()

    def sample(rng, n):
        grid = np.linspace(-12.0, 9.0, 20_001)
        tau = np.exp(grid)
        variance = SIGMA**2 + tau[:, None] ** 2
        precision = 1 / 25 + np.sum(1 / variance, axis=1)
        mean = np.sum(Y / variance, axis=1) / precision
        log_p = -np.logaddexp(0, 2 * (grid - np.log(5))) + grid - 0.5 * np.log(precision)
        log_p += 0.5 * precision * mean**2 - 0.5 * np.sum(np.log(variance) + Y**2 / variance, axis=1)
        p = np.exp(log_p - log_p.max())
        which = rng.choice(len(grid), n, p=p / p.sum())
        mu = mean[which] + rng.normal(size=n) / np.sqrt(precision[which])
        t = tau[which, None]
        within = 1 / (1 / SIGMA**2 + 1 / t**2)
        theta = within * (Y / SIGMA**2 + mu[:, None] / t**2) + np.sqrt(within) * rng.normal(size=(n, 8))
        last = theta if centred else (theta - mu[:, None]) / t
        return np.concatenate([mu[:, None], grid[which, None], last], axis=1)

    return Known(10, log_density, sample)


def half_flat() -> Known:
    """No posterior: the second coordinate has no end."""
    return Known(2, lambda x: -0.5 * x[0] ** 2 + 0.0 * x[1], None)


def separated() -> Known:
    """No posterior: logistic regression of separated data under flat priors."""
    x = jnp.linspace(-2, 2, 20)
    y = (x > 0) * 1.0

    def log_density(w):
        logits = w[0] + w[1] * x
        return jnp.sum(y * logits - jax.nn.softplus(logits))

    return Known(2, log_density, None)


@dataclass(frozen=True)
class Case:
    """One fit.

    Attributes:
        kind: what is the matter with it.
        name: target and how it is fitted.
        known: the target.
        settings: arguments of `dmvi.fit`.
    """

    kind: str
    name: str
    known: Known
    settings: dict[str, Any] = field(default_factory=dict)


RING = [[5 * np.cos(a), 5 * np.sin(a)] for a in np.arange(8) * np.pi / 4]
PAIR = ([[-10.0, 0.0], [10.0, 3.0]], [1.0, 1.0], [0.5, 0.5])
UNEVEN = ([[-6.0, 0.0, 1.0], [6.0, 2.0, 0.0]], [1.0, 0.5, ], [0.85, 0.15])  # fmt: skip
TOUCHING = ([[-1.5, 0.0], [1.5, 1.0]], [1.0, 0.7], [0.6, 0.4])
FAR_70 = ([np.full(70, -1.0), np.full(70, 1.0)], [1.0, 1.0], [0.5, 0.5])
SPIKE = ([[0.0, 0.0], [3.0, 3.0]], [1.0, 0.02], [0.5, 0.5])


def families() -> list[Case]:
    """Fits that differ in one choice: when they stop, or which guide they have."""
    early = [
        Case("stopped early", f"{name}, {steps} steps", known, {"steps": steps})
        for name, known in (("banana", banana()), ("funnel", funnel()), ("eight schools", eight_schools()))
        for steps in (1, 30, 150)
    ]
    plain = [
        Case("wrong guide", f"{name}, {guide}", known, {"guide": guide})
        for name, known in (
            ("correlated Gaussian", gaussian(5, 100.0)),
            ("banana", banana()),
            ("narrow banana", banana(1.0, 0.1)),
            ("funnel", funnel()),
            ("eight schools", eight_schools()),
            ("touching modes", mixture(*TOUCHING)),
        )
        for guide in ("mean-field", "full-rank")
    ]
    missed = [
        Case("separate modes", f"{name}, {guide}", mixture(*parts), {"guide": guide})
        for name, parts in (("pair", PAIR), ("uneven pair", UNEVEN))
        for guide in ("auto", "full-rank", "flow")
    ]
    units = [
        Case("separate modes", f"pair of scale {scale}, {guide}", scaled(PAIR, scale), {"guide": guide})
        for scale, guide in ((1e-4, "full-rank"), (1e5, "full-rank"), (1e5, "auto"))
    ]
    missed += [
        Case("separate modes", f"{name}, {guide}", known, {"guide": guide})
        for name, known in (
            ("pair of scales 12,000 and 1", pair_of_units()),
            ("skewed pair, d = 100", skewed_pair(100)),
        )
        for guide in ("auto", "full-rank")
    ]
    return [*missed, *units, *early, *plain, *labelled()]


def labelled() -> list[Case]:
    """Components that may change places, and some that only seem to."""
    apart, touching = (-6.0, 0.0, 6.0), (-1.2, 0.0, 1.2)
    return [
        Case("labels", "three, apart", labels(apart)),
        Case("labels", "four, apart", labels((-9.0, -3.0, 3.0, 9.0))),
        Case("labels", "three, touching", labels(touching)),
        Case("labels", "three, apart, not alike", labels(apart, [0.3, 0.25, 0.2, 0.1, 0.1, 0.05])),
        Case("labels", "three, apart, full-rank", labels(apart), {"guide": "full-rank"}),
    ]


def battery() -> list[Case]:
    """All fits."""
    return [
        Case("good", "Gaussian, d = 1", gaussian(1, 1.0, shift=3.0)),
        Case("good", "Gaussian, d = 5", gaussian(5, 100.0)),
        Case("good", "Gaussian, d = 100", gaussian(100, 100.0)),
        Case("good", "banana", banana()),
        Case("good", "skewed, d = 8", skewed(8)),
        Case("good", "eight schools, centred", eight_schools()),
        Case("good", "eight schools, non-centred", eight_schools(False)),
        Case("good", "touching modes", mixture(*TOUCHING)),
        Case("funnel", "width 3", funnel()),
        Case("funnel", "width 1.5", funnel(width=1.5)),
        Case("funnel", "d = 30", funnel(30)),
        Case("heavy tails", "t5, d = 5", student_t(5, 5.0)),
        Case("heavy tails", "t3, d = 2", student_t(2, 3.0)),
        Case("heavy tails", "t2.2, d = 1", student_t(1, 2.2)),
        Case("heavy tails", "t3, full-rank", student_t(2, 3.0), {"guide": "full-rank"}),
        Case("separate modes", "ring of eight", mixture(RING, np.full(8, 0.5), np.ones(8))),
        Case(
            "separate modes", "ring of eight, flow", mixture(RING, [0.5] * 8, np.ones(8)), {"guide": "flow"}
        ),
        Case("separate modes", "two in d = 70", mixture(*FAR_70)),
        Case("separate modes", "narrow beside wide", mixture(*SPIKE)),
        *families(),
        Case("flat", "no posterior, one flat direction", half_flat()),
        Case("flat", "no posterior, separated logistic", separated()),
        Case("flat", "sd of 100,000", gaussian(2, 1.0, scale=1e5)),
        Case("ill-conditioned", "condition 1e6, d = 10", gaussian(10, 1e6)),
        Case("ill-conditioned", "condition 1e10, d = 5", gaussian(5, 1e10)),
        Case("ill-conditioned", "sds of 1e-6", gaussian(3, 10.0, scale=1e-6)),
        Case("ill-conditioned", "condition 1e6, mean-field", gaussian(4, 1e6), {"guide": "mean-field"}),
        Case(
            "paper's objective", "eight schools", eight_schools(), {"guide": dmvi.PaperGuide(), "steps": 1000}
        ),
        Case(
            "paper's objective",
            "Gaussian, d = 5",
            gaussian(5, 10.0),
            {"guide": dmvi.PaperGuide(), "steps": 1000},
        ),
    ]
