r"""The reverse process as a sequence of injective steps with known Jacobians.

In tau = artanh(sigma) the probability-flow ODE of the whitened process is du/dtau = r(u, tau): the
linear parts of DPM-Solver cancel exactly. A flow takes noise at tau = TAU_MAX down to tau = 0 in K
steps u' = F_k(u) of size delta = TAU_MAX / K, and its density is that of the steps really taken:

    log q(u_0) = log N(u_K) - sum_k log |det dF_k / du|.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dmvi._errors import InputError
from dmvi._random import children

TAU_MAX = 2.0


def frozen(tree: Any) -> Any:
    """`tree` with no gradient through any of its arrays."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_array(leaf) else leaf, tree)


class Moved(NamedTuple):
    """Where a flow takes a point, log |det| of the way, and the score carried along."""

    u: Float[Array, " dim"]
    log_det: Float[Array, ""]
    score: Float[Array, " dim"]


def injective_log_det(jacobian: Float[Array, "n n"]) -> Float[Array, ""]:
    """log det of a step's Jacobian; not a number where the step folds (det <= 0).

    A map that starts as the identity and never folds is injective. Where it would fold its density
    formula is wrong, so training skips the update and diagnostics count the draw as not finite.
    """
    sign, log_det = jnp.linalg.slogdet(jacobian)
    return jnp.where(sign > 0, log_det, jnp.nan)


class Flow(eqx.Module):
    """Noise to the whitened posterior by an injective map.

    `key` feeds dropout and is None outside training.
    """

    @property
    def may_drop(self) -> bool:
        """Whether training may leave out units of a network, which draws never do."""
        return False

    def straighter(self, share: float) -> "Flow":
        """The flow with what may fold taken back by a share, towards the identity; itself if nothing can."""
        return self

    @property
    def wants_drivers(self) -> bool:
        """Whether `driven` has something to learn."""
        return False

    def driven(self, u: Float[Array, "draws dim"], r: Float[Array, "draws dim"]) -> "Flow":
        """The flow with the structure that its base shows; itself if it has none to choose.

        Args:
            u: draws of the base, in whitened coordinates.
            r: their residual scores S^T grad log pi + u, zero where the base is the posterior.
        """
        return self

    @abc.abstractmethod
    def move(self, u: Array, key: PRNGKeyArray | None = None) -> Float[Array, " dim"]:
        """Noise to whitened posterior, without density."""

    @abc.abstractmethod
    def stages(self, u: Array) -> Float[Array, "stages dim"]:
        """Where every step takes u, the noise itself left out."""

    @abc.abstractmethod
    def move_density(self, u: Array) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """(u_0, log |det du_0/du|)."""

    @abc.abstractmethod
    def move_path(self, u: Array, score: Array, key: PRNGKeyArray | None = None) -> Moved:
        """As `move_density`, carrying the score G = grad log q along; with a gradient through u alone.

        That is along the path, not through the density.
        """

    @abc.abstractmethod
    def invert(self, u: Array) -> Float[Array, " dim"]:
        """The noise that `move` takes to u."""


