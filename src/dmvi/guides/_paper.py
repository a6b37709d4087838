r"""The guide of the paper: a discrete diffusion model drawn from with DPM-Solver.

    forward   w_t | xi ~ N(alpha_t xi, sigma_t^2 I),   t = 1..T
    reverse   w_{t-1} | w_t ~ N((w_t - beta_t / sigma_t eps_phi(w_t, t)) / sqrt(1 - beta_t), beta_t I)

Draws come from the solver, a deterministic map of noise, so they have a density after all: through the
map's Jacobian, at O(d^3). Training as in the paper never uses it; weights and verdict do. It is that of
the solver without dropout, and differs from the density of the chain above, which the solver only imitates.
"""

import math

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dmvi._errors import InputError
from dmvi.diffusion import GRIDS, ORDERS, LinearSchedule, NoiseMLP, NoiseSchedule, SolverFlow
from dmvi.guides._guide import DenoisingGuide, DenoisingTerms, Draw, GuideRecipe, with_path_gradient
from dmvi.guides._noise import in_batches, spread, standard_log_prob, standard_normal


class PaperDiffusion(DenoisingGuide):
    """xi = F(z), z ~ N(0, I), with F the solver's steps, in the target's own coordinates."""

    flow: SolverFlow
    dim: int = eqx.field(static=True)

    def draw(self, key):
        z = self._noise(key)
        xi, log_det = self.flow.move_density(z)
        return Draw(xi, standard_log_prob(z) - log_det, z)

    def draw_path(self, key, far=None):
        z = spread(self._noise(key), far)
        xi, log_det, score = self.flow.move_path(z, -z)
        return Draw(xi, with_path_gradient(standard_log_prob(z) - log_det, xi, score), z)

    def sample(self, key, shape=()):
        return in_batches(lambda key: self.flow.move(self._noise(key)), key, shape)

    def evidence(self, xi, key=None):
        z = self.flow.invert(xi)
        return standard_log_prob(z) - self.flow.move_density(z)[1]

    def training_sample(self, key):
        return self.flow.move(self._noise(key), jr.fold_in(key, 1))

    def denoising_terms(self, xi, key):
        time_key, noise_key, first_key, drop_key = jr.split(key, 4)
        schedule, dim = self.flow.schedule, self.dim
        betas, log_alphas = schedule.betas(), schedule.log_alphas()
        variances = -np.expm1(2 * log_alphas)  # sigma_t^2
        slopes = 0.5 * betas / (variances * (1 - betas))  # of a step's divergence in the noise it missed
        ratios = np.concatenate([[1.0], variances[:-1] / variances[1:]])  # of r's variance to q's
        constants = 0.5 * dim * (ratios - 1 - np.log(ratios))
        step = jr.randint(time_key, (), 0, schedule.diffusions)
        simple = self._missed(xi, step, noise_key, drop_key)
        divergence = jnp.asarray(constants, xi.dtype)[step] + jnp.asarray(slopes, xi.dtype)[step] * simple
        excess = dim * (variances[-1] - 1 - math.log(variances[-1]))
        first = self._missed(xi, jnp.zeros((), step.dtype), first_key, drop_key)
        return DenoisingTerms(
            simple=simple,
            diffusion=schedule.diffusions * jnp.where(step > 0, divergence, 0.0),
            prior=0.5 * (math.exp(2 * log_alphas[-1]) * jnp.sum(xi**2) + excess),
            # xi less the mean of q(xi | w_1) is the noise that was missed, scaled.
            reconstruction=slopes[0] * first + 0.5 * dim * math.log(2 * math.pi * betas[0]),
        )

    def _missed(
        self, xi: Float[Array, " dim"], step: Int[Array, ""], noise_key: PRNGKeyArray, drop_key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """||eps - eps_phi(alpha_t xi + sigma_t eps, t)||^2 with t = step + 1."""
        schedule = self.flow.schedule
        noise = standard_normal(noise_key, self.dim, xi.dtype)
        log_alphas = schedule.log_alphas()
        alpha = jnp.asarray(np.exp(log_alphas), xi.dtype)[step]
        sigma = jnp.asarray(np.sqrt(-np.expm1(2 * log_alphas)), xi.dtype)[step]
        time = jnp.asarray(schedule.times(), xi.dtype)[step]
        return jnp.sum((noise - self.flow.network(alpha * xi + sigma * noise, time, drop_key)) ** 2)

    def _noise(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return standard_normal(key, self.dim, np.dtype(jnp.result_type(float)))


class PaperGuide(GuideRecipe):
    """Recipe of the paper's diffusion model, in the target's own coordinates and without a warm start.

    For reproduction. `dmvi.fit` trains it with `dmvi.objectives.Paper()`, which is no bound of the log
    evidence (docs/paper.md says why), unless it is given another objective.

    Args:
        schedule: `dmvi.LinearSchedule(...)` or `dmvi.CosineSchedule(...)`; it has the number of diffusions.
        steps: evaluations of the network that one draw takes.
        order: order of the solver, 1 to 3.
        grid: the solver's times, evenly spaced in "logsnr" or "uniform" in time.
        width: units of the hidden layer.
        dropout: fraction of hidden units left out in training.
    """

    schedule: NoiseSchedule = LinearSchedule()
    steps: int = eqx.field(static=True, default=10)
    order: int = eqx.field(static=True, default=3)
    grid: str = eqx.field(static=True, default="logsnr")
    width: int = eqx.field(static=True, default=256)
    dropout: float = eqx.field(static=True, default=0.1)

    def __check_init__(self):
        if not isinstance(self.schedule, NoiseSchedule):
            raise InputError(
                f"PaperGuide needs a schedule such as dmvi.LinearSchedule(), got {self.schedule!r}."
            )
        for name in ("steps", "width"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"PaperGuide needs {name} to be an integer of at least 1, got {value!r}.")
        if self.order not in ORDERS:
            raise InputError(f"PaperGuide takes order 1, 2 or 3, got order={self.order!r}.")
        if self.grid not in GRIDS:
            raise InputError(f"PaperGuide takes a grid out of {GRIDS}, got {self.grid!r}.")
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"PaperGuide needs dropout in [0, 1), got {self.dropout}.")

    @property
    def name(self) -> str:
        return "paper"

    @property
    def warm(self) -> bool:
        return False

    def build(self, affine, *, key):
        network = NoiseMLP(affine.dim, self.width, self.dropout, key=key)
        flow = SolverFlow(network, self.schedule, evaluations=self.steps, order=self.order, grid=self.grid)
        return PaperDiffusion(flow=flow, dim=affine.dim)
