r"""Estimates of log pi from a batch of the rows, with the noise that a batch has near a point taken away.

    log pi(xi)  ~  log pi_B(xi) - T_B(xi) + T(xi),

where log pi_B is the estimate from a batch B, whose likelihood is scaled by N / |B|, and T_B and T are the
Taylor expansions around a point a, of the first or second order, of that estimate and of the density on all
rows. The mean of log pi_B - T_B over batches is log pi - T at every xi and for every a, so the estimate is
unbiased. Its noise is what the expansion leaves of the batch's own: of second, or third, order in xi - a.

The expansion of the batch is found at every step, once for all draws of it; T goes through all rows once.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dmvi._compile import quick_options
from dmvi.targets._differences import traceable
from dmvi.targets._target import Batch, Target

Terms = dict[str, Array]  # log-likelihood terms by observed site


@dataclasses.dataclass(frozen=True)
class ControlVariates:
    """How batches are corrected.

    Attributes:
        batches: at which the noise of each order is measured, each at a draw of its own.
        draws: of the warm start, around which batches are corrected.
        second_order_dim: most coordinates for the second order: a Hessian of the batch costs as many
            gradients, and a step has 32 draws that cost one each.
        rows_of_the_start: most rows that the warm start goes through at every step, for a start without the
            noise of batches; its 10,000 steps or so of 32 draws take seconds on them.
        worthwhile: share of the noise variance that a higher order has to leave at most, as it costs more.
    """

    batches: int = 64
    draws: int = 256
    second_order_dim: int = 16
    worthwhile: float = 0.5
    rows_of_the_start: int = 4096


CONTROL_VARIATES = ControlVariates()


@dataclasses.dataclass(frozen=True, eq=False)
class Anchor:
    """The expansion T: log pi on all rows with its derivatives at a point.

    Attributes:
        point: a.
        value: log pi(a).
        slope: its gradient.
        curvature: its Hessian; None where batches are corrected to first order.
    """

    point: Float[np.ndarray, " dim"]
    value: float
    slope: Float[np.ndarray, " dim"]
    curvature: Float[np.ndarray, "dim dim"] | None = None

    def rows(self) -> Float[np.ndarray, "rows dim"]:
        """All of it in one array."""
        curvature = [] if self.curvature is None else [self.curvature]
        return np.vstack([self.point, np.full_like(self.slope, self.value), self.slope, *curvature])

    @classmethod
    def of(cls, rows: Float[np.ndarray, "rows dim"]) -> "Anchor":
        """The inverse of `rows`."""
        return cls(rows[0], float(rows[1, 0]), rows[2], rows[3:] if len(rows) > 3 else None)


def corrected_at(target: Target, anchor: Anchor) -> Target:
    """The target whose batches are corrected at an anchor; see the module's equation."""

    def log_density(xi: Array, params: dict[str, Array], batch: Batch) -> Array:
        plain = target._log_density(xi, params, batch)
        if batch is None:
            return plain

        def of_batch(at: Array) -> Array:
            return target._log_density(at, params, batch)

        point, away = jnp.asarray(anchor.point, xi.dtype), xi - jnp.asarray(anchor.point, xi.dtype)
        value, slope = jax.value_and_grad(of_batch)(point)
        missed = (anchor.value - value) + (jnp.asarray(anchor.slope, xi.dtype) - slope) @ away
        if anchor.curvature is not None:
            bend = jnp.asarray(anchor.curvature, xi.dtype) - jax.hessian(of_batch)(point)
            missed += 0.5 * away @ bend @ away
        return plain + missed

    return dataclasses.replace(target, _log_density=log_density, anchor=anchor)


