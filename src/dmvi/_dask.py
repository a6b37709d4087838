"""The fits of fit_many spread over the workers of a Dask cluster."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from dmvi._clock import Clock
from dmvi._errors import InputError
from dmvi._many_block import Fitted, Plan, fit_block
from dmvi.targets import family
from dmvi.training import Progress, Silent


def fit_on_cluster(
    client: Any,
    model: Callable,
    datasets: Any,
    *,
    shared: Mapping[str, Any] | None,
    init: Any,
    seeds: dict[int, int],
    plan: Plan,
    line: Progress,
) -> list[Fitted | str]:
    """As `fit_block`, one block for each worker; the reason stands where a worker's block failed.

    Args:
        client: a `dask.distributed.Client`.
        model: as in `fit_many`.
        datasets: arrays with a leading data-set axis.
        shared: as in `fit_many`.
        init: as in `fit_many`.
        seeds: seed of each data set to fit, by its number.
        plan: how to fit.
        line: told how many fits are done.
    """
    try:
        from dask.distributed import as_completed
    except ImportError as error:
        error.add_note("Dask is optional: pip install 'dmvi[dask]'.")
        raise
    workers = len(client.nthreads())
    if not workers:
        raise InputError("the Dask client has no workers; start some, or leave client out.")
    left = plan.clock.left if plan.clock.limited else None
    plan = dataclasses.replace(plan, clock=Clock())  # clocks differ from process to process
    parts = [part for part in np.array_split(np.array(list(seeds)), workers) if len(part)]
    futures = {}
    for part in parts:
        data = jax.tree.map(lambda leaf, part=part: np.asarray(leaf)[part], datasets)
        own = [seeds[int(i)] for i in part]
        futures[client.submit(_fit_part, model, data, shared, init, own, plan, left, pure=False)] = part
    found: dict[int, Fitted | str] = {}
    try:
        for future in as_completed(futures):
            part = futures[future]
            try:
                results = future.result()
            except Exception as error:  # whatever happens on a worker is told of its fits, not of all
                results = [f"its worker failed: {type(error).__name__}: {error}"] * len(part)
            found |= {int(i): result for i, result in zip(part, results, strict=True)}
            line.note(f"{len(found)} of {len(seeds)} fits done on {workers} workers")
    except KeyboardInterrupt:  # what has come back is kept
        client.cancel(list(futures))
    return [found.get(i, "it was interrupted before its worker had done it") for i in seeds]


def _fit_part(
    model: Callable,
    data: Any,
    shared: Mapping[str, Any] | None,
    init: Any,
    seeds: list[int],
    plan: Plan,
    time_limit: float | None,
) -> list[Fitted]:
    """What one worker does."""
    if time_limit is not None:
        plan = dataclasses.replace(plan, clock=Clock(time_limit))
    targets = family(model, data, shared=shared, init=init).targets
    return fit_block(targets, seeds, plan, Silent())
