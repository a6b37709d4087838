r"""What draws are worth: errors to the truth, distances to the reference posterior, coverage."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from dmvi.paper._exact import LEVELS, ExactPosterior
from dmvi.paper._models import COMPONENTS, PaperModel

SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles written down
BATCHES = 40  # of consecutive draws, for standard errors


@dataclass(frozen=True)
class Reference:
    """The posterior that methods are measured against.

    Attributes:
        name: "exact" or "nuts".
        mse: what draws of it score on the paper's metric.
        mean: E[u].
        sd: standard deviations of u.
        quantiles: of each coordinate at LEVELS.
        log_evidence: log p(y); NaN where it is not known.
    """

    name: str
    mse: float
    mean: Float[np.ndarray, " dim"]
    sd: Float[np.ndarray, " dim"]
    quantiles: Float[np.ndarray, "levels dim"]
    log_evidence: float

    @classmethod
    def from_exact(cls, exact: ExactPosterior, truth: np.ndarray) -> "Reference":
        """The exact posterior."""
        return cls("exact", exact.mse(truth), exact.mean, exact.sd, exact.quantiles, exact.log_evidence)

    @classmethod
    def from_draws(cls, u: Float[np.ndarray, "draws dim"], truth: np.ndarray) -> "Reference":
        """Draws of NUTS in the truth's labelling."""
        quantiles = np.quantile(u, LEVELS, axis=0)
        return cls("nuts", squared_error(u, truth), u.mean(0), u.std(0), quantiles, np.nan)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        values = {name: np.round(getattr(self, name), 6).tolist() for name in ("mean", "sd", "quantiles")}
        return {"name": self.name, "mse": self.mse} | values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Reference":
        """The inverse of `to_dict`."""
        mean, sd, quantiles = (np.asarray(values[name], float) for name in ("mean", "sd", "quantiles"))
        return cls(values["name"], values["mse"], mean, sd, quantiles, np.nan)


def relabelled(
    model: PaperModel, u: Float[np.ndarray, "draws dim"], truth: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, "draws dim"]:
    """Draws with components in the order that is nearest to the truth's; as they are in other models."""
    if not model.labelled:
        return u
    parts = u.reshape(len(u), 2, COMPONENTS, -1)  # locations and scales by component
    orders = [parts[:, :, list(order)] for order in itertools.permutations(range(COMPONENTS))]
    candidates = np.stack([order.reshape(len(u), -1) for order in orders])
    nearest = np.argmin(np.sum((candidates - truth[None, None]) ** 2, axis=2), axis=0)
    return candidates[nearest, np.arange(len(u))]


def in_order(model: PaperModel, u: Float[np.ndarray, "draws dim"]) -> Float[np.ndarray, "draws dim"]:
    """Draws with components in the order of the first coordinates of their locations.

    Unlike `relabelled` it does not look at the truth, towards which that bends intervals: of components in
    order the central intervals of a posterior hold the truth as often as they say.
    """
    if not model.labelled:
        return u
    parts = u.reshape(len(u), 2, COMPONENTS, -1)  # locations and scales by component
    order = np.argsort(parts[:, 0, :, 0], axis=1)
    return np.take_along_axis(parts, order[:, None, :, None], axis=2).reshape(u.shape)


def squared_error(u: Float[np.ndarray, "draws dim"], truth: Float[np.ndarray, " dim"]) -> float:
    """The paper's metric: the mean over draws and coordinates of (u - truth)^2."""
    return float(np.mean((u - truth[None]) ** 2))


def error_of_mse(u: Float[np.ndarray, "draws dim"], truth: Float[np.ndarray, " dim"]) -> float:
    """Standard error of `squared_error`: the larger of two estimates.

    With x_i the squared error of a draw, sum_i c_i^2 (x_i - mean)^2 / n^2 over different draws that occur c_i
    times, as weights make them occur; and that from means of consecutive draws, which counts the
    correlation within chains.
    """
    squares = np.mean((u - truth[None]) ** 2, axis=1)
    if not np.isfinite(squares).all():
        return np.nan
    _, first, counts = np.unique(u, axis=0, return_index=True, return_counts=True)
    repeated = np.sum((counts * (squares[first] - squares.mean())) ** 2) / len(u) ** 2
    means = [part.mean() for part in np.array_split(squares, BATCHES)]
    return float(np.sqrt(max(repeated, np.var(means, ddof=1) / BATCHES)))


def wasserstein(u: Float[np.ndarray, "draws dim"], reference: Reference) -> Float[np.ndarray, " dim"]:
    """W_1 = integral |F^-1 - F_ref^-1| over LEVELS for each coordinate, in sds of the reference."""
    distance = np.mean(np.abs(np.quantile(u, LEVELS, axis=0) - reference.quantiles), axis=0)
    return distance / reference.sd


def score(
    model: PaperModel,
    u: Float[np.ndarray, "draws dim"],
    truth: Float[np.ndarray, " dim"],
    reference: Reference,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures of a set of draws as a whole, and of each coordinate."""
    labelled = relabelled(model, u, truth)
    finite = bool(np.isfinite(labelled).all())
    with np.errstate(invalid="ignore", over="ignore"):
        distances, sds = wasserstein(labelled, reference), labelled.std(0)
        shown = np.quantile(labelled, SHOWN, axis=0)
        means = labelled.mean(0)
        mse, mse_labelled = squared_error(u, truth), squared_error(labelled, truth)
        bounds = np.quantile(in_order(model, u), SHOWN, axis=0)
    known = in_order(model, truth[None])[0]
    inside = {
        "cover50": (bounds[1] <= known) & (known <= bounds[3]),
        "cover90": (bounds[0] <= known) & (known <= bounds[4]),
    }
    ratios = sds / reference.sd
    whole = {
        "finite": finite,
        "mse": mse,
        "mse_labelled": mse_labelled,
        "mse_error": error_of_mse(labelled, truth) if finite else np.nan,
        "reference": reference.name,
        "reference_mse": reference.mse,
        "mse_ratio": mse_labelled / reference.mse,
        "wasserstein_mean": float(distances.mean()),
        "wasserstein_max": float(distances.max()),
        "sd_ratio_least": float(ratios.min()),
        "sd_ratio_median": float(np.median(ratios)),
        "sd_ratio_most": float(ratios.max()),
        "reference_log_evidence": reference.log_evidence,
    } | {name: float(np.mean(covered)) for name, covered in inside.items()}
    coordinates = [
        {
            "coordinate": name,
            "truth": float(truth[i]),
            "mean": float(means[i]),
            "sd": float(sds[i]),
            **{f"q{int(100 * level):02d}": float(shown[j, i]) for j, level in enumerate(SHOWN)},
            "reference_mean": float(reference.mean[i]),
            "reference_sd": float(reference.sd[i]),
            "wasserstein": float(distances[i]),
        }
        for i, name in enumerate(model.names)
    ]
    return whole, coordinates
