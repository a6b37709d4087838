"""dmvi fit: check everything, fit, print, write."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dmvi._errors import InputError, memory_told
from dmvi._fit import fit
from dmvi._team import Team
from dmvi.cli._data import name_data, read_data
from dmvi.cli._distributed import Company, attend, finish, joined, mesh_of_all
from dmvi.cli._exits import Exit, explained
from dmvi.cli._model import loaded_model, split_model
from dmvi.cli._output import check_draws_file, check_report_file, write_draws, written_whole
from dmvi.posterior import Posterior, Verdict

TOO_LITTLE = "training has ended, but there is not enough memory for the draws that judge the fit."
UNWRITTEN = (
    "Nothing was written. Where there was a --checkpoint, the same command on a larger machine goes on from "
    "the end of training; else give fewer --draws, or a smaller --guide."
)


@dataclass(frozen=True)
class Training:
    """How to train; the names mean what they mean in `dmvi.fit`."""

    guide: str
    seed: int
    steps: int | None
    particles: int | None
    time_limit: float | None
    batch_size: int | None
    checkpoint: Path | None
    checkpoint_every: float


@dataclass(frozen=True)
class Output:
    """What to write and to print."""

    draws: int
    out: Path | None
    report: Path | None
    force: bool
    quiet: bool


def run_fit(
    *, model: str, data: Path | None, training: Training, output: Output, company: Company | None
) -> Exit:
    """Fit the model, print verdict and summary, write files; the exit code follows the verdict.

    Args:
        model: FILE.py:NAME.
        data: the file of its arguments.
        training: how to train.
        output: what to write.
        company: how to find the other processes that fit the same model; None where there are none.
    """
    with contextlib.nullcontext(Team()) if company is None else joined(company) as team:
        path, name = split_model(model)
        if team.leads:
            _check(output)
        read = read_data if training.batch_size is None else name_data
        values = None if data is None else read(data)
        with loaded_model(path, name) as function, explained(path):
            posterior = _fitted(function, values, training, output, team, company)
            if not team.leads:
                return attend(posterior, team)
            _write(posterior, training.seed, output)
        return finish(team, _code(posterior))


def _fitted(
    function: Any, values: Any, training: Training, output: Output, team: Team, company: Company | None
) -> Posterior:
    return fit(
        function,
        data=values,
        guide=training.guide,
        seed=training.seed,
        steps=training.steps,
        particles=training.particles,
        time_limit=training.time_limit,
        batch_size=training.batch_size,
        checkpoint=training.checkpoint,
        checkpoint_every=training.checkpoint_every,
        mesh=None if company is None else mesh_of_all(training.batch_size is not None),
        progress=team.leads and not output.quiet,
    )


def _check(output: Output) -> None:
    if output.out is not None:
        check_draws_file(output.out, output.force)
    if output.report is not None:
        check_report_file(output.report, output.force)


def _write(posterior: Posterior, seed: int, output: Output) -> None:
    """Files first: what is printed takes memory, and may be too much after hours of training."""
    failure, state = None, UNWRITTEN
    if output.out is not None:
        try:
            with memory_told(f"{TOO_LITTLE} {UNWRITTEN}"):
                write_draws(posterior, output.out, draws=output.draws, seed=seed, force=output.force)
            state = f"{str(output.out)!r} is written."
        except InputError as error:
            # Told below the verdict, which may be all there is to see of the fit.
            failure, state = error, str(error)
    with memory_told(f"{TOO_LITTLE} {state}"):
        typer.echo(repr(posterior))
        if not output.quiet:
            typer.echo(f"\n{posterior.summary(output.draws, seed=seed)!r}")
        if failure is not None:
            raise failure
        if output.out is not None and not output.quiet:
            typer.echo(f"\nwrote {output.out}")
        if output.report is not None:
            with written_whole(output.report, output.force) as partial:
                posterior.report(partial, n=output.draws, seed=seed)
            if not output.quiet:
                typer.echo(f"wrote {output.report}")


def _code(posterior: Posterior) -> Exit:
    return Exit.DO_NOT_TRUST if posterior.verdict is Verdict.DO_NOT_TRUST else Exit.FINE
