"""dmvi's guides as NumPyro autoguides."""

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import init_to_uniform
from numpyro.infer.autoguide import AutoContinuous

from dmvi._errors import InputError
from dmvi.guides import ChainGuide, Diffusion, DiffusionGuide, Guide, GuideRecipe, anchored
from dmvi.guides._guide import trainable
from dmvi.numpyro._distribution import DiffusionTransform, GuideDistribution
from dmvi.numpyro._prototype import WithoutEnumerated, explain_prototype

DRAWS = 10_000  # behind median and quantiles
_TOGETHER = 500  # draws constrained at a time


class AutoRecipe(AutoContinuous):
    """An autoguide made by a recipe; subclasses say which recipes they take.

    All trainable arrays are one NumPyro param, "<prefix>_guide", a dict of arrays by their place in
    the guide. At the start the guide is N(init_loc, init_scale^2 I).
    """

    recipes: type[GuideRecipe]

    def __init__(
        self,
        model: Callable,
        recipe: GuideRecipe,
        *,
        prefix: str,
        init_loc_fn: Callable,
        init_scale: float,
        full_rank: bool,
        create_plates: Callable | None,
    ):
        if not isinstance(recipe, self.recipes):
            raise InputError(
                f"{type(self).__name__} takes guide=dmvi.{self.recipes.__name__}(...), "
                f"got an object of type {type(recipe).__name__}."
            )
        if not init_scale > 0:
            raise InputError(f"init_scale must be positive, got {init_scale!r}.")
        self._recipe = recipe
        self._init_scale = init_scale
        self._full_rank = full_rank
        super().__init__(
            WithoutEnumerated(model), prefix=prefix, init_loc_fn=init_loc_fn, create_plates=create_plates
        )

    def _setup_prototype(self, *args, **kwargs):
        try:
            with warnings.catch_warnings():  # of an enumeration that we refuse below
                warnings.filterwarnings("ignore", "Some algorithms will automatically enumerate")
                super()._setup_prototype(*args, **kwargs)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            trace, self.prototype_trace = self.prototype_trace, None
            better = explain_prototype(type(self).__name__, trace or {}, error)
            if better is None:
                raise
            raise better from error
        with jax.ensure_compile_time_eval():  # a guide kept beyond this call must hold no traced values
            self._structure = self._build(jnp.zeros(self.latent_dim, self._init_latent.dtype), jr.key(0))

    def _build(self, loc: Float[Array, " dim"], key: PRNGKeyArray) -> Guide:
        """The guide N(loc, init_scale^2 I), before training, with random weights from `key`."""
        affine = anchored(jnp.zeros_like(loc), jnp.ones_like(loc), full=self._full_rank)
        log_scale = jnp.full_like(loc, math.log(self._init_scale))
        affine = eqx.tree_at(lambda a: (a.loc, a.log_diagonal), affine, (loc, log_scale))
        return self._recipe.build(affine, key=key)

    def _guide(self) -> Guide:
        """The guide at the parameters of the running program."""
        arrays = numpyro.param(
            f"{self.prefix}_guide", lambda key: _arrays(self._build(self._init_latent, key))
        )
        assert isinstance(arrays, dict)
        return _with_arrays(self._structure, arrays)

    def _get_posterior(self):
        return GuideDistribution(self._guide())

    def __call__(self, *args, **kwargs) -> dict[str, Array]:
        """One draw of every latent site, each inside its plates, as enumeration needs it."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        plates = self._create_plates(*args, **kwargs)
        sites: Any = self._unpack_latent(jnp.asarray(self._sample_latent()))
        return {name: self._point_mass(name, value, plates) for name, value in sites.items()}

    def _point_mass(self, name: str, xi: Array, plates: dict[str, Any]) -> Array:
        """The site's value theta(xi), with density -log |det d theta / d xi|."""
        trace: Any = self.prototype_trace
        site = trace[name]
        fn = site["fn"]
        transform = biject_to(fn.support)
        value = transform(xi)
        log_density = jnp.zeros(())
        if numpyro.get_mask() is not False:
            log_det = transform.log_abs_det_jacobian(xi, value)
            inner = jnp.ndim(log_det) - jnp.ndim(value) + fn.event_dim
            log_density = -jnp.sum(log_det, axis=tuple(range(-inner, 0)))
        with contextlib.ExitStack() as stack:
            for frame in site["cond_indep_stack"]:
                stack.enter_context(plates[frame.name])
            point = dist.Delta(value, log_density=log_density, event_dim=fn.event_dim)
            return numpyro.sample(name, point)  # pyright: ignore[reportReturnType]

    def get_guide(self, params: dict[str, Any]) -> Guide:
        """The guide at trained parameters: `draw`, `sample` and `evidence` in unconstrained coordinates."""
        if self.prototype_trace is None:
            raise InputError("The guide has not seen its model yet; call svi.init or svi.run first.")
        guide = handlers.substitute(self._guide, data=params)()
        assert isinstance(guide, Guide)
        return guide

    def sample_posterior(self, rng_key, params, *args, sample_shape=(), **kwargs):
        """Draws of the model's latent and deterministic sites, by the quick road without density."""
        shape = tuple(sample_shape)
        latent = self.get_guide(params).sample(rng_key, shape)
        flat = jnp.reshape(latent, (-1, self.latent_dim))
        sites = jax.lax.map(lambda xi: self._unpack_and_constrain(xi, params), flat, batch_size=_TOGETHER)
        return jax.tree.map(lambda values: jnp.reshape(values, (*shape, *values.shape[1:])), sites)

    def median(self, params: dict[str, Any]) -> dict[str, Array]:
        """Posterior median of each element of each site, from 10,000 draws of a fixed seed."""
        return {name: value[0] for name, value in self.quantiles(params, [0.5]).items()}

    def quantiles(self, params: dict[str, Any], quantiles: Sequence[float]) -> dict[str, Array]:
        """Posterior quantiles of each element of each site, from 10,000 draws of a fixed seed."""
        draws = self.sample_posterior(jr.key(0), params, sample_shape=(DRAWS,))
        levels = jnp.asarray(quantiles, jnp.result_type(float))
        return jax.tree.map(lambda values: jnp.quantile(values, levels, axis=0), draws)