def corrected(
    target: Target,
    point: np.ndarray,
    draws: Float[np.ndarray, "n dim"],
    settings: ControlVariates = CONTROL_VARIATES,
) -> Target:
    """The target with its batches corrected at a point, to the order that serves draws around it best.

    Far from the point an expansion may be worse than none: the noise of the batch's slope is measured without
    one and with one of either order. The target stays as it is where none is better, and where it has
    parameters to learn, with which an expansion over all rows would move.

    Args:
        target: with batches of its own, as `subsample_size` makes them.
        point: a.
        draws: where training will go.
        settings: how.
    """
    if not target.subsampled or target.stream is not None or target.params or target._bind is not None:
        return target
    anchors = _anchors(target, point, settings)
    targets = [target, *(corrected_at(target, anchor) for anchor in anchors)]
    spread = np.std(draws, axis=0)
    noises = [slope_noise(each, draws[: settings.batches], spread) for each in targets]
    chosen = 0
    for order in range(1, len(targets)):
        if noises[order] < settings.worthwhile * noises[chosen]:
            chosen = order
    return targets[chosen]


def _anchors(target: Target, point: np.ndarray, settings: ControlVariates) -> list[Anchor]:
    """Expansions of first and second order, as far as there are derivatives."""
    options, at = quick_options(), jnp.asarray(point, jnp.result_type(float))
    value, slope = jax.jit(jax.value_and_grad(target.log_density), compiler_options=options)(at)
    first = Anchor(np.asarray(at), float(value), np.asarray(slope))
    if not (np.isfinite(value) and np.isfinite(slope).all()):
        return []
    if target.dim > settings.second_order_dim or not traceable(jax.hessian(target.log_density), at):
        return [first]
    curvature = np.asarray(jax.jit(target.hessian, compiler_options=options)(at))
    second = dataclasses.replace(first, curvature=curvature)
    return [first, second] if np.isfinite(curvature).all() else [first]


def slope_noise(
    target: Target, draws: Float[np.ndarray, "n dim"], spread: Float[np.ndarray, " dim"]
) -> float:
    """The mean square of the noise of the batch's slope, times the spread of each coordinate."""

    def noise(each: tuple[Array, Array]) -> Array:
        xi, key = each
        batch = target.draw_batch(key)
        of_batch = jax.grad(lambda xi: target.log_density(xi, batch))(xi)
        return jnp.sum(((of_batch - jax.grad(target.log_density)(xi)) * spread) ** 2)

    points = jnp.asarray(draws, jnp.result_type(float))
    keys = jax.random.split(jax.random.key(0), len(draws))
    found = jax.jit(lambda: jax.lax.map(noise, (points, keys)), compiler_options=quick_options())()
    return float(np.nan_to_num(np.mean(np.asarray(found, float)), nan=np.inf))


def on_all_rows(target: Target) -> Target:
    """The target without batches."""
    return dataclasses.replace(target, subsampled=False, _draw_batch=lambda key: None)


def total(terms: Terms) -> Array:
    """Their sum over all sites."""
    return sum((jnp.sum(term) for term in terms.values()), jnp.zeros(()))


def estimate_of_rows(parts: Callable, count: int, xi: Array, block: Any, data: dict[str, Any]) -> Array:
    """log pi at xi from a block of the `count` rows, less L(m) where there are control variates."""
    prior, found = parts(xi, block)
    scale = count / next(iter(block.values())).shape[0]
    if "mode" not in data:
        return prior + scale * total(found)
    mode, away = data["mode"], xi - data["mode"]
    if not traceable(jax.jacfwd(lambda z: total(parts(z, block)[1])), mode):
        there, slope = parts(mode, block)[1], jax.grad(lambda z: total(parts(z, block)[1]))(mode)
        rest = jax.tree.map(lambda here, there: here - there, found, there)
        return prior + scale * (total(rest) - slope @ away) + data["slope"] @ away

    def expansion(z: Array) -> tuple[Terms, Terms]:
        return jax.jvp(lambda z: parts(z, block)[1], (z,), (away,))

    known = jnp.sum(data["slope"] * away)
    if "curvature" in data:
        (there, linear), (_, bend) = jax.jvp(expansion, (mode,), (away,))
        linear = jax.tree.map(lambda linear, bend: linear + 0.5 * bend, linear, bend)
        known += 0.5 * away @ data["curvature"] @ away
    else:
        there, linear = expansion(mode)
    # Differences are taken term by term: scaled sums would lose them to rounding.
    rest = jax.tree.map(lambda here, there, linear: here - there - linear, found, there, linear)
    return prior + scale * total(rest) + known
