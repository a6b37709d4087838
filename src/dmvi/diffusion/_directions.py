r"""Directions in which a Gaussian base lacks most, measured from its residual scores.

With u ~ N(0, I) through the base and its residual score r, zero where that base is the posterior, the moments

    T_ijk = E[r_i (u_j u_k - delta_jk)]

say how the curvature of log pi along two coordinates changes with a third. Projections see most of it along
the leading eigenvectors of

    C_il = sum_jk T_ijk T_ljk,

whose unbiased estimate from N draws needs neither T nor C: with the kernel of all pairs of draws,

    C = R^T K R / (N (N - 1)),   K_nm = (u_n u_m)^2 - |u_n|^2 - |u_m|^2 + d for n != m, and 0 for n = m.

Time and memory are linear in the dimension.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class DirectionSettings:
    """How directions are measured.

    Attributes:
        draws: at most; the kernel has the square of them.
        winsor: standard deviations at which residual scores are cut, so that no single draw decides.
        draws_of_linear: draws for each coordinate from which on the linear part of r is taken out: of fewer
            its estimate is mostly noise, and holds a good part of each draw's own r.
        spare: directions beside those asked for, which make the iteration settle sooner.
        iterations: of the subspace; eigenvalues a factor of two apart are separated by 2^iterations.
        seed: of the subspace's first directions.
    """

    draws: int = 4096
    winsor: float = 4.0
    draws_of_linear: int = 4
    spare: int = 8
    iterations: int = 10
    seed: int = 0


def directions(
    u: Float[Array, "draws dim"],
    r: Float[Array, "draws dim"],
    count: int,
    settings: DirectionSettings | None = None,
) -> Float[Array, "count dim"]:
    """Orthonormal directions of the largest eigenvalues of C, largest first, at most as many as coordinates.

    Args:
        u: draws of the base, in whitened coordinates; the first half of them is used, as the second may be
            the same with the signs changed.
        r: their residual scores; draws that are not finite do not count.
        count: how many directions.
        settings: how they are measured.
    """
    settings = settings or DirectionSettings()
    dim, half = u.shape[1], min(max(u.shape[0] // 2, 1), settings.draws)
    u, r = _usable(u[:half], r[:half], settings)
    kernel = _kernel(u)
    width = min(dim, count + settings.spare)
    start = np.random.default_rng(settings.seed).standard_normal((dim, width))

    def times(basis: Float[Array, "dim width"]) -> Float[Array, "dim width"]:
        return r.T @ (kernel @ (r @ basis)) / half**2

    def once(_: int, basis: Float[Array, "dim width"]) -> Float[Array, "dim width"]:
        return jnp.linalg.qr(times(basis))[0]

    first = jnp.linalg.qr(jnp.asarray(start, u.dtype))[0]
    basis = jax.lax.fori_loop(0, settings.iterations, once, first)
    inner = basis.T @ times(basis)
    _, vectors = jnp.linalg.eigh((inner + inner.T) / 2)
    return (basis @ vectors[:, ::-1]).T[: min(count, dim)]


def _usable(
    u: Float[Array, "draws dim"], r: Float[Array, "draws dim"], settings: DirectionSettings
) -> tuple[Float[Array, "draws dim"], Float[Array, "draws dim"]]:
    """Both without draws that are not finite, and r in units of its largest entry, cut and without trends.

    Its mean and linear part say where the base's mean and covariance are off, not where it is no Gaussian.
    """
    winsor = settings.winsor
    fine = jnp.all(jnp.isfinite(u) & jnp.isfinite(r), axis=1)[:, None]
    count = jnp.maximum(jnp.sum(fine), 1).astype(u.dtype)
    u, r = jnp.where(fine, u, 0.0), jnp.where(fine, r, 0.0)
    largest = jnp.max(jnp.abs(r))
    r = r / jnp.where(largest > 0, largest, 1.0)  # squares of scores far out would overflow
    mean = jnp.sum(r, axis=0) / count
    sd = jnp.sqrt(jnp.maximum(jnp.sum(r**2, axis=0) / count - mean**2, 0.0))
    limit = (winsor * sd)[None]
    r = jnp.where(fine, jnp.clip(r - mean[None], -limit, limit), 0.0)
    if settings.draws_of_linear * u.shape[1] > u.shape[0]:
        return u, r
    return u, r - u @ (u.T @ r) / count


def _kernel(u: Float[Array, "draws dim"]) -> Float[Array, "draws draws"]:
    """K, zero on its diagonal."""
    sizes = jnp.sum(u**2, axis=1)
    kernel = (u @ u.T) ** 2 - sizes[:, None] - sizes[None] + u.shape[1]
    return jnp.where(jnp.eye(len(u), dtype=bool), 0.0, kernel)
