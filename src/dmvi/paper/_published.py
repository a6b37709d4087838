r"""Training as the published code does it, for its three guides.

Per step and minibatch of 32 rows, with five draws xi of the guide,

    loss = mean over draws of  -sum_n [log p(y_n | theta) + log p(theta)] - log |det| + L(xi)

with L = -log q for the Gaussian and the flow and the denoising loss for the diffusion: entropy as a cost.
AdamW at a constant rate for 2,000 epochs; the parameters of the epoch with the least loss are kept. As in
the code, draws of a step share one time, one noise and one mask of dropout in the denoising loss, whose noise
has sd 1 - alpha_t; steps of the solver are even in time, and dropout stays on when the guide is sampled, with
a new mask for each evaluation. Replicates run side by side in one program.
"""

import abc
import itertools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi.diffusion import LinearSchedule, NoiseMLP, SolverFlow
from dmvi.diffusion._dpm_solver import solver_step
from dmvi.guides._autoregressive import AutoregressiveFlow
from dmvi.guides._noise import standard_log_prob, standard_normal
from dmvi.paper._densities import Density
from dmvi.paper._gathered import Solve, gathered

EPOCHS = 2000
BATCH = 32
DRAWS = 5
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-5
WIDTH = 256
LAYERS = 2
DROPOUT = 0.1
FIRST_SCALE = math.e  # of the Gaussian


