"""A posterior as arrays and JSON, and back."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from dmvi._errors import asks_too_much
from dmvi._run import Run, Status
from dmvi.posterior._atomic import check_place
from dmvi.posterior._container import Contents, FileError, read, write
from dmvi.posterior._diagnostics import Diagnostics
from dmvi.posterior._named import constant_dims

if TYPE_CHECKING:
    from dmvi.posterior._posterior import Posterior

STORED_STAGES = 500
STORED_PREDICTIONS = 500
# Numbers of pointwise log-likelihood, or of predictive draws, beyond which they are left out: 80 MB.
_MOST_NUMBERS = 20_000_000


class Fit(NamedTuple):
    """What a file says of a fit, understood and checked, but not yet joined to a model.

    Attributes:
        diagnostics: as of the fit.
        run: the record of the fit.
        groups: arrays by group ("draws", "corrected", "observed", ...) and name.
        arrays: single arrays by name ("xi", "corrected_xi", "log_weights", "stages", "key", ...).
        leaves: arrays of the guide, of psi and of the training state, in the order of their trees.
        record: the rest: names, dims, versions, data digest, date.
    """

    diagnostics: Diagnostics
    run: Run
    groups: dict[str, dict[str, np.ndarray]]
    arrays: dict[str, np.ndarray]
    leaves: dict[str, list[np.ndarray]]
    record: dict[str, Any]


_GROUPS = ("draws", "corrected", "predictions", "log_likelihood", "observed", "constant", "params")
_SINGLE = (
    "xi",
    "corrected_xi",
    "log_weights",
    "log_pi",
    "log_q",
    "stages",
    "key",
    "history",
    "history_steps",
)
_TREES = ("guide", "psi", "training", "visited")


def save(posterior: "Posterior", path: Path, *, n: int, seed: int) -> Path:
    """Write a posterior with n of its draws."""
    check_place(path)
    draws = posterior._draws
    xi = posterior.unconstrained(n, seed=seed)
    corrected_xi = posterior.unconstrained(n, seed=seed, resample=True)
    numbers = n * sum(values.size for values in posterior.observed.values())
    advised = corrected_xi if posterior._advised(None) else xi
    groups: dict[str, Mapping[str, Any]] = {
        "draws": draws.constrain(xi),
        "corrected": draws.constrain(corrected_xi),
        "predictions": posterior.predictions(min(n, STORED_PREDICTIONS), seed=seed),
        "log_likelihood": draws.log_likelihood(advised) if numbers <= _MOST_NUMBERS else {},
        "observed": posterior.observed,
        "constant": posterior.target.constant,
        "params": {k: v for k, v in posterior.params.items() if isinstance(v, np.ndarray)},
    }
    arrays: dict[str, Any] = {
        "xi": xi,
        "corrected_xi": corrected_xi,
        "log_weights": posterior.log_weights,
        "log_pi": draws.log_density(advised),
        "log_q": draws.evidence(advised),
        "stages": posterior.stages(min(n, STORED_STAGES), seed=seed),
        "key": jax.random.key_data(posterior.key),
        "history": posterior.run.history,
        "history_steps": posterior.run.history_steps,
    }
    for group, sites in groups.items():
        arrays |= {f"{group}/{site}": values for site, values in sites.items()}
    trees = {"guide": posterior.guide, "psi": posterior.target.params, "training": posterior.training}
    trees |= {"visited": posterior.run.visited} if len(posterior.run.visited) else {}
    for tree, leaves in trees.items():
        kept = jax.tree.leaves(eqx.filter(leaves, eqx.is_array))
        arrays |= {f"{tree}/{i}": leaf for i, leaf in enumerate(kept)}
    record = {
        "diagnostics": posterior.diagnostics.to_dict(),
        "run": _told(posterior.run),
        "names": list(posterior.names),
        "dims": {site: list(names) for site, names in constant_dims(posterior.target).items()}
        | {site: list(names) for site, names in posterior.target.dims.items()},
        "sites": list(groups["draws"]),
        "versions": dict(posterior.versions),
        "data_digest": posterior.data_digest,
        "key_impl": str(jax.random.key_impl(posterior.key)),
        "draws_seed": seed,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "verdict": posterior.verdict.name,
        "reasons": list(posterior.judgement.reasons),
    }
    write(path, {name: np.asarray(array) for name, array in arrays.items()}, record)
    return path


def _told(run: Run) -> dict[str, Any]:
    """A run in values that JSON can hold, but for its arrays."""
    arrays = ("history", "history_steps", "visited")
    told = {name: value for name, value in vars(run).items() if name not in arrays}
    mappings = {"settings": dict(run.settings), "stage_seconds": dict(run.stage_seconds)}
    return {**told, "status": run.status.name, **mappings}


def read_fit(path: Path) -> Fit:
    """Read what `save` wrote.

    Raises:
        FileError: for a file that is not intact.
    """
    contents = read(path)
    try:
        return _understood(contents)
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(asks_too_much(path)) from error
    except Exception as error:  # any value in the record may be of any kind
        raise FileError(
            f"{str(path)!r} is no intact fit: {type(error).__name__}: {error}. Fit again."
        ) from error


def _understood(contents: Contents) -> Fit:
    arrays, record = contents
    groups: dict[str, dict[str, np.ndarray]] = {group: {} for group in _GROUPS}
    single: dict[str, np.ndarray] = {}
    trees: dict[str, dict[int, np.ndarray]] = {tree: {} for tree in _TREES}
    for name, array in arrays.items():
        group, _, rest = name.partition("/")
        if name in _SINGLE:
            single[name] = array
        elif group in _GROUPS and rest:
            groups[group][rest] = array
        elif group in _TREES and rest.isdecimal():
            trees[group][int(rest)] = array
        else:
            raise FileError(f"the file holds an array that no fit has: {name!r}.")
    missing = [name for name in _SINGLE if name not in single]
    if missing:
        raise FileError(f"the file lacks {missing}.")
    _check_shapes(single, groups, record)
    _check_record(record)
    run = dict(record["run"])
    status = Status[run.pop("status")]
    settings = dict(run.pop("settings"))
    diagnostics = Diagnostics.from_dict(record["diagnostics"])
    if any(driver.name not in record["names"] for driver in diagnostics.drivers):
        raise FileError("the file says that coordinates drive its weights which it does not have.")
    seen: dict[str, Any] = (
        {"visited": _visited(trees["visited"], single["xi"].shape[1])} if trees["visited"] else {}
    )
    return Fit(
        diagnostics=diagnostics,
        run=Run(
            status=status,
            steps=int(run["steps"]),
            seconds=float(run["seconds"]),
            skipped=int(run["skipped"]),
            warm_start=str(run["warm_start"]),
            guide_name=str(run["guide_name"]),
            seed=int(run["seed"]),
            history=single["history"],
            history_steps=single["history_steps"],
            settings=settings,
            **_counted(run),
            **seen,
        ),
        groups=groups,
        arrays=single,
        leaves={tree: [leaves[i] for i in range(len(leaves))] for tree, leaves in trees.items()},
        record=record,
    )


def _counted(run: Mapping[str, Any]) -> dict[str, Any]:
    """What older files do not say of a run."""
    if "gradients" not in run:
        return {}
    stages = {str(name): float(seconds) for name, seconds in dict(run["stage_seconds"]).items()}
    gradients, seconds = int(run["gradients"]), float(run["gradient_seconds"])
    if gradients < 0 or not all(0 <= taken < np.inf for taken in (seconds, *stages.values())):
        raise FileError("the file has counts or times of the fit below zero or without end.")
    return {"gradients": gradients, "gradient_seconds": seconds, "stage_seconds": stages}


def _visited(leaves: dict[int, np.ndarray], dim: int) -> np.ndarray:
    """Modes with their scales."""
    if list(leaves) != [0] or leaves[0].ndim != 3 or leaves[0].shape[1:] != (dim + 1, dim):
        raise FileError("the modes in the file do not fit its draws.")
    return leaves[0]


def _check_record(record: Mapping[str, Any]) -> None:
    """Kinds of the values that are not looked at before they are used."""
    kinds = {
        "versions": dict,
        "date": str,
        "data_digest": str | None,
        "key_impl": str,
        "draws_seed": int,
        "dims": dict,
    }
    for name, kind in kinds.items():
        if not isinstance(record[name], kind):
            raise FileError(f"the file has {record[name]!r:.60} for its {name}.")
    for names in record["dims"].values():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FileError("the file names dimensions by something that is no name.")


def _check_shapes(
    single: Mapping[str, np.ndarray],
    groups: dict[str, dict[str, np.ndarray]],
    record: Mapping[str, Any],
) -> None:
    """Lengths that everything downstream relies on."""
    n, dim = single["xi"].shape
    names = record["names"]
    if len(names) != dim or not all(isinstance(name, str) for name in names):
        raise FileError(f"the file names {len(names)} coordinates and has draws of {dim}.")
    stages = single["stages"]
    if n < 1 or single["corrected_xi"].shape != (n, dim) or stages.shape[2:] != (dim,) or stages.size == 0:
        raise FileError("the draws in the file do not agree in shape.")
    if single["log_pi"].shape != (n,) or single["log_q"].shape != (n,):
        raise FileError("the densities in the file do not belong to its draws.")
    if single["log_weights"].ndim != 1 or single["history"].shape != single["history_steps"].shape:
        raise FileError("the weights or the history in the file have a wrong shape.")
    if list(record["sites"]) != list(groups["draws"]) or set(groups["corrected"]) != set(groups["draws"]):
        raise FileError("the file does not hold the draws of the sites it names.")
    for group in ("draws", "corrected", "log_likelihood"):
        if any(values.ndim < 1 or len(values) != n for values in groups[group].values()):
            raise FileError(f"the {group} in the file do not number {n}.")
    for site, values in groups["predictions"].items():
        if site not in groups["observed"] or values.shape[1:] != groups["observed"][site].shape:
            raise FileError(f"the predictions of {site!r} in the file do not fit what was observed.")
