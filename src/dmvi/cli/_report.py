"""dmvi report: a page on a stored fit."""

from pathlib import Path

import typer

from dmvi._load import load
from dmvi.cli._exits import Exit
from dmvi.cli._output import check_report_file, written_whole
from dmvi.posterior import Verdict


def run_report(fit: Path, out: Path | None, *, force: bool) -> Exit:
    """Write the page; the exit code follows the verdict of the fit."""
    page = fit.with_suffix(".html") if out is None else out
    check_report_file(page, force)
    stored = load(fit)
    with written_whole(page, force) as partial:
        stored.report(partial)
    typer.echo(repr(stored))
    typer.echo(f"\nwrote {page}")
    return Exit.DO_NOT_TRUST if stored.verdict is Verdict.DO_NOT_TRUST else Exit.FINE
