r"""The stochastic chain: noise and denoising steps with the ratio of their path densities.

In whitened coordinates, with rates b_k in (0, 1) that are learned and start as a cosine schedule,

    forward  r   u_{k+1} | u_k ~ N(sqrt(1-b_k) u_k + sqrt(b_k) f(u_k),     b_k diag(e^{2 g(u_k)}))
    reverse  q   u_k | u_{k+1} ~ N(sqrt(1-b_k) u_{k+1} + sqrt(b_k) m(u_{k+1}), b_k diag(e^{2 s(u_{k+1})}))

from u_K ~ N(0, I) down to u_0. Drift f and log-scale g of the forward process are zero unless they are
learned too; m and s are a network's, zero at the start. With everything zero the two processes are each
other's reversal, so u_0 ~ N(0, I) for any K and any rates, exactly. The path log-density ratio is

    log q(u_{0:K}) - log r(u_{1:K} | u_0)
        = log N(u_K) + sum_k sum_i [ (e'^2 - e^2) / 2 - s + g ],

e the standardised noise of the reverse step and e' that of the same step read forward; the rates and
constants cancel. It costs O(K d width): no determinant, and nothing need be injective.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._random import children
from dmvi.diffusion._networks import zeros
from dmvi.diffusion._projected import Head

LOG_SCALE_LIMIT = 3.0  # bound of |s| and |g|
LEAST_RATE, LARGEST_RATE = 1e-3, 0.95  # of the cosine schedule the rates start from
COSINE_END = 0.98  # of the quarter wave: not all signal is gone at u_K

Feature = Callable[[Array], Array]


class Shift(NamedTuple):
    """Mean and log-scale that a kernel adds to plain noising, in units of sqrt(b)."""

    mean: Float[Array, " dim"]
    log_scale: Float[Array, " dim"]

    def plus_gradient_of(self, other: "Shift", gate: Float[Array, ""] | float = 1.0) -> "Shift":
        """These values, with the gradient of `other` times `gate` added to their own."""
        return jax.tree.map(lambda x, y: x + gate * (y - jax.lax.stop_gradient(y)), self, other)


class Kernel(eqx.Module):
    """Mean and log-scale as functions of u and of the step; `gain`, if any, weighs a feature of u."""

    head: Head
    gain: Float[Array, "steps dim"] | None

    def __init__(self, dim: int, width: int, depth: int, steps: int, *, gain: bool, key: PRNGKeyArray):
        self.head = Head(dim, width, depth, 2 * dim, key=key)
        self.gain = zeros(steps, dim) if gain else None

    def embed(self, times: Float[Array, " steps"]) -> Float[Array, "steps width"]:
        """The time's share of the first layer, for every step."""
        return jax.vmap(self.head.hidden.embed)(times)

    def __call__(self, u: Float[Array, " dim"], knot: "Knot", feature: Array | None = None) -> Shift:
        mean, log_scale = jnp.split(self.head(self.head.hidden(u, knot.embedding)), 2)
        if feature is not None and knot.gain is not None:
            mean = mean + knot.gain * feature
        return Shift(mean, LOG_SCALE_LIMIT * jnp.tanh(log_scale / LOG_SCALE_LIMIT))


class Knot(NamedTuple):
    """What one kernel needs at one step."""

    embedding: Float[Array, " width"]
    gain: Float[Array, " dim"] | None


class Knots(NamedTuple):
    """What one step needs, stacked over the steps in the order u_0, u_1, ..."""

    log_odds: Float[Array, ""]
    reverse: Knot
    forward: Knot | None


class Landing(NamedTuple):
    """End u_0 of a path and log q(path) - log r(path | u_0).

    `slope` is grad_{u_0} of log q(u_0 | u_1), of which the path gradient of an affine map after the chain
    is made; `read_slope` is grad_{u_0} log r(u_1 | u_0).
    """

    u: Float[Array, " dim"]
    log_ratio: Float[Array, ""]
    slope: Float[Array, " dim"]
    read_slope: Float[Array, " dim"]


