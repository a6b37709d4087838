"""load(): a file in, the posterior it was made from out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from dmvi._errors import InputError
from dmvi._recipes import OTHER_ARRAYS, check_size, guide_from, recipe_from, visible_density
from dmvi.guides import Guide, GuideRecipe
from dmvi.posterior import Fit, Posterior, StoredPosterior, read_fit
from dmvi.targets import Target, as_target

_CHECKED = 8  # stored draws at which the model's log-density is compared with the fit's
_Outline = jax.ShapeDtypeStruct
_AGREE = 1e-3  # nats, and relative; machines and versions differ in the last digits of a sum


@overload
def load(path: str | Path) -> StoredPosterior: ...
@overload
def load(
    path: str | Path,
    model: Callable | Target,
    *,
    data: dict[str, Any] | None = None,
    args: tuple = (),
    init: Any = None,
    guide: GuideRecipe | None = None,
) -> Posterior: ...


def load(
    path: str | Path,
    model: Callable | Target | None = None,
    *,
    data: dict[str, Any] | None = None,
    args: tuple = (),
    init: Any = None,
    guide: GuideRecipe | None = None,
) -> StoredPosterior | Posterior:
    """Read what `Posterior.save` wrote. Nothing in the file is executed.

    Args:
        path: the file.
        model: the model of the fit; without it draws, diagnostics, plots and report are there as stored.
        data: as for `fit`.
        args: as for `fit`.
        init: as for `fit`.
        guide: the recipe of the fit, needed only where its network was of your own making.

    Returns:
        With the model, the posterior itself: its draws equal those before saving bit for bit on the same
        machine and versions, and `dmvi.resume` trains it further. Without, a `StoredPosterior`.

    Raises:
        InputError: if the file is truncated, altered, of a newer version or no fit at all, or if it does
            not belong to this model and these data.
    """
    fit = read_fit(Path(path))
    if model is None:
        if data is not None or args or init is not None or guide is not None:
            raise InputError("data, args, init and guide belong to a model: pass the model too.")
        return StoredPosterior(fit)
    if "batch_size" in fit.run.settings:
        raise InputError(
            "the fit was made on rows in batches; its draws, diagnostics and report are there without the "
            "model: dmvi.load(path)."
        )
    target = as_target(model, args=args, data=data, init=init)
    if target.names != tuple(fit.record["names"]):
        raise InputError(
            f"the file is a fit of a model with coordinates {_some(fit.record['names'])}; this model has "
            f"{_some(target.names)}. Pass the model and the data of the fit."
        )
    params = _filled(target.params, fit.leaves["psi"], "generative parameters")
    target = eqx.tree_at(lambda t: t.params, target, params)
    posterior = Posterior(
        target,
        _guide(fit, target, guide),
        fit.run,
        _key(fit),
        training=fit.leaves["training"] or None,
        judged=(fit.diagnostics, fit.arrays["log_weights"]),
    )
    _check_density(posterior, fit)
    return posterior


def _guide(fit: Fit, target: Target, recipe: GuideRecipe | None) -> Guide:
    """The guide of the fit: its recipe gives the structure, the file every number."""
    if recipe is None:
        recipe = recipe_from(fit.run.settings.get("guide"))
        if isinstance(recipe, GuideRecipe):
            check_size(recipe, target.dim, fit.leaves["guide"])
    if not isinstance(recipe, GuideRecipe):
        raise InputError("guide has to be a recipe such as dmvi.DiffusionGuide().")
    recipe = recipe.seeing(visible_density(target))
    # In outline only: what a file describes may be larger than any memory, what it holds is not.
    outline = eqx.filter_eval_shape(guide_from, recipe, fit.run.settings.get("base"), target.dim)
    return _filled(outline, fit.leaves["guide"], "guide")


def _filled(tree: Any, leaves: list[np.ndarray], what: str) -> Any:
    """`tree`, or its outline, with those arrays of a file, which must have its shapes and types."""
    arrays, rest = eqx.partition(tree, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, _Outline))
    old, structure = jax.tree.flatten(arrays)
    if [(leaf.shape, leaf.dtype) for leaf in old] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        wide = {leaf.dtype for leaf in leaves} != {leaf.dtype for leaf in old}
        hint = (
            "jax_enable_x64 has to be as it was in the fit" if wide else "pass the recipe of the fit as guide"
        )
        raise InputError(OTHER_ARRAYS.format(what, hint))
    return eqx.combine(jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves]), rest)


def _key(fit: Fit) -> jax.Array:
    try:
        return jr.wrap_key_data(jnp.asarray(fit.arrays["key"]), impl=fit.record["key_impl"])
    except (TypeError, ValueError) as error:
        raise InputError(f"the file has no usable random key: {error}.") from error


def _check_density(posterior: Posterior, fit: Fit) -> None:
    """The log-density at some stored draws, then and now: other data or another model show here."""
    resampled = posterior._advised(None)
    xi = fit.arrays["corrected_xi" if resampled else "xi"][:_CHECKED]
    then = fit.arrays["log_pi"][:_CHECKED].astype(float)
    now = np.asarray(jax.jit(jax.vmap(posterior.target.log_density))(jnp.asarray(xi)), float)
    if not np.allclose(then, now, rtol=_AGREE, atol=_AGREE, equal_nan=True):
        raise InputError(
            f"the log-density of this model is {now[0]:.3f} at a draw where that of the fit was "
            f"{then[0]:.3f}. Pass the model and the data of the fit."
        )


def _some(names: Any) -> str:
    shown = list(map(str, names))
    return ", ".join(shown if len(shown) <= 6 else [*shown[:5], "...", shown[-1]])
