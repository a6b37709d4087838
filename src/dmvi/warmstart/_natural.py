r"""Gaussian variational inference by natural gradients, from gradients of log pi alone.

In whitened coordinates xi = m + S u, u ~ N(0, I), let g = grad log pi(xi) and

    r = S^T g + u,

which is zero everywhere where q = N(m, S S^T) is exact. Stein's identity gives the mean Hessian without any
second derivative,

    E[r u^T] = I + S^T E[grad^2 log pi] S,

so a natural-gradient step of rate rho is, with A the symmetric part of the mean of r u^T over draws,

    P = I - rho A,   m <- m + S P^-1 rho mean(r),   S <- S P^-1/2.

P is the precision in u; its eigenvalues are kept within bounds, and the step of the mean within sqrt(d). The
mean's step takes the sizes of eigenvalues beyond the bounds as they are: where q is too wide by orders of
magnitude, a step as long as the bounds allow would go past the optimum and be taken back each time. At the
optimum of the Gaussian ELBO both E[r] and E[r u^T] vanish. A mean field has the diagonal of A alone.
Steps that lose ELBO beyond its noise are taken back, and the rate halved; falling rates at the end average
the noise away.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dmvi._compile import compiled
from dmvi.guides import AnyAffine
from dmvi.targets._target import Target

Density = Callable[[Array, dict[str, Array]], Array]  # log pi at a point, with generative parameters


class NaturalGradients(eqx.Module):
    """How a Gaussian steps; all static.

    Attributes:
        rate: first rate; a half does not overshoot where the start is off by orders of magnitude.
        largest_rate: below one, so that noise is averaged over a few steps.
        growth: factor of the rate after a step that kept the ELBO.
        shrink: factor after one that lost it.
        narrowest: smallest eigenvalue of P in one step: at most this much wider, squared.
        widest: largest one.
        outlier: root mean squares at which a residual is cut; one draw in a far tail should not steer.
        noise: standard errors by which an ELBO may fall before a step counts as lost.
        slack: nats by which it may fall besides; rounding is no loss.
        finite: share of draws that must be finite for a step to count.
        params_rate: learning rate of Adam for generative parameters.
    """

    rate: float = eqx.field(static=True, default=0.5)
    largest_rate: float = eqx.field(static=True, default=0.7)
    growth: float = eqx.field(static=True, default=1.2)
    shrink: float = eqx.field(static=True, default=0.5)
    narrowest: float = eqx.field(static=True, default=0.4)
    widest: float = eqx.field(static=True, default=2.5)
    outlier: float = eqx.field(static=True, default=6.0)
    noise: float = eqx.field(static=True, default=3.0)
    slack: float = eqx.field(static=True, default=0.02)
    finite: float = eqx.field(static=True, default=0.95)
    params_rate: float = eqx.field(static=True, default=0.05)

    def params_optimizer(self) -> optax.GradientTransformation:
        """What moves generative parameters along."""
        return optax.adam(self.params_rate)


class Fit(NamedTuple):
    """A Gaussian on its way, and the best so far.

    Attributes:
        loc: m.
        scale: S, a square or, for a mean field, its diagonal.
        log_det: log |det S|.
        params: generative parameters.
        optimizer: Adam's state for these.
        rate: of the last step.
        best: the Gaussian of the best ELBO so far.
    """

    loc: Float[Array, " dim"]
    scale: Array
    log_det: Float[Array, ""]
    params: dict[str, Array]
    optimizer: Any
    rate: Float[Array, ""]
    best: "Best"


class Best(NamedTuple):
    """The Gaussian of the best ELBO, that ELBO and its standard error."""

    loc: Float[Array, " dim"]
    scale: Array
    log_det: Float[Array, ""]
    params: dict[str, Array]
    elbo: Float[Array, ""]
    error: Float[Array, ""]


class Step(NamedTuple):
    """What one step saw of the Gaussian it began from."""

    elbo: Float[Array, ""]
    error: Float[Array, ""]
    fell: Bool[Array, ""]


def begin(
    loc: Float[Array, " dim"], scale: Array, params: dict[str, Array], settings: NaturalGradients
) -> Fit:
    """A Gaussian before its first step."""
    zero = jnp.zeros((), loc.dtype)
    log_det = jnp.sum(jnp.log(jnp.abs(scale))) if scale.ndim == 1 else jnp.linalg.slogdet(scale)[1]
    best = Best(loc, scale, log_det, params, zero - jnp.inf, zero)
    return Fit(
        loc, scale, log_det, params, settings.params_optimizer().init(params), zero + settings.rate, best
    )


def again(fit: Fit, settings: NaturalGradients) -> Fit:
    """The best so far, to go on from at a fresh rate."""
    best = fit.best
    return Fit(*best[:4], fit.optimizer, jnp.full_like(fit.rate, settings.rate), best)


@compiled
def natural_steps(
    fits: Fit,
    target: Target,
    rates: Float[Array, " steps"],
    key: PRNGKeyArray,
    draws: int,
    at_once: int,
    settings: NaturalGradients,
    frame: AnyAffine | None = None,
) -> tuple[Fit, Step]:
    """Some steps of several Gaussians side by side, each with the same noise.

    Args:
        fits: the Gaussians, every array with a leading axis.
        target: what to approximate.
        rates: largest rate of each step.
        key: random key.
        draws: for each step, an even number.
        at_once: draws whose gradients are computed together, which bounds the memory.
        settings: how to step.
        frame: a map xi = F(x) in whose coordinates x the Gaussians are; None where they are those of the
        target.
    """

    def one(fit: Fit) -> tuple[Fit, Step]:
        return steps_of(fit, target, rates, key, draws, at_once, settings, frame)

    # A single one is not vectorised: then of the two ways to take a root only one is gone.
    return jax.lax.map(one, fits) if fits.loc.shape[0] == 1 else jax.vmap(one)(fits)


def steps_of(
    fit: Fit,
    target: Target,
    rates: Float[Array, " steps"],
    key: PRNGKeyArray,
    draws: int,
    at_once: int,
    settings: NaturalGradients,
    frame: AnyAffine | None = None,
) -> tuple[Fit, Step]:
    """As `natural_steps`, of one Gaussian, within a program."""

    def density(x: Array, params: dict[str, Array]) -> Array:
        model = eqx.tree_at(lambda t: t.params, target, params)
        return model.log_density(x) if frame is None else model.log_density(frame(x)) + frame.log_det()

    def body(fit, at):
        rate, key = at
        half = jr.normal(key, (draws // 2, target.dim), fit.loc.dtype)
        return _step(fit, density, rate, jnp.concatenate([half, -half]), at_once, settings)

    return jax.lax.scan(body, fit, (rates, jr.split(key, rates.shape[0])))


def annealed_rates(steps: int) -> Float[Array, " steps"]:
    """1 / (2 + k): from the second step on the Gaussian is the average of what all steps ask for."""
    return 1 / (2 + jnp.arange(steps, dtype=jnp.result_type(float)))


def _step(
    fit: Fit,
    density: Density,
    largest: Float[Array, ""],
    u: Float[Array, "draws dim"],
    at_once: int,
    settings: NaturalGradients,
) -> tuple[Fit, Step]:
    """One step, or a return to the best Gaussian where the last one has lost."""
    log_pi, slopes, params_slope = _slopes(fit, density, u, at_once)
    usable = jnp.isfinite(log_pi) & jnp.all(jnp.isfinite(slopes), axis=1)
    elbo, error = _elbo(fit, log_pi, u, usable, settings)
    best = fit.best
    nothing = jnp.isneginf(elbo)  # finite, which is no worse than nothing before it
    fell = nothing | ~(elbo >= best.elbo - settings.noise * jnp.hypot(error, best.error) - settings.slack)
    better = elbo > best.elbo
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), Best(*fit[:4], elbo, error), best)
    lost = jnp.isneginf(best.elbo)
    rate = jnp.minimum(largest, settings.growth * fit.rate)
    rate = jnp.where(lost, fit.rate, jnp.where(fell, settings.shrink * fit.rate, rate))
    residuals = _whitened(fit.scale, slopes) + u
    loc, scale, log_det = _moved(fit, residuals, u, usable, rate, settings)
    updates, optimizer = settings.params_optimizer().update(params_slope, fit.optimizer)
    params = optax.apply_updates(fit.params, updates)
    # Before anything finite was seen, all that helps is to look closer around the same place.
    back = jnp.where(lost, settings.shrink * fit.scale, best.scale)
    log_det_back = jnp.where(lost, fit.log_det + u.shape[1] * jnp.log(settings.shrink), best.log_det)
    loc, scale, log_det, params = jax.tree.map(
        lambda old, new: jnp.where(fell, old, new),
        (best.loc, back, log_det_back, best.params),
        (loc, scale, log_det, params),
    )
    return Fit(loc, scale, log_det, params, optimizer, rate, best), Step(elbo, error, fell)


def _slopes(
    fit: Fit, density: Density, u: Float[Array, "draws dim"], at_once: int
) -> tuple[Float[Array, " draws"], Float[Array, "draws dim"], dict[str, Array]]:
    """log pi and its gradient at the draws, and minus the mean gradient by the parameters."""

    def at(xi: Array):
        return jax.value_and_grad(density, argnums=(0, 1))(xi, fit.params)

    xi = fit.loc + (u * fit.scale if fit.scale.ndim == 1 else u @ fit.scale.T)
    log_pi, (slopes, of_params) = jax.lax.map(at, xi, batch_size=at_once)
    return log_pi, slopes, jax.tree.map(lambda g: -jnp.mean(jnp.nan_to_num(g), axis=0), of_params)


def _elbo(
    fit: Fit, log_pi: Array, u: Array, usable: Bool[Array, " draws"], settings: NaturalGradients
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The ELBO by the usable draws and its standard error; minus infinity where these are too few."""
    draws, dim = u.shape
    half = draws // 2
    weights = jnp.where(usable, log_pi + 0.5 * jnp.sum(u**2, axis=1), 0.0)
    mean = jnp.sum(weights) / jnp.maximum(jnp.sum(usable), 1)
    weights = jnp.where(usable, weights, mean)
    pairs = 0.5 * (weights[:half] + weights[half:])  # antithetic, so their noise is that of pairs
    enough = jnp.mean(usable, dtype=u.dtype) >= settings.finite
    elbo = mean + fit.log_det + 0.5 * dim * jnp.log(2 * jnp.pi)
    return jnp.where(enough & jnp.isfinite(elbo), elbo, -jnp.inf), jnp.std(pairs) / jnp.sqrt(half)


