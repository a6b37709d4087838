r"""DPM-Solver in its noise-prediction form, on a discrete noise schedule.

From time s to time t, with h = lambda_t - lambda_s, e_i = eps(w_i, s_i), s_0 = s and intermediate times
s_i at lambda_s + r_i h, all of its orders are instances of

    w_1 = a_1 w - b_1 e_0
    w_2 = a_2 w - b_2 e_0 - c_2 (e_1 - e_0)
    w'  = a w - b e_0 - d_1 (e_1 - e_0) - d_2 (e_2 - e_0)

with a = alpha_t / alpha_s, b = sigma_t (e^h - 1), likewise a_i and b_i at s_i, and

    order 1   d_1 = d_2 = 0
    order 2   d_1 = b / (2 r_1),  d_2 = 0
    order 3   c_2 = r_2 / r_1 sigma_2 ((e^{r_2 h} - 1) / (r_2 h) - 1),
              d_1 = 0,  d_2 = 1 / r_2 sigma_t ((e^h - 1) / h - 1)

The shares r_i divide the step evenly, in lambda or in time as the grid does: in lambda r_1 = 1/2, or 1/3 and
r_2 = 2/3. So a step is a row of numbers. `evaluations` of the network are spent as the solver's authors do:
steps of the wanted order as long as they last, then the remainder in steps of lower order.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.diffusion._jacobian import JacobianFlow
from dmvi.diffusion._schedules import NoiseSchedule

GRIDS = ("logsnr", "uniform")
NODES = {1: (0.0, 0.0), 2: (1 / 2, 0.0), 3: (1 / 3, 2 / 3)}  # shares of a step at which it looks


class NoiseModel(eqx.Module):
    """eps(w, time) from R^dim x (0, 1] to R^dim; `key` feeds dropout during training only."""

    @abc.abstractmethod
    def __call__(
        self, w: Float[Array, " dim"], time: Float[Array, ""], key: PRNGKeyArray | None = None
    ) -> Float[Array, " dim"]: ...


class Coefficients(NamedTuple):
    """The numbers of a step by the names of the module's equations; `times` are s_0, s_1, s_2."""

    times: np.ndarray
    a: np.ndarray
    b: np.ndarray
    d_1: np.ndarray
    d_2: np.ndarray
    a_1: np.ndarray
    b_1: np.ndarray
    a_2: np.ndarray
    b_2: np.ndarray
    c_2: np.ndarray


class SolverFlow(JacobianFlow):
    """DPM-Solver through a noise model, from noise at time 1 down to time 1/T."""

    network: NoiseModel
    schedule: NoiseSchedule
    evaluations: int = eqx.field(static=True)
    order: int = eqx.field(static=True)
    grid: str = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __init__(
        self, network: NoiseModel, schedule: NoiseSchedule, *, evaluations: int, order: int, grid: str
    ):
        self.network, self.schedule = network, schedule
        self.evaluations, self.order, self.grid = evaluations, order, grid
        self.steps = len(self.orders)

    @property
    def orders(self) -> list[int]:
        """The order of each step."""
        return step_orders(self.evaluations, self.order)

    def knots(self):
        return solver_coefficients(self.schedule, self.orders, self.grid)

    def guess(self, knot, u):
        return u / knot.a

    def step(self, knot, u, key=None):
        return solver_step(lambda w, time: self.network(w, time, key), knot, u, self.order)


def solver_step(
    network: Callable[..., Float[Array, " dim"]], knot: Any, u: Float[Array, " dim"], order: int
) -> Float[Array, " dim"]:
    """One step of at most this order; `network` gets a state and one of the times of `knot`."""
    e_0 = network(u, knot.times[0])
    moved = knot.a * u - knot.b * e_0
    if order == 1:
        return moved
    e_1 = network(knot.a_1 * u - knot.b_1 * e_0, knot.times[1])
    moved = moved - knot.d_1 * (e_1 - e_0)
    if order == 2:
        return moved
    w_2 = knot.a_2 * u - knot.b_2 * e_0 - knot.c_2 * (e_1 - e_0)
    return moved - knot.d_2 * (network(w_2, knot.times[2]) - e_0)


def step_orders(evaluations: int, order: int) -> list[int]:
    """The order of each step: together they evaluate the network `evaluations` times."""
    full, rest = divmod(evaluations, order)
    if order == 3 and rest == 0 and full > 0:  # end with lower orders: the last steps are the stiff ones
        return [3] * (full - 1) + [2, 1]
    return [order] * full + ([rest] if rest else [])


def grid_times(schedule: NoiseSchedule, orders: list[int], grid: str) -> Float[np.ndarray, " steps+1"]:
    """Times between which the steps go, from 1 down to 1/T.

    "logsnr" spaces them evenly in lambda; "uniform" gives each evaluation of the network the same time, as
    the code of the paper does.
    """
    last = 1 / schedule.diffusions
    if grid == "uniform":
        return 1 - (1 - last) * np.concatenate([[0], np.cumsum(orders)]) / sum(orders)
    begin, end = schedule.log_snr(np.array([1.0, last]))
    times = schedule.time_at(np.linspace(begin, end, len(orders) + 1))
    return np.concatenate([[1.0], times[1:-1], [last]])


def solver_coefficients(schedule: NoiseSchedule, orders: list[int], grid: str) -> Coefficients:
    """The rows of numbers of all steps, stacked."""
    times = grid_times(schedule, orders, grid)
    s, t = times[:-1], times[1:]
    start, h = schedule.log_snr(s), schedule.log_snr(t) - schedule.log_snr(s)
    order = np.array(orders)
    r_1, r_2 = np.array([NODES[p] for p in orders]).T
    if grid == "uniform":
        r_1, r_2 = ((schedule.log_snr(s + share * (t - s)) - start) / h for share in (r_1, r_2))

    def reached(share):
        """(time, alpha / alpha_s, sigma) at lambda_s + share h."""
        time = np.where(share > 0, np.where(share < 1, schedule.time_at(start + share * h), t), s)
        log_alpha = schedule.log_alpha(time)
        sigma = np.sqrt(-np.expm1(2 * log_alpha))
        return time, np.exp(log_alpha - schedule.log_alpha(s)), sigma

    (_, a, sigma), (s_1, a_1, sigma_1), (s_2, a_2, sigma_2) = (reached(r) for r in (1.0 + 0 * h, r_1, r_2))
    b = sigma * np.expm1(h)
    second, third = order == 2, order == 3
    near, far = np.where(order > 1, r_1, 1.0), np.where(third, r_2, 1.0)  # ones where they are not used
    return Coefficients(
        times=np.stack([s, s_1, s_2], axis=1),
        a=a,
        b=b,
        d_1=np.where(second, b / (2 * near), 0.0),
        d_2=np.where(third, sigma / far * (np.expm1(h) / h - 1), 0.0),
        a_1=a_1,
        b_1=sigma_1 * np.expm1(r_1 * h),
        a_2=a_2,
        b_2=sigma_2 * np.expm1(r_2 * h),
        c_2=np.where(third, far / near * sigma_2 * (np.expm1(far * h) / (far * h) - 1), 0.0),
    )
