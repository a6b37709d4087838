r"""Drivers: coordinates that move the scales and means of others, measured where the base is not exact.

With u ~ N(0, I) through a Gaussian base of scale S, the residual score r = S^T grad log pi + u is zero where
that Gaussian is the posterior. Where it is not, its moments say what depends on what:

    T_ij = mean r_i u_i u_j          j drives the scale of i,
    M_ij = mean r_i (u_j^2 - 1) / sqrt 2     j bends the mean of i,      D = sqrt(T^2 + M^2),

with entries within a few standard errors of zero taken as zero. The strength of j is sum_i D_ij^2. The
strongest coordinates get levels by rank, a few at the first level and twice as many at each further one; all
others share the last. Parents of a coordinate are the strongest of its drivers at lower levels.

Memory is linear in the dimension: strengths are summed over blocks of columns, and parents need the columns
of the strongest coordinates or their rows alone.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True)
class DriverSettings:
    """How drivers are measured.

    Attributes:
        errors: standard errors within which an entry of D counts as zero: one in a hundred passes by chance.
        winsor: standard deviations at which residual scores are cut, so that no single draw decides.
        levels: coordinates at the first level, at the first two, and so on; the others are at the last.
            Hierarchies have few scales, and every level costs a substitution.
        block: columns of D held at a time.
        every_row: dimensions up to which the strength of a coordinate is summed over all others.
        rows: taken at random, over which it is summed beyond: all would cost the square of the dimension, and
            what drives many others shows in some of them.
    """

    errors: float = 3.0
    winsor: float = 4.0
    levels: tuple[int, ...] = (2, 6, 14, 30, 62)
    block: int = 512
    every_row: int = 2048
    rows: int = 512

    def up_to(self, drivers: int) -> "DriverSettings":
        """With so many drivers at most."""
        levels = tuple(count for count in self.levels if count < drivers)
        return dataclasses.replace(self, levels=(*levels, min(drivers, self.levels[-1])))

    def counts(self, dim: int) -> tuple[int, ...]:
        """Coordinates up to each level but the last."""
        return tuple(count for count in self.levels if count < dim) or (1,)

    def of_ranks(self, dim: int) -> Int[np.ndarray, " drivers"]:
        """Level of each driver, by rank."""
        counts = self.counts(dim)
        return np.repeat(np.arange(len(counts)), np.diff((0, *counts)))


class Drivers(eqx.Module):
    """Which coordinates drive which. None of it is trained; shapes depend on dimension and settings alone.

    Attributes:
        strongest: coordinates at all levels but the last, by falling strength.
        places: parents of each coordinate as places in `strongest`.
        found: which of these there are.
        back: parents of `strongest` when the levels are taken the other way round, which lie anywhere.
        found_back: which of these there are.
    """

    strongest: Int[Array, " drivers"]
    places: Int[Array, "parents dim"]
    found: Bool[Array, "parents dim"]
    back: Int[Array, "parents drivers"]
    found_back: Bool[Array, "parents drivers"]
    settings: DriverSettings = eqx.field(static=True)

    @staticmethod
    def none(dim: int, parents: int, settings: DriverSettings) -> "Drivers":
        """Nothing measured: no coordinate has parents."""
        drivers, most = len(settings.of_ranks(dim)), min(parents, max(dim - 1, 1))
        places, back = ((most, rows) for rows in (dim, drivers))
        put = jax.device_put
        return Drivers(
            put(np.arange(drivers, dtype=np.int32)),
            put(np.zeros(places, np.int32)),
            put(np.zeros(places, bool)),
            put(np.zeros(back, np.int32)),
            put(np.zeros(back, bool)),
            settings,
        )

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.places.shape[1]

    @property
    def last_level(self) -> int:
        """The level of all coordinates but the strongest."""
        return len(self.settings.counts(self.dim))

    def levels(self) -> Int[Array, " dim"]:
        """Level of each coordinate."""
        return _levels(self.strongest, self.dim, self.settings)

    def lower(self) -> tuple[Bool[Array, "parents dim"], Bool[Array, "parents drivers"]]:
        """Which parents there are, whose level is lower or, the other way round, higher: asked of any arrays.

        What a file holds may be wrong; a flow of it must still be one that does not fold.
        """
        level = self.levels()
        forward = level[self.strongest][self.places] < level[None]
        return self.found & forward, self.found_back & (level[self.back] > level[None, self.strongest])

    def measured(self, u: Float[Array, "draws dim"], r: Float[Array, "draws dim"]) -> "Drivers":
        """The drivers that draws u and residual scores r show; draws that are not finite do not count."""
        most, count = self.places.shape[0], self.strongest.shape[0]
        links, everyone = Links(u, r, self.settings), jnp.arange(self.dim)
        strength = links.strengths()
        strongest = jax.lax.top_k(strength, count)[1].astype(self.strongest.dtype)
        level = _levels(strongest, self.dim, self.settings)
        # Parents lie among the strongest one way, and none but the strongest have any the other way round.
        lower = level[None, strongest] < level[:, None]
        places, found = _best(links.between(everyone, strongest), strength[strongest], lower, most)
        higher = level[None] > level[strongest, None]
        back, found_back = _best(links.between(strongest, everyone), strength, higher, most)
        kind = self.places.dtype
        return Drivers(
            strongest, places.T.astype(kind), found.T, back.T.astype(kind), found_back.T, self.settings
        )


class Links:
    """D for any rows and columns; see the module's equations."""

    def __init__(self, u: Float[Array, "draws dim"], r: Float[Array, "draws dim"], settings: DriverSettings):
        fine = jnp.all(jnp.isfinite(u) & jnp.isfinite(r), axis=1)
        self.count = jnp.maximum(jnp.sum(fine), 1).astype(u.dtype)
        self.u = jnp.where(fine[:, None], u, 0.0)
        r = jnp.where(fine[:, None], r, 0.0)
        mean = jnp.sum(r, axis=0) / self.count
        sd = jnp.sqrt(jnp.maximum(jnp.sum(r**2, axis=0) / self.count - mean**2, 0.0))
        limit = (settings.winsor * sd)[None]
        self.r = jnp.clip(r, -limit, limit)
        self.noise = settings.errors * sd / jnp.sqrt(self.count)
        self.settings = settings

    def between(
        self, rows: Int[Array, " rows"], columns: Int[Array, " columns"]
    ) -> Float[Array, "rows columns"]:
        """D_ij; zero within its noise and where i = j."""
        u, r = self.u[:, columns], self.r[:, rows]
        scales = (r * self.u[:, rows]).T @ u
        means = r.T @ (u**2 - 1) / np.sqrt(2.0)
        links = jnp.sqrt(scales**2 + means**2) / self.count
        kept = (links > self.noise[rows, None]) & (rows[:, None] != columns[None])
        return jnp.where(kept, links, 0.0)

    def strengths(self) -> Float[Array, " dim"]:
        """sum_i D_ij^2, over blocks of columns; in many dimensions over some of the rows."""
        dim = self.u.shape[1]
        blocks = -(-dim // self.settings.block)
        size = -(-dim // blocks)
        columns = jnp.asarray(np.minimum(np.arange(blocks * size), dim - 1).reshape(blocks, size))
        rows = self._rows(dim)
        sums = jax.lax.map(lambda block: jnp.sum(self.between(rows, block) ** 2, axis=0), columns)
        return sums.reshape(-1)[:dim]

    def _rows(self, dim: int) -> Int[Array, " rows"]:
        """The coordinates that are looked at to see what drives them."""
        if dim <= self.settings.every_row:
            return jnp.arange(dim)
        chosen = np.random.default_rng(0).choice(dim, self.settings.rows, replace=False)
        return jnp.asarray(np.sort(chosen))


def _levels(strongest: Int[Array, " drivers"], dim: int, settings: DriverSettings) -> Int[Array, " dim"]:
    of_ranks = settings.of_ranks(dim)
    last = np.full(dim, len(settings.counts(dim)), np.int32)
    return jnp.asarray(last).at[strongest].set(jnp.asarray(of_ranks, np.int32))


def _best(
    links: Float[Array, "rows columns"],
    strength: Float[Array, " columns"],
    allowed: Bool[Array, "rows columns"],
    most: int,
) -> tuple[Int[Array, "rows parents"], Bool[Array, "rows parents"]]:
    """Columns of the strongest links of each row, then those that drive most of all others.

    Of many draws there are always too few to see every link, so a strong driver of others is taken on trust;
    a column that drives nothing is not.
    """
    rank = jnp.where(links > 0, links, -1 / (1 + strength[None]))
    rank = jnp.where(allowed, rank, -jnp.inf)
    best, places = jax.lax.top_k(rank, min(most, links.shape[1]))
    missing = ((0, 0), (0, most - best.shape[1]))
    return jnp.pad(places, missing), jnp.pad(best > -1, missing)