def cosine_log_odds(steps: int) -> Float[Array, " steps"]:
    """log b / (1 - b) of the cosine schedule, prod_{j<=k} (1 - b_j) = cos^2(0.49 pi k / K)."""
    kept = np.cos(0.5 * np.pi * COSINE_END * np.arange(steps + 1) / steps) ** 2
    rates = np.clip(1 - kept[1:] / kept[:-1], LEAST_RATE, LARGEST_RATE)
    return jax.device_put((np.log(rates) - np.log1p(-rates)).astype(jnp.result_type(float)))


class ReverseChain(eqx.Module):
    """K stochastic steps from noise to the whitened posterior; see the module's equations."""

    reverse: Kernel
    forward: Kernel | None
    log_odds: Float[Array, " steps"]
    steps: int = eqx.field(static=True)

    def knots(self) -> Knots:
        """What the steps need, each kernel's share under its own name."""
        times = jnp.arange(1, self.steps + 1, dtype=self.log_odds.dtype) * (2.0 / self.steps)
        reverse = Knot(self.reverse.embed(times), self.reverse.gain)
        forward = None if self.forward is None else Knot(self.forward.embed(times), None)
        return Knots(self.log_odds, reverse, forward)

    def move(self, u: Array, noise: Float[Array, "steps dim"], feature: Feature | None = None) -> Array:
        """u_0 from u_K and the noise of the steps, without density."""

        def body(u, inputs):
            knot, e = inputs
            return _step(knot.log_odds, u, self._denoise(u, knot, feature), e), None

        return jax.lax.scan(body, u, (self.knots(), noise), reverse=True)[0]

    def move_density(
        self, u: Array, noise: Float[Array, "steps dim"], feature: Feature | None = None
    ) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """u_0 and the path's log-density ratio without log N(u_K), with their full gradient."""

        def body(carry, inputs):
            u, total = carry
            knot, e = inputs
            shift = self._denoise(u, knot, feature)
            after = _step(knot.log_odds, u, shift, e)
            read = self._noise(after, knot)
            e_read = _standardised(knot.log_odds, after, u, read)
            return (after, total + _step_ratio(e, shift, e_read, read)), None

        start = (u, jnp.zeros((), u.dtype))
        return jax.lax.scan(body, start, (self.knots(), noise), reverse=True)[0]

    def move_path(
        self,
        u: Array,
        noise: Float[Array, "steps dim"],
        fixed: "ReverseChain",
        feature: Feature | None = None,
        live: Float[Array, ""] | float = 1.0,
    ) -> Landing:
        r"""As `move_density` with the path gradient: the density of q keeps its parameters fixed.

        What is left out, E_q[d log q / d phi], is zero. The parameters of r have no such right: they count
        through log r, except where `live` is zero because the start was not q's own.

        Args:
            u: start u_K.
            noise: of the steps.
            fixed: this chain without gradients.
            feature: of u, for the reverse kernel.
            live: gradient of the parameters of r, 1 or 0.
        """

        def body(carry, inputs):
            u, total, _, _ = carry
            (knot, fixed_knot), e = inputs
            held = jax.lax.stop_gradient(u)
            h = None if feature is None else feature(u)
            # Kernels with their parameters fixed carry gradients of u; with u fixed, those of parameters.
            frozen_shift = fixed.reverse(u, fixed_knot.reverse, h)
            own_shift = self.reverse(held, knot.reverse, jax.lax.stop_gradient(h))
            after = _step(knot.log_odds, u, frozen_shift.plus_gradient_of(own_shift), e)
            e_fixed = _standardised(fixed_knot.log_odds, u, after, frozen_shift)
            log_odds = fixed_knot.log_odds + live * (knot.log_odds - fixed_knot.log_odds)
            read = fixed._noise(after, fixed_knot)
            if self.forward is not None:
                read = read.plus_gradient_of(self._noise(jax.lax.stop_gradient(after), knot), live)
            e_read = _standardised(log_odds, after, u, read)
            ratio = _step_ratio(e_fixed, frozen_shift, e_read, read)
            # log sqrt(b) cancels in value, but it is fixed in q and learned in r.
            rates = 0.5 * u.shape[0] * (_log_rate(log_odds) - _log_rate(fixed_knot.log_odds))
            slope = -e * jnp.exp(-frozen_shift.log_scale) * jax.lax.rsqrt(_rate(fixed_knot.log_odds))
            return (after, total + ratio + rates, slope, held), None

        zero = jnp.zeros((), u.dtype)
        inputs = ((self.knots(), fixed.knots()), noise)
        (end, log_ratio, slope, before), _ = jax.lax.scan(
            body, (u, zero, jnp.zeros_like(u), u), inputs, reverse=True
        )
        return Landing(end, log_ratio, slope, fixed._read_slope(jax.lax.stop_gradient(end), before))

    def read_path(self, u: Array, noise: Array, feature: Feature | None = None) -> tuple[Array, Array]:
        """From u_0 forward to u_K by r, and the path's log-density ratio without log N(u_K)."""

        def body(carry, inputs):
            u, total = carry
            knot, e_read = inputs
            read = self._noise(u, knot)
            after = _step(knot.log_odds, u, read, e_read)
            shift = self._denoise(after, knot, feature)
            e = _standardised(knot.log_odds, after, u, shift)
            return (after, total + _step_ratio(e, shift, e_read, read)), None

        return jax.lax.scan(body, (u, jnp.zeros((), u.dtype)), (self.knots(), noise))[0]

    def _denoise(self, u: Array, knot: Knots, feature: Feature | None) -> Shift:
        return self.reverse(u, knot.reverse, None if feature is None else feature(u))

    def _noise(self, u: Array, knot: Knots) -> Shift:
        if self.forward is None or knot.forward is None:
            return Shift(jnp.zeros_like(u), jnp.zeros_like(u))
        return self.forward(u, knot.forward)

    def _read_slope(self, end: Array, before: Array) -> Float[Array, " dim"]:
        """grad_{u_0} log r(u_1 | u_0)."""
        knot = jax.tree.map(lambda leaf: leaf[0], self.knots())

        def log_r(u):
            read = self._noise(u, knot)
            return jnp.sum(-0.5 * _standardised(knot.log_odds, u, before, read) ** 2 - read.log_scale)

        return jax.grad(log_r)(end)