class Published(eqx.Module):
    """A guide as the published code has it."""

    dim: eqx.AbstractVar[int]

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """One draw and its log-density; without dropout."""

    def sample(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """One draw, as in training."""
        return self.draw(key)[0]

    def step(self, key: PRNGKeyArray) -> tuple[Float[Array, "draws dim"], Float[Array, " draws"]]:
        """The draws of a training step and L at each of them, which stands for -log q."""
        xi, log_q = jax.vmap(self.draw)(jr.split(key, DRAWS))
        return xi, -log_q

    def _noise(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return standard_normal(key, self.dim, np.dtype(jnp.result_type(float)))


class PublishedGaussian(Published):
    """xi = loc + exp(log_scale) z, from loc = 0 and log_scale = 1."""

    loc: Float[Array, " dim"]
    log_scale: Float[Array, " dim"]
    dim: int = eqx.field(static=True)

    def draw(self, key):
        z = self._noise(key)
        return self.loc + jnp.exp(self.log_scale) * z, standard_log_prob(z) - jnp.sum(self.log_scale)


class PublishedFlow(Published):
    """Two inverse autoregressive layers on N(0, I), whose weights all start at zero, and stay there."""

    flow: AutoregressiveFlow
    dim: int = eqx.field(static=True)

    def draw(self, key):
        z = self._noise(key)
        xi, log_det = self.flow.move_density(z)
        return xi, standard_log_prob(z) - log_det


class PublishedDiffusion(Published):
    """DPM-Solver through the noise model, from N(0, I)."""

    flow: SolverFlow
    dim: int = eqx.field(static=True)

    def draw(self, key):
        z = self._noise(key)
        xi, log_det = self.flow.move_density(z)
        return xi, standard_log_prob(z) - log_det

    def sample(self, key):
        network, shifts = self._network.merged(self._times())
        masks, z = self._random(key, len(shifts))
        return self._solver()(lambda w, e: network(w, (shifts[e], masks[e])), z)

    def step(self, key):
        draw_key, time_key, noise_key, drop_key = (jr.fold_in(key, i) for i in range(4))
        schedule, times = self.flow.schedule, self._times()
        moment = jr.randint(time_key, (), 0, schedule.diffusions)
        time = jnp.asarray(schedule.times(), times.dtype)[moment]
        # What does not depend on the draw is formed once for all draws, and for all times together.
        network, shifts = self._network.merged(jnp.append(times, time))
        masks, z = jax.vmap(lambda key: self._random(key, len(times)))(jr.split(draw_key, DRAWS))
        xi = gathered(self._solver(), network, shifts[:-1], masks.swapaxes(0, 1), z)
        alpha = jnp.asarray(np.exp(schedule.log_alphas()), z.dtype)[moment]
        noise, mask = self._noise(noise_key), self._network.masks(drop_key)

        def missed(xi):
            return jnp.sum((noise - network(alpha * xi + (1 - alpha) * noise, (shifts[-1], mask))) ** 2)

        return xi, jax.vmap(missed)(xi)

    def _times(self) -> Float[Array, " evaluations"]:
        """The times at which a draw evaluates the network, in their order."""
        times = self.flow.knots().times
        used = [times[i, :order] for i, order in enumerate(self.flow.orders)]
        return jnp.asarray(np.concatenate(used), jnp.result_type(float))

    def _random(
        self, key: PRNGKeyArray, evaluations: int
    ) -> tuple[Float[Array, "evaluations width"], Float[Array, " dim"]]:
        """A mask for each evaluation of a draw, and its noise."""
        return self._network.masks(jr.fold_in(key, 1), (evaluations,)), self._noise(key)

    def _solver(self) -> Solve:
        """The way from noise, as a function of the network, without its weights."""
        knots, orders = self.flow.knots(), self.flow.orders

        def solve(evaluate, u):
            numbers = itertools.count()
            for i, order in enumerate(orders):  # quicker to train than a loop of XLA
                knot = jax.tree.map(lambda leaf, i=i: leaf[i], knots)
                times = [next(numbers) for _ in range(order)]
                u = solver_step(evaluate, knot._replace(times=times), u, order)
            return u

        return solve

    @property
    def _network(self) -> NoiseMLP:
        assert isinstance(self.flow.network, NoiseMLP)  # what `Recipe` builds
        return self.flow.network


class Recipe(NamedTuple):
    """A guide of the published code: "gaussian", "flow", or "diffusion" with its three numbers."""

    kind: str
    diffusions: int = 0
    steps: int = 0
    order: int = 0

    def build(self, dim: int, key: PRNGKeyArray) -> Published:
        """The guide before training."""
        if self.kind == "gaussian":
            return PublishedGaussian(
                loc=jnp.zeros(dim), log_scale=jnp.full(dim, math.log(FIRST_SCALE)), dim=dim
            )
        if self.kind == "flow":
            flow = AutoregressiveFlow(dim, WIDTH, LAYERS, key=key)
            # As in the code: where all weights are zero so are their gradients, and only biases ever move.
            flow = eqx.tree_at(lambda flow: flow.first, flow, jnp.zeros_like(flow.first))
            return PublishedFlow(flow=flow, dim=dim)
        network = NoiseMLP(dim, WIDTH, DROPOUT, key=key)
        schedule = LinearSchedule(self.diffusions)
        solver = SolverFlow(network, schedule, evaluations=self.steps, order=self.order, grid="uniform")
        return PublishedDiffusion(flow=solver, dim=dim)


class Training(NamedTuple):
    """State of one replicate's training."""

    flat: Float[Array, " size"]
    optimizer: optax.OptState
    best: Float[Array, " size"]
    best_loss: Float[Array, ""]


def optimizer() -> optax.GradientTransformation:
    """The code's AdamW."""
    return optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def batches(rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each minibatch, shuffled once, and which of them are not mere filling."""
    count = -(-rows // BATCH)
    index = np.concatenate([rng.permutation(rows), np.zeros(count * BATCH - rows, int)])
    kept = np.arange(count * BATCH) < rows
    return index.reshape(count, BATCH), kept.reshape(count, BATCH).astype(np.float32)


def gradient_step(state: Training, unravel, static, density: Density, y, kept, key) -> tuple[Training, Array]:
    """One update on one minibatch, and its loss."""

    def loss(flat):
        guide = eqx.combine(unravel(flat), static)
        xi, stand_in = guide.step(key)
        log_p = jax.vmap(lambda xi: density.published(xi, y, kept))(xi)
        return jnp.mean(-log_p + stand_in)

    value, gradient = jax.value_and_grad(loss)(state.flat)
    updates, moments = optimizer().update(gradient, state.optimizer, state.flat)
    return state._replace(flat=optax.apply_updates(state.flat, updates), optimizer=moments), value


def train(
    guide: Published,
    density: Density,
    y: Float[Array, "n columns"],
    rows: Array,
    kept: Array,
    key: PRNGKeyArray,
    epochs: int,
) -> Published:
    """One replicate's training; callers vectorise over guides, data and keys."""
    moving, static = eqx.partition(guide, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(moving)

    def batch(state: Training, this: tuple[Array, Array, PRNGKeyArray]) -> tuple[Training, Array]:
        index, kept, key = this
        return gradient_step(state, unravel, static, density, y[index], kept, key)

    def epoch(state: Training, number: Array) -> tuple[Training, None]:
        keys = jr.split(jr.fold_in(key, number), len(rows))
        state, losses = jax.lax.scan(batch, state, (rows, kept, keys))
        loss = jnp.sum(losses)
        better = loss < state.best_loss  # not so where it is NaN
        best = jnp.where(better, state.flat, state.best)
        return state._replace(best=best, best_loss=jnp.where(better, loss, state.best_loss)), None

    start = Training(flat, optimizer().init(flat), flat, jnp.full((), jnp.inf, flat.dtype))
    end, _ = jax.lax.scan(epoch, start, jnp.arange(epochs))
    return eqx.combine(unravel(end.best), static)
