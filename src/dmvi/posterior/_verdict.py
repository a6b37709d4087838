"""Whether to trust a fit, in plain words."""

import enum
from dataclasses import dataclass

import numpy as np

from dmvi._run import Status
from dmvi.posterior._diagnostics import DRAWS, Diagnostics


class Verdict(enum.Enum):
    """What to do with the draws; each value begins the sentence shown to the user."""

    TRUST = "Trust these draws"
    RESAMPLE = "Trust these draws after resampling"
    DO_NOT_TRUST = "Do not trust these draws"


@dataclass(frozen=True)
class Judgement:
    """A verdict, the reasons for it, and what to do next.

    Attributes:
        verdict: the verdict.
        reasons: why, the weightiest first.
        advice: what to do next; empty where nothing is left to do.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    advice: tuple[str, ...]


# Tail index up to which importance sampling is reliable (Vehtari et al., 2024).
_KHAT = 0.7
# The bias of a mean under the raw draws, in posterior standard deviations, is at most
# sqrt(1 / ESS - 1), and usually far below: 0.33 and 0.1 for these two.
_ESS_AS_THEY_ARE = 0.9
_ESS_EVEN = 0.99
# Fewer effective draws than this make quantiles too noisy to quote.
_EFFECTIVE_DRAWS = 400
# So few weights tell too little of their tail for any verdict but this: not to trust.
_FEWEST = 250
_NON_FINITE = 1e-3
_ROUND_TRIP_MISSES = 0.01
_SKIPPED = 0.1
_MISSED = 1e-3
_ROUNDING = 0.05  # nats; errors of this size alone bring ESS down to 0.9975


def judge(diagnostics: Diagnostics) -> Judgement:
    r"""The verdict on a fit.

    Two numbers are weighed together. ESS measures how far the bulk of the weights is from even;
    k-hat measures how heavy their tail is. k-hat alone misleads where ESS is 1.00: it then
    describes the tail of weights that differ in the third digit. ESS alone misleads where the
    tail is heavy: the draws that would lower it have not come up yet. Hence

    - trust: ESS at least 0.9 and k-hat below 0.7, or ESS at least 0.99 whatever k-hat says;
    - trust after resampling: k-hat below 0.7 and at least 400 effective draws;
    - do not trust: everything else, fewer than 250 draws, more than 0.1 % of the weights not finite, more
      than 1 % of the draws whose density the guide could not confirm by inverting itself (a mixture the
      component that made the draw; chains, whose weights are those of whole paths, are not inverted), or a
      separate mode of more than 0.1 % of the posterior that the warm start visited and the guide has no
      draws near.

    Of fewer than 20,000 draws k-hat has to be below 0.7 by as much as its standard error is larger then.

    How training ended does not enter: the weights judge the fit that it left behind. It does
    decide what is worth trying next.
    """
    fault = _fault(diagnostics)
    if fault is not None:
        return Judgement(Verdict.DO_NOT_TRUST, (fault, *_remarks(diagnostics)), _advice(diagnostics))
    d = diagnostics
    tails_hold = d.khat + _uncertainty(d) < _KHAT
    pool = min(d.draws, DRAWS)  # out of which draws are resampled, however many have been weighed
    if d.ess >= _ESS_AS_THEY_ARE and tails_hold:
        verdict, reason = (
            Verdict.TRUST,
            f"weights are even (ESS {d.ess:.2f}) and light-tailed (k-hat {d.khat:.2f})",
        )
    elif d.ess >= _ESS_EVEN:
        verdict = Verdict.TRUST
        reason = f"weights are so even (ESS {d.ess:.3f}) that their tail (k-hat {d.khat:.2f}) does not matter"
    elif tails_hold and d.ess * pool >= _EFFECTIVE_DRAWS:
        verdict = Verdict.RESAMPLE
        reason = f"weights are uneven (ESS {d.ess:.2f}) but can correct the draws (k-hat {d.khat:.2f})"
    elif tails_hold:
        verdict = Verdict.DO_NOT_TRUST
        reason = f"only {d.ess * pool:.0f} of {pool:,} draws are effective, too few to correct the rest"
    else:
        verdict, reason = Verdict.DO_NOT_TRUST, _heavy_tail(d)
    advice = _advice(d) if verdict is Verdict.DO_NOT_TRUST else ()
    if verdict is Verdict.RESAMPLE:
        advice = ("use sample(n, resample=True); summary() and to_arviz() already do", *_on_batches(d))
    return Judgement(verdict, (reason, *_remarks(d)), advice)


def _uncertainty(d: Diagnostics) -> float:
    """How much larger the standard error of k-hat, (1 + k) / sqrt(3 sqrt(n)), is than of 20,000 draws."""
    errors = [1 / np.sqrt(3 * np.sqrt(n)) for n in (max(d.draws, 1), DRAWS)]
    return max(0.0, (1 + max(d.khat, 0.0)) * float(errors[0] - errors[1]))


def _fault(d: Diagnostics) -> str | None:
    """A reason that makes the weights themselves meaningless, if there is one."""
    if d.non_finite > _NON_FINITE * d.draws:
        return f"{d.non_finite:,} of {d.draws:,} log-weights are not finite, and the estimates leave them out"
    if d.draws < _FEWEST:
        return f"there was time to weigh {d.draws:,} draws only, too few to judge the fit by"
    if d.round_trip_misses > _ROUND_TRIP_MISSES:
        return (
            f"inverting the guide did not give back the density of {100 * d.round_trip_misses:.0f} % of the "
            "draws, so its weights cannot be relied on"
        )
    if d.missed > _MISSED:
        return (
            f"the search has found a separate mode of about {100 * d.missed:.2g} % of the posterior, and the "
            "guide has next to no draws near it"
        )
    return None


def _heavy_tail(d: Diagnostics) -> str:
    """The words for weights whose tail is too heavy, kinder where the bulk agrees."""
    if d.khat < _KHAT:
        return (
            f"of {d.draws:,} draws the tail (k-hat {d.khat:.2f}) is too uncertain to tell whether resampling "
            f"mends weights as uneven as these (ESS {d.ess:.2f})"
        )
    if d.ess >= _ESS_AS_THEY_ARE:
        return (
            f"the bulk agrees with the model (ESS {d.ess:.2f}) but the tails do not (k-hat {d.khat:.2f}): "
            "means may be right, tail probabilities and the evidence need not be"
        )
    return (
        f"a few draws carry too much weight to be mended by resampling (k-hat {d.khat:.2f}, ESS {d.ess:.2f})"
    )


def _remarks(d: Diagnostics) -> tuple[str, ...]:
    """What a reader should know beside the main reason."""
    remarks = []
    if 0 < d.non_finite <= _NON_FINITE * d.draws:
        remarks.append(f"{d.non_finite} of {d.draws:,} log-weights are not finite and count as zero")
    if 0 < d.round_trip_misses <= _ROUND_TRIP_MISSES:
        remarks.append(f"the guide could not be inverted at {100 * d.round_trip_misses:.1f} % of the draws")
    if d.skipped > _SKIPPED * max(d.steps, 1):
        remarks.append(f"{d.skipped:,} of {d.steps:,} updates were not finite and were skipped")
    if d.rounding > _ROUNDING:
        remarks.append(
            f"single precision rounds the log-density by about {d.rounding:.2g} nats: call "
            'jax.config.update("jax_enable_x64", True) before anything else'
        )
    if np.isnan(d.missed):
        remarks.append("there was no time to see whether modes that the search found are missing")
    if d.gradient_seconds > 0:
        remarks.append(
            f"a gradient takes {1000 * d.gradient_seconds:.0f} ms over {d.rows:,} rows: fit(..., "
            "batch_size=...) goes through them in batches"
        )
    return tuple(remarks)


_NEXT = {
    Status.STEP_LIMIT: "training had not reached a plateau: give it more steps, with dmvi.resume(posterior)",
    Status.TIME_LIMIT: "training had not reached a plateau: give it a longer time_limit, or dmvi.resume it",
    Status.INTERRUPTED: "training was interrupted: let it run to its end, with dmvi.resume(posterior)",
    Status.DIVERGED: "updates were not finite: reparameterise the model or switch on jax_enable_x64",
    Status.WARM_START: "training did not improve on its start: try another seed",
    Status.SETTLED: "training was left out, since a few draws showed nothing to gain: try another seed",
    Status.CONVERGED: "training had reached a plateau, so more steps will not help",
}
_PLAIN_GUIDES = ("mean-field", "full-rank")
_NAMED = 3


def _advice(d: Diagnostics) -> tuple[str, ...]:
    """What to do next, by what went wrong, by why training ended and by where the weights come from."""
    if d.non_finite > _NON_FINITE * d.draws:
        return ("find where the model's log-density is not finite within its supports",)
    if d.draws < _FEWEST:
        return ("give the fit a longer time_limit",)
    if d.round_trip_misses > _ROUND_TRIP_MISSES:
        return (
            "fit again with more solver steps, which are smaller and easier to invert, or with another seed",
        )
    if d.missed > _MISSED:
        return (
            'fit with guide="auto", which takes one guide for each mode, in up to 64 dimensions',
            "break symmetries of the model, as by ordering the components of a mixture",
        )
    advice = [_NEXT[d.status]]
    if _noisy(d):
        # A plateau of steps on batches is one of their noise, which hides what the guide could do.
        advice = [*([] if d.status is Status.CONVERGED else advice), *_on_batches(d)]
    if d.guide in _PLAIN_GUIDES:
        advice.append('take another guide: fit(..., guide="diffusion") bends where a Gaussian cannot')
    elif not _noisy(d) and d.status in (Status.CONVERGED, Status.WARM_START, Status.SETTLED):
        advice.append("take a larger guide, as fit(..., guide=dmvi.DiffusionGuide(steps=8)), or MCMC")
    if d.drivers:
        names = ", ".join(driver.name for driver in d.drivers[:_NAMED])
        advice.append(
            f"reparameterise {names}, where the heaviest draws stand apart; effects with a scale of their "
            "own become standard normals times that scale (numpyro.infer.reparam.LocScaleReparam)"
        )
    return tuple(advice)


def _noisy(d: Diagnostics) -> bool:
    """Whether training has moved the guide by batches."""
    return d.rows_of_a_step > 0 and d.steps > 0


def _on_batches(d: Diagnostics) -> tuple[str, ...]:
    """What to do about the noise of batches, where training saw them."""
    if not _noisy(d):
        return ()
    seen = f"steps saw {d.rows_of_a_step:,} of {d.rows:,} rows each, and noise of such batches leaves a gap"
    remedy = "take larger ones (batch_size, or subsample_size in the model) or more steps (dmvi.resume)"
    return (f"{seen}: {remedy}",)