class SteppedFlow(Flow):
    """K steps of one kind; subclasses say what a step is.

    `knots` is a pytree whose leaves have the K steps as leading axis, in the order they are taken.
    """

    steps: eqx.AbstractVar[int]

    @abc.abstractmethod
    def knots(self) -> Any:
        """What one step needs beside the flow itself, stacked over the steps."""

    @abc.abstractmethod
    def step(self, knot: Any, u: Array, key: PRNGKeyArray | None = None) -> Float[Array, " dim"]:
        """u' = F_k(u)."""

    @abc.abstractmethod
    def step_density(self, knot: Any, u: Array) -> tuple[Array, Array]:
        """(u', log |det dF_k/du|)."""

    @abc.abstractmethod
    def step_score(self, knot: Any, u: Array, score: Array, key: PRNGKeyArray | None = None) -> Moved:
        """As `step_density`, with G' = (dF/du)^{-T} (G - grad_u log|det dF/du|)."""

    @abc.abstractmethod
    def step_inverse(self, knot: Any, u: Array) -> Float[Array, " dim"]:
        """u with F_k(u) = u'."""

    def taus(self) -> Float[Array, " steps"]:
        """Times at which the steps begin, from TAU_MAX down."""
        return TAU_MAX * (1 - jnp.arange(self.steps) / self.steps)

    @property
    def delta(self) -> float:
        """Size of a step in tau."""
        return TAU_MAX / self.steps

    def move(self, u, key=None):
        return jax.lax.scan(lambda u, knot: (self.step(knot, u, key), None), u, self.knots())[0]

    def stages(self, u):
        def body(u, knot):
            after = self.step(knot, u)
            return after, after

        return jax.lax.scan(body, u, self.knots())[1]

    def move_density(self, u):
        def body(carry, knot):
            u, total = carry
            u, log_det = self.step_density(knot, u)
            return (u, total + log_det), None

        return jax.lax.scan(body, (u, jnp.zeros((), u.dtype)), self.knots())[0]

    def move_path(self, u, score, key=None):
        fixed = frozen(self)

        def body(carry, knot):
            here = fixed.step_score(frozen(knot), jax.lax.stop_gradient(carry.u), carry.score, key)
            return Moved(self.step(knot, carry.u, key), carry.log_det + here.log_det, here.score), None

        return jax.lax.scan(body, Moved(u, jnp.zeros((), u.dtype), score), self.knots())[0]

    def invert(self, u):
        return jax.lax.scan(
            lambda u, knot: (self.step_inverse(knot, u), None), u, self.knots(), reverse=True
        )[0]


class FlowSequence(Flow):
    """Two flows, one after the other."""

    first: Flow
    second: Flow

    @property
    def steps(self) -> int:
        """Number of steps of both."""
        parts = (self.first, self.second)
        return sum(part.steps for part in parts if isinstance(part, SteppedFlow | FlowSequence))

    @property
    def may_drop(self) -> bool:
        return self.first.may_drop or self.second.may_drop

    def straighter(self, share):
        return FlowSequence(self.first.straighter(share), self.second.straighter(share))

    @property
    def wants_drivers(self) -> bool:
        return self.first.wants_drivers or self.second.wants_drivers

    def driven(self, u, r):
        return FlowSequence(self.first.driven(u, r), self.second.driven(u, r))

    def move(self, u, key=None):
        return self.second.move(self.first.move(u, key), key)

    def stages(self, u):
        early = self.first.stages(u)
        return jnp.concatenate([early, self.second.stages(early[-1])])

    def move_density(self, u):
        u, early = self.first.move_density(u)
        u, late = self.second.move_density(u)
        return u, early + late

    def move_path(self, u, score, key=None):
        early = self.first.move_path(u, score, key)
        late = self.second.move_path(early.u, early.score, key)
        return late._replace(log_det=early.log_det + late.log_det)

    def invert(self, u):
        return self.first.invert(self.second.invert(u))


class FlowRecipe(eqx.Module):
    """The choices that make a flow of known Jacobians, before dimension and steps are known."""

    @abc.abstractmethod
    def build(self, dim: int, steps: int, *, key: PRNGKeyArray) -> Flow:
        """The flow for `dim` coordinates in so many steps, the identity at the start."""


class Stacked(FlowRecipe):
    """Recipe of two networks, one for the earlier of the solver's steps and one for the later.

    Args:
        early: `dmvi.Projected(...)`, `dmvi.Triangular(...)`, `dmvi.SparseBends(...)` or another
            `dmvi.Stacked(...)`.
        late: likewise.
        late_steps: steps of the second; the first has the others.
    """

    early: FlowRecipe
    late: FlowRecipe
    late_steps: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        if not (isinstance(self.early, FlowRecipe) and isinstance(self.late, FlowRecipe)):
            kinds = f"{type(self.early).__name__} and {type(self.late).__name__}"
            raise InputError(
                f"Stacked takes networks such as dmvi.Projected(...) and dmvi.Triangular(...), got {kinds}."
            )
        if not isinstance(self.late_steps, int) or self.late_steps < 1:
            raise InputError(f"Stacked needs late_steps to be at least 1, got {self.late_steps!r}.")

    def build(self, dim: int, steps: int, *, key: PRNGKeyArray) -> FlowSequence:
        """The flow for `dim` coordinates."""
        if steps <= self.late_steps:
            raise InputError(f"of {steps} solver steps {self.late_steps} cannot be the later ones.")
        first, second = children(key, 2)
        return FlowSequence(
            self.early.build(dim, steps - self.late_steps, key=first),
            self.late.build(dim, self.late_steps, key=second),
        )
