"""How far single precision rounds a log-density, from its own values."""

import math

import numpy as np
from jaxtyping import Float

from dmvi.posterior._draws import Draws

LINES = 32
POINTS = 9  # on each line
# Of the way from one draw to another: short for the density, long for its rounding. In few dimensions, where
# draws are not far apart in density either, longer.
SPACING, SPACING_OF_ONE = 0.05, 0.2
CLOSER = 4  # times: kinks and saddles of the density lose by it, rounding does not
EVALUATIONS = LINES * (1 + 2 * POINTS)  # of the log-density
ORDER = 6  # of the differences, which leave nothing of a smooth function over so short a way
QUANTILE = 0.75  # of the lines, as some may lead where the density is not smooth


def rounding_error(draws: Draws, xi: Float[np.ndarray, "n dim"]) -> float:
    r"""The standard deviation, in nats, of rounding errors of log pi; zero in double precision.

    Along a line from one draw towards another, f_k = log pi(xi + k h (xi' - xi)) is smooth but for rounding.
    Differences of order m take polynomials of lower order away and add up the errors e_k,

        (Delta^m f)_k ~ sum_j (-1)^(m - j) binom(m, j) e_{k + j},   with variance binom(2 m, m) Var[e],

    so that their size tells that of the errors (Moré and Wild, 2011). Rounding of xi counts too. The smaller
    of what two spacings h say is taken, but no less than what the last bit of log pi itself leaves open.
    """
    if xi.dtype == np.float64 or len(xi) < 2 * LINES:
        return 0.0
    spacing = max(SPACING, SPACING_OF_ONE / math.sqrt(xi.shape[1]))
    last_bit = float(np.nanmedian(np.spacing(np.abs(draws.log_density(xi[:LINES]))))) / math.sqrt(12)
    return max(last_bit, min(_size_by_differences(draws, xi, h) for h in (spacing, spacing / CLOSER)))


def _size_by_differences(draws: Draws, xi: Float[np.ndarray, "n dim"], h: float) -> float:
    """That of the errors, from differences along lines from the first LINES draws towards the next."""
    begin, towards = xi[:LINES].astype(float), xi[LINES : 2 * LINES].astype(float)
    steps = h * np.arange(POINTS)[None, :, None]
    points = begin[:, None, :] + steps * (towards - begin)[:, None, :]
    values = draws.log_density(points.reshape(-1, xi.shape[1]).astype(xi.dtype)).astype(float)
    with np.errstate(invalid="ignore"):  # infinite values have no differences
        differences = np.diff(values.reshape(LINES, POINTS), n=ORDER, axis=1)
    sizes = np.sqrt(np.mean(differences**2, axis=1) / math.comb(2 * ORDER, ORDER))
    sizes = sizes[np.isfinite(sizes)]
    return float(np.quantile(sizes, QUANTILE)) if sizes.size else 0.0