def _whitened(scale: Array, slopes: Float[Array, "draws dim"]) -> Float[Array, "draws dim"]:
    """S^T g of each draw."""
    return slopes * scale if scale.ndim == 1 else slopes @ scale


def _moved(
    fit: Fit,
    residuals: Float[Array, "draws dim"],
    u: Float[Array, "draws dim"],
    usable: Bool[Array, " draws"],
    rate: Float[Array, ""],
    settings: NaturalGradients,
) -> tuple[Float[Array, " dim"], Array, Float[Array, ""]]:
    """Location, scale and log-determinant after a step; see the module's equations."""
    mean, moment = moments(residuals, u, usable, settings.outlier, full=fit.scale.ndim == 2)
    if fit.scale.ndim == 1:
        curvature = 1 - rate * moment
        step = _shortened(rate * mean / jnp.maximum(jnp.abs(curvature), settings.narrowest))
        precision = jnp.clip(curvature, settings.narrowest, settings.widest)
        loc = fit.loc + fit.scale * step
        return loc, fit.scale * jax.lax.rsqrt(precision), fit.log_det - 0.5 * jnp.sum(jnp.log(precision))
    precision = jnp.eye(u.shape[1], dtype=u.dtype) - 0.5 * rate * (moment + moment.T)
    root, of_step, log_det = _inverse_root(precision, settings)
    step = _shortened(of_step @ (of_step.T @ (rate * mean)))
    return fit.loc + fit.scale @ step, fit.scale @ root, fit.log_det + log_det


