r"""Exact posteriors: in closed form for the mean model, by quadrature over the scales for the hierarchies.

Given its scales a hierarchy is Gaussian. With s, b, g for the scales of noise, beta and gamma, J columns per
group, ybar_ij the mean of column ij over N rows and m_i the mean of group i's column means,

    v = (b^2 + s^2 / N) / J,     m_i | mu ~ N(mu, g^2 + v),     mu ~ N(0, 1) or 0,

    gamma_i | mu      ~ N(w mu + (1 - w) m_i, w g^2),              w = v / (g^2 + v),
    beta_ij | gamma_i ~ N(r gamma_i + (1 - r) ybar_ij, r b^2),     r = (s^2 / N) / (b^2 + s^2 / N).

So the evidence of the scales and all moments are closed forms, and a posterior is a mixture of Gaussians
over a grid of one or two log-scales, on which the trapezoidal rule gives evidence and moments to rounding.
Marginals of a scale need its distribution function between nodes: the integral of a monotone cubic through
its density at them.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr, ndtri

from dmvi.paper._models import Hierarchy, PaperModel, softplus_inverse

LEVELS = (np.arange(200) + 0.5) / 200  # at which marginals are compared
RANGE = (-14.0, 2.5)  # of log-scales: half-normal priors leave less than 1e-6 outside
NODES = {1: 400, 2: 90}  # per axis, by the number of unknown scales: for evidence and moments
FINE = {1: 400, 2: 360}  # for what lies between nodes: marginals of scales, and draws
ROUNDS = 4  # of closing in on where the posterior is
BEYOND = 25.0  # nats below the largest weight at which a node is out of the next round
NEGLIGIBLE = 1e-9  # share of the largest weight below which a node is left out
POINTS = 600  # of a marginal's distribution function
BETWEEN = 20  # of them between two nodes of a scale
REACH = 9.0  # sds that it spans
SCALES = ("gamma_scale", "beta_scale", "scale")


@dataclass(frozen=True)
class Nodes:
    """Nodes of the grid of scales; known scales are 1 at all of them.

    Attributes:
        weights: posterior probability of each node.
        spacing: distance of neighbouring nodes in the logarithm of each scale; 0 for a known one.
        gamma_scale: g at each node.
        beta_scale: b at each node.
        scale: s at each node.
    """

    weights: Float[np.ndarray, " nodes"]
    spacing: dict[str, float]
    gamma_scale: Float[np.ndarray, " nodes"]
    beta_scale: Float[np.ndarray, " nodes"]
    scale: Float[np.ndarray, " nodes"]


@dataclass(frozen=True)
class ExactPosterior:
    """A posterior that is known.

    Attributes:
        model: whose it is.
        log_evidence: log p(y).
        mean: E[u].
        sd: standard deviations of u.
        quantiles: of each coordinate at LEVELS.
        nodes: the fine grid, which draws are made from; None for the mean model.
        column_means: of the data.
        rows: of the data.
    """

    model: PaperModel
    log_evidence: float
    mean: Float[np.ndarray, " dim"]
    sd: Float[np.ndarray, " dim"]
    quantiles: Float[np.ndarray, "levels dim"]
    nodes: Nodes | None
    column_means: Float[np.ndarray, " columns"]
    rows: int

    def mse(self, truth: Float[np.ndarray, " dim"]) -> float:
        """E (u - truth)^2, the mean over coordinates: what the paper's metric gives for exact draws."""
        return float(np.mean(self.sd**2 + (self.mean - truth) ** 2))

    def draws(self, n: int, rng: np.random.Generator) -> Float[np.ndarray, "n dim"]:
        """Draws of u."""
        if self.nodes is None:
            return self.mean[None] + self.sd[None] * rng.standard_normal((n, len(self.mean)))
        assert self.model.hierarchy is not None
        return _hierarchy_draws(self, self.model.hierarchy, n, rng)


def exact_posterior(model: PaperModel, y: Float[np.ndarray, "n columns"]) -> ExactPosterior | None:
    """The exact posterior of a model given its data; None for the mixture, which has none."""
    y = np.asarray(y, np.float64)
    if model.name == "mean":
        return _mean_posterior(model, y)
    return None if model.hierarchy is None else _hierarchy_posterior(model, model.hierarchy, y)


def _mean_posterior(model: PaperModel, y: np.ndarray) -> ExactPosterior:
    """loc | y ~ N(n ybar / (n + 1), I / (n + 1)), each coordinate on its own."""
    n, dim = y.shape
    mean, sd = y.sum(0) / (n + 1), np.full(dim, (n + 1) ** -0.5)
    squares = np.sum(y**2, axis=0) - (n + 1) * mean**2
    log_evidence = -0.5 * np.sum(n * np.log(2 * np.pi) + np.log(n + 1) + squares)
    quantiles = mean[None] + sd[None] * ndtri(LEVELS)[:, None]
    return ExactPosterior(model, float(log_evidence), mean, sd, quantiles, None, y.mean(0), n)


