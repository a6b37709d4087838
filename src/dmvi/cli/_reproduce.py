"""dmvi reproduce: the paper's experiments."""

from pathlib import Path

import typer

from dmvi._errors import InputError
from dmvi.cli._exits import Exit
from dmvi.paper import METHODS, Plan, check_page, run, write_page, write_tables

QUICK = Plan(
    models=("mean", "mixture", "hierarchical_5"),
    methods=("exact", "diffusion", "advi", "dmvi-100-10-3"),
    sizes=(100,),
    replicates=2,
)
FULL = Plan()
GROUPS = {
    "dmvi": [name for name, method in METHODS.items() if method.configuration is not None],
    "published": [name for name, method in METHODS.items() if method.published is not None],
    "all": list(METHODS),
}


def plan_from(
    *,
    models: list[str] | None,
    methods: list[str] | None,
    sizes: list[int] | None,
    replicates: int | None,
    variant: str | None,
    fixed_data: Path | None,
    quick: bool,
) -> Plan:
    """The plan that the options name; what they leave out is that of the full set, or of the quick one."""
    base = QUICK if quick else FULL
    named = [name for word in methods or [] for name in GROUPS.get(word, [word])]
    # The authors' data sets were made by their code.
    default = "printed" if fixed_data is None else "code"
    if fixed_data is not None and not fixed_data.is_dir():
        raise InputError(f"there is no folder {str(fixed_data)!r} of data sets.")
    return Plan(
        models=tuple(dict.fromkeys(models or base.models)),
        methods=tuple(dict.fromkeys(named or base.methods)),
        sizes=tuple(dict.fromkeys(sizes or base.sizes)),
        replicates=base.replicates if replicates is None else replicates,
        variant=variant or default,
        fixed=None if fixed_data is None else fixed_data.resolve(),
    )


def run_reproduce(
    plan: Plan, out: Path, *, jobs: int | None, time_limit: float | None, page: Path | None
) -> Exit:
    """Run the plan, and write its tables and the page once all of it is done."""
    if jobs is not None and jobs < 1:
        raise InputError(f"expected at least one process; got --jobs {jobs}.")
    if page is not None:
        check_page(page, made=out)
    summary = run(plan, out, processes=jobs, time_limit=time_limit, say=typer.echo)
    if summary.failed:
        typer.echo(f"{summary.failed} jobs failed; the same command tries them again", err=True)
    if summary.left:
        typer.echo(f"{summary.done} cells done, {summary.left} left; the same command goes on with them")
        return Exit.UNFINISHED
    return run_tables(out, page)


def run_tables(folder: Path, page: Path | None) -> Exit:
    """Tables, figures and, where it is asked for, the page, from the CSV files of a run alone."""
    if page is not None:
        check_page(page)
    for path in write_tables(folder):
        typer.echo(f"wrote {path}")
    if page is not None:
        typer.echo(f"wrote {write_page(folder, page)}")
    return Exit.FINE
