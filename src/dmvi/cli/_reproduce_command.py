"""The options of `dmvi reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from dmvi.cli._exits import explained


def reproduce(
    models: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME ...", help="mean, mixture, hierarchical_1 to hierarchical_5."),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME ...",
            help="exact, nuts, diffusion, chain (ours), advi, full-rank, nfvi (by the ELBO); as the code of "
            "the paper trains them: advi-code, nfvi-code, dmvi-D-S-O with D diffusions (50, 100), S solver "
            "steps (10, 20) and order O (1, 3). dmvi stands for all eight of these, published for all ten.",
        ),
    ] = None,
    n: Annotated[
        list[int] | None, typer.Option(metavar="ROWS ...", help="Numbers of data rows: 100 1000.")
    ] = None,
    replicates: Annotated[
        int | None, typer.Option(metavar="N", help="Data sets for each cell, each with its own truth: 5.")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            metavar="printed|code",
            help="Models as the paper prints them, or as its code has them: the mixture with prior means "
            "-1, 0, 1 and equal weights, data of hierarchical models 1 to 3 with unit noise.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results are kept and gone on with.")] = Path(
        "reproduction"
    ),
    fixed_data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="One data set for all replicates, as in the paper: files such as mean_model_100.npz with "
            "arrays y and truth_u. The variant is then code unless told otherwise.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="The models of the paper's main table, small: under four minutes on two cores."
        ),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Processes; by default one for each core.")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=1.0, metavar="SECONDS", help="Stop after this long; the same command goes on."),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run nothing: write tables and figures of the results in DIR."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Write the page of the docs too: with --tables at once, else once everything is done.",
        ),
    ] = None,
) -> None:
    r"""Repeat the paper's experiments, with the exact posterior beside them.

    Seven models, two sizes, seventeen methods, five replicates; every replicate has a data set of its own.
    Each cell becomes one row of DIR/results.csv: times, error to the truth, the exact posterior's error,
    distance to it, coverage, ELBO gap, k-hat. Tables come as Markdown, LaTeX and HTML, with one figure for
    each model.

    Finished cells are kept, one by one: after an interruption the same command goes on where it was.

    [bold]Examples[/bold]

      dmvi reproduce --quick

      dmvi reproduce --models mean hierarchical_5 --methods exact diffusion dmvi --n 100 1000 --out results

      dmvi reproduce --models mean hierarchical_1 --methods published --fixed-data authors --out fixed

      dmvi reproduce --out results --time-limit 500

      dmvi reproduce --tables results --page docs/reproduction.md

    [bold]Exit codes[/bold]

      0    done

      2    a mistake in the input; nothing was run

      4    cells are left, by the time limit, an interruption or a failure
    """
    from dmvi.cli._reproduce import plan_from, run_reproduce, run_tables

    with explained():
        if tables is not None:
            code = run_tables(tables, page)
        else:
            plan = plan_from(
                models=models,
                methods=methods,
                sizes=n,
                replicates=replicates,
                variant=variant,
                fixed_data=fixed_data,
                quick=quick,
            )
            code = run_reproduce(plan, out, jobs=jobs, time_limit=time_limit, page=page)
    raise typer.Exit(code)
