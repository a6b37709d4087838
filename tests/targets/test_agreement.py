"""One model in four languages is one posterior.

Coordinates differ between libraries. Where two targets A and B describe the same variables theta,

    log pi_A(a) = log pi_B(b) + log |det db / da|,   theta_A(a) = theta_B(b),

and with J = d theta / d xi the determinant is that of sqrt(det J_A^T J_A / det J_B^T J_B).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jaxtyping import Array

import dmvi
from dmvi.targets import as_target
from tests.targets import programs

POINTS = 100


class Language(NamedTuple):
    """A model as a target, and its variables at a point in the common order."""

    target: dmvi.Target
    variables: Callable[[Array], Array]


def in_numpyro(name: str) -> Language:
    target = as_target(programs.NUMPYRO[name])
    return Language(target, lambda xi: programs.COMMON[name](target.constrain(xi)))


def as_log_density(name: str) -> Language:
    density, init, variables = programs.DENSITIES[name]
    target = as_target(density, init=init)
    return Language(target, lambda xi: programs.COMMON[name](variables(target.constrain(xi))))


def in_pymc(name: str) -> Language:
    pytest.importorskip("pymc", reason="PyMC is not installed: pip install dmvi[pymc]")
    from tests.targets import programs_pymc

    target = as_target(programs_pymc.MODELS[name]())
    return Language(target, lambda xi: programs_pymc.VARIABLES[name](target.constrain(xi)))


def in_tfp(name: str) -> Language:
    pytest.importorskip("tensorflow_probability", reason="TFP is not installed: pip install dmvi[tfp]")
    from tests.targets import programs_tfp

    target = as_target(programs_tfp.MODELS[name]())
    return Language(target, lambda xi: programs.COMMON[name](target.constrain(xi)))


OTHERS = {"log-density": as_log_density, "PyMC": in_pymc, "TFP": in_tfp}


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("name", programs.NAMES)
def test_the_same_log_density(name, language):
    with jax.enable_x64(True):
        ours, other = in_numpyro(name), OTHERS[language](name)
        assert ours.target.dim == other.target.dim
        points = np.random.default_rng(1).normal(size=(POINTS, ours.target.dim))
        theta, slopes = look(ours, points)
        found = np.stack([solve(other, value) for value in theta])
        again, other_slopes = look(other, found)
        np.testing.assert_allclose(again, theta, rtol=1e-7, atol=1e-7)
        shift = 0.5 * (log_volume(slopes) - log_volume(other_slopes))
        left = jax.jit(jax.vmap(ours.target.log_density))(points)
        right = jax.jit(jax.vmap(other.target.log_density))(found) + shift
    np.testing.assert_allclose(left, right, rtol=1e-5)


def look(language: Language, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The variables and their derivatives at each point."""
    both = jax.jit(jax.vmap(lambda xi: (language.variables(xi), jax.jacfwd(language.variables)(xi))))
    return tuple(np.asarray(part) for part in both(jnp.asarray(points)))  # pyright: ignore[reportReturnType]


def solve(language: Language, theta: np.ndarray) -> np.ndarray:
    """The point whose variables are theta."""
    value, slope = _compiled(language)
    start = np.zeros(language.target.dim)
    derivative: Any = lambda xi: np.asarray(slope(xi))  # noqa: E731
    found = scipy.optimize.least_squares(
        lambda xi: np.asarray(value(xi)) - theta,
        start,
        derivative,
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
        x_scale="jac",
    )
    return found.x


_FUNCTIONS: dict[int, tuple] = {}


def _compiled(language: Language) -> tuple:
    key = id(language.target)
    if key not in _FUNCTIONS:
        _FUNCTIONS.clear()
        _FUNCTIONS[key] = (jax.jit(language.variables), jax.jit(jax.jacfwd(language.variables)))
    return _FUNCTIONS[key]


def log_volume(slopes: np.ndarray) -> np.ndarray:
    """log det J^T J."""
    return np.linalg.slogdet(np.swapaxes(slopes, 1, 2) @ slopes)[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.NAMES)
def test_fits_agree(name):
    """Mean and sd of 20,000 draws of each fit, within 0.1 sd and a tenth: seed and guide are the same."""
    moments = {}
    for language, make in {"NumPyro": in_numpyro, **OTHERS}.items():
        try:
            made = make(name)
        except pytest.skip.Exception:
            continue
        posterior = dmvi.fit(made.target, seed=0, progress=False)
        xi = posterior.guide.sample(jax.random.key(1), (20_000,))
        theta = np.asarray(jax.jit(jax.vmap(made.variables))(xi), np.float64)
        moments[language] = theta.mean(axis=0), theta.std(axis=0)
    mean, sd = moments.pop("NumPyro")
    for language, (other_mean, other_sd) in moments.items():
        apart, ratio = np.abs(other_mean - mean) / sd, np.abs(np.log(other_sd / sd))
        print(f"{name}, {language}: means {apart.max():.3f} sd apart, log sds {ratio.max():.3f}")
        assert apart.max() < 0.1, language
        assert ratio.max() < 0.1, language
