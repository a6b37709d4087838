r"""A NumPyro model on more rows than a density should go through at once.

    log pi(xi) = log p(theta(xi)) + log |det| + sum_{i=1..N} l_i(xi),   l_i = log p(y_i | theta)

Each step of training sees a batch of B rows. Near a mode m the noise of a plain batch, of order
sqrt(N / B) sds, drowns the signal; the control variate keeps the estimate unbiased and takes it away,

    sum_i l_i(xi)  ~  (N / B) sum_batch [l_i(xi) - l_i(m) - dl_i(m)^T (xi - m)] + g^T (xi - m) + L(m),

with L(m) and g = dL(m) summed over all rows once. L(m), which would swamp single precision, is kept apart as
the target's `offset`. Where the Hessian H of L at m is known over all rows too, the second order leaves the
batch's sum in the same way, for (xi - m)^T H (xi - m) / 2: what remains of the noise is of third order.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dmvi._compile import quick_options
from dmvi._errors import InputError
from dmvi._team import ALONE, Message, Team
from dmvi.targets._arguments import Arguments, describe_nonfinite, read_arguments
from dmvi.targets._checks import explain_failure
from dmvi.targets._control_variates import Terms, estimate_of_rows, total
from dmvi.targets._differences import second_derivatives
from dmvi.targets._numpyro import check_probe, probe_program, program_target, settle_probe
from dmvi.targets._numpyro_predictive import predictive
from dmvi.targets._numpyro_program import Program
from dmvi.targets._numpyro_sites import Sites, log_prob
from dmvi.targets._rows import Block, Range, Rows, first_not_finite, open_rows, prefetched
from dmvi.targets._target import Target

REFERENCE = 16_384  # rows held in memory, on which looks and the search for modes are made
PLACES = 16  # groups of a table from which they come
STEPS_OF_A_GROUP = (
    64  # steps whose batches come from one group of rows of a table, which is read once for them
)
CURVATURE_ROWS = 2**19  # most rows behind a Hessian,
ROWS_OF_A_COORDINATE = 2**10  # or so many for each coordinate, which may be that of one group of rows
NUMBERS = 2**20  # terms of the likelihood worked on at a time in a pass over all rows: they fit a cache
MOST_ROWS = 2**15  # and most rows, for the same reason
CURVATURES = 2**22  # rows times coordinates of a block behind a Hessian
AT_A_TIME = min(4, os.cpu_count() or 1)  # blocks in work: not all of the work on one is parallel
WORK = 25 * 10**8  # rows times draws that one pass of the diagnostics may cost
FEWEST, MOST = 250, 20_000  # draws of the diagnostics


class Derivatives(NamedTuple):
    """L(xi), its slope and, where it is known, its Hessian, all over all rows, in double precision."""

    value: float
    slope: np.ndarray
    curvature: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """The rows behind a target, and what passes over all of them.

    Attributes:
        rows: the data.
        batch_size: rows of a training step.
        terms: from xi and a block of rows to the terms of the log-likelihood.
        prior: from xi and any block to the rest of log pi.
        dim: of xi.
        team: the processes that share the passes; each goes through rows of its own. The point is that of the
            leading process, and a call in the others waits for one there.
    """

    rows: Rows
    batch_size: int
    terms: Callable[[Array, Any], Terms]
    prior: Callable[[Array, Any], Array]
    dim: int
    team: Team = ALONE

    def batch(self, seed: int, step: int, part: Range | None = None) -> Block:
        """The rows of one training step, or a part of them: the same for the same seed and step."""
        place = np.random.default_rng([seed, step // STEPS_OF_A_GROUP, 1])
        return self.rows.draw(np.random.default_rng([seed, step, 0]), self.batch_size, place, part)

    @property
    def draws(self) -> int:
        """How many draws the diagnostics can afford to weigh on all rows."""
        return int(np.clip(WORK // self.rows.count, FEWEST, MOST))

    def derivatives(self, xi: np.ndarray) -> Derivatives:
        """L(xi) and its slope over all rows, in one pass."""
        found = self._pass("derivatives", xi=xi)
        return Derivatives(float(found[0]), found[1:])

    @property
    def bends_of_all(self) -> bool:
        """Whether Hessians are over all rows."""
        return self.rows.count <= _enough(self.dim)

    def hessian(self, xi: np.ndarray) -> Float[np.ndarray, "dim dim"]:
        """Second derivatives of L at xi: over all rows, or estimated from CURVATURE_ROWS of them or more."""
        return self._pass("hessian", xi=xi)

    def excess(self, xi: Float[np.ndarray, "n dim"], mode: np.ndarray) -> Float[np.ndarray, " n"]:
        """sum_i [l_i(xi_k) - l_i(m)] for every draw xi_k, in one pass; differences are taken row by row."""
        return self._pass("excess", xi=xi, mode=mode)

    def first_not_finite(self) -> str | None:
        """Where the first NaN or infinite number of the data stands, in words; None where there is none."""
        return first_not_finite(self.rows)

    def serve(self) -> Message:
        """Share the passes that the leading process makes, up to its first message of another kind."""
        return self.team.serve(dict.fromkeys(_PASSES, self._share))

    def _pass(self, name: str, **points: np.ndarray) -> np.ndarray:
        return self._share(self.team.hear(Message(name, points)))

    def _share(self, asked: Message) -> np.ndarray:
        return self.team.total(_PASSES[asked.word](self, **asked.arrays))

    @functools.cache  # noqa: B019  one stream per fit
    def _program(self, function: Callable) -> Callable:
        return jax.jit(functools.partial(function, self.terms), compiler_options=quick_options())

    def _blocks(self, times: int) -> Iterator[Block]:
        size = max(256, min(NUMBERS // times, MOST_ROWS))
        return prefetched(self.rows.blocks(size, (self.team.rank, self.team.size)))


def _derivatives(stream: Stream, xi: np.ndarray) -> np.ndarray:
    """This process's share of L(xi), followed by its slope."""
    point, first = jnp.asarray(xi, jnp.result_type(float)), stream._program(_first)

    def part(block: Block) -> np.ndarray:
        value, slope = first(point, block)
        return np.append(np.asarray(slope, float), float(value))

    return np.roll(_summed(part, stream._blocks(1), 1 + xi.size), 1)


