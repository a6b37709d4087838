"""The paper's seven models in NumPyro, with simulation from their priors.

Every model is seen through one vector u of its real and positive parameters, sites in alphabetical order, a
positive value x as softplus^-1(x) = log(exp(x) - 1): the coordinates in which the paper measures errors.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Float
from numpyro.infer import Predictive

from dmvi._errors import InputError

VARIANTS = ("printed", "code")
POSITIVE = ("beta_scale", "gamma_scale", "scale")
COMPONENTS = 3
PLANE = 2
MEAN_DIM = 5


@dataclass(frozen=True)
class Hierarchy:
    """Which of the scales and locations of the hierarchical family are unknown; known ones are 1 and 0.

        gamma_i ~ N(gamma_loc, gamma_scale^2),   beta_ij ~ N(gamma_i, beta_scale^2),
        y_ijn ~ N(beta_ij, scale^2)

    with unknown locations N(0, 1) and unknown scales HalfNormal(1).
    """

    groups: int
    per_group: int
    gamma_loc: bool = False
    gamma_scale: bool = False
    beta_scale: bool = False
    scale: bool = False


HIERARCHIES = {
    "hierarchical_1": Hierarchy(2, 5, scale=True),
    "hierarchical_2": Hierarchy(2, 5, gamma_loc=True, scale=True),
    "hierarchical_3": Hierarchy(2, 5, gamma_loc=True, gamma_scale=True, scale=True),
    "hierarchical_4": Hierarchy(2, 5, gamma_loc=True, gamma_scale=True, beta_scale=True),
    "hierarchical_5": Hierarchy(5, 2, gamma_loc=True, gamma_scale=True, beta_scale=True),
}


@dataclass(frozen=True)
class PaperModel:
    """One model.

    Attributes:
        name: what the command line calls it.
        title: what tables call it.
        variant: "printed" or "code".
        program: the NumPyro model, a function of the data y or of nothing with `rows` of them to draw.
        shapes: the sites whose values make up u, in alphabetical order.
        hierarchy: the structure behind a hierarchical model.
        noise: sd of the noise that data are simulated with, where that is not the model's own.
    """

    name: str
    title: str
    variant: str
    program: Callable[..., Any]
    shapes: Mapping[str, tuple[int, ...]]
    hierarchy: Hierarchy | None = None
    noise: float | None = None

    @property
    def labelled(self) -> bool:
        """Whether components may change places without changing the likelihood."""
        return self.name == "mixture"

    @property
    def names(self) -> list[str]:
        """One name for each coordinate of u."""
        return [
            f"{site}[{','.join(map(str, index))}]" if shape else site
            for site, shape in self.shapes.items()
            for index in np.ndindex(shape)
        ]

    def coordinates(self, sites: Mapping[str, Any]) -> Float[np.ndarray, "draws dim"]:
        """u of draws of the sites, draws leading."""
        columns = []
        for site, shape in self.shapes.items():
            value = np.asarray(sites[site], np.float64)
            value = value.reshape(len(value), int(np.prod(shape)))
            columns.append(softplus_inverse(value) if site in POSITIVE else value)
        return np.concatenate(columns, axis=1)


@dataclass(frozen=True)
class DataSet:
    """Data y and the coordinates u of the parameters that simulated them."""

    y: Float[np.ndarray, "n columns"]
    truth: Float[np.ndarray, " dim"]


def softplus_inverse(x: np.ndarray) -> np.ndarray:
    """log(exp(x) - 1), kept finite where x has been rounded to zero."""
    x = np.maximum(x, np.finfo(np.float32).tiny)
    return x + np.log(-np.expm1(-x))


def _mean_model(y=None, rows=0):
    """y_n ~ N(loc, I), loc ~ N(0, I)."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([MEAN_DIM]).to_event(1))
    with numpyro.plate("n", rows if y is None else y.shape[0]):
        numpyro.sample("y", dist.Normal(loc, 1.0).to_event(1), obs=y)


def _mixture(variant: str) -> Callable[..., Any]:
    """As printed: prior means 0, Dirichlet(1, 1, 1) weights; in the code: means -1, 0, 1, equal weights."""
    centre = np.array([[-1.0], [0.0], [1.0]], np.float32) * np.ones((1, PLANE), np.float32)

    def model(y=None, rows=0):
        shape = (COMPONENTS, PLANE)
        prior = dist.Normal(centre if variant == "code" else np.zeros(shape, np.float32), 1.0)
        loc = numpyro.sample("loc", prior.to_event(2))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand(shape).to_event(2))
        weights = np.full(COMPONENTS, 1 / COMPONENTS, np.float32)
        if variant == "printed":
            weights = numpyro.sample("weights", dist.Dirichlet(np.ones(COMPONENTS, np.float32)))
        mixed = dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(loc, scale).to_event(1))
        with numpyro.plate("n", rows if y is None else y.shape[0]):
            numpyro.sample("y", mixed, obs=y)

    return model


