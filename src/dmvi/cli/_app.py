"""The commands and their options."""

from pathlib import Path
from typing import Annotated

import typer

from dmvi._errors import InputError
from dmvi._fit import STEPS
from dmvi.cli._exits import Exit, explained
from dmvi.cli._many import ManyValues
from dmvi.cli._reproduce_command import reproduce

app = typer.Typer(
    name="dmvi",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Entry point of the command `dmvi`."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        from dmvi import __version__

        typer.echo(f"dmvi {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Posteriors of probabilistic programs with a diffusion model as the variational family.

    [bold]dmvi demo[/bold] shows what it does; [bold]dmvi fit --help[/bold] says how to fit your own model.
    """


@app.command()
def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="A NumPyro model: a file and the function in it. [bold]The file is run.[/bold]",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The model's arguments by name: .json (an object), .npz (arrays) or .csv (columns); with "
            "--batch-size also .parquet, .arrow, or .json that names .npy files.",
        ),
    ] = None,
    guide: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The approximating family: auto, diffusion, full-rank or mean-field."
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="Same seed, same result.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most optimiser steps.")] = None,
    particles: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Draws per step; by default by dimension.")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="Stop training after this long.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="ROWS", help="Rows per step, for data too long for memory."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save training there; the same command goes on from it."),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Time between two saves.")
    ] = 30.0,
    distributed: Annotated[
        bool,
        typer.Option("--distributed", help="One of several processes that make this fit together."),
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where process 0 can be reached.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many there are.")] = None,
    process_id: Annotated[
        int | None, typer.Option(min=0, metavar="I", help="Number of this one, from 0.")
    ] = None,
    draws: Annotated[
        int, typer.Option(min=1, metavar="N", help="Posterior draws to summarise and to write.")
    ] = 4000,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the fit: .dmvi (all of it, for dmvi.load and dmvi report), or its draws: .npz "
            "(NumPy) or .nc (netCDF for ArviZ).",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page on the fit for any browser.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace output files that exist.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No progress and no summary: the verdict alone.")
    ] = False,
) -> None:
    r"""Fit a NumPyro model and say whether to trust the result.

    This runs the code in FILE.py, as Python would. Everything that can be checked is checked before training.
    Ctrl-C ends training early and keeps the best fit so far.

    [bold]Examples[/bold]

      dmvi fit model.py:eight_schools --data schools.json

      dmvi fit model.py:regression --data table.csv --out fit.dmvi --report report.html

      dmvi fit model.py:regression --data table.csv --out draws.npz --seed 1

      dmvi fit model.py:regression --data arrays.npz --time-limit 60 --out draws.nc

      dmvi fit model.py:regression --data files.json --batch-size 1000 --checkpoint saved --out fit.dmvi

    where model.py holds, for columns or keys named y and sigma,

      def eight_schools(y, sigma): ...

    [bold]Several processes[/bold], on one machine or many: each gets the same command and its own number,

      dmvi fit ... --distributed --coordinator host0:1234 --processes 2 --process-id 0

      dmvi fit ... --distributed --coordinator host0:1234 --processes 2 --process-id 1

    or srun and mpirun start them all, and no more than --distributed is needed. Process 0 prints and writes.

    The .npz file has one array for each variable, draws first, and the diagnostics as JSON under "dmvi.json".
    If the verdict is to trust the draws after resampling, they are resampled.

    [bold]Exit codes[/bold]

      0    done

      1    a fault of dmvi, with its traceback

      2    a mistake in the input; nothing was written

      3    done, but the verdict is not to trust the draws

      5    another process of a distributed fit was lost

      130  interrupted before there was a fit
    """
    from dmvi.cli._distributed import Company
    from dmvi.cli._fit import Output, Training, run_fit

    company = Company(coordinator, processes, process_id)
    with explained():
        if not distributed and company != Company(None, None, None):
            raise InputError("--coordinator, --processes and --process-id go with --distributed; add it.")
        company = company if distributed else None
        code = run_fit(
            model=model,
            data=data,
            training=Training(
                guide=guide,
                seed=seed,
                steps=steps,
                particles=particles,
                time_limit=time_limit,
                batch_size=batch_size,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
            ),
            output=Output(draws, out, report, force, quiet),
            company=company,
        )
    raise typer.Exit(code)


@app.command()
def report(
    fit: Annotated[Path, typer.Argument(metavar="FIT.dmvi", help="A fit, as `dmvi fit --out` writes it.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Where the page goes; by default beside the fit."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the page if it exists.")] = False,
) -> None:
    """Write a page on a stored fit: verdict, parameters, figures, checks, settings.

    The model is not needed and nothing in the file is run. The page opens in any browser, offline.

      dmvi report fit.dmvi

      dmvi report fit.dmvi --out report.html
    """
    from dmvi.cli._report import run_report

    with explained():
        code = run_report(fit, out, force=force)
    raise typer.Exit(code)


@app.command()
def calibrate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="A NumPyro model: a file and the function in it. [bold]The file is run.[/bold]",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The model's arguments by name: .json, .npz or .csv; observed ones tell their shape.",
        ),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=10, metavar="N", help="Simulated data sets.")] = 200,
    near: Annotated[
        bool, typer.Option("--near", help="Simulate around the observed data, not over the prior.")
    ] = False,
    guide: Annotated[
        str, typer.Option(metavar="NAME", help="What to calibrate: auto, chain, flow, full-rank, mean-field.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="Same seed, same result.")] = 0,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Most optimiser steps of a fit.")] = STEPS,
    one_by_one: Annotated[
        bool,
        typer.Option(
            "--one-by-one",
            help="Fit as `dmvi fit` does, which looks for separate modes, and draw as each verdict advises; "
            "many times slower.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write ecdf.png, ranks.png and calibration.json there."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress: the verdict alone.")] = False,
) -> None:
    r"""Simulate data sets from a model, fit them all, and say whether the fits recover the truth.

    This runs the code in FILE.py, as Python would. The verdict names every site; 200 data sets of a small
    model take some minutes.

      dmvi calibrate model.py:eight_schools --data schools.json

      dmvi calibrate model.py:eight_schools --data schools.json --near --n 100 --out calibration

      dmvi calibrate model.py:mixture --data data.json --one-by-one --n 50

    [bold]Exit codes[/bold]

      0    no sign of miscalibration

      2    a mistake in the input; nothing was written

      3    not calibrated
    """
    from dmvi.cli._calibrate import run_calibrate

    with explained():
        code = run_calibrate(
            model=model,
            data=data,
            n=n,
            near=near,
            guide=guide,
            seed=seed,
            steps=steps,
            one_by_one=one_by_one,
            out=out,
            force=force,
            quiet=quiet,
        )
    raise typer.Exit(code)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the figures go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="Same seed, same result.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace figures that exist.")] = False,
) -> None:
    """Fit the centred eight schools and compare with Gaussians and NUTS.

    Prints one table and the posterior, and writes two figures: marginals.png, the marginals of every method
    over those of NUTS, and plane.png, where Gaussians visibly fail. Takes one to two minutes on two cores.
    """
    from dmvi.cli._demo import run_demo

    with explained():
        run_demo(out, seed=seed, force=force)
    raise typer.Exit(Exit.FINE)


app.command(cls=ManyValues)(reproduce)
