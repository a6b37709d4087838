"""One fit, or one run of NUTS, as a row of numbers."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import dmvi

Score = Callable[[Mapping[str, np.ndarray], str], Mapping[str, float]]
XLA = "/jax/core/compile/backend_compile_duration"
COMPILING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    XLA,
)
# Written by posteriors that tell how their time was spent.


@dataclass(frozen=True)
class Case:
    """One posterior.

    Attributes:
        name: what the command line and the table call it.
        model: a NumPyro model, or the log-density of `dim` coordinates.
        load: gives the model's data.
        dim: of the log-density; None for a model.
        nuts: settings that NUTS needs, where its defaults fail.
        reference: R-hat of the draws that `score` compares with; None where there are none.
        log_evidence: where it is known.
        time_limit: seconds given to `dmvi.fit`; None for its default.
    """

    name: str
    model: Callable[..., Any]
    load: Callable[[], dict[str, Any]] = dict
    dim: int | None = None
    nuts: Mapping[str, Any] = field(default_factory=dict)
    reference: float | None = None
    log_evidence: float | None = None
    time_limit: float | None = None


@dataclass(frozen=True)
class Sampling:
    """How NUTS is run and how many draws of a fit are scored.

    Attributes:
        chains: of NUTS, one after another on the cores that the fit has.
        warm_up: steps of adaptation a chain; NumPyro's and Stan's usual number.
        kept: draws a chain, the same.
        draws: of a fit, as many as NUTS keeps, so that both are scored with the same noise.
        double: whether NUTS runs in double precision; NumPyro's own default is single.
    """

    chains: int = 4
    warm_up: int = 1_000
    kept: int = 1_000
    draws: int = 4_000
    double: bool = False


class Compilation:
    """Wall time in which JAX traced, lowered or compiled, on any thread, while the block runs."""

    def __enter__(self) -> Self:
        self._spans: list[tuple[str, float, float]] = []
        self._lock = threading.Lock()
        jax.monitoring.register_event_duration_secs_listener(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._note)

    def _note(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in COMPILING:
            end = time.perf_counter()
            with self._lock:
                self._spans.append((event, end - duration_secs, end))

    def seconds(self, events: Iterable[str] = COMPILING) -> float:
        """Seconds covered by these events."""
        chosen = set(events)
        return covered((begin, end) for event, begin, end in self._spans if event in chosen)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals: one program is traced within another, and threads compile at once."""
    total, until = 0.0, -np.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return float(total)


def measure_fit(case: Case, seed: int, score: Score | None, sampling: Sampling) -> dict[str, Any]:
    """Fits with every default and prints the posterior once: what a user waits for."""
    data = case.load()
    settings: dict[str, Any] = {"init": jnp.zeros(case.dim)} if case.dim else {"data": data}
    jax.clear_caches()
    begin, cpu = time.perf_counter(), time.process_time()
    try:
        with Compilation() as compilation:
            posterior = dmvi.fit(
                case.model, seed=seed, progress=False, time_limit=case.time_limit, **settings
            )
            str(posterior)
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        found, stages = posterior.diagnostics, posterior.run.stage_seconds
        errors = None
        if case.reference is not None and score is not None:
            draws = posterior.sample(sampling.draws)
            errors = dict(score({name: np.asarray(values) for name, values in draws.items()}, case.name))
    except Exception as error:  # a fit that fails is a result
        return {"error": _words(error), "seconds": time.perf_counter() - begin}
    return {
        "d": int(posterior.unconstrained(1).shape[1]),
        "verdict": posterior.verdict.name,
        **{name: float(getattr(found, name)) for name in ("gap", "ess", "khat", "elbo", "elbo_se")},
        **{name: float(getattr(found, name)) for name in ("log_evidence", "log_evidence_se")},
        "seconds": seconds,
        "cpu_seconds": cpu,
        "gradients": found.gradients,
        "xla_seconds": compilation.seconds([XLA]),
        "compiling_seconds": compilation.seconds(),
        "warm_start_seconds": stages.get("warm start"),
        "training_seconds": stages.get("training"),
        "diagnostics_seconds": max(seconds - sum(stages.values()), 0.0),
        "steps": int(found.steps),
        "status": found.status.name,
        "warm_start": found.warm_start,
        "errors": errors,
    }


def measure_nuts(case: Case, seed: int, sampling: Sampling) -> dict[str, Any]:
    """Runs NUTS in this process, on the cores that the fit has; its seconds include compilation.

    Where it fails in single precision, as where NumPyro finds no start in it, it is run in double.
    """
    data = case.load()
    jax.clear_caches()
    begin, cpu = time.perf_counter(), time.process_time()
    try:
        with jax.enable_x64(sampling.double):
            sampler, start = _sampler(case, sampling)
            sampler.run(jax.random.key(seed), init_params=start, **({} if case.dim else data))
            draws = jax.tree.map(np.asarray, sampler.get_samples(group_by_chain=True))
            divergences = int(np.sum(np.asarray(sampler.get_extra_fields()["diverging"])))
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    except Exception as error:  # a run that fails is a result
        if not sampling.double:
            again = measure_nuts(case, seed, dataclasses.replace(sampling, double=True))
            return again | {"single_error": _words(error)}
        return {"error": _words(error), "seconds": time.perf_counter() - begin}
    rhat, ess = mixing(draws if isinstance(draws, dict) else {"x": draws})
    return {
        "rhat": rhat,
        "min_ess": ess,
        "divergences": divergences,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "precision": "float64" if sampling.double else "float32",
    }


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _sampler(case: Case, sampling: Sampling) -> tuple[MCMC, Any]:
    """The sampler, and where its chains start in the coordinates of a log-density."""
    if case.dim is None:
        kernel, start = NUTS(case.model, **case.nuts), None
    else:
        kernel = NUTS(potential_fn=lambda x: -case.model(x), **case.nuts)
        start = jnp.asarray(np.random.default_rng(0).uniform(-2, 2, (sampling.chains, case.dim)))
    sampler = MCMC(
        kernel, num_warmup=sampling.warm_up, num_samples=sampling.kept, num_chains=sampling.chains,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    return sampler, start


def mixing(draws: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The largest split R-hat and the smallest effective sample size of (chains, draws, ...), by site.

    Entries that never move in any chain, such as the zeros of a Cholesky factor, are left out.
    """
    flat = [np.asarray(values, float).reshape(*values.shape[:2], -1) for values in draws.values()]
    every = np.concatenate(flat, axis=-1)
    moving = every[..., np.ptp(every, axis=(0, 1)) > 0]
    if not moving.shape[-1]:
        return float("inf"), 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat, ess = np.asarray(split_gelman_rubin(moving)), np.asarray(effective_sample_size(moving))
    # A chain that stands still makes either a division by zero: as bad as it gets.
    return float(np.max(np.where(np.isfinite(rhat), rhat, np.inf))), float(
        np.min(np.where(np.isfinite(ess), ess, 0.0))
    )


def limited(case: Case, time_limit: float | None) -> Case:
    """The case under the caller's time limit, where it has none of its own."""
    return case if case.time_limit is not None else dataclasses.replace(case, time_limit=time_limit)
