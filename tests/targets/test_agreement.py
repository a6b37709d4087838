"""One model in four languages is one posterior.

Coordinates differ between libraries. Where two targets A and B describe the same variables theta,

    log pi_A(a) = log pi_B(b) + log |det db / da|,   theta_A(a) = theta_B(b),

and with J = d theta / d xi the determinant is that of sqrt(det J_A^T J_A / det J_B^T J_B).
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from jaxtyping import Array

import dmvi
from dmvi.posterior import Verdict
from dmvi.targets import as_target
from tests.targets import programs

POINTS = 100
DRAWS = 40_000  # behind weighed moments
POOL = 20_000  # draws out of which 4,000 are resampled


class Language(NamedTuple):
    """A model as a target, and the array that its sites make in the common order."""

    target: dmvi.Target
    common: Callable[[dict[str, Any]], Array]

    def variables(self, xi: Array) -> Array:
        """The common array at a point."""
        return self.common(self.target.constrain(xi))


def in_numpyro(name: str) -> Language:
    target = as_target(programs.NUMPYRO[name])
    return Language(target, programs.COMMON[name])


def as_log_density(name: str) -> Language:
    density, init, variables = programs.DENSITIES[name]
    target = as_target(density, init=init)
    return Language(target, lambda sites: programs.COMMON[name](variables(sites)))


def in_pymc(name: str) -> Language:
    pytest.importorskip("pymc", reason="PyMC is not installed: pip install dmvi[pymc]")
    from tests.targets import programs_pymc

    target = as_target(programs_pymc.MODELS[name]())
    return Language(target, programs_pymc.VARIABLES[name])


def in_tfp(name: str) -> Language:
    pytest.importorskip("tensorflow_probability", reason="TFP is not installed: pip install dmvi[tfp]")
    from tests.targets import programs_tfp

    target = as_target(programs_tfp.MODELS[name]())
    return Language(target, programs.COMMON[name])


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


class Moments(NamedTuple):
    """Means and sds of the common array, and the standard error of each."""

    values: np.ndarray
    errors: np.ndarray


def weighed(posterior: dmvi.Posterior, common: Callable, seed: int) -> Moments:
    """Moments by importance sampling; sd = sqrt(v), so that se(sd) = se(v) / (2 sd)."""
    mean = posterior.expectation(common, n=DRAWS, seed=seed)
    variance = posterior.expectation(lambda v: (common(v) - mean.value) ** 2, n=DRAWS, seed=seed)
    sd = np.sqrt(variance.value)
    return Moments(np.concatenate([mean.value, sd]), np.concatenate([mean.se, variance.se / (2 * sd)]))


def summarised(posterior: dmvi.Posterior, common: Callable, seed: int) -> Moments:
    """Moments of the 4,000 draws that `summary` shows, resampled where the verdict says so."""
    resample = posterior.summary(seed=seed).resampled
    theta = np.asarray(jax.vmap(common)(posterior.sample(seed=seed, resample=resample)), np.float64)
    mean, sd = theta.mean(axis=0), theta.std(axis=0)
    square = ((theta - mean) ** 2).std(axis=0) / (2 * sd)
    # Draws chosen out of a pool are no more certain than the pool.
    count = 1 / (1 / len(theta) + (1 / (posterior.diagnostics.ess * POOL) if resample else 0.0))
    return Moments(np.concatenate([mean, sd]), np.concatenate([sd, square]) / np.sqrt(count))


def apart(left: Moments, right: Moments) -> np.ndarray:
    """Differences in units of their standard errors."""
    return np.abs(left.values - right.values) / np.hypot(left.errors, right.errors)


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.NAMES)
def test_fits_agree(name):
    """Fits of one seed, each in its library's own coordinates, agree within Monte Carlo error.

    Mean and sd of each variable differ by less than k standard errors of the difference, once for 40,000
    weighed draws and once for the 4,000 that `summary` shows. k is the quantile at which one of all these
    comparisons fails by chance once in a thousand tests.
    """
    found = {}
    for seed, (language, make) in enumerate({"NumPyro": in_numpyro, **OTHERS}.items()):
        try:
            made = make(name)
        except pytest.skip.Exception:
            continue
        posterior = dmvi.fit(made.target, seed=0, progress=False)
        # Otherwise errors mean nothing. k-hat alone does not tell: of all but even weights it is noise.
        assert posterior.verdict is not Verdict.DO_NOT_TRUST, language
        found[language] = [moments(posterior, made.common, seed) for moments in (weighed, summarised)]
    differences = {
        f"{a} and {b}": [apart(*two) for two in zip(found[a], found[b], strict=True)]
        for a, b in itertools.combinations(found, 2)
    }
    count = sum(np.size(each) for both in differences.values() for each in both)
    bound = float(scipy.stats.norm.isf(0.5e-3 / count))
    for pair, both in differences.items():
        weighed_apart, shown_apart = (each.max() for each in both)
        print(
            f"{name}, {pair}: {weighed_apart:.1f} (weighed), {shown_apart:.1f} (shown) of {bound:.1f} errors"
        )
    assert max(each.max() for both in differences.values() for each in both) < bound
