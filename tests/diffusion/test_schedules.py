"""Noise schedules: the forward process has the marginals it says it has."""

import numpy as np
import pytest

from dmvi import CosineSchedule, InputError, LinearSchedule

SCHEDULES = [LinearSchedule(50), LinearSchedule(100), CosineSchedule(50), CosineSchedule(100)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_stepping_forward_gives_the_marginals(schedule):
    """w_t = sqrt(1 - beta_t) w_{t-1} + sqrt(beta_t) eps: mean and variance by recursion, for every t."""
    mean, variance = 1.0, 0.0
    means, variances = [], []
    for beta in schedule.betas():
        mean, variance = np.sqrt(1 - beta) * mean, (1 - beta) * variance + beta
        means.append(mean)
        variances.append(variance)
    alphas = np.exp(schedule.log_alphas())
    np.testing.assert_allclose(alphas, means, rtol=1e-12)
    np.testing.assert_allclose(1 - alphas**2, variances, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(schedule.log_alpha(schedule.times()), schedule.log_alphas(), rtol=1e-12)


def test_linear_schedule_of_the_paper():
    """From 1e-4 to 0.02; after 50 and 100 steps far more than nothing of theta is left."""
    for diffusions, left in ((50, 0.603), (100, 0.364)):
        schedule = LinearSchedule(diffusions)
        np.testing.assert_allclose(schedule.betas()[[0, -1]], [1e-4, 0.02])
        assert abs(np.exp(2 * schedule.log_alphas()[-1]) - left) < 5e-4


def test_cosine_schedule_follows_its_formula():
    schedule = CosineSchedule(100)
    share = schedule.times()[:-1]  # the last beta is cut
    angle = 0.5 * np.pi / 1.008
    expected = np.cos(angle * (share + 0.008)) ** 2 / np.cos(angle * 0.008) ** 2
    np.testing.assert_allclose(np.exp(2 * schedule.log_alphas()[:-1]), expected, rtol=1e-10)
    assert schedule.betas()[-1] == 0.999


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_times_and_log_snr_are_inverses(schedule):
    times = np.linspace(1 / schedule.diffusions, 1.0, 333)
    log_snr = schedule.log_snr(times)
    assert np.all(np.diff(log_snr) < 0)
    np.testing.assert_allclose(schedule.time_at(log_snr), times, atol=1e-9)


def test_schedules_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="first <= last"):
        LinearSchedule(first=0.1, last=0.01)
    with pytest.raises(InputError, match="diffusions"):
        CosineSchedule(diffusions=1)
    with pytest.raises(InputError, match="offset"):
        CosineSchedule(offset=0.0)
