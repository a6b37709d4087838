"""The report: one self-contained page on a fit."""

import datetime
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dmvi.posterior._atomic import check_place, replaced
from dmvi.posterior._checks import plot_predictive
from dmvi.posterior._figures import MOST_PANELS
from dmvi.posterior._forest import MOST_ROWS
from dmvi.posterior._page import numbers, page, picture, plain_table, sortable, text
from dmvi.posterior._views import Views

_MOST_ROWS = 3000
_COLUMNS = ("parameter", "mean", "sd", "5 %", "median", "95 %")
_CITATION = """@article{dirmeier2023diffusion,
  title   = {Diffusion models for probabilistic programming},
  author  = {Dirmeier, Simon and Perez-Cruz, Fernando},
  journal = {arXiv preprint arXiv:2311.00474},
  year    = {2023}
}"""


def write_report(fit: Views, path: Path, *, n: int, seed: int) -> Path:
    """Write the report on a fit to `path`, in one go."""
    check_place(path)
    content = report(fit, n=n, seed=seed).encode("utf-8")
    with replaced(path) as file:
        file.write(content)
    return path


def report(fit: Views, *, n: int, seed: int) -> str:
    """The page as text."""
    model = fit.run.settings.get("model", "a model")
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    subtitle = f"dmvi {fit.versions.get('dmvi', '')}, {fit.run.guide_name} guide, seed {fit.run.seed}; {date}"
    sections = [
        ("verdict", "", _verdict(fit)),
        ("parameters", "Parameters", _parameters(fit, n, seed)),
        ("figures", "Figures", _figures(fit, n, seed)),
        ("checks", "Predictive checks", _checks(fit, seed)),
        ("model", "Model and settings", _model(fit, n, seed)),
        ("versions", "Versions", _versions(fit)),
        ("cite", "How to cite", _cite()),
    ]
    foot = "Made by dmvi. This page is complete in itself: it loads nothing and sends nothing."
    return page(f"Posterior of {model}", subtitle, sections, foot)


def _verdict(fit: Views) -> str:
    judgement = fit.judgement
    notes = "".join(f"<li>{text(_sentence(remark))}</li>" for remark in judgement.reasons[1:])
    notes = f"<ul>{notes}</ul>" if notes else ""
    advice = "".join(f"<li>{text(_sentence(step))}</li>" for step in judgement.advice)
    advice = f"<h3>What to do next</h3><ul>{advice}</ul>" if advice else ""
    box = (
        f'<div class="verdict {judgement.verdict.name}"><h2>{text(judgement.verdict.value)}</h2>'
        f"<p>{text(_sentence(judgement.reasons[0]))}</p>{notes}{advice}</div>"
    )
    return box + numbers({name: value.replace("+-", "±") for name, value in fit.figures().items()})


def _parameters(fit: Views, n: int, seed: int) -> str:
    from dmvi.posterior._summary import summarise

    resampled = fit._advised(None)
    summary = summarise(fit.shown(n, seed, resample=resampled), resampled)
    how = "PSIS-resampled draws" if resampled else "draws of the guide"
    caption = f"{len(summary.rows):,} parameters by {summary.draws:,} {how}."
    if len(summary.rows) > _MOST_ROWS:
        caption += f" The first {_MOST_ROWS:,} are shown."
    rows = ((row.name, row.values) for row in summary.rows[:_MOST_ROWS])
    return f"<h2>Parameters</h2>{sortable(caption, _COLUMNS, rows)}"


def _figures(fit: Views, n: int, seed: int) -> str:
    d = fit.diagnostics
    shown = [
        picture(
            fit.plot_forest(n=n, seed=seed),
            "Forest plot: median, 50 and 90 per cent interval of each parameter, as in the table.",
            f"Medians with 50 % (thick) and 90 % (thin) intervals, up to {MOST_ROWS} rows.",
        ),
        picture(
            fit.plot_marginals(n=n, seed=seed),
            "Marginal density of each parameter: guide as a line over PSIS-resampled draws as an area.",
            "Where the line leaves the area, the guide differs from the posterior and the weights correct "
            f"it. Up to {MOST_PANELS} panels.",
        ),
        picture(
            fit.plot_pairs(n=n, seed=seed),
            "Pair plot: draws of the guide over regions that hold 50, 90 and 99 per cent of resampled draws.",
            "Guide (points) over PSIS-resampled draws (contours); first what the weights depend on.",
        ),
        picture(
            fit.plot_weights(),
            f"Importance weights: effective share {d.ess:.3f}, tail index k-hat {d.khat:.2f}.",
            "Left, how far the log-weights are from even. Right, the tail that k-hat is fitted to: below 0.7 "
            "importance sampling can be relied on.",
        ),
        picture(
            fit.plot_history(),
            f"ELBO during training; it stopped at step {d.steps:,}: {d.status.value}.",
            "The ELBO on fresh draws. Its gap to the log evidence is what the guide still lacks.",
        ),
    ]
    if len(fit.names) > 1:
        shown.append(
            picture(
                fit.plot_diffusion(seed=seed),
                "Small multiples: draws of noise moving step by step onto the regions of the posterior.",
                "From noise to the posterior along the solver's steps, in two unconstrained coordinates.",
            )
        )
    return "<h2>Figures</h2>" + "".join(shown)


def _checks(fit: Views, seed: int) -> str:
    predicted = fit.predictions(seed=seed)
    if not predicted:
        why = "There are none: the model observes nothing, or it is a log-density, which does not say how."
        return f"<h2>Predictive checks</h2><p>{why}</p>"
    return "<h2>Predictive checks</h2>" + picture(
        plot_predictive(fit.observed, predicted),
        "Posterior predictive check: observed values beside values replicated by the fitted model.",
        "If the model is right, what was observed looks like one more replication.",
    )


def _model(fit: Views, n: int, seed: int) -> str:
    draws = fit.shown(n, seed, resample=False)
    sites: list[tuple[str, str, str]] = [
        (site, "latent or deterministic", _shape(values.shape[1:])) for site, values in draws.items()
    ]
    sites += [(site, "observed", _shape(np.shape(values))) for site, values in fit.observed.items()]
    settings = [(name, _shown(value)) for name, value in fit.run.settings.items()]
    settings += [("seed", fit.run.seed), ("warm start", fit.run.warm_start)]
    settings += [(f"seconds of {stage}", f"{taken:.1f}") for stage, taken in fit.run.stage_seconds.items()]
    return (
        "<h2>Model and settings</h2>"
        + plain_table("Sites of the model.", ("site", "kind", "shape"), sites)
        + "<h3>Settings</h3>"
        + plain_table("How the fit was made.", ("setting", "value"), settings)
    )


def _versions(fit: Views) -> str:
    return "<h2>Versions</h2>" + plain_table(
        "Libraries the fit was made with.", ("library", "version"), fit.versions.items()
    )


def _cite() -> str:
    return (
        "<h2>How to cite</h2><p>The idea of a diffusion model as the variational family of a probabilistic "
        f"program is due to Simon Dirmeier and Fernando Perez-Cruz:</p><pre>{text(_CITATION)}</pre>"
    )


def _sentence(words: str) -> str:
    """A clause as a sentence."""
    return words[:1].upper() + words[1:] + "."


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "scalar"


def _shown(value: object) -> str:
    """A setting in words: nested recipes as name(field=value)."""
    if isinstance(value, Mapping):
        fields = ", ".join(f"{name}={_shown(item)}" for name, item in value.items() if name != "type")
        return f"{value.get('type', '')}({fields})"
    return "none" if value is None else str(value)
