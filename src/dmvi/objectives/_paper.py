r"""The objective of the paper, for reproduction: it is no bound of the log evidence.

With L(xi) for the loss of denoising xi, which stands for -log q(xi),

    sign="printed"   minimise -log pi(xi) - L(xi)
    sign="code"      minimise -log pi(xi) + L(xi)

The first is the paper's equation 3: an upper bound of the ELBO, raised without limit by denoising badly.
The second is what the paper's published code minimises: entropy counts against the guide, which shrinks to a
point. docs/paper.md has the derivations.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from dmvi._errors import InputError
from dmvi.guides._guide import DenoisingGuide
from dmvi.objectives._objective import Objective, Value

SIGNS = {"code": 1.0, "printed": -1.0}


class Paper(Objective):
    """-log pi(xi) +- L(xi) at draws of the guide's solver; see the module.

    Args:
        sign: "code" or "printed".
        simplified: L is ||eps - eps_phi||^2 at a random step; else the divergences of all steps.
        prior: L counts KL(r(w_T | xi), N(0, I)) too.
        reconstruction: L counts -log q(xi | w_1) too. With simplified=False and both of these, L is in
            expectation at least -log q(xi), of the chain's q.
    """

    sign: str = eqx.field(static=True, default="code")
    simplified: bool = eqx.field(static=True, default=True)
    prior: bool = eqx.field(static=True, default=False)
    reconstruction: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.sign not in SIGNS:
            raise InputError(f'Paper takes sign="code" or sign="printed", got {self.sign!r}.')

    @property
    def caution(self):
        return (
            "objectives.Paper reproduces the paper's DMVI and is no bound of the log evidence: docs/paper.md "
            "says why; guide='auto' is the method put right."
        )

    def check(self, guide):
        if not isinstance(guide, DenoisingGuide):
            raise InputError(
                "objectives.Paper trains guides that denoise, dmvi.PaperGuide(); "
                f"got a guide of type {type(guide).__name__}."
            )

    def __call__(self, guide, target, keys, batch, memory):
        assert isinstance(guide, DenoisingGuide)  # `check` has seen to it

        def terms(key):
            xi = guide.training_sample(key)
            parts = guide.denoising_terms(xi, jr.fold_in(key, 2))
            loss = parts.simple if self.simplified else parts.diffusion
            loss = loss + self.prior * parts.prior + self.reconstruction * parts.reconstruction
            return target.log_density(xi, batch), loss

        log_pi, denoising = jax.vmap(terms)(keys)
        # The paper's stand-in for log q is -L; exact weights are left to looks and diagnostics.
        loss = jnp.mean(-log_pi + SIGNS[self.sign] * denoising)
        own = jnp.zeros(log_pi.shape, bool)
        return Value(loss, log_pi + denoising, own, jnp.zeros((), bool), memory)
