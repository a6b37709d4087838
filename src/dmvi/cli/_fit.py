"""dmvi fit: check everything, fit, print, write."""

from pathlib import Path

import typer

from dmvi._fit import fit
from dmvi.cli._data import read_data
from dmvi.cli._exits import Exit, explained
from dmvi.cli._model import loaded_model, split_model
from dmvi.cli._output import check_draws_file, check_report_file, write_draws, written_whole
from dmvi.posterior import Verdict


def run_fit(
    *,
    model: str,
    data: Path | None,
    guide: str,
    seed: int,
    steps: int,
    particles: int,
    time_limit: float | None,
    draws: int,
    out: Path | None,
    report: Path | None,
    force: bool,
    quiet: bool,
) -> Exit:
    """Fit the model, print verdict and summary, write files; the exit code follows the verdict."""
    path, name = split_model(model)
    if out is not None:
        check_draws_file(out, force)
    if report is not None:
        check_report_file(report, force)
    values = read_data(data) if data is not None else None
    with loaded_model(path, name) as function, explained(path):
        posterior = fit(
            function,
            data=values,
            guide=guide,
            seed=seed,
            steps=steps,
            particles=particles,
            time_limit=time_limit,
            progress=not quiet,
        )
        typer.echo(repr(posterior))
        if not quiet:
            typer.echo(f"\n{posterior.summary(draws, seed=seed)!r}")
        if out is not None:
            write_draws(posterior, out, draws=draws, seed=seed, force=force)
            if not quiet:
                typer.echo(f"\nwrote {out}")
        if report is not None:
            with written_whole(report, force) as partial:
                posterior.report(partial, n=draws, seed=seed)
            if not quiet:
                typer.echo(f"wrote {report}")
    return Exit.DO_NOT_TRUST if posterior.verdict is Verdict.DO_NOT_TRUST else Exit.FINE
