"""Starts are found where those of Stan and NumPyro are, and where single precision has none at first."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from dmvi import InputError, Target
from dmvi.targets import from_log_density, from_numpyro
from dmvi.targets._checks import TRIES
from dmvi.targets._family import family
from dmvi.targets._starts import further_points, starts_around, uniform_points


def usable_share(target: Target, count: int = 400) -> float:
    """Share of random starts at which density and gradient are finite, from one compiled program."""
    starts = jax.jit(jax.vmap(target.start))(jr.split(jr.key(3), count))
    assert starts.shape == (count, target.dim)
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(target.log_density)))(starts)
    return float(np.mean(np.isfinite(value) & np.isfinite(gradient).all(axis=1)))


def near_the_prior():
    """Finite within five sds of the prior, which is far from (-2, 2)."""
    x = numpyro.sample("x", dist.Normal(50.0, 0.1).expand([3]).to_event(1))
    numpyro.factor("window", jnp.where(jnp.all(jnp.abs(x - 50.0) < 0.5), 0.0, -jnp.inf))


def test_a_model_that_is_finite_near_its_prior_alone():
    assert usable_share(from_numpyro(near_the_prior)) > 0.25


WIDTH = 4.0 / np.sqrt(40.0)  # of a corner that is a fortieth of (-2, 2)^2


def in_the_corner(x):
    return (x[..., 0] < WIDTH - 2.0) & (x[..., 1] > 2.0 - WIDTH)


def test_a_model_that_is_finite_at_one_in_forty_uniform_starts():
    def model():
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), (2,)).to_event(0))
        numpyro.factor("corner", jnp.where(in_the_corner(x), -0.5 * jnp.sum(jnp.square(x)), -jnp.inf))

    target = from_numpyro(model)
    assert not in_the_corner(uniform_points(TRIES.first, 2, seed=0)).any()
    assert usable_share(target) > 0.25


def test_a_log_density_that_is_finite_at_few_uniform_starts_far_from_its_init():
    target = from_log_density(
        lambda x: jnp.where(jnp.all(jnp.abs(x) < 2.0), -jnp.sum(x**2), -jnp.inf), np.full(2, 40.0)
    )
    assert usable_share(target) > 0.25


def test_a_function_of_the_host_that_is_finite_far_from_its_init():
    def function(x):
        inside = np.all(np.abs(x) < 2.0, axis=1)
        return np.where(inside, -np.sum(x**2, axis=1), -np.inf), -2.0 * x

    assert usable_share(Target.from_value_and_grad(function, 2, init=np.full(2, 40.0))) > 0.25
    with pytest.raises(InputError, match="not finite at any of 100 starts"):
        Target.from_value_and_grad(lambda x: (np.full(len(x), np.nan), x), 2)


def overflowing(rate):
    """-exp(rate) has no place in single precision from rate 88.7 on, in double from 709.8 on."""
    return -jnp.exp(rate)


def test_a_model_that_overflows_in_single_precision_alone():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.factor("steep", overflowing(200.0 + 5.0 * x))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    target = from_numpyro(model, data={"y": np.array([0.5, 0.7])})
    uniform = jr.uniform(jr.key(0), (1000, 2), minval=-TRIES.radius, maxval=TRIES.radius)
    assert not np.isfinite(jax.vmap(target.log_density)(uniform)).any()
    assert usable_share(target) > 0.25
    assert target.start(jr.key(0)).dtype == jnp.float32


def test_a_log_density_that_overflows_in_single_precision_alone():
    target = from_log_density(lambda x: jnp.sum(overflowing(150.0 + x)) - 0.5 * jnp.sum(x**2), np.zeros(3))
    assert usable_share(target) > 0.25


def test_a_joint_distribution_that_overflows_in_single_precision_alone():
    pytest.importorskip("tensorflow_probability.substrates.jax")
    from tensorflow_probability.substrates import jax as tfp

    from dmvi.targets import as_target

    tfd = tfp.distributions
    joint = tfd.JointDistributionSequential(
        [
            tfd.Normal(0.0, 1.0),
            lambda x: tfd.Exponential(jnp.exp(100.0 + 2.0 * x), force_probs_to_zero_outside_support=True),
        ]
    )
    assert usable_share(as_target(joint.experimental_pin(None, 1.0))) > 0.25


def test_a_pymc_model_that_is_finite_near_its_prior_alone():
    pytest.importorskip("pymc")
    import pymc

    from dmvi.targets import as_target

    with pymc.Model() as model:
        x = pymc.Normal("x", 50.0, 1.0, initval=0.0)
        window: Any = pymc.math.switch(pymc.math.gt(x, 45.0), 0.0, -np.inf)
        pymc.Potential("window", window)
    assert usable_share(as_target(model)) > 0.25


def test_what_double_precision_alone_can_use_is_said():
    with pytest.raises(InputError, match=r"at any of 100 starts in single precision, .*jax_enable_x64"):
        from_log_density(lambda x: overflowing(200.0 + 0.0 * x[0]) - jnp.sum(x**2), np.zeros(2))


def test_what_no_precision_can_use_is_told_as_before():
    with pytest.raises(InputError, match=r"not finite at any of 100 starts\. Check that"):
        from_log_density(lambda x: jnp.sum(x) * jnp.nan, np.zeros(2))
    with pytest.raises(InputError, match="its gradient is not at any of 100 starts"):
        from_log_density(lambda x: jnp.sqrt(jnp.sum(0.0 * x)), np.zeros(2))


def test_precision_is_as_it_was_after_a_search_in_double():
    test_a_log_density_that_overflows_in_single_precision_alone()
    assert jnp.zeros(1).dtype == jnp.float32


def test_further_starts_are_uniform_and_every_fourth_another():
    points = further_points(12, 2, lambda count: np.full((count, 2), 9.0))
    assert np.all(points[1::4] == 9.0)
    assert np.sum(np.abs(points) < TRIES.radius) == 2 * 9
    with_nan = further_points(12, 2, lambda count: np.diag([np.nan, 9.0, 9.0])[:, :2] + 9.0)
    assert np.sum(np.all(np.abs(with_nan) < TRIES.radius, axis=1)) == 10

    def refusing(count):
        raise NotImplementedError

    np.testing.assert_array_equal(further_points(12, 2, refusing), further_points(12, 2))


def test_starts_around_a_point_are_half_the_usual_ones():
    usual = lambda key: jr.uniform(key, (2,), minval=100.0, maxval=101.0)  # noqa: E731
    assert starts_around(usual, None) is usual
    starts = np.asarray(jax.vmap(starts_around(usual, np.array([1.0, -1.0])))(jr.split(jr.key(0), 4000)))
    near = starts[starts[:, 0] < 50]
    error = np.sqrt(0.25 / 4000)
    assert abs(len(near) / 4000 - 0.5) < 4 * error
    exact = np.mean(np.all(near == [1.0, -1.0], axis=1))
    assert abs(exact - 0.25) < 0.05
    assert np.max(np.abs(near - [1.0, -1.0])) < 5.0


def test_of_many_data_sets_one_that_needs_further_tries_is_said_to_fit_alone():
    def log_density(x, y):
        return jnp.where(jnp.all(jnp.abs(x - y) < 2.0), -jnp.sum((x - y) ** 2), -jnp.inf)

    datasets = [np.full(2, 40.0), np.zeros(2)]
    found = family(
        lambda x, data: log_density(x, data["y"]), {"y": np.stack(datasets)}, init=np.full(2, 40.0)
    )
    assert list(found.faults) == [1]
    assert "among the 20 that data sets share; fit it alone" in found.faults[1]
