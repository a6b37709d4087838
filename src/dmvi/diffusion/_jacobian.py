"""Flows whose steps have no structure: their Jacobians come from forward mode, at O(d^3) a step."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dmvi.diffusion._flow import Moved, SteppedFlow, injective_log_det
from dmvi.diffusion._newton import newton_root


class JacobianFlow(SteppedFlow):
    """A flow that says what `step` is and leaves densities, scores and inverses to automatic derivatives."""

    def _log_det(self, knot, u: Array, key=None) -> tuple[Array, Array]:
        jacobian = jax.jacfwd(lambda u: self.step(knot, u, key))(u)
        return injective_log_det(jacobian), jacobian

    def step_density(self, knot, u):
        return self.step(knot, u), self._log_det(knot, u)[0]

    def step_score(self, knot, u, score, key=None):
        (log_det, jacobian), gradient = jax.value_and_grad(self._log_det, argnums=1, has_aux=True)(
            knot, u, key
        )
        return Moved(self.step(knot, u, key), log_det, jnp.linalg.solve(jacobian.T, score - gradient))

    def guess(self, knot: Any, u: Array) -> Float[Array, " dim"]:
        """Where the search for the inverse of a step begins."""
        return u

    def step_inverse(self, knot, u):
        def residual(v):
            return self.step(knot, v) - u, jax.jacfwd(lambda v: self.step(knot, v))(v)

        return newton_root(residual, self.guess(knot, u))