def moments(
    residuals: Float[Array, "draws dim"],
    u: Float[Array, "draws dim"],
    usable: Bool[Array, " draws"],
    outlier: float,
    *,
    full: bool,
) -> tuple[Float[Array, " dim"], Array]:
    """Means of r and of r u^T, or of the diagonal of that, over the usable draws with outliers cut."""
    count = jnp.maximum(jnp.sum(usable), 1)
    residuals = jnp.where(usable[:, None], residuals, 0.0)
    largest = outlier * jnp.sqrt(jnp.sum(residuals**2, axis=0) / count)
    residuals = jnp.clip(residuals, -largest, largest)
    mean = jnp.sum(residuals, axis=0) / count
    return mean, (residuals.T @ u if full else jnp.sum(residuals * u, axis=0)) / count


def _inverse_root(
    precision: Float[Array, "dim dim"], settings: NaturalGradients
) -> tuple[Float[Array, "dim dim"], Float[Array, "dim dim"], Float[Array, ""]]:
    """R with R R^T = P^-1, the same for the step of the mean, and log |det R|.

    The eigenvalues of P are cut at their bounds. For the mean those above the bounds are not, as where a
    direction is narrow its optimum is close by; nor are those far below zero, which are mostly noise of
    narrow directions. Where all lie within, as they do but for the first steps, a Cholesky factor costs a
    tenth of them.
    """
    one = jnp.eye(precision.shape[0], dtype=precision.dtype)

    def cut(precision: Array) -> tuple[Array, Array, Array]:
        values, vectors = jnp.linalg.eigh(precision)
        of_step = vectors * jax.lax.rsqrt(jnp.maximum(jnp.abs(values), settings.narrowest))
        values = jnp.clip(values, settings.narrowest, settings.widest)
        return vectors * jax.lax.rsqrt(values), of_step, -0.5 * jnp.sum(jnp.log(values))

    def whole(precision: Array) -> tuple[Array, Array, Array]:
        lower = jnp.linalg.cholesky(precision)
        inverse = jax.scipy.linalg.solve_triangular(lower, one, lower=True)
        return inverse.T, inverse.T, -jnp.sum(jnp.log(jnp.diagonal(lower)))

    # A Cholesky factor is not a number where a matrix is not positive definite.
    above = jnp.linalg.cholesky(precision - settings.narrowest * one)
    below = jnp.linalg.cholesky(settings.widest * one - precision)
    within = jnp.isfinite(above[-1, -1]) & jnp.isfinite(below[-1, -1])
    return jax.lax.cond(within, whole, cut, precision)


def _shortened(step: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """The step, at most sqrt(d) long: as far as a draw of q is from its mean."""
    length = jnp.sqrt(jnp.sum(step**2))
    return step * jnp.minimum(1.0, jnp.sqrt(step.shape[0]) / jnp.maximum(length, 1e-30))
