"""What a gradient costs, by a clock of our own, and who is told of batches."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dmvi
from dmvi import _fit
from dmvi.targets import from_log_density, from_numpyro, gradient_seconds, slow_gradient
from dmvi.targets._cost import Costly, SlowGradient

Y = np.random.default_rng(0).normal(size=300)
FEW = Costly(seconds=0.005, rows=200, batch_size=10)


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def effects(y):
    """A latent variable for each row: no batch holds them all."""
    with numpyro.plate("rows", len(y)):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)


def subsampled(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", len(y), subsample_size=10) as index:
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[index])


def test_the_quickest_of_a_few_counts():
    times = iter([0.0, 3.0, 10.0, 11.5, 20.0, 22.0])
    target = from_log_density(lambda x: -0.5 * x**2, init=jnp.zeros(()))
    assert gradient_seconds(target, repeats=3, clock=lambda: next(times)) == 1.5
    assert next(times, None) is None


@pytest.mark.parametrize(
    ("given", "settings", "seconds", "found"),
    [
        (model, FEW, 0.012, SlowGradient(0.012, 300)),
        (model, FEW, 0.004, None),
        (model, dataclasses.replace(FEW, rows=301), 0.012, None),
        (effects, FEW, 0.012, None),
        (subsampled, FEW, 0.012, None),
    ],
)
def test_who_is_told(given, settings, seconds, found):
    target = from_numpyro(given, (), {"y": Y})
    assert slow_gradient(given, {"y": Y}, target, settings, lambda _: seconds) == found


def test_a_cheap_look_first():
    """Where rows are few, nothing is measured."""
    target = from_numpyro(model, (), {"y": Y})
    assert slow_gradient(model, {"y": Y}, target, measure=lambda _: pytest.fail("measured")) is None


def test_a_fit_says_so(monkeypatch, capsys):
    monkeypatch.setattr(_fit, "slow_gradient", lambda *_: SlowGradient(0.012, 400_000))
    posterior = dmvi.fit(model, {"y": Y}, guide="mean-field", steps=16)
    words = "a gradient takes 12 ms over 400,000 rows: fit(..., batch_size=...)"
    assert words in " ".join(capsys.readouterr().err.split())
    assert words in str(posterior)
