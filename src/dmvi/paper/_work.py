"""What one process does with one job: no figures, no tables, nothing that is slow to import."""

import gc
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from dmvi.paper._cells import REFERENCE, Job
from dmvi.paper._exact import exact_posterior
from dmvi.paper._methods import METHODS, Fitted, apply
from dmvi.paper._models import DataSet, PaperModel, data_set, paper_model
from dmvi.paper._scores import Reference, relabelled, score


def run_job(job: Job, references: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The cells of a job, one after another.

    Args:
        job: what to do.
        references: stored reference posteriors by the keys of their cells, where the job needs them.
    """
    model = paper_model(job.model, job.variant)
    data = [data_set(model, job.n, replicate, job.fixed) for replicate in job.replicates]
    fits = apply(METHODS[job.method], model, data, job.replicates, job.epochs)
    stored = [references[key] for key in job.reference_keys()] or [None] * len(data)
    for replicate, one, fitted, known in zip(job.replicates, data, fits, stored, strict=True):
        reference = _reference(model, one, fitted, known)
        cell = _cell(job, replicate, model, one, fitted, reference)
        if job.method == REFERENCE and reference.name == REFERENCE:
            cell["reference"] = reference.to_dict()
        yield cell
    # The next job compiles its own programs; those of hundreds of jobs would fill the memory.
    jax.clear_caches()
    gc.collect()


def _reference(model: PaperModel, data: DataSet, fitted: Fitted, stored: Any) -> Reference:
    """The exact posterior, or that of NUTS, which may be what was just fitted."""
    exact = exact_posterior(model, data.y)
    if exact is not None:
        return Reference.from_exact(exact, data.truth)
    if stored is not None:
        return Reference.from_dict(stored)
    return Reference.from_draws(relabelled(model, fitted.u, data.truth), data.truth)


def _cell(
    job: Job, replicate: int, model: PaperModel, data: DataSet, fitted: Fitted, reference: Reference
) -> dict[str, Any]:
    whole, coordinates = score(model, fitted.u, data.truth, reference)
    row = {
        "model": job.model,
        "variant": job.variant,
        "data": job.source,
        "n": job.n,
        "method": job.method,
        "replicate": replicate,
        "dim": len(model.names),
        "train_seconds": fitted.train_seconds,
        "sample_seconds": fitted.sample_seconds,
        **whole,
        "elbo": fitted.elbo,
        "log_evidence": fitted.log_evidence,
        "khat": fitted.khat,
        "ess": fitted.ess,
        "steps": fitted.steps,
        "status": fitted.status,
        "verdict": fitted.verdict,
        "machine": _machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": f"Python {platform.python_version()}, jax {jax.__version__}",
    }
    plain = {name: _plain(value) for name, value in row.items()}
    # By columns, and no longer than they are shown: a run has tens of thousands of them.
    shown = {name: [_plain(entry[name], 5) for entry in coordinates] for name in coordinates[0]}
    return {"key": job.key(replicate), "row": plain, "coordinates": shown}


def _plain(value: Any, digits: int = 10) -> Any:
    """JSON has no NaN and no infinity: nothing stands for the one, a word for the other."""
    if not isinstance(value, float):
        return value
    if math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return None if math.isnan(value) else str(value)


def _machine() -> str:
    """The processor and how many cores the machine has."""
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    """The processor's name: Linux writes it where `platform` does not look."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
