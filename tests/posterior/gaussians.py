"""A target and a guide whose every number is known, for tests of what comes after training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._run import Run, Status
from dmvi.guides import Draw, Guide
from dmvi.targets import Target

LOG_EVIDENCE = 1.5
SCALES = np.array([1.0, 0.5, 2.0])
Y = np.array([0.3, -0.2, 1.1, 0.4])
Y_SCALE = 2.0


class ScaledGaussian(Guide):
    """q = N(shift, (stretch * SCALES)^2), exact for the target at shift 0 and stretch 1.

    `error` is added to the density that comes with a draw, so that inverting does not confirm it.
    """

    dim: int = eqx.field(static=True)
    stretch: Array
    shift: Array
    error: Array

    def __init__(self, stretch: float = 1.0, shift: float = 0.0, error: float = 0.0, dim: int = 3):
        self.dim = dim
        self.stretch = jnp.asarray(stretch)
        self.shift = jnp.asarray(shift)
        self.error = jnp.asarray(error)

    def _scale(self) -> Array:
        return self.stretch * jnp.asarray(SCALES[: self.dim], self.stretch.dtype)

    def draw(self, key: PRNGKeyArray) -> Draw:
        xi = self.sample(key)
        return Draw(xi, self.evidence(xi) + self.error, (xi - self.shift) / self._scale())

    def draw_path(self, key: PRNGKeyArray, far: Array | None = None) -> Draw:
        raise NotImplementedError("nothing here is trained")

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "*shape dim"]:
        return self.shift + self._scale() * jax.random.normal(key, (*shape, self.dim), self.stretch.dtype)

    def evidence(self, xi: Float[Array, " dim"], key: PRNGKeyArray | None = None) -> Float[Array, ""]:
        return norm.logpdf(xi, self.shift, self._scale()).sum()


def gaussian_target(*, holes: float = 0.0, dims: dict[str, tuple[str, ...]] | None = None) -> Target:
    """exp(1.5) N(0, SCALES^2) over a = xi[0] and s = exp(xi[1:]), with b = 2 a, and psi = exp(0.7).

    Where |xi[0]| exceeds the (1 - holes) quantile of its absolute value, the log-density is NaN.
    """
    edge = float(norm.ppf(1 - holes / 2)) if holes else np.inf

    def log_density(xi, params, batch):
        value = norm.logpdf(xi, 0.0, jnp.asarray(SCALES, xi.dtype)).sum() + LOG_EVIDENCE
        return jnp.where(jnp.abs(xi[0]) > edge, jnp.nan, value)

    return Target(
        dim=3,
        names=("a", "s[0]", "s[1]"),
        params={"psi": jnp.asarray(0.7)},
        observed={"y": Y},
        dims={"s": ("group",), "y": ("obs",)} if dims is None else dims,
        data_size=len(Y),
        subsampled=False,
        _log_density=log_density,
        _constrain=lambda xi, params: {"a": xi[0], "s": jnp.exp(xi[1:]), "b": 2 * xi[0]},
        _constrain_params=lambda params: {"psi": jnp.exp(params["psi"])},
        _log_likelihood=lambda xi, params: {"y": norm.logpdf(jnp.asarray(Y, xi.dtype), xi[0], Y_SCALE)},
        _start=lambda key: jax.random.normal(key, (3,)),
        _draw_batch=lambda key: None,
    )


def a_run(status: Status = Status.CONVERGED, *, steps: int = 2000, skipped: int = 0) -> Run:
    return Run(
        status=status,
        steps=steps,
        seconds=12.5,
        skipped=skipped,
        history=np.array([-2.0, -1.0]),
        history_steps=np.array([1000, 2000]),
        warm_start="laplace",
        guide_name="diffusion",
        seed=3,
    )