def build_chain(
    dim: int, steps: int, width: int, depth: int, *, drift: bool, gain: bool, key: PRNGKeyArray
) -> ReverseChain:
    """The chain whose processes are each other's reversal, before training.

    Args:
        dim: coordinates.
        steps: K.
        width: hidden units of the kernels.
        depth: hidden layers of the kernels.
        drift: learn drift and scale of the forward process too.
        gain: give the reverse kernel a feature of u, weighed by a gain that starts at zero.
        key: initialises the kernels.
    """
    keys = children(key, 2)
    return ReverseChain(
        reverse=Kernel(dim, width, depth, steps, gain=gain, key=keys[0]),
        forward=Kernel(dim, width, depth, steps, gain=False, key=keys[1]) if drift else None,
        log_odds=cosine_log_odds(steps),
        steps=steps,
    )


def _rate(log_odds: Array) -> Array:
    return jax.nn.sigmoid(log_odds)


def _log_rate(log_odds: Array) -> Array:
    return jax.nn.log_sigmoid(log_odds)


def _step(log_odds: Array, u: Array, shift: Shift, e: Array) -> Array:
    """sqrt(1-b) u + sqrt(b) (m + e^s e): one step of either process."""
    kept, added = jnp.sqrt(_rate(-log_odds)), jnp.sqrt(_rate(log_odds))
    return kept * u + added * (shift.mean + jnp.exp(shift.log_scale) * e)


def _standardised(log_odds: Array, u: Array, after: Array, shift: Shift) -> Array:
    """The noise e with which a step from u under `shift` ends at `after`."""
    kept, added = jnp.sqrt(_rate(-log_odds)), jnp.sqrt(_rate(log_odds))
    return ((after - kept * u) / added - shift.mean) * jnp.exp(-shift.log_scale)


def _step_ratio(e: Array, shift: Shift, e_read: Array, read: Shift) -> Float[Array, ""]:
    """log q - log r of one step, coordinate by coordinate: the large parts cancel before they are summed."""
    return jnp.sum(0.5 * (e_read**2 - e**2) - shift.log_scale + read.log_scale)
