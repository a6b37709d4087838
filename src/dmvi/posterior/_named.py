"""Names around draws: which sites, which dimensions, which versions, which data."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence

import numpy as np

from dmvi._errors import InputError
from dmvi.targets import Target

_LIBRARIES = ("dmvi", "jax", "jaxlib", "equinox", "optax", "numpyro", "numpy", "scipy", "arviz-base")


def chosen(draws: Mapping[str, np.ndarray], sites: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The draws of some sites, in the order asked for; of all for None."""
    if sites is None:
        return dict(draws)
    unknown = [site for site in sites if site not in draws]
    if isinstance(sites, str) or unknown:
        raise InputError(
            f"expected `sites` to be a list of names among {sorted(draws)}; got {sites!r}. "
            "Observed sites have no draws."
        )
    return {site: draws[site] for site in sites}


def scalars(draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every scalar element of every site under its own name, "theta[3]" style."""
    found = {}
    for site, values in draws.items():
        for index in np.ndindex(values.shape[1:]):
            name = f"{site}[{','.join(map(str, index))}]" if index else site
            found[name] = np.asarray(values[(slice(None), *index)], np.float64)
    return found


def constant_dims(target: Target) -> dict[str, tuple[str, ...]]:
    """A guess at the constant data's dimensions: an axis as long as one plate of the observations is its."""
    lengths: dict[int, set[str]] = {}
    for site, values in target.observed.items():
        for name, length in zip(target.dims.get(site, ()), values.shape, strict=False):
            lengths.setdefault(length, set()).add(name)
    only = {length: names.pop() for length, names in lengths.items() if len(names) == 1}
    return {
        name: (only[values.shape[0]],)
        for name, values in target.constant.items()
        if values.ndim > 0 and values.shape[0] in only
    }


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays, their types and shapes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(repr((name, array.dtype.str, array.shape)).encode())
        found.update(array.tobytes())
    return found.hexdigest()


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide a fit's numbers."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a source tree
            versions[name] = "unknown"
    return versions
