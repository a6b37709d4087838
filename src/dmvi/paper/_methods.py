"""The methods that are compared, each from data to draws of u."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Float
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS, init_to_uniform, init_to_value

from dmvi._fit import fit
from dmvi.guides import FlowGuide, GuideRecipe
from dmvi.paper._exact import exact_posterior
from dmvi.paper._models import POSITIVE, DataSet, PaperModel
from dmvi.paper._published import EPOCHS, Recipe
from dmvi.paper._scores import relabelled
from dmvi.paper._side_by_side import fit_published
from dmvi.posterior import Verdict

DRAWS = 20_000
CHAINS = 4
WARM_UP = 1000
ACCEPTANCE = 0.9
AGREEMENT = 1.01  # R-hat below which chains agree
LENGTHS = (1, 4, 16)  # of chains, tried in turn until they do

_Result = TypeVar("_Result")


class Fitted(NamedTuple):
    """What a method gives on one data set.

    Attributes:
        u: draws.
        train_seconds: CPU time until draws can be made, compilation included.
        sample_seconds: CPU time of DRAWS draws, after compilation.
        elbo: on the full data; NaN where the method has none, as have all below.
        log_evidence: by importance sampling.
        khat: tail index of the weights.
        ess: effective share of the draws.
        steps: optimiser steps.
        status: how it ended.
        verdict: what `dmvi` says of its own fit.
    """

    u: Float[np.ndarray, "draws dim"]
    train_seconds: float
    sample_seconds: float
    elbo: float = math.nan
    log_evidence: float = math.nan
    khat: float = math.nan
    ess: float = math.nan
    steps: int = 0
    status: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        name: what the command line calls it.
        title: what tables call it.
        configuration: diffusions, solver steps and order of the paper's DMVI.
        guide: the guide for `dmvi.fit`.
        published: the guide of the published code and of its training.
        advised: take draws as the verdict advises, resampled by their weights where it says so.
        revision: raised when results of before are no longer those of the method; they then do not count.
    """

    name: str
    title: str
    configuration: tuple[int, int, int] | None = None
    guide: str | GuideRecipe | None = None
    published: Recipe | None = None
    advised: bool = False
    revision: int = 1

    @property
    def side_by_side(self) -> bool:
        """Whether replicates are trained together, in one program."""
        return self.published is not None


CONFIGURATIONS = [(d, s, o) for d in (50, 100) for s in (10, 20) for o in (1, 3)]
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("exact", "Exact posterior"),
        Method("nuts", "NUTS", revision=2),  # chains run on until they agree
        Method("diffusion", "Diffusion (ours)", guide="auto", advised=True, revision=2),
        Method("chain", "Chain (ours)", guide="chain", advised=True),
        Method("advi", "ADVI, ELBO", guide="mean-field"),
        Method("full-rank", "Full-rank ADVI, ELBO", guide="full-rank"),
        Method("nfvi", "NFVI, ELBO", guide=FlowGuide(layers=2, width=256)),
        Method("advi-code", "ADVI, as published", published=Recipe("gaussian")),
        *(
            Method(
                f"dmvi-{'-'.join(map(str, numbers))}",
                "DMVI, as published",
                configuration=numbers,
                published=Recipe("diffusion", *numbers),
                revision=2,  # the network and the solver's times of the published code
            )
            for numbers in CONFIGURATIONS
        ),
        Method("nfvi-code", "NFVI, as published", published=Recipe("flow")),
    )
}


def apply(
    method: Method, model: PaperModel, data: Sequence[DataSet], seeds: Sequence[int], epochs: int = EPOCHS
) -> Iterator[Fitted]:
    """What the method gives on each data set, as it becomes known.

    Args:
        method: the method.
        model: the model.
        data: one data set for each replicate.
        seeds: one seed for each replicate.
        epochs: length of the published training.
    """
    if method.published is not None:
        yield from _published(method.published, model, data, seeds, epochs)
        return
    for one, seed in zip(data, seeds, strict=True):
        if method.name == "exact":
            yield _exact(model, one, seed)
        elif method.name == "nuts":
            yield _nuts(model, one, seed)
        else:
            yield _fit(method, model, one, seed)


def _timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    """A result and the CPU seconds it took: wall time says little while other cells run beside it."""
    began = time.process_time()
    return work(), time.process_time() - began