def _hessian(stream: Stream, xi: np.ndarray) -> np.ndarray:
    """This process's share of the second derivatives."""
    point, second = jnp.asarray(xi, jnp.result_type(float)), stream._program(_second)
    rows, team = stream.rows, stream.team
    size = min(CURVATURES // xi.size, CURVATURE_ROWS)
    if rows.count <= _enough(xi.size):
        blocks, scale = rows.blocks(size, (team.rank, team.size)), 1.0
    else:
        number = _enough(xi.size) // size
        own = range(team.rank, number, team.size)
        blocks = (rows.draw(np.random.default_rng([1, i]), size) for i in own)
        scale = rows.count / (number * size)
    shape = (xi.size, xi.size)
    return scale * _summed(lambda block: np.asarray(second(point, block), float), prefetched(blocks), shape)


def _enough(dim: int) -> int:
    """Rows that are enough for a Hessian."""
    return max(CURVATURE_ROWS, ROWS_OF_A_COORDINATE * dim)


def _excesses(stream: Stream, xi: np.ndarray, mode: np.ndarray) -> np.ndarray:
    """This process's share of the sum for every draw."""
    draws, centre, excess = jnp.asarray(xi), jnp.asarray(mode, xi.dtype), stream._program(_excess)
    blocks = stream._blocks(len(xi))
    return _summed(lambda block: np.asarray(excess(draws, centre, block), float), blocks, len(xi))


def _summed(
    part: Callable[[Block], np.ndarray], blocks: Iterator[Block], shape: int | tuple[int, int]
) -> np.ndarray:
    """The sum over blocks, a few of which are worked on at a time; always added up in their order."""
    total, waiting, traced = np.zeros(shape), collections.deque(), set()
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        for block in blocks:
            sizes = tuple(values.shape for values in block.values())
            work = pool.submit(part, block)
            if sizes not in traced:  # NumPyro can trace one model at a time
                traced.add(sizes)
                concurrent.futures.wait([*waiting, work])
            waiting.append(work)
            while len(waiting) > AT_A_TIME:
                total += waiting.popleft().result()
        while waiting:
            total += waiting.popleft().result()
    return total


_PASSES = {"derivatives": _derivatives, "hessian": _hessian, "excess": _excesses}


def _first(terms: Callable, xi: Array, block: Block) -> tuple[Array, Array]:
    with jax.default_matmul_precision("highest"):
        return jax.value_and_grad(lambda xi: total(terms(xi, block)))(xi)


def _second(terms: Callable, xi: Array, block: Block) -> Array:
    with jax.default_matmul_precision("highest"):
        return second_derivatives(lambda xi: total(terms(xi, block)), xi)


def _excess(terms: Callable, draws: Array, mode: Array, block: Block) -> Array:
    with jax.default_matmul_precision("highest"):
        there = terms(mode, block)
        return jax.vmap(lambda xi: total(jax.tree.map(lambda a, b: a - b, terms(xi, block), there)))(draws)


def from_rows(
    model: Callable, data: Mapping[str, Any] | str | Path, batch_size: int, team: Team = ALONE
) -> Target:
    """A NumPyro model whose likelihood is a sum over rows as a Target that is trained on batches.

    Args:
        model: a NumPyro model, called with `batch_size` rows at a time; its observed sites are scaled.
        data: its arguments. Arrays (or names of .npy files) of the greatest length are rows; a name of a
            Parquet or Arrow file stands for all of its columns; everything else is the same for all rows.
        batch_size: rows per training step.
        team: the processes that share the rows.

    Raises:
        InputError: if model and data do not fit, or a latent variable belongs to single rows.
    """
    rows, shared = open_rows(data)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= rows.count:
        raise InputError(f"batch_size must be a number of rows from 1 to {rows.count:,}, got {batch_size!r}.")
    reference = _reference(rows)
    first = read_arguments(model, (), {**shared, **reference})
    fixed = {name: first.kwargs[name] for name in shared}
    try:
        try:
            return _target(model, fixed, reference, rows, batch_size, team)
        except (jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError):
            return _target(model, jax.tree.map(jnp.asarray, fixed), reference, rows, batch_size, team)
    except InputError:
        raise
    except Exception as error:  # whatever a user's own code raises is told as a fault of model or data
        raise explain_failure(error, model, "data", first.named) from error


def _reference(rows: Rows) -> Block:
    if rows.count <= REFERENCE:
        parts = list(rows.blocks(rows.count))
    else:
        rng = np.random.default_rng(0)
        parts = [rows.draw(rng, REFERENCE // PLACES) for _ in range(PLACES)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _target(
    model: Callable,
    fixed: dict[str, Any],
    reference: Block,
    rows: Rows,
    batch_size: int,
    team: Team,
) -> Target:
    def program(block: Any, sites: Any) -> Program:
        kwargs = {**fixed, **block}
        return Program(model, Arguments((), kwargs, kwargs), sites)

    held = {name: jnp.asarray(values) for name, values in reference.items()}
    read, probe = probe_program(model, program(held, None).arguments)
    start = settle_probe(read, probe)
    check_probe(read, probe, start, describe_nonfinite(reference))
    sites = read.sites
    few = {name: values[: max(1, min(batch_size, len(values) // 2))] for name, values in held.items()}
    _check_sites(sites, probe_program(model, program(few, None).arguments)[0].sites)
    if rows.count > 1:
        _check_rows(*(_observed_shapes(program(block, sites), sites) for block in (held, few)))

    def parts(xi: Array, block: Any) -> tuple[Array, Terms]:
        """The prior with the Jacobian, and the terms of the likelihood."""
        value, trace = program(block, sites).evaluate(xi, {})
        found = {name: log_prob(trace[name]) for name in sites.observed}
        return value - total(found), found

    def bind(data: dict[str, Any]) -> Target:
        plain = program_target(program(data["rows"], sites), {}, {}, {}, start.centre)
        return dataclasses.replace(
            plain,
            _log_density=lambda xi, params, batch: estimate_of_rows(
                parts, rows.count, xi, data["rows"] if batch is None else batch, data
            ),
            _log_likelihood=lambda xi, params: {},
            _predictive=lambda new: predictive(program(data["rows"], sites), {}, new),
        )

    data = {"rows": held}
    return dataclasses.replace(
        bind(data),
        data_size=rows.count,
        subsampled=True,
        batch_rows=(batch_size, rows.count),
        data=data,
        _bind=bind,
        stream=Stream(
            rows,
            batch_size,
            lambda xi, block: parts(xi, block)[1],
            lambda xi, block: parts(xi, block)[0],
            len(sites.coordinates.labels),
            team,
        ),
    )


def _check_sites(sites: Sites, of_fewer_rows: Sites) -> None:
    if sites.plates:
        raise InputError(
            "the model subsamples a plate itself; drop batch_size, or the plate's subsample_size."
        )
    if sites.params:
        raise InputError("batch_size and numpyro.param do not go together; subsample a plate in the model.")
    if not sites.observed:
        raise InputError("batch_size needs a model with observed sites; there are none.")
    if of_fewer_rows.coordinates.labels != sites.coordinates.labels:
        raise InputError(
            "the model has latent variables for single rows, of which a batch holds only a few; sum them "
            "out of the model, or leave out batch_size."
        )


def _observed_shapes(program: Program, sites: Sites) -> dict[str, tuple[int, ...]]:
    """Observed site -> the shape of what is observed."""

    def values(xi: Array) -> dict[str, Array]:
        trace = program.evaluate(xi, {})[1]
        return {name: jnp.asarray(trace[name]["value"]) for name in sites.observed}

    point = jax.ShapeDtypeStruct((len(sites.coordinates.labels),), jnp.result_type(float))
    return {name: value.shape for name, value in jax.eval_shape(values, point).items()}


def _check_rows(of_many: dict[str, tuple[int, ...]], of_few: dict[str, tuple[int, ...]]) -> None:
    """Every observed site grows with the rows: another would be counted anew with each batch."""
    for name, shape in of_many.items():
        if shape == of_few[name]:
            raise InputError(
                f"the observed site {name!r} does not belong to the rows: its shape is {shape} for any "
                "number of them. Add its log-probability with numpyro.factor, or leave out batch_size."
            )


def anchored_at(target: Target, mode: np.ndarray, found: Derivatives) -> Target:
    """The target with control variates at a mode."""
    dtype = jnp.result_type(float)
    data = {**target.data, "mode": jnp.asarray(mode, dtype), "slope": jnp.asarray(found.slope, dtype)}
    if found.curvature is not None:
        data["curvature"] = jnp.asarray(found.curvature, dtype)
    return dataclasses.replace(target, data=data, offset=found.value)


def prior_target(target: Target) -> Target:
    """The prior of a target with a stream, as a target of its own."""
    few = jax.tree.map(lambda values: values[:1], target.data["rows"])
    return dataclasses.replace(
        target,
        data=None,
        stream=None,
        _bind=None,
        _log_density=lambda xi, params, batch: target.stream.prior(xi, few),
    )
