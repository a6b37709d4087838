"""Particles and rows of a batch spread over several devices."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from dmvi._errors import InputError

PARTICLES, ROWS = "particles", "rows"


def as_mesh(mesh: Any, particles: int, batch_size: int | None) -> Mesh | None:
    """A user's mesh with axes "particles" and "rows", of which one may be missing; None for a single device.

    Args:
        mesh: a `jax.sharding.Mesh` with axes of these names, or a number of devices to spread particles over.
        particles: draws per step, to be divided evenly.
        batch_size: rows per step, likewise; None without batches.

    Raises:
        InputError: for other axes, too few devices, or what cannot be divided.
    """
    if mesh is None:
        return None
    if isinstance(mesh, int) and not isinstance(mesh, bool):
        if not 1 <= mesh <= len(jax.devices()):
            raise InputError(f"mesh={mesh} asks for more devices than there are, {len(jax.devices())}.")
        mesh = Mesh(np.array(jax.devices()[:mesh]), (PARTICLES,))
    if not isinstance(mesh, Mesh) or not set(mesh.axis_names) <= {PARTICLES, ROWS} or not mesh.axis_names:
        raise InputError(
            f"mesh must be a number of devices or a jax.sharding.Mesh with axes {PARTICLES!r} and {ROWS!r}; "
            f"got {mesh!r}."
        )
    mesh = Mesh(mesh.devices, mesh.axis_names)  # with the axes that the compiler may divide as it sees fit
    for axis, number, name in ((PARTICLES, particles, "particles"), (ROWS, batch_size, "batch_size")):
        if axis in mesh.shape and (number is None or number % mesh.shape[axis]):
            raise InputError(
                f"the mesh has {mesh.shape[axis]} devices along {axis!r}, which do not divide "
                f"{name}={number}."
            )
    return mesh


def spread(values: Any, mesh: Mesh | None, axis: str) -> Any:
    """Arrays with their first axis divided along an axis of the mesh, where it has that one."""
    if mesh is None or axis not in mesh.shape or values is None:
        return values
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), values)


def shared_rows(mesh: Mesh, chunk: int, rows: int) -> tuple[NamedSharding, tuple[int, int]]:
    """How the rows of stacked batches lie over processes, and from which to which row this one needs them."""
    sharding = NamedSharding(mesh, PartitionSpec(None, ROWS if ROWS in mesh.shape else None))
    places = sharding.addressable_devices_indices_map((chunk, rows)).values()
    own = [index[1] for index in places if index is not None]
    ranges = [part.indices(rows) for part in own]
    return sharding, (min(begin for begin, _, _ in ranges), max(end for _, end, _ in ranges))


def across_processes(values: np.ndarray, sharding: NamedSharding, part: tuple[int, int], rows: int) -> Array:
    """Stacked batches of which this process holds the rows of `part`, as one array of all processes."""

    def held(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        begin, end, _ = index[1].indices(rows)
        return values[:, begin - part[0] : end - part[0]]

    shape = (values.shape[0], rows, *values.shape[2:])
    return jax.make_array_from_callback(shape, sharding, held)


def everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """Inside a program: arrays that every device holds whole, so that every process can read them."""
    if mesh is None:
        return tree
    whole = NamedSharding(mesh, PartitionSpec())

    def held(leaf: Any) -> Any:
        return jax.lax.with_sharding_constraint(leaf, whole) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(held, tree)


def gathered(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays that belong to no device in particular again, so that what is not divided runs on one."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: _free(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def _free(leaf: Array) -> Array:
    return jax.numpy.asarray(np.asarray(leaf))