def _hierarchy_posterior(model: PaperModel, has: Hierarchy, y: np.ndarray) -> ExactPosterior:
    nodes, log_evidence = _grid(has, y, NODES)
    fine, _ = _grid(has, y, FINE)
    column_means = y.mean(0)
    means, variances = _node_moments(model, has, nodes, column_means, len(y))
    mean = nodes.weights @ means
    sd = np.sqrt(nodes.weights @ (variances + (means - mean[None]) ** 2))
    columns = [
        _quantiles_of_scale(fine.weights, getattr(fine, name))
        if name in SCALES
        else _quantiles(nodes.weights, means[:, i], np.sqrt(variances[:, i]), mean[i], sd[i])
        for i, name in enumerate(model.names)
    ]
    quantiles = np.stack(columns, axis=1)
    return ExactPosterior(model, log_evidence, mean, sd, quantiles, fine, column_means, len(y))


def _grid(has: Hierarchy, y: np.ndarray, counts: dict[int, int]) -> tuple[Nodes, float]:
    """A grid over where the posterior of the scales is, and log p(y)."""
    nodes, log_weights = _closed_in(has, y, counts)
    largest = log_weights.max()
    mass = np.exp(log_weights - largest)
    cell = np.prod([spacing for spacing in nodes.spacing.values() if spacing])
    kept = mass > NEGLIGIBLE
    weights = mass[kept] / mass[kept].sum()
    scales = {name: getattr(nodes, name)[kept] for name in SCALES}
    return replace(nodes, weights=weights, **scales), float(largest + np.log(mass.sum() * cell))


def _closed_in(has: Hierarchy, y: np.ndarray, counts: dict[int, int]) -> tuple[Nodes, np.ndarray]:
    """That grid, not weighed yet, and log p(y, log scales) at its nodes."""
    unknown = [name for name in SCALES if getattr(has, name)]
    ranges = dict.fromkeys(unknown, RANGE)
    for remaining in reversed(range(ROUNDS)):
        # Any grid tells where the posterior is; the last one is the one that was asked for.
        count = (NODES if remaining else counts)[len(unknown)]
        axes = {name: np.linspace(*ranges[name], count) for name in unknown}
        spacing = {name: float(axis[1] - axis[0]) for name, axis in axes.items()}
        grids = np.meshgrid(*axes.values(), indexing="ij")
        logs = dict(zip(unknown, (grid.ravel() for grid in grids), strict=True))
        log_weights = _evidence_of_scales(has, y, logs)
        inside = log_weights > log_weights.max() - BEYOND
        ranges = {
            name: (
                max(RANGE[0], logs[name][inside].min() - spacing[name]),
                min(RANGE[1], logs[name][inside].max() + spacing[name]),
            )
            for name in unknown
        }
    size = log_weights.size
    scales = {name: np.exp(logs[name]) if name in logs else np.ones(size) for name in SCALES}
    return Nodes(np.ones(size), {name: spacing.get(name, 0.0) for name in SCALES}, **scales), log_weights


def _evidence_of_scales(has: Hierarchy, y: np.ndarray, logs: dict[str, np.ndarray]) -> np.ndarray:
    """log p(y, log scales) at the nodes of a grid; scales not in it are 1."""
    scales = {name: np.exp(logs[name]) if name in logs else np.ones(1) for name in SCALES}
    # Half-normal priors on the scales, as densities of their logarithms.
    prior = sum(0.5 * np.log(2 / np.pi) - 0.5 * scales[name] ** 2 + logs[name] for name in logs)
    n, (groups, per_group) = len(y), (has.groups, has.per_group)
    columns = y.mean(0).reshape(groups, per_group)
    centres = columns.mean(1)
    s2, b2, g2 = scales["scale"] ** 2, scales["beta_scale"] ** 2, scales["gamma_scale"] ** 2
    within = np.sum((y - y.mean(0)) ** 2)
    between = np.sum((columns - centres[:, None]) ** 2)
    spread = b2 + s2 / n  # variance of a column mean around its gamma
    top = g2 + spread / per_group  # variance of a group mean around mu
    # Rows around column means, column means around group means, group means around mu, mu.
    log_rows = -0.5 * y[1:].size * np.log(2 * np.pi * s2) - 0.5 * within / s2 - 0.5 * y.shape[1] * np.log(n)
    log_columns = (
        -0.5 * groups * (per_group - 1) * np.log(2 * np.pi * spread)
        - 0.5 * between / spread
        - 0.5 * groups * np.log(per_group)
    )
    log_groups = -0.5 * groups * np.log(2 * np.pi * top)
    if not has.gamma_loc:
        log_groups = log_groups - 0.5 * np.sum(centres**2) / top
    else:
        precision = 1 + groups / top
        squares = np.sum(centres**2) / top - (centres.sum() / top) ** 2 / precision
        log_groups = log_groups - 0.5 * np.log(precision) - 0.5 * squares
    return np.asarray(prior + log_rows + log_columns + log_groups)


