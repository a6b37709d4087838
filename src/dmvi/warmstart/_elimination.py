r"""The root of a sparse precision: coordinates in blocks, blocks in levels, and what each block depends on.

Nested dissection. A few coordinates that separate the graph of partial correlations into parts are put above
these parts, and each part is treated likewise, down to parts of a few coordinates. Given all that is above
it, a part depends on the coordinates next to it alone, and parts of one level are independent.
Block by block, from the lowest level up, with F the precision once everything below is integrated out,

    x_block | above ~ N(V x_above, W W^T),   V = -F_bb^-1 F_ba,   W W^T = F_bb^-1,
    F_aa <- F_aa - F_ab F_bb^-1 F_ba.

A chain of n coordinates has log n levels, a hierarchy as many as it has. All blocks of a level are worked on
at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra

from dmvi.guides import Level, LowRank, SparseScale


@dataclass(frozen=True)
class Dissection:
    """How blocks are made.

    Attributes:
        leaf: coordinates of a part that is divided no further: fewer make more levels, more more numbers.
        width: coordinates of a block of separators from which on their parts become a level of their own.
        shared: coordinates at most that blocks may depend on without a list of their own.
        balance: largest share of a part on one side of its separator.
        waste: numbers a row that filling up blocks to one size may add, so that fewer sizes are compiled.
        fill: numbers a row at most; beyond it the precision does not count as sparse.
    """

    leaf: int = 32
    width: int = 64
    shared: int = 64
    balance: float = 0.7
    waste: float = 1.0
    fill: float = 200.0


DISSECTION = Dissection()


class Plan(NamedTuple):
    """One level: coordinates of its blocks and above them (-1: filled up), and where their numbers are."""

    own: Int[np.ndarray, "blocks width"]
    above: Int[np.ndarray, "blocks above"]
    at_own: Int[np.ndarray, "blocks width width"]
    at_above: Int[np.ndarray, "blocks width up"]  # those shared come last
    at_update: Int[np.ndarray, "blocks up up"]


class Root(NamedTuple):
    """W and the slopes V of every level, the lowest last."""

    scales: list[Float[np.ndarray, "blocks width width"]]
    slopes: list[Float[np.ndarray, "blocks width up"]]


class Elimination:
    """The order of elimination of a pattern, for any numbers in it.

    Args:
        rows: row of each entry of the precision; both triangles and the whole diagonal are there.
        columns: its column.
        dim: number of coordinates.
        dense: coordinates that are eliminated last.
        settings: sizes of blocks.
    """

    def __init__(
        self,
        rows: Int[np.ndarray, " entries"],
        columns: Int[np.ndarray, " entries"],
        dim: int,
        dense: Int[np.ndarray, " dense"],
        settings: Dissection = DISSECTION,
    ):
        self.dim = dim
        self.shared = dense[: settings.shared]
        graph = csr_array((np.ones(rows.size), (rows, columns)), shape=(dim, dim))
        blocks, level, parent = dissected(graph, dense, settings)
        above = _above(graph, blocks, level, parent, self.shared)
        groups = _groups(blocks, level, above, settings.waste * dim)
        depth = np.empty(dim, int)
        for own, at in zip(blocks, level, strict=True):
            depth[own] = at
        self._depth = depth
        self.plans = self._plans([(_filled(own), _filled(up)) for own, up in groups])
        self.place = np.empty(dim, int)
        owned = np.concatenate([plan.own.ravel() for plan in self.plans])
        self.place[owned[owned >= 0]] = np.flatnonzero(owned >= 0)
        self._entries = self._at(rows, columns, depth[rows] >= depth[columns])

    @property
    def fill(self) -> float:
        """Numbers a row of the root."""
        return sum(plan.at_own.size + plan.at_above.size for plan in self.plans) / self.dim

    def root(self, entries: Float[np.ndarray, " entries"]) -> Root | None:
        """The root of the precision with these entries; None where that is not positive definite."""
        numbers = np.zeros(self._keys.size + 1)
        numbers[self._entries] = entries
        numbers[-1] = 0
        root = Root([], [])
        for plan in reversed(self.plans):
            precision, beside = numbers[plan.at_own], numbers[plan.at_above]
            padded = np.nonzero(plan.own < 0)
            precision[padded[0], padded[1], padded[1]] = 1
            try:
                inverse = np.linalg.inv(np.linalg.cholesky(precision))
            except np.linalg.LinAlgError:
                return None
            whitened = inverse @ beside
            root.scales.insert(0, inverse.swapaxes(1, 2))
            root.slopes.insert(0, -inverse.swapaxes(1, 2) @ whitened)
            if plan.at_update.size:
                update = whitened.swapaxes(1, 2) @ whitened
                numbers -= np.bincount(plan.at_update.ravel(), update.ravel(), numbers.size)
                numbers[-1] = 0
        return root if all(np.isfinite(scale).all() for scale in root.scales) else None

    def transposed(self, root: Root, x: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """L^-1 x, for the root L^-T."""
        x, z = np.append(x, 0.0), np.zeros(self.dim + 1)
        for plan, scale, slope in reversed(list(zip(self.plans, root.scales, root.slopes, strict=True))):
            own = np.where(plan.own < 0, 0.0, x[plan.own])
            z[plan.own] = np.einsum("bji,bj->bi", scale, own)
            up = np.einsum("bji,bj->bi", slope, own)
            x += np.bincount(self._up(plan).ravel() % (self.dim + 1), up.ravel(), self.dim + 1)
        return z[:-1]

    def scale(self, root: Root, dense: Float[np.ndarray, "dim rank"], dtype: np.dtype) -> SparseScale:
        """S of the precision L L^T + dense dense^T."""
        places = np.append(self.place, 0)
        levels = tuple(
            Level(
                jnp.asarray(np.maximum(plan.own, 0)),
                jnp.asarray(places[plan.above]),
                jnp.asarray(scale.astype(dtype)),
                jnp.asarray(slope[..., : plan.above.shape[1]].astype(dtype)),
                jnp.asarray(slope[..., plan.above.shape[1] :].astype(dtype)),
            )
            for plan, scale, slope in zip(self.plans, root.scales, root.slopes, strict=True)
        )
        left = np.zeros((self.dim, 1))
        right = left
        if dense.shape[1]:
            right = np.stack([self.transposed(root, column) for column in dense.T], axis=1)
            values, vectors = np.linalg.eigh(right.T @ right)
            values = np.maximum(values, np.finfo(float).tiny)
            shrink = ((1 + values) ** -0.5 - 1) / values
            left = right @ (vectors * shrink) @ vectors.T
        inner = LowRank(*(jnp.asarray(part.astype(dtype)) for part in (np.ones(self.dim), left, right)))
        return SparseScale(inner, levels, jnp.asarray(self.place))

    def _up(self, plan: Plan) -> Int[np.ndarray, "blocks up"]:
        """Coordinates above each block, the shared ones last; none of these above themselves."""
        shared = np.broadcast_to(self.shared, (plan.own.shape[0], self.shared.size))
        return np.concatenate([plan.above, shared[:, : self._beside(plan)]], axis=1)

    def _beside(self, plan: Plan) -> int:
        """How many shared coordinates are above a level."""
        return 0 if np.isin(plan.own[0, 0], self.shared) else self.shared.size

    def _plans(self, groups: list[tuple[np.ndarray, np.ndarray]]) -> list[Plan]:
        """The levels, with the places of their numbers among all that elimination forms."""
        bare = [Plan(own, above, own, own, own) for own, above in groups]
        ups = [self._up(plan) for plan in bare]
        pairs = [
            self._pairs(plan.own, np.concatenate([plan.own, up], axis=1))
            for plan, up in zip(bare, ups, strict=True)
        ]
        self._keys = np.unique(np.concatenate([key.ravel() for key in pairs]))
        self._keys = self._keys[self._keys >= 0]
        plans = []
        for plan, up, key in zip(bare, ups, pairs, strict=True):
            at, width = self._find(key), plan.own.shape[1]
            plans.append(Plan(plan.own, plan.above, at[..., :width], at[..., width:], self._update(up)))
        return plans

    def _update(self, up: Int[np.ndarray, "blocks up"]) -> Int[np.ndarray, "blocks up up"]:
        """Places of the pairs above a block, each pair as its lower coordinate has it."""
        depth = np.append(self._depth, -1)
        first, second = up[:, :, None], up[:, None, :]
        kept = (first >= 0) & (second >= 0) & (depth[first] >= depth[second])
        return self._find(np.where(kept, first * self.dim + second, -1))

    def _pairs(self, own: np.ndarray, others: np.ndarray) -> Int[np.ndarray, "blocks width others"]:
        first, second = own[:, :, None], others[:, None, :]
        return np.where((first < 0) | (second < 0), -1, first * self.dim + second)

    def _at(self, rows: np.ndarray, columns: np.ndarray, kept: Bool[np.ndarray, " entries"]) -> np.ndarray:
        return self._find(np.where(kept, rows.astype(np.int64) * self.dim + columns, -1))

    def _find(self, key: np.ndarray) -> np.ndarray:
        """Places of the keys; one past the end for what is not there."""
        return np.where(key < 0, self._keys.size, np.searchsorted(self._keys, key))


def dissected(
    graph: csr_array, dense: Int[np.ndarray, " dense"], settings: Dissection
) -> tuple[list[np.ndarray], list[int], list[int]]:
    """Blocks of nested dissection, the level of each, and the block each part was cut from (-1: none)."""
    blocks, level, parent = ([dense], [0], [-1]) if dense.size else ([], [], [])
    rest = np.setdiff1d(np.arange(len(graph.indptr) - 1), dense)
    waiting = [(part, len(blocks), len(blocks) - 1) for part in _parts(graph, rest)]
    while waiting:
        nodes, depth, above = waiting.pop()
        own, parts = (nodes, []) if nodes.size <= settings.leaf else _cut(graph, nodes, settings)
        waiting += [(part, depth + 1, len(blocks)) for part in parts]
        blocks.append(own)
        level.append(depth)
        parent.append(above)
    return blocks, level, parent


def _cut(graph: csr_array, nodes: np.ndarray, settings: Dissection) -> tuple[np.ndarray, list[np.ndarray]]:
    """Separators of a part, and the parts they leave: until these are leaves or the separators a block."""
    parts, separators = [nodes], []
    while sum(map(len, separators)) < settings.width:
        largest = max(range(len(parts)), key=lambda i: len(parts[i]), default=-1)
        if largest < 0 or len(parts[largest]) <= settings.leaf:
            break
        part = parts.pop(largest)
        chosen = _separator(graph[part][:, part], settings.balance)
        separators.append(part[chosen])
        parts += _parts(graph, part[~chosen])
    return np.concatenate(separators), parts


def _separator(graph: csr_array, balance: float) -> Bool[np.ndarray, " nodes"]:
    """Few nodes that part the rest about evenly: the middle of a tree, or all as far from a far node."""
    nodes = len(graph.indptr) - 1
    edges = np.count_nonzero(graph.indices != np.repeat(np.arange(nodes), np.diff(graph.indptr)))
    if edges == 2 * (nodes - 1):
        return np.arange(nodes) == _middle(graph)
    far = np.argmax(dijkstra(graph, indices=0, unweighted=True))
    distance = dijkstra(graph, indices=far, unweighted=True).astype(int)
    sizes = np.bincount(distance)
    if sizes.size < 3:
        return np.ones(nodes, bool)  # all next to one another
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    larger = np.maximum(before, nodes - before - sizes)[1:-1]
    even = larger <= balance * nodes
    layer = 1 + int(np.argmin(np.where(even, sizes[1:-1], nodes) if even.any() else larger))
    beyond = graph @ (distance == layer + 1).astype(float)
    return (distance == layer) & (beyond > 0)


def _middle(tree: csr_array) -> int:
    """The node of a tree whose parts are all at most half of it."""
    order, before = breadth_first_order(tree, 0)
    below = np.ones(order.size, int)
    for node in order[:0:-1]:
        below[before[node]] += below[node]
    return int(order[np.flatnonzero(2 * below[order] >= order.size)[-1]])


def _parts(graph: csr_array, nodes: np.ndarray) -> list[np.ndarray]:
    """The connected parts of some nodes."""
    if not nodes.size:
        return []
    _, label = connected_components(graph[nodes][:, nodes], directed=False)
    order = np.argsort(label, kind="stable")
    return np.split(nodes[order], np.flatnonzero(np.diff(label[order])) + 1)


def _above(
    graph: csr_array, blocks: Sequence[np.ndarray], level: list[int], parent: list[int], shared: np.ndarray
) -> list[np.ndarray]:
    """What each block depends on once all below it is integrated out, without the shared coordinates."""
    dim = len(graph.indptr) - 1
    block = np.empty(dim, int)
    for at, own in enumerate(blocks):
        block[own] = at
    levels, parents = np.asarray(level), np.asarray(parent)
    edges = coo_array(graph)
    below, above = block[edges.row], edges.col
    kept = (levels[block[above]] < levels[below]) & ~np.isin(above, shared)
    pairs = below[kept] * dim + above[kept]
    found: list[np.ndarray] = []
    for depth in range(max(level), -1, -1):
        here = np.unique(pairs[levels[pairs // dim] == depth])
        found.append(here)
        handed = parents[here // dim], here % dim
        up = block[handed[1]] != handed[0]
        pairs = np.concatenate([pairs[levels[pairs // dim] < depth], (handed[0] * dim + handed[1])[up]])
    everything = np.sort(np.concatenate(found))
    bounds = np.searchsorted(everything, np.arange(1, len(blocks)) * dim)
    return [part % dim for part in np.split(everything, bounds)]


def _groups(
    blocks: Sequence[np.ndarray], level: list[int], above: list[np.ndarray], waste: float
) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Blocks of one level and about one size together, the top first.

    Small ones join larger ones where filling them up adds no more than `waste` numbers.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for at, own in enumerate(blocks):
        groups.setdefault((level[at], (own.size - 1).bit_length()), []).append(at)
    merged: list[list[int]] = []
    for (depth, _), members in sorted(groups.items()):
        if merged and level[merged[-1][0]] == depth:
            last = merged[-1]
            if (
                _numbers(blocks, above, last + members)
                - _numbers(blocks, above, last)
                - _numbers(blocks, above, members)
                <= waste
            ):
                last += members
                continue
        merged.append(members)
    return [([blocks[i] for i in members], [above[i] for i in members]) for members in merged]


def _numbers(blocks: Sequence[np.ndarray], above: list[np.ndarray], members: list[int]) -> int:
    """How many numbers some blocks hold once they are filled up to one size."""
    width = max(blocks[i].size for i in members)
    return len(members) * width * (width + max(above[i].size for i in members))


def _filled(rows: list[np.ndarray]) -> Int[np.ndarray, "rows longest"]:
    """Rows of one length, filled up with -1."""
    sizes = np.asarray([row.size for row in rows])
    full = np.full((len(rows), int(sizes.max())), -1)
    full[np.arange(full.shape[1]) < sizes[:, None]] = np.concatenate(rows)
    return full