class AutoDiffusion(AutoRecipe):
    """The diffusion guide as a NumPyro autoguide.

    Use it where `AutoNormal` stands: with `SVI`, any ELBO and optimiser, `Predictive`, `NeuTraReparam`.
    `dmvi.numpyro.PathELBO` trains it with the path gradient, as `dmvi.fit` does.

    Discrete sites that the model marks for enumeration are left to `TraceEnum_ELBO` or `PathEnumELBO`.

    Args:
        model: a NumPyro model.
        guide: recipe, such as `dmvi.DiffusionGuide(steps=8)`.

    Other Args:
        prefix: first part of the names of its params.
        init_loc_fn: where the guide starts, one of NumPyro's strategies such as `init_to_median`.
        init_scale: sd of the guide at the start, in unconstrained coordinates. The solver moves mass in units
            of the base's scale, so a wide start trains more steadily than a narrow one.
        full_rank: give the base every correlation (a triangle) or none; for thousands of latents, none.
        create_plates: as in NumPyro's guides.

    Example:
        >>> guide = dmvi.numpyro.AutoDiffusion(model)
        >>> svi = SVI(model, guide, optax.adam(1e-2), dmvi.numpyro.PathELBO(num_particles=32))
    """

    recipes = DiffusionGuide

    def __init__(
        self,
        model: Callable,
        guide: DiffusionGuide | None = None,
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_uniform,
        init_scale: float = 1.0,
        full_rank: bool = True,
        create_plates: Callable | None = None,
    ):
        super().__init__(
            model,
            DiffusionGuide() if guide is None else guide,
            prefix=prefix,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            full_rank=full_rank,
            create_plates=create_plates,
        )

    def get_base_dist(self):
        """Standard normal noise: what the transform starts from."""
        return dist.Normal(jnp.zeros(self.latent_dim), 1).to_event(1)

    def get_transform(self, params: dict[str, Any]) -> DiffusionTransform:
        """The map from noise to unconstrained latents, for `NeuTraReparam` and `get_posterior`."""
        guide = self.get_guide(params)
        assert isinstance(guide, Diffusion)
        return DiffusionTransform(guide)


class AutoChain(AutoRecipe):
    """The stochastic chain guide as a NumPyro autoguide.

    As `AutoDiffusion`, for the chain: its ELBO is the path-space bound, in which log q is that of the draw
    and its path. It has no transform, as a path is random; `NeuTraReparam` needs `AutoDiffusion`.

    Args:
        model: a NumPyro model.
        guide: recipe, such as `dmvi.ChainGuide(steps=16)`; without the score feature, which `dmvi.fit` has.

    Other Args:
        prefix: first part of the names of its params.
        init_loc_fn: where the guide starts, one of NumPyro's strategies such as `init_to_median`.
        init_scale: sd of the guide at the start, in unconstrained coordinates.
        full_rank: give the base every correlation (a triangle) or none.
        create_plates: as in NumPyro's guides.
    """

    recipes = ChainGuide

    def __init__(
        self,
        model: Callable,
        guide: ChainGuide | None = None,
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_uniform,
        init_scale: float = 1.0,
        full_rank: bool = True,
        create_plates: Callable | None = None,
    ):
        guide = ChainGuide() if guide is None else guide
        if isinstance(guide, ChainGuide) and guide.score:
            raise InputError("AutoChain has no score feature; use score=False, or dmvi.fit for it.")
        super().__init__(
            model,
            guide,
            prefix=prefix,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            full_rank=full_rank,
            create_plates=create_plates,
        )

    def get_transform(self, params: dict[str, Any]):
        """Refused: the chain is random, no function of its first noise."""
        raise NotImplementedError("AutoChain has no transform, as its steps are random; use AutoDiffusion.")

    def get_posterior(self, params: dict[str, Any]):
        """Refused: a density in closed form needs the transform."""
        raise NotImplementedError(
            "AutoChain has no density in closed form, as its steps are random; draw with sample_posterior or "
            "from get_guide(params), or use AutoDiffusion."
        )


def _arrays(guide: Guide) -> dict[str, Array]:
    """The trainable arrays of a guide by their place in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(guide, trainable(guide)))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _with_arrays(guide: Guide, arrays: dict[str, Array]) -> Guide:
    """The guide with its trainable arrays replaced."""
    moving, fixed = eqx.partition(guide, trainable(guide))
    leaves, structure = jax.tree_util.tree_flatten_with_path(moving)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    return eqx.combine(jax.tree.unflatten(structure, [arrays[name] for name in names]), fixed)