def _shares(nodes: Nodes, has: Hierarchy, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """w and r of the module's equations, and the variance of a group mean around mu."""
    noise = nodes.scale**2 / n
    v = (nodes.beta_scale**2 + noise) / has.per_group
    top = nodes.gamma_scale**2 + v
    return v / top, noise / (nodes.beta_scale**2 + noise), top


def _location(has: Hierarchy, top: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of mu given the scales."""
    if not has.gamma_loc:
        return np.zeros_like(top), np.zeros_like(top)
    variance = 1 / (1 + has.groups / top)
    return variance * centres.sum() / top, variance


def _node_moments(
    model: PaperModel, has: Hierarchy, nodes: Nodes, columns: np.ndarray, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of every coordinate of u given the scales of each node."""
    centres = columns.reshape(has.groups, has.per_group).mean(1)
    w, r, top = _shares(nodes, has, rows)
    mu, mu_variance = _location(has, top, centres)
    gamma = w[:, None] * mu[:, None] + (1 - w)[:, None] * centres[None]
    gamma_variance = (w * nodes.gamma_scale**2 + w**2 * mu_variance)[:, None] * np.ones((1, has.groups))
    above = np.repeat(gamma, has.per_group, axis=1)
    beta = r[:, None] * above + (1 - r)[:, None] * columns[None]
    beta_variance = (r * nodes.beta_scale**2 + r**2 * gamma_variance[:, 0])[:, None] * np.ones(
        (1, beta.shape[1])
    )
    found = {
        "beta": (beta, beta_variance),
        "gamma": (gamma, gamma_variance),
        "gamma_loc": (mu[:, None], mu_variance[:, None]),
    }
    for name in SCALES:
        found[name] = softplus_inverse(getattr(nodes, name))[:, None], np.zeros((len(w), 1))
    parts = zip(*(found[site] for site in model.shapes), strict=True)
    means, variances = (np.concatenate(part, axis=1) for part in parts)
    return means, variances


def _quantiles_of_scale(weights: np.ndarray, scale: np.ndarray) -> Float[np.ndarray, " levels"]:
    """Quantiles at LEVELS of softplus^-1 of a scale, from its marginal at the nodes of its axis."""
    nodes, place = np.unique(np.log(scale), return_inverse=True)
    density = np.bincount(place, weights)
    cumulative = PchipInterpolator(nodes, density).antiderivative()
    points = np.linspace(nodes[0], nodes[-1], BETWEEN * len(nodes))
    levels = cumulative(points) / cumulative(points[-1])
    return softplus_inverse(np.exp(np.interp(LEVELS, levels, points)))


def _quantiles(
    weights: np.ndarray, means: np.ndarray, sds: np.ndarray, mean: float, sd: float
) -> Float[np.ndarray, " levels"]:
    """Quantiles at LEVELS of a mixture of Gaussians."""
    grid = np.linspace(mean - REACH * sd, mean + REACH * sd, POINTS)
    order = np.argsort(-weights)
    kept = order[: np.searchsorted(np.cumsum(weights[order]), 1 - 1e-6) + 1]
    cumulative = np.zeros(POINTS)
    for part in np.array_split(kept, -(-len(kept) // 2000)):
        cumulative += weights[part] @ ndtr((grid[None] - means[part, None]) / sds[part, None])
    return np.interp(LEVELS, cumulative / cumulative[-1], grid)


def _hierarchy_draws(
    exact: ExactPosterior, has: Hierarchy, n: int, rng: np.random.Generator
) -> Float[np.ndarray, "n dim"]:
    """Scales from the grid, then mu, gamma and beta in turn, each given what stands above it."""
    nodes, columns = exact.nodes, exact.column_means
    assert nodes is not None
    chosen = rng.choice(len(nodes.weights), n, p=nodes.weights)

    def jitter(name: str) -> np.ndarray:
        values = getattr(nodes, name)[chosen]
        return values * np.exp(nodes.spacing[name] * (rng.uniform(size=n) - 0.5))

    drawn = Nodes(np.ones(n), {}, **{name: jitter(name) for name in SCALES})
    centres = columns.reshape(has.groups, has.per_group).mean(1)
    w, r, top = _shares(drawn, has, exact.rows)
    mu, mu_variance = _location(has, top, centres)
    mu = mu + np.sqrt(mu_variance) * rng.standard_normal(n)
    gamma = w[:, None] * mu[:, None] + (1 - w)[:, None] * centres[None]
    gamma += (np.sqrt(w) * drawn.gamma_scale)[:, None] * rng.standard_normal(gamma.shape)
    above = np.repeat(gamma, has.per_group, axis=1)
    beta = r[:, None] * above + (1 - r)[:, None] * columns[None]
    beta += (np.sqrt(r) * drawn.beta_scale)[:, None] * rng.standard_normal(beta.shape)
    sites = {"beta": beta, "gamma": gamma, "gamma_loc": mu}
    return exact.model.coordinates(sites | {name: getattr(drawn, name) for name in SCALES})
