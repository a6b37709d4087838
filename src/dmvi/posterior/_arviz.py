"""A fit in the form ArviZ reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dmvi._errors import InputError

if TYPE_CHECKING:
    import xarray as xr

Sites = Mapping[str, np.ndarray]
# Groups whose arrays count draws along their first axis.
_DRAWN = ("posterior", "posterior_predictive", "log_likelihood", "sample_stats", "prior_predictive")


@dataclass(frozen=True)
class Labels:
    """Names of dimensions and of the points along them.

    Attributes:
        plates: names of the leading dimensions of each site, as the model's plates give them.
        dims: the same by the user, who wins.
        coords: labels of the points along a dimension, by its name; the user's.
        known: the same by the model, for those dimensions that some site has at that length.
    """

    plates: Mapping[str, Sequence[str]]
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[Any] | np.ndarray] = field(default_factory=dict)
    known: Mapping[str, np.ndarray] = field(default_factory=dict)


def to_datatree(groups: Mapping[str, Sites], labels: Labels, attributes: Mapping[str, Any]) -> "xr.DataTree":
    """ArviZ's groups; the draws form one chain.

    Groups without content are left out. A "/" in a site's name, which NumPyro's scopes write and
    xarray keeps for groups, becomes ".".

    Args:
        groups: arrays by group and site; draws lead where a group has them.
        labels: names of dimensions and coordinates.
        attributes: what is written beside the posterior group.
    """
    import arviz_base  # slow to import, and fits do without

    named: dict[str, dict[str, np.ndarray]] = {}
    for group, sites in groups.items():
        drawn = group in _DRAWN
        named[group] = {
            _name(site): np.asarray(a)[None] if drawn else np.asarray(a) for site, a in sites.items()
        }
    named = {group: sites for group, sites in named.items() if sites}
    shapes: dict[str, tuple[int, ...]] = {}
    for group in ("log_likelihood", "posterior_predictive", "constant_data", "observed_data", "posterior"):
        skipped = 2 if group in _DRAWN else 0
        shapes |= {site: values.shape[skipped:] for site, values in named.get(group, {}).items()}
    dims = _dims(labels, shapes)
    attrs = {"posterior": dict(attributes)} if "posterior" in named else {}
    return arviz_base.from_dict(named, dims=dims, coords=_coords(labels, dims, shapes), attrs=attrs)


def _name(site: str) -> str:
    return site.replace("/", ".")


def _dims(labels: Labels, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[str | None]]:
    plates = {_name(site): tuple(names) for site, names in labels.plates.items()}
    dims = _usable(plates, shapes)
    for site, names in labels.dims.items():
        if _name(site) not in shapes:
            raise InputError(f"expected `dims` of sites among {sorted(shapes)}; got one of {site!r}.")
        if isinstance(names, str) or len(names) > len(shapes[_name(site)]):
            raise InputError(
                f"expected a list of at most {len(shapes[_name(site)])} names for the dimensions of "
                f"{site!r}, whose shape is {shapes[_name(site)]}; got {names!r}."
            )
        dims[_name(site)] = list(names)
    return dims


def _coords(
    labels: Labels, dims: Mapping[str, Sequence[str | None]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """The user's coordinates, checked against the lengths of their dimensions, and the model's that fit."""
    lengths = {}
    for site, names in dims.items():
        lengths |= {n: k for n, k in zip(names, shapes[site], strict=False) if n is not None}
    coords = {name: at for name, at in labels.known.items() if at.shape == (lengths.get(name),)}
    for name, points in labels.coords.items():
        values = np.asarray(points)
        if name not in lengths:
            raise InputError(
                f"expected `coords` of dimensions among {sorted(lengths)}; got {name!r}. Name dimensions "
                "with numpyro.plate, or with `dims`."
            )
        if values.shape != (lengths[name],):
            raise InputError(
                f"expected {lengths[name]} labels along {name!r}; got an array of shape {values.shape}."
            )
        coords[name] = values
    return coords


def _usable(
    dims: Mapping[str, tuple[str, ...]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, list[str | None]]:
    """The names of dimensions that xarray accepts; None lets ArviZ make one up.

    A dimension has one length throughout and shares no name with a variable. Plates break the
    first rule where a site is broadcast with length one, the second where a plate is named like a site.
    """
    lengths: dict[str, int] = {}
    for site, names in dims.items():
        for name, length in zip(names, shapes.get(site, ()), strict=False):
            lengths[name] = max(length, lengths.get(name, 0))
    usable: dict[str, list[str | None]] = {}
    for site, shape in shapes.items():
        names = dims.get(site, ())[: len(shape)]
        usable[site] = [
            (f"{name}_dim" if name in shapes else name) if length == lengths[name] else None
            for name, length in zip(names, shape, strict=False)
        ]
    return usable
