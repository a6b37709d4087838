"""DPM-Solver in noise-prediction form, on a process whose score is known.

If theta ~ N(0, SD^2), then w_t ~ N(0, alpha^2 SD^2 + sigma^2), the exact noise prediction is
sigma w / (alpha^2 SD^2 + sigma^2), and the probability flow keeps w / sd(w_t) constant.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from dmvi import CosineSchedule, LinearSchedule
from dmvi.diffusion import NoiseModel, NoiseSchedule, SolverFlow
from dmvi.diffusion._dpm_solver import grid_times, solver_coefficients, step_orders

SD = 0.3


class KnownNoise(NoiseModel):
    """The exact noise prediction; times of the schedule by interpolation."""

    times: Array
    log_alphas: Array

    def __init__(self, schedule: NoiseSchedule):
        self.times, self.log_alphas = jnp.asarray(schedule.times()), jnp.asarray(schedule.log_alphas())

    def __call__(self, w, time, key=None):
        square = jnp.exp(2 * jnp.interp(time, self.times, self.log_alphas))
        return jnp.sqrt(1 - square) * w / (square * SD**2 + 1 - square)


def sd_at(schedule: NoiseSchedule, time: float) -> float:
    square = np.exp(2 * schedule.log_alpha(np.asarray(time)))
    return float(np.sqrt(square * SD**2 + 1 - square))


def error(schedule: NoiseSchedule, order: int, steps: int, grid: str) -> float:
    """Relative error of `steps` steps of one order, all the way."""
    flow = SolverFlow(KnownNoise(schedule), schedule, evaluations=order * steps, order=order, grid=grid)
    knots = solver_coefficients(schedule, [order] * steps, grid)
    start = jnp.ones(1) * sd_at(schedule, 1.0)
    end = jax.lax.scan(lambda w, knot: (flow.step(knot, w), None), start, knots)[0]
    return abs(float(end[0]) / sd_at(schedule, 1 / schedule.diffusions) - 1)


@pytest.mark.parametrize("grid", ["logsnr", "uniform"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("schedule", [LinearSchedule(100), CosineSchedule(50)], ids=["linear", "cosine"])
def test_order_of_convergence(schedule, order, grid):
    # Shares of a step that are shares of time jump at the kinks of log alpha: regular on the whole only.
    numbers = (80, 2560) if (order, grid) == (3, "uniform") else (80, 160, 320)
    with jax.enable_x64(True):
        errors = [error(schedule, order, steps, grid) for steps in numbers]
    rates = np.diff(-np.log2(errors)) / np.diff(np.log2(numbers))
    np.testing.assert_allclose(rates, order, atol=0.25)


@pytest.mark.parametrize("steps", [10, 20])
def test_steps_of_the_paper_come_close(steps):
    """At the paper's 10 and 20 evaluations, order 3 is near the exact flow, and nearer than order 1."""
    schedule = LinearSchedule(100)

    def end(order: int) -> float:
        flow = SolverFlow(KnownNoise(schedule), schedule, evaluations=steps, order=order, grid="logsnr")
        return float(flow.move(jnp.ones(1))[0]) * sd_at(schedule, 1.0)

    exact = sd_at(schedule, 0.01)
    assert abs(end(3) / exact - 1) < 0.02
    assert abs(end(3) / exact - 1) < abs(end(1) / exact - 1)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("evaluations", range(1, 13))
def test_evaluations_are_spent(evaluations, order):
    orders = step_orders(evaluations, order)
    assert sum(orders) == evaluations
    assert max(orders) <= order


def test_grids():
    schedule = LinearSchedule(100)
    np.testing.assert_allclose(grid_times(schedule, [3, 3, 3, 1], "uniform")[[0, 1, -1]], [1.0, 0.703, 0.01])
    log_snr = schedule.log_snr(grid_times(schedule, [1] * 10, "logsnr"))
    np.testing.assert_allclose(np.diff(log_snr), np.diff(log_snr)[0], rtol=1e-9)
