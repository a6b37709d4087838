"""Of the page: what of the experiments has not been run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dmvi.paper._cells import Plan
from dmvi.paper._page_parts import OWN


def not_run(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of the full set has not been run."""
    done = Counter((row["method"], row["n"]) for row in results if (row["variant"], row["data"]) == OWN)
    full = Counter((job.method, job.n) for job in Plan().jobs() for _ in job.replicates)
    left = {key: count - done[key] for key, count in full.items() if done[key] < count}
    if not left:
        return ["All cells of the full set are done.\n"]
    named = [
        f"{method} at N = {n}" + ("" if count == full[method, n] else f" ({count} of {full[method, n]})")
        for (method, n), count in left.items()
    ]
    missing = f"{sum(left.values()):,} of {full.total():,} cells of the full set"
    return [f"Not run yet, {missing}: {', '.join(named)}.\n"]
