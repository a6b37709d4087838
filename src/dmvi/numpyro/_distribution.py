"""A guide as a NumPyro distribution, and the map a diffusion guide makes of noise as a NumPyro transform."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from dmvi.guides import Diffusion, Guide


class GuideDistribution(dist.Distribution):
    r"""Draws xi of a guide on R^dim with the log_q that makes their importance weights right.

    NumPyro carries what a draw was made from as "intermediates"; here that is log_q itself, so an ELBO
    never has to invert the guide. Asked for the density of any other point, the guide inverts itself.

    Args:
        guide: the guide.
        path: whether log_q has the path gradient, that of log q(xi(phi)) with q held fixed.
    """

    support = constraints.real_vector  # pyright: ignore[reportAssignmentType]
    reparametrized_params: list[str] = []  # noqa: RUF012  NumPyro's own declaration
    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    pytree_data_fields = ("guide",)
    pytree_aux_fields = ("path",)

    def __init__(self, guide: Guide, *, path: bool = False):
        self.guide = guide
        self.path = path
        super().__init__(batch_shape=(), event_shape=(guide.dim,))

    def along_path(self) -> "GuideDistribution":
        """The same distribution with the path gradient."""
        return GuideDistribution(self.guide, path=True)

    def sample_with_intermediates(self, key, sample_shape=()):
        def one(key):
            guide = forgiving(self.guide)
            drawn = guide.draw_path(key) if self.path else guide.draw(key)
            return drawn.xi, drawn.log_q

        for size in reversed(sample_shape):
            one = _repeated(one, size)
        xi, log_q = one(key)
        return xi, [log_q]

    def sample(self, key, sample_shape=()):
        return self.sample_with_intermediates(key, sample_shape)[0]

    def log_prob(self, value, intermediates=None):
        if intermediates:
            return intermediates[0]
        return jnp.vectorize(self.guide.evidence, signature="(d)->()")(value)


def _repeated(draw, size: int):
    return lambda key: jax.vmap(draw)(jr.split(key, size))


@jax.custom_vjp
def _forgiving(arrays):
    return arrays


def _forget(_, cotangents):
    finite = jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(cotangents)])
    return (jax.tree.map(lambda leaf: jnp.where(jnp.all(finite), leaf, 0), cotangents),)


_forgiving.defvjp(lambda arrays: (arrays, None), _forget)


def forgiving(guide: Guide) -> Guide:
    """The guide for one draw, whose gradient counts as zero if any of it is not finite.

    A draw where the solver folds has no density. `dmvi.fit` leaves such a step out; stock SVI would
    lose all parameters to one. The loss keeps its NaN, so that it is seen.
    """
    arrays, rest = eqx.partition(guide, eqx.is_inexact_array)
    return eqx.combine(_forgiving(arrays), rest)


class DiffusionTransform(Transform):
    """xi = affine(F(z)): noise to the target's coordinates through the solver's steps F."""

    domain = constraints.real_vector  # pyright: ignore[reportAssignmentType]
    codomain = constraints.real_vector  # pyright: ignore[reportAssignmentType]

    def __init__(self, guide: Diffusion):
        self.guide = guide

    def __call__(self, x):
        return _over_points(lambda z: self.guide.affine(self.guide.flow.move(z)), "(d)->(d)", x)

    def _inverse(self, y):
        return _over_points(lambda xi: self.guide.flow.invert(self.guide.affine.inverse(xi)), "(d)->(d)", y)

    def call_with_intermediates(self, x):
        def one(z):
            u, log_det = self.guide.flow.move_density(z)
            return self.guide.affine(u), log_det + self.guide.affine.log_det()

        xi, log_det = jnp.vectorize(one, signature="(d)->(d),()")(x)
        return xi, log_det

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return self.call_with_intermediates(x)[1] if intermediates is None else intermediates

    def tree_flatten(self):
        return (self.guide,), (("guide",), {})

    def __eq__(self, other):
        return isinstance(other, DiffusionTransform) and self.guide is other.guide


def _over_points(function, signature: str, points):
    return jnp.vectorize(function, signature=signature)(points)