def _hierarchical(has: Hierarchy) -> Callable[..., Any]:
    """The hierarchical family; column j of y belongs to beta_j, whose group is j // per_group."""

    def model(y=None, rows=0):
        loc = numpyro.sample("gamma_loc", dist.Normal(0.0, 1.0)) if has.gamma_loc else 0.0
        unknown = {name: getattr(has, name) for name in POSITIVE}
        scales = {
            name: numpyro.sample(name, dist.HalfNormal(1.0)) if sampled else 1.0
            for name, sampled in unknown.items()
        }
        gamma = numpyro.sample(
            "gamma", dist.Normal(loc, scales["gamma_scale"]).expand([has.groups]).to_event(1)
        )
        above = jax.numpy.repeat(gamma, has.per_group)
        beta = numpyro.sample("beta", dist.Normal(above, scales["beta_scale"]).to_event(1))
        with numpyro.plate("n", rows if y is None else y.shape[0]):
            numpyro.sample("y", dist.Normal(beta, scales["scale"]).to_event(1), obs=y)

    return model


def _hierarchical_shapes(has: Hierarchy) -> dict[str, tuple[int, ...]]:
    shapes = {"beta": (has.groups * has.per_group,), "gamma": (has.groups,)}
    shapes |= {name: () for name in ("gamma_loc", *POSITIVE) if getattr(has, name)}
    return dict(sorted(shapes.items()))


MODELS = ("mean", "mixture", *HIERARCHIES)
TITLES = {"mean": "Mean model", "mixture": "Mixture model"} | {
    name: f"Hierarchical model {name[-1]}" for name in HIERARCHIES
}


def paper_model(name: str, variant: str) -> PaperModel:
    """The model of that name; the code's data of hierarchical models 1 to 3 ignore their noise's scale."""
    if name not in MODELS:
        raise InputError(f"there is no model {name!r}; expected one of {', '.join(MODELS)}.")
    if variant not in VARIANTS:
        raise InputError(f"expected the variant to be one of {', '.join(VARIANTS)}; got {variant!r}.")
    if name == "mean":
        return PaperModel(name, TITLES[name], variant, _mean_model, {"loc": (MEAN_DIM,)})
    if name == "mixture":
        shapes = {"loc": (COMPONENTS, PLANE), "scale": (COMPONENTS, PLANE)}
        return PaperModel(name, TITLES[name], variant, _mixture(variant), shapes)
    has = HIERARCHIES[name]
    noise = 1.0 if variant == "code" and has.scale else None
    return PaperModel(
        name, TITLES[name], variant, _hierarchical(has), _hierarchical_shapes(has), has, noise=noise
    )


def simulate(model: PaperModel, n: int, seed: int) -> DataSet:
    """n rows of data and the parameters behind them, both from the prior; the same seed, the same data."""
    key = jr.fold_in(jr.key(seed), MODELS.index(model.name))
    drawn = Predictive(model.program, num_samples=1)(key, rows=n)
    drawn = {site: np.asarray(value) for site, value in drawn.items()}
    y = drawn["y"][0]
    if model.noise is not None:
        scale = drawn["scale"][0]
        y = drawn["beta"][0] + (y - drawn["beta"][0]) * (model.noise / scale)
    return DataSet(y.astype(np.float32), model.coordinates(drawn)[0])


def data_set(model: PaperModel, n: int, replicate: int, folder: Path | None) -> DataSet:
    """The data of one replicate: its own, or for all replicates the one of that size in `folder`."""
    return simulate(model, n, replicate) if folder is None else read_fixed(model, n, folder)


def fingerprint(data: DataSet) -> str:
    """A few characters that tell a data set from others."""
    return hashlib.sha256(data.y.tobytes() + data.truth.tobytes()).hexdigest()[:8]


def fixed_path(name: str, n: int, folder: Path) -> Path:
    """Where `read_fixed` looks: hierarchical_model_5_100.npz, mean_model_100.npz."""
    stem = name.replace("hierarchical_", "hierarchical_model_") if "_" in name else f"{name}_model"
    return folder / f"{stem}_{n}.npz"


def read_fixed(model: PaperModel, n: int, folder: Path) -> DataSet:
    """A data set from a file with y and, in `truth_u`, the coordinates u of the parameters behind it."""
    path = fixed_path(model.name, n, folder)
    try:
        with np.load(path, allow_pickle=False) as file:
            y, truth = np.asarray(file["y"], np.float32), np.asarray(file["truth_u"], np.float64)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            f"expected a NumPy archive {str(path)!r} with the arrays y and truth_u; got {error}."
        ) from error
    columns = {"mean": MEAN_DIM, "mixture": PLANE}.get(model.name, 10)
    dim = len(model.names)
    if y.shape != (n, columns) or truth.shape != (dim,):
        raise InputError(
            f"expected {str(path)!r} to hold y of shape ({n}, {columns}) and truth_u of shape ({dim},); got "
            f"{y.shape} and {truth.shape}."
        )
    if not (np.isfinite(y).all() and np.isfinite(truth).all()):
        raise InputError(f"expected finite numbers in {str(path)!r}.")
    return DataSet(y, truth)
