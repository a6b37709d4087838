r"""Hessians that are sparse: which entries there are, and these entries from few products with vectors.

Columns of H that have no row in common are told from one product, H times their sum. So coordinates get
colours, no two of one colour next to the same coordinate, and H costs as many products as colours.
Coordinates next to very many, such as the scales of a hierarchy, get products of their own; a term c c^T that
is the same everywhere, such as that of a sum held near zero, is kept apart.

The pattern is measured at random points. Up to a thousand dimensions it is read from all columns. Above,
coordinates are thrown into groups again and again: where a group holds a single neighbour j of i, the ratio
of

    (H 1_group)_i = H_ij,   (H a_group)_i = a_j H_ij

tells which one it is, a_j being a digit of j. Either way a product with a random vector at another point says
whether the pattern is right.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array

from dmvi._compile import quick_options
from dmvi.targets._target import Target


@dataclass(frozen=True)
class Probing:
    """How a pattern is measured.

    Attributes:
        block: products side by side: more would hold as many copies of the model's terms.
        direct: dimensions up to which every column is formed; above, groups take fewer products.
        groups: numbers of groups that are tried one after the other; neighbours meet in one of few groups too
            often, and each group costs three products a round.
        rounds: of groups. With as many groups as neighbours one round misses two in three of them, so that
            eight from both ends miss one in 700, more groups next to none.
        degree: neighbours, at least and in multiples of the median, above which a coordinate is dense.
        share: of all coordinates, which it has to be next to instead where there would be too many of these.
        dense: dense coordinates at most; they are worth a product each.
        columns: from which a constant term c c^T is told, by medians that a few other entries do not move.
        filled: share of these columns, and of their rows, that such a term has to fill.
        negligible: share of the constant term below which what is left of an entry is rounding.
        products: at most for one Hessian, as a share of d and in all.
        agree: relative difference at most between a product and the same from the pattern.
    """

    block: int = 32
    direct: int = 1024
    groups: tuple[int, ...] = (8, 32, 128)
    rounds: int = 8
    degree: tuple[int, float] = (20, 4.0)
    share: float = 0.05
    dense: int = 256
    columns: int = 32
    filled: float = 0.25
    negligible: float = 1e-5
    products: tuple[float, int] = (0.5, 512)
    agree: float = 1e-2


PROBING = Probing()
Products = Callable[[np.ndarray, np.ndarray], np.ndarray]  # a point and vectors to -H times each
Rounding = Callable[
    [np.ndarray], np.ndarray
]  # vectors to what rounding leaves of the constant term's products


class Pattern(NamedTuple):
    """Entries of a symmetric matrix, both triangles and the whole diagonal, beside a constant term c c^T.

    `dense` coordinates come with most neighbours first and have no colour (-1).
    """

    rows: Int[np.ndarray, " entries"]
    columns: Int[np.ndarray, " entries"]
    mirrored: Int[np.ndarray, " entries"]  # where the entry on the other side of the diagonal is
    dense: Int[np.ndarray, " dense"]
    colour: Int[np.ndarray, " dim"]
    constant: Float[np.ndarray, " dim"]  # c; zero where there is no such term


def hessian_products(target: Target, block: int = PROBING.block) -> Products:
    """The products of -H, the negative Hessian of log pi, with vectors, a block of them at a time."""
    dtype = jnp.result_type(float)

    def product(xi: Array, v: Array) -> Array:
        return -target.hessian_product(xi, v)

    program = jax.jit(jax.vmap(product, in_axes=(None, 0)), compiler_options=quick_options())

    def products(xi: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        point, found = jnp.asarray(xi.astype(dtype)), []
        for first in range(0, len(vectors), block):
            some = np.zeros((block, target.dim), dtype)
            here = vectors[first : first + block]
            some[: len(here)] = here
            found.append(np.asarray(program(point, jnp.asarray(some)), float)[: len(here)])
        return np.concatenate(found) if found else np.zeros((0, target.dim))

    return products


class SparseHessian:
    """-H by its entries, at any point, from few products."""

    def __init__(self, products: Products, pattern: Pattern):
        self.pattern = pattern
        self.dim = pattern.colour.size
        self._products = products
        count = int(pattern.colour.max(initial=-1)) + 1
        self._seeds = np.zeros((count + pattern.dense.size, self.dim))
        coloured = np.flatnonzero(pattern.colour >= 0)
        self._seeds[pattern.colour[coloured], coloured] = 1
        self._seeds[count + np.arange(pattern.dense.size), pattern.dense] = 1
        seed = pattern.colour.copy()
        seed[pattern.dense] = count + np.arange(pattern.dense.size)
        # An entry in the row of a dense coordinate is read from that coordinate's own product.
        swapped = (pattern.colour[pattern.rows] < 0) & (pattern.colour[pattern.columns] >= 0)
        self._from = seed[np.where(swapped, pattern.rows, pattern.columns)]
        self._at = np.where(swapped, pattern.columns, pattern.rows)

    @property
    def cost(self) -> int:
        """Products for one Hessian."""
        return len(self._seeds)

    def entries(self, xi: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " entries"]:
        """The entries of -H at xi without its constant term."""
        c = self.pattern.constant
        found = self._products(xi, self._seeds) - np.outer(self._seeds @ c, c)
        entries = found[self._from, self._at]
        return 0.5 * (entries + entries[self.pattern.mirrored])

    def agrees(self, xi: np.ndarray, rng: np.random.Generator, agree: float) -> bool:
        """Whether a product with a random vector is what the entries make of it."""
        v, c = rng.standard_normal(self.dim), self.pattern.constant
        shape = (self.dim, self.dim)
        matrix = csr_array((self.entries(xi), (self.pattern.rows, self.pattern.columns)), shape=shape)
        difference = self._products(xi, v[None])[0] - matrix @ v - c * (c @ v)
        size = abs(matrix) @ abs(v) + abs(c) * (abs(c) @ abs(v))
        return bool(np.all(np.abs(difference) <= agree * (size + np.abs(matrix.diagonal()) + 1e-6)))


def sparse_hessian(
    products: Products,
    points: Float[np.ndarray, "points dim"],
    rng: np.random.Generator,
    settings: Probing = PROBING,
) -> SparseHessian | None:
    """-H of a target by its pattern; None where it is not sparse.

    Args:
        products: of -H with vectors.
        points: two or more at which the pattern is measured; it is checked at the last.
        rng: of columns, groups and the vector that checks.
        settings: how it is measured.
    """
    dim = points.shape[1]
    constant = _constant(products, points, rng, settings)

    def rest(xi: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        return products(xi, vectors) - np.outer(vectors @ constant, constant)

    def rounding(vectors: np.ndarray) -> np.ndarray:
        return settings.negligible * np.outer(np.abs(vectors) @ np.abs(constant), np.abs(constant))

    ways = [None] if dim <= settings.direct else list(settings.groups)
    for groups in ways:
        pairs = []
        for point in points[:2]:
            if groups is None:
                found = _direct(rest, rounding, point, settings)
            else:
                found = _probed(rest, rounding, point, groups, rng, settings)
            if found is None:
                return None
            pairs.append(found)
        pattern = _pattern(np.concatenate(pairs), dim, constant, settings)
        if pattern is None:
            return None
        hessian = SparseHessian(products, pattern)
        share, most = settings.products
        if hessian.cost > min(max(share * dim, settings.block), most):
            return None
        if hessian.agrees(points[-1], rng, settings.agree):
            return _pruned(products, hessian, points, settings)
    return None


def _pruned(
    products: Products, hessian: SparseHessian, points: np.ndarray, settings: Probing
) -> SparseHessian:
    """Without entries that are zero at all points: groups that hold several neighbours suggest some."""
    pattern = hessian.pattern
    kept = np.zeros(pattern.rows.size, bool)
    for point in points:
        entries = hessian.entries(point)
        root = np.sqrt(np.abs(entries[pattern.rows == pattern.columns]))
        kept |= np.abs(entries) > settings.negligible * root[pattern.rows] * root[pattern.columns]
    keys = (pattern.rows * hessian.dim + pattern.columns)[kept]
    fewer = _pattern(keys, hessian.dim, pattern.constant, settings)
    return hessian if fewer is None else SparseHessian(products, fewer)


def _constant(
    products: Products, points: np.ndarray, rng: np.random.Generator, settings: Probing
) -> Float[np.ndarray, " dim"]:
    """c of a term c c^T that fills most of H and is the same at all points; zero where there is none."""
    dim = points.shape[1]
    chosen = rng.permutation(dim)[: settings.columns]
    units = np.zeros((chosen.size, dim))
    units[np.arange(chosen.size), chosen] = 1
    found = []
    for point in points[:2]:
        columns = np.nan_to_num(products(point, units))
        filled = (columns != 0).mean(axis=1) > settings.filled
        if filled.mean() < 0.5 * settings.filled:
            return np.zeros(dim)
        columns, rows = columns[filled], chosen[filled]
        common = (columns != 0).all(axis=0)
        if not common.any():
            return np.zeros(dim)
        share = np.median(columns[:, common] / columns[:1, common], axis=1)
        columns = columns / share[:, None]
        column = np.median(columns, axis=0)
        same = np.abs(columns - column) <= settings.negligible * np.abs(column)
        column = np.where(same.mean(axis=0) > 0.5, column, 0)
        if not column[rows[0]] > 0:
            return np.zeros(dim)
        found.append(column / np.sqrt(column[rows[0]]))
    return np.where(np.abs(found[0] - found[1]) <= settings.negligible * np.abs(found[0]), found[0], 0)


def _direct(
    products: Products, rounding: Rounding, xi: np.ndarray, settings: Probing
) -> Int[np.ndarray, " entries"] | None:
    """row * d + column of all entries, from every column."""
    dim, keys = xi.size, []
    for first in range(0, dim, settings.block):
        columns = np.arange(first, min(first + settings.block, dim))
        units = np.zeros((columns.size, dim))
        units[np.arange(columns.size), columns] = 1
        found = products(xi, units)
        if not np.isfinite(found).all():
            return None
        column, row = np.nonzero(np.abs(found) > rounding(units))
        keys.append(row * dim + columns[column])
    return np.concatenate(keys)


def _probed(
    products: Products,
    rounding: Rounding,
    xi: np.ndarray,
    groups: int,
    rng: np.random.Generator,
    settings: Probing,
) -> Int[np.ndarray, " entries"] | None:
    """row * d + column of the entries that products with groups of coordinates tell apart."""
    dim = xi.size
    many = min(4 * max(settings.groups), dim)
    label = rng.permutation(dim) % many
    members = (label == np.arange(many)[:, None]).astype(float)
    met = products(xi, members)
    if not np.isfinite(met).all():
        return None
    dense = np.flatnonzero((np.abs(met) > rounding(members)).mean(axis=0) > settings.filled)
    if dense.size > settings.dense:
        return None
    units = np.zeros((dense.size, dim))
    units[np.arange(dense.size), dense] = 1
    at, row = np.nonzero(np.abs(products(xi, units)) > rounding(units))
    keys = [row * dim + dense[at], dense[at] * dim + row]
    base = int(np.ceil(np.sqrt(dim)))
    digits = 1.0 + np.stack([np.arange(dim) // base, np.arange(dim) % base])
    for _ in range(settings.rounds):
        label = rng.permutation(dim) % groups
        label[dense] = -1
        members = (label == np.arange(groups)[:, None]).astype(float)
        sums = products(xi, members)
        group, row = np.nonzero(np.abs(sums) > rounding(members))
        read = np.stack([products(xi, members * digit)[group, row] for digit in digits])
        read = read / sums[group, row] - 1
        whole = np.rint(read)
        column = (whole[0] * base + whole[1]).clip(0, dim - 1).astype(int)
        single = (np.abs(read - whole) < 0.1).all(axis=0) & (label[column] == group)
        column, row = column[single], row[single]
        keys += [row * dim + column, column * dim + row]
    return np.unique(np.concatenate(keys))


def _pattern(
    keys: Int[np.ndarray, " entries"], dim: int, constant: np.ndarray, settings: Probing
) -> Pattern | None:
    """The pattern of entries row * d + column with their mirror images and the diagonal, coloured."""
    rows, columns = keys // dim, keys % dim
    keys = np.unique(np.concatenate([keys, columns * dim + rows, np.arange(dim) * (dim + 1)]))
    rows, columns = keys // dim, keys % dim
    degree = np.bincount(rows, minlength=dim)
    least, times = settings.degree
    least = max(least, times * np.median(degree))
    dense = np.flatnonzero(degree > least)
    if dense.size > settings.dense:
        dense = np.flatnonzero(degree > max(least, settings.share * dim))
    if dense.size > settings.dense:
        return None
    dense = dense[np.argsort(-degree[dense], kind="stable")]
    mirrored = np.searchsorted(keys, columns * dim + rows)
    return Pattern(rows, columns, mirrored, dense, coloured(rows, columns, dim, dense), constant)


def coloured(
    rows: Int[np.ndarray, " entries"],
    columns: Int[np.ndarray, " entries"],
    dim: int,
    dense: Int[np.ndarray, " dense"],
) -> Int[np.ndarray, " dim"]:
    """Colours: no two columns of one colour have a row in common, dense rows and columns left out."""
    sparse = ~np.isin(np.arange(dim), dense)
    kept = sparse[rows] & sparse[columns]
    graph = csr_array((np.ones(kept.sum()), (rows[kept], columns[kept])), shape=(dim, dim))
    near = csr_array(graph @ graph)
    colour = np.full(dim, -1)
    for node in np.argsort(-np.diff(near.indptr), kind="stable"):
        if sparse[node]:
            taken = colour[near.indices[near.indptr[node] : near.indptr[node + 1]]]
            free = np.ones(taken.size + 1, bool)
            free[taken[(taken >= 0) & (taken < free.size)]] = False
            colour[node] = np.argmax(free)
    return colour
