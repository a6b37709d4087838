"""Pinned joint distributions of TFP on JAX; tests/targets/test_agreement.py has their densities."""

# pyright: reportMissingImports=false

import jax.numpy as jnp
import numpy as np
import pytest

import dmvi
from dmvi.targets import as_target

pytest.importorskip("tensorflow_probability", reason="TFP is not installed: pip install dmvi[tfp]")
from tensorflow_probability.substrates import jax as tfp

tfd = tfp.distributions
Y = np.array([0.5, 1.5, 2.0], np.float32)


def as_coroutine():
    @tfd.JointDistributionCoroutineAutoBatched
    def joint():
        mu = yield tfd.Normal(0.0, 1.0, name="mu")
        yield tfd.Sample(tfd.Normal(mu, 1.0), 3, name="y")

    return joint


def as_named():
    return tfd.JointDistributionNamed(
        {"mu": tfd.Normal(0.0, 1.0), "y": lambda mu: tfd.Sample(tfd.Normal(mu, 1.0), 3)}
    )


def as_sequence():
    return tfd.JointDistributionSequentialAutoBatched(
        [tfd.Normal(0.0, 1.0, name="mu"), lambda mu: tfd.Sample(tfd.Normal(mu, 1.0), 3, name="y")]
    )


@pytest.mark.parametrize("make", [as_coroutine, as_named, as_sequence])
def test_every_kind_of_joint(make):
    target = as_target(make().experimental_pin(y=Y))
    assert target.names == ("mu",)
    normal = -0.5 * np.log(2 * np.pi)
    for mu in (-1.0, 0.7):
        expected = 4 * normal - 0.5 * mu**2 - 0.5 * ((Y - mu) ** 2).sum()
        assert float(target.log_density(jnp.array([mu]))) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(target.observed["y"], Y)
    total = float(jnp.sum(target.log_likelihood(jnp.array([0.7]))["y"]))
    assert total == pytest.approx(3 * normal - 0.5 * ((Y - 0.7) ** 2).sum(), rel=1e-5)


def test_a_fit_has_the_posterior_of_the_conjugate_model():
    posterior = dmvi.fit(as_coroutine().experimental_pin(y=Y), guide="full-rank", steps=200, progress=False)
    draws = posterior.sample(4000)["mu"]
    assert draws.mean() == pytest.approx(1.0, abs=0.04)
    assert draws.std() == pytest.approx(0.5, abs=0.03)
    assert posterior.to_arviz(100)["posterior"]["mu"].shape == (1, 100)


def test_constrained_and_structured_variables():
    @tfd.JointDistributionCoroutineAutoBatched
    def joint():
        yield tfd.Dirichlet(jnp.ones(3), name="p")
        yield tfd.HalfNormal(jnp.ones(2), name="scale")
        yield tfd.Normal(0.0, 1.0, name="y")

    target = as_target(joint.experimental_pin(y=0.3))
    assert target.dim == 4
    assert target.names == ("p[0]", "p[1]", "scale[0]", "scale[1]")
    sites = target.constrain(jnp.array([0.3, -0.2, 1.0, 0.5]))
    assert float(sites["p"].sum()) == pytest.approx(1.0, rel=1e-5)
    assert (np.asarray(sites["scale"]) > 0).all()


def test_a_dict_of_variables_is_named_by_its_keys():
    joint = tfd.JointDistributionNamed(
        {
            "zeta": tfd.Normal(0.0, 1.0),
            "alpha": lambda zeta: tfd.Sample(tfd.HalfNormal(jnp.exp(zeta)), 2),
            "y": lambda alpha: tfd.Normal(jnp.sum(alpha), 1.0),
        }
    )
    target = as_target(joint.experimental_pin(y=0.5))
    assert target.names == ("alpha[0]", "alpha[1]", "zeta")
    sites = target.constrain(jnp.array([0.1, 0.2, -3.0]))
    assert float(sites["zeta"]) == pytest.approx(-3.0)
    assert (np.asarray(sites["alpha"]) > 0).all()


def test_what_is_refused():
    joint = as_coroutine()
    with pytest.raises(dmvi.InputError, match=r"no data yet.*experimental_pin"):
        dmvi.fit(joint)
    with pytest.raises(dmvi.InputError, match="holds its data already"):
        dmvi.fit(joint.experimental_pin(y=Y), data={"y": Y})
    discrete = tfd.JointDistributionNamed({"k": tfd.Bernoulli(0.5), "y": lambda k: tfd.Normal(1.0 * k, 1.0)})
    with pytest.raises(dmvi.InputError, match=r"'k'.*discrete"):
        dmvi.fit(discrete.experimental_pin(y=0.5))
    batched = tfd.JointDistributionNamed(
        {"mu": tfd.Normal(jnp.zeros(2), 1.0), "y": lambda mu: tfd.Normal(mu, 1.0)}
    )
    with pytest.raises(dmvi.InputError, match=r"batch shape.*AutoBatched"):
        dmvi.fit(batched.experimental_pin(y=jnp.zeros(2)))
