r"""Discrete noise schedules of a variance-preserving diffusion with T steps.

    w_t | theta ~ N(alpha_t theta, sigma_t^2 I),   alpha_t^2 = prod_{s <= t} (1 - beta_s) = 1 - sigma_t^2

Step t happens at time t / T. Solvers need the times between: log alpha is linear there, and
lambda = log(alpha / sigma), half the log signal-to-noise ratio, says where a time lies. All in NumPy and
double precision: schedules are constants of a compiled program.
"""

import abc

import equinox as eqx
import numpy as np
from jaxtyping import Float

from dmvi._errors import InputError

LARGEST_BETA = 0.999


class NoiseSchedule(eqx.Module):
    """beta_1..beta_T and what follows from them."""

    diffusions: eqx.AbstractVar[int]

    @abc.abstractmethod
    def betas(self) -> Float[np.ndarray, " diffusions"]:
        """Variance beta_t of the noise that step t adds."""

    def times(self) -> Float[np.ndarray, " diffusions"]:
        """t / T for t = 1..T."""
        return np.arange(1, self.diffusions + 1) / self.diffusions

    def log_alphas(self) -> Float[np.ndarray, " diffusions"]:
        """log alpha_t = 1/2 sum_{s <= t} log(1 - beta_s)."""
        return 0.5 * np.cumsum(np.log1p(-self.betas()))

    def log_alpha(self, time: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """log alpha at any time in [1/T, 1]."""
        return np.interp(time, self.times(), self.log_alphas())

    def log_snr(self, time: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """lambda = log(alpha / sigma)."""
        log_alpha = self.log_alpha(time)
        return log_alpha - 0.5 * np.log(-np.expm1(2 * log_alpha))

    def time_at(self, log_snr: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The time whose lambda is `log_snr`: log alpha = -1/2 log(1 + exp(-2 lambda))."""
        log_alpha = -0.5 * np.logaddexp(0.0, -2 * log_snr)
        return np.interp(log_alpha, self.log_alphas()[::-1], self.times()[::-1])


class LinearSchedule(NoiseSchedule):
    """beta_t from `first` to `last` in equal steps.

    Args:
        diffusions: T.
        first: beta_1.
        last: beta_T.
    """

    diffusions: int = eqx.field(static=True, default=100)
    first: float = eqx.field(static=True, default=1e-4)
    last: float = eqx.field(static=True, default=0.02)

    def __check_init__(self):
        _check_diffusions(self.diffusions)
        if not 0.0 < self.first <= self.last < 1.0:
            raise InputError(
                f"LinearSchedule needs 0 < first <= last < 1, got first={self.first}, last={self.last}."
            )

    def betas(self):
        return np.linspace(self.first, self.last, self.diffusions)


class CosineSchedule(NoiseSchedule):
    """alpha_t^2 = f(t/T) / f(0), f(s) = cos^2(pi/2 (s + offset) / (1 + offset)), beta_t at most LARGEST_BETA.

    Args:
        diffusions: T.
        offset: keeps the first steps from being too small.
    """

    diffusions: int = eqx.field(static=True, default=100)
    offset: float = eqx.field(static=True, default=0.008)

    def __check_init__(self):
        _check_diffusions(self.diffusions)
        if not 0.0 < self.offset < 1.0:
            raise InputError(f"CosineSchedule needs an offset between 0 and 1, got {self.offset}.")

    def betas(self):
        share = np.arange(self.diffusions + 1) / self.diffusions
        squares = np.cos(0.5 * np.pi * (share + self.offset) / (1 + self.offset)) ** 2
        return np.clip(1 - squares[1:] / squares[:-1], None, LARGEST_BETA)


def _check_diffusions(diffusions: object) -> None:
    if not isinstance(diffusions, int) or diffusions < 2:
        raise InputError(f"a noise schedule needs an integer of at least 2 diffusions, got {diffusions!r}.")
