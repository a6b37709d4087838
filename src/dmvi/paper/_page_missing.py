"""Of the page: what of the experiments has not been run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dmvi.paper._cells import Plan
from dmvi.paper._models import TITLES
from dmvi.paper._page_parts import LANDING, OWN, PUBLISHED, SIZES


def not_run(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is missing of the full set, and of the published training on the authors' data."""
    return [_of_the_full_set(results), _of_the_authors_data(results)]


def _of_the_full_set(results: Sequence[Mapping[str, Any]]) -> str:
    """Cells of data sets of their own, of models as printed."""
    done = Counter((row["method"], row["n"]) for row in results if (row["variant"], row["data"]) == OWN)
    full = Counter((job.method, job.n) for job in Plan().jobs() for _ in job.replicates)
    left = {key: count - done[key] for key, count in full.items() if done[key] < count}
    if not left:
        return "All cells of the full set, of data sets of their own, are done.\n"
    named = [
        f"{method} at N = {n}" + ("" if count == full[method, n] else f" ({count} of {full[method, n]})")
        for (method, n), count in left.items()
    ]
    missing = f"{sum(left.values()):,} of {full.total():,} cells of the full set"
    return f"Not run yet, {missing}: {', '.join(named)}.\n"


def _of_the_authors_data(results: Sequence[Mapping[str, Any]]) -> str:
    """Of each published training one seed counts: the data set is the same for all."""
    done = {
        (row["model"], row["n"], row["method"])
        for row in results
        if (row["variant"], row["data"]) == ("code", "fixed")
    }
    places = [(model, n) for model in LANDING for n in SIZES]
    left = {place: [name for name in PUBLISHED if (*place, name) not in done] for place in places}
    every, count = len(places) * len(PUBLISHED), sum(map(len, left.values()))
    which = "the authors' data of the mean model and hierarchical models 1 and 2"
    if not count:
        return f"On {which} all {every} published trainings are done, each with at least one seed.\n"
    named = [
        f"{TITLES[model].lower()} at N = {n} ({'all' if names == PUBLISHED else ', '.join(names)})"
        for (model, n), names in left.items()
        if names
    ]
    return f"Not run yet on {which}, {count} of {every} published trainings: {'; '.join(named)}.\n"
