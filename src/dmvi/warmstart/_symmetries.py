r"""Which entries of a model's sites may change places without changing the posterior.

Asked of the density itself: for a candidate, log pi(T_p xi) = log pi(xi) at random points around modes,
where the posterior is, for a swap and a turn of all entries, which together make every permutation. A wrong
answer would cost accuracy and not validity: weights of a guide that is symmetric hold for any posterior.
"""

import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dmvi._compile import compiled
from dmvi.guides import LARGEST_COUNT, Block, Symmetry
from dmvi.targets import Target
from dmvi.warmstart._laplace import Mode

POINTS = 6
MOST_CANDIDATES = 48
MOST_CHOICES = 4096  # of sites and axes that are listed before the largest are tried
RELATIVE = 100.0  # tolerance of the comparison in rounding errors of the density
LEAST, MOST = 1e-3, 0.1  # and in nats: below them rounding, above them a prior that tells labels apart


def symmetry_of(target: Target, modes: Float[np.ndarray, "modes rows dim"]) -> Symmetry | None:
    """Permutations that leave the density as it is, of these the ones that move most coordinates, or None.

    Args:
        target: the density.
        modes: the place of each, and below it the scale of its Gaussian.
    """
    candidates = _candidates(target)
    if not candidates:
        return None
    rng = np.random.default_rng(0)
    around = itertools.islice(itertools.cycle(modes), POINTS)
    near = [mode[0] + mode[1:] @ rng.standard_normal(target.dim) for mode in around]
    points = jnp.asarray(np.stack(near), jnp.result_type(float))
    moved = [points]
    for symmetry in candidates:
        for permutation in _generators(symmetry.count):
            moved.append(jax.vmap(lambda xi, s=symmetry, p=permutation: s.image(xi, p))(points))
    values = np.asarray(_values(target, jnp.concatenate(moved)), float).reshape(-1, POINTS)
    values = values[:, np.isfinite(values[0])]
    if not values.size:
        return None
    rounding = RELATIVE * np.finfo(jnp.result_type(float)).eps * np.abs(values[0])
    close = np.abs(values[1:] - values[0]) <= np.clip(rounding, LEAST, MOST)
    holds = np.all(close, axis=1).reshape(len(candidates), -1).all(axis=1)
    return next((one for one, held in zip(candidates, holds, strict=True) if held), None)


def nearest_images(
    symmetry: Symmetry | None, points: Float[np.ndarray, "n dim"], reference: Mode
) -> Float[np.ndarray, "n dim"]:
    """Of all images of each point the one that is nearest to a mode, as the mode's Gaussian sees it."""
    if symmetry is None:
        return points
    images = images_of(symmetry, points)
    centred = images - reference.loc
    distances = np.einsum("npd,de,npe->np", centred, reference.precision, centred)
    return images[np.arange(len(points)), np.argmin(distances, axis=1)]


def images_of(symmetry: Symmetry, points: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n order dim"]:
    """All images of each point, the point itself first."""
    return np.asarray(_images(symmetry, jnp.asarray(points, jnp.result_type(float))), float)


@compiled
def _images(symmetry: Symmetry, points: Float[Array, "n dim"]) -> Float[Array, "n order dim"]:
    return jax.vmap(symmetry.images)(points)


@compiled
def _values(target: Target, points: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return jax.lax.map(target.log_density, points, batch_size=POINTS)


def _generators(count: int) -> tuple[np.ndarray, np.ndarray]:
    """A swap and a turn, which are the same of two entries."""
    return np.array([1, 0, *range(2, count)]), np.roll(np.arange(count), 1)


def _candidates(target: Target) -> list[Symmetry]:
    """Choices of one axis of some sites, those that move most coordinates first."""
    numbers = jnp.arange(target.dim, dtype=jnp.result_type(float))
    outer = jax.eval_shape(target.constrain, numbers)
    sites = [
        (int(np.ravel(inner)[0]), tuple(inner.shape), getattr(outer.get(name), "shape", inner.shape))
        for name, inner in target.unpack(numbers).items()
        if inner.size and inner.ndim and _consecutive(np.asarray(inner))
    ]
    found = [
        Symmetry(count, blocks)
        for count in range(2, LARGEST_COUNT + 1)
        for blocks in itertools.islice(_choices(sites, count), MOST_CHOICES)
    ]
    found = sorted(found, key=lambda one: -sum(block.stop - block.start for block in one.blocks))
    return found[:MOST_CANDIDATES]


def _choices(
    sites: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]], count: int
) -> Iterator[tuple[Block, ...]]:
    """Some of the sites with an axis of so many entries, each with one of these axes."""
    options = [[*blocks, None] for site in sites if (blocks := _blocks(*site, count))]
    for choice in itertools.product(*options):
        blocks = tuple(block for block in choice if block is not None)
        if blocks:
            yield blocks


def _consecutive(numbers: np.ndarray) -> bool:
    """Whether a site's coordinates follow each other."""
    return bool(np.all(np.diff(np.ravel(numbers)) == 1))


def _blocks(start: int, shape: tuple[int, ...], outer: tuple[int, ...], count: int) -> list[Block]:
    """The ways in which entries of a site may change places, as far as shapes tell."""
    last, of_simplices = len(shape) - 1, outer == (*shape[:-1], shape[-1] + 1)
    plain = shape[:last] if of_simplices else shape
    found = [Block(start, shape, axis, simplex=False) for axis, size in enumerate(plain) if size == count]
    if of_simplices and outer[-1] == count:
        found.append(Block(start, shape, last, simplex=True))
    return found
