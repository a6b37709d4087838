"""A fit in the form ArviZ reads."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import arviz_base
import numpy as np
import xarray as xr


def to_datatree(
    posterior: Mapping[str, np.ndarray],
    observed: Mapping[str, np.ndarray],
    log_likelihood: Mapping[str, np.ndarray],
    dims: Mapping[str, Sequence[str]],
    attributes: Mapping[str, Any],
    coords: Mapping[str, Any] = MappingProxyType({}),
    constant: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> xr.DataTree:
    """Groups posterior, observed_data, constant_data and log_likelihood; the draws form one chain.

    Groups without content are left out. A "/" in a site's name, which NumPyro's scopes write and
    xarray keeps for groups, becomes ".".

    Args:
        posterior: constrained draws by site, draws leading.
        observed: observed values by site.
        log_likelihood: pointwise log-likelihood by observed site, draws leading.
        dims: names of the leading dimensions of each site.
        attributes: what is written beside the posterior group.
        coords: labels along named dimensions.
        constant: data that are not random variables.
    """
    groups = {
        "posterior": {_name(site): np.asarray(values)[None] for site, values in posterior.items()},
        "observed_data": {_name(site): np.asarray(values) for site, values in observed.items()},
        "constant_data": {_name(site): np.asarray(values) for site, values in constant.items()},
        "log_likelihood": {_name(site): np.asarray(values)[None] for site, values in log_likelihood.items()},
    }
    groups = {group: sites for group, sites in groups.items() if sites}
    shapes: dict[str, tuple[int, ...]] = {_name(site): values.shape[1:] for site, values in posterior.items()}
    shapes |= {_name(site): np.shape(values) for site, values in {**observed, **constant}.items()}
    named = {_name(site): tuple(names) for site, names in dims.items()}
    return arviz_base.from_dict(
        groups, dims=_usable(named, shapes), coords=dict(coords), attrs={"posterior": dict(attributes)}
    )


def _name(site: str) -> str:
    return site.replace("/", ".")


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