def _exact(model: PaperModel, data: DataSet, seed: int) -> Fitted:
    exact, train_seconds = _timed(lambda: exact_posterior(model, data.y))
    assert exact is not None  # the command line asks for it only where there is one
    rng = np.random.default_rng(seed)
    u, sample_seconds = _timed(lambda: exact.draws(DRAWS, rng))
    log_evidence = exact.log_evidence
    return Fitted(u, train_seconds, sample_seconds, log_evidence, log_evidence, 0.0, 1.0, status="exact")


def _nuts(model: PaperModel, data: DataSet, seed: int) -> Fitted:
    """NUTS; in the mixture from the truth, so that all chains have its labelling.

    Chains that do not agree are run anew, longer and thinned to as many draws; the last ones' times count.
    """
    for thinning in LENGTHS:
        found, disagreement = _chains(model, data, seed, thinning=thinning)
        if disagreement < AGREEMENT:
            break
    return found


def _chains(model: PaperModel, data: DataSet, seed: int, *, thinning: int) -> tuple[Fitted, float]:
    """Chains of which every so many draws are kept, and the largest R-hat."""
    start = init_to_value(values=_sites(model, data.truth)) if model.labelled else init_to_uniform()
    steps = thinning * DRAWS // CHAINS
    sampler = MCMC(
        NUTS(model.program, target_accept_prob=ACCEPTANCE, init_strategy=start),
        num_warmup=WARM_UP,
        num_samples=steps,
        thinning=thinning,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )

    def run() -> dict[str, np.ndarray]:
        sampler.run(jr.key(seed), y=jax.numpy.asarray(data.y))
        return {name: np.asarray(site) for name, site in sampler.get_samples().items()}

    draws, seconds = _timed(run)
    divergences = int(np.sum(sampler.get_extra_fields()["diverging"]))
    u = model.coordinates(draws)
    chains = relabelled(model, u, data.truth).reshape(CHAINS, DRAWS // CHAINS, -1)
    disagreement = float(np.max(split_gelman_rubin(chains)))
    # Warm-up is to NUTS what training is to a guide; the share of its steps stands for its time.
    share = WARM_UP / (WARM_UP + steps)
    found = Fitted(
        u,
        share * seconds,
        (1 - share) * seconds,
        steps=WARM_UP + steps,
        status=f"{divergences} divergences, R-hat {disagreement:.3f}",
    )
    return found, disagreement


def _sites(model: PaperModel, u: np.ndarray) -> dict[str, np.ndarray]:
    """The sites at u."""
    sites, start = {}, 0
    for name, shape in model.shapes.items():
        part = u[start : start + int(np.prod(shape))].reshape(shape)
        start += part.size
        sites[name] = (np.logaddexp(0.0, part) if name in POSITIVE else part).astype(np.float32)
    return sites


def _fit(method: Method, model: PaperModel, data: DataSet, seed: int) -> Fitted:
    """`dmvi.fit` with every default."""
    guide = method.guide
    assert guide is not None
    posterior, train_seconds = _timed(
        lambda: fit(model.program, data={"y": data.y}, guide=guide, seed=seed, progress=False)
    )
    found = posterior.diagnostics
    resample = method.advised and posterior.verdict is Verdict.RESAMPLE

    def sample(seed: int) -> dict[str, np.ndarray]:
        return posterior.sample(DRAWS, seed=seed, resample=resample, sites=list(model.shapes))

    draws = sample(1)
    _, sample_seconds = _timed(lambda: sample(2))
    return Fitted(
        model.coordinates(draws),
        train_seconds,
        sample_seconds,
        found.elbo,
        found.log_evidence,
        found.khat,
        found.ess,
        found.steps,
        found.status.name.lower(),
        posterior.verdict.name.lower(),
    )


def _published(
    recipe: Recipe, model: PaperModel, data: Sequence[DataSet], seeds: Sequence[int], epochs: int
) -> Iterator[Fitted]:
    for found in fit_published(recipe, model, data, seeds, draws=DRAWS, epochs=epochs):
        weights = found.weights
        yield Fitted(
            found.u,
            found.train_seconds,
            found.sample_seconds,
            weights.elbo,
            weights.log_evidence,
            weights.khat,
            weights.ess,
            found.steps,
            "finite" if np.isfinite(found.u).all() else "draws not finite",
        )
