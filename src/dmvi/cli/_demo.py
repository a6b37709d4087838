"""dmvi demo: the centred eight schools, four ways."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
import typer
from arviz_stats.base.array import array_stats
from jaxtyping import PRNGKeyArray
from numpyro.infer import MCMC, NUTS
from rich.console import Console
from rich.table import Table

from dmvi._errors import InputError
from dmvi._fit import fit
from dmvi.cli._eight_schools import SIGMA, Y, eight_schools, non_centred
from dmvi.cli._output import check_file, written_whole
from dmvi.posterior import Posterior, plot_marginals, plot_plane

_DATA = {"y": Y, "sigma": SIGMA}
_CHAINS, _WARMUP, _DRAWS = 4, 1000, 1000
_SAME, _REFERENCE = "NUTS, centred", "NUTS, non-centred"
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Chains:
    """A run of NUTS: draws by site with chains and draws leading, and how it went."""

    draws: dict[str, np.ndarray]
    divergences: int

    @property
    def pooled(self) -> dict[str, np.ndarray]:
        """The draws of all chains together."""
        return {name: np.concatenate(site) for name, site in self.draws.items()}

    @property
    def ess(self) -> float:
        """Smallest bulk effective sample size of any scalar, as a share of all draws."""
        columns = [site.reshape(*site.shape[:2], -1) for site in self.draws.values()]
        by_scalar = np.moveaxis(np.concatenate(columns, axis=2), 2, 0)
        bulk = array_stats.ess(by_scalar, chain_axis=1, draw_axis=2, method="bulk")
        return float(np.min(bulk)) / (by_scalar.shape[1] * by_scalar.shape[2])


def run_demo(folder: Path, *, seed: int, force: bool) -> None:
    """Fit with every method, print the table and the posterior, write both figures."""
    marginals, plane = _checked_figures(folder, force)
    console = Console()
    console.print("[bold]Eight schools, centred[/bold]: mu, tau and eight theta, by four methods.\n")
    fits: dict[str, Posterior] = {}
    seconds: dict[str, float] = {}
    for name, guide in (("diffusion", "auto"), ("full-rank", "full-rank"), ("mean-field", "mean-field")):
        console.print(f"fitting: {name}")
        fits[name], seconds[name] = _timed(
            lambda guide=guide: fit(
                eight_schools, data=_DATA, guide=guide, seed=seed, progress=guide == "auto"
            )
        )
    chains: dict[str, Chains] = {}
    for name, model in ((_SAME, eight_schools), (_REFERENCE, non_centred)):
        console.print(f"running: {name}, {_CHAINS} chains of {_WARMUP:,} + {_DRAWS:,} steps")
        chains[name], seconds[name] = _timed(lambda model=model: run_nuts(model, jax.random.key(seed)))

    console.print("")
    console.print(comparison(fits, chains, seconds))
    console.print(_caption(fits["diffusion"], chains), highlight=False, soft_wrap=True)
    console.print("\n[bold]The diffusion fit[/bold]")
    # Not through the console, which would read the brackets of theta[0] as markup.
    typer.echo(f"{fits['diffusion']!r}\n\n{fits['diffusion'].summary(seed=seed)!r}")

    draws = {name: _scalars(posterior.sample(seed=seed)) for name, posterior in fits.items()}
    draws |= {name: _scalars(run.pooled) for name, run in chains.items()}
    over = "Eight schools, centred: marginals over those of NUTS on the non-centred form"
    inside = "Eight schools, centred: draws over regions that hold 50, 90 and 99 % of the non-centred NUTS"
    figures = {
        marginals: plot_marginals(draws, reference=_REFERENCE, title=over),
        plane: plot_plane(draws, x="log tau", y="theta 1", reference=_REFERENCE, title=inside),
    }
    for path, figure in figures.items():
        with written_whole(path, force) as partial:
            figure.savefig(partial, dpi=150)
    console.print(f"\nfigures: {marginals}, {plane}")


def run_nuts(model: Callable, key: PRNGKeyArray) -> Chains:
    """NumPyro's NUTS, its chains advanced together in one compiled program.

    A high acceptance target lowers the number of divergences on the centred form; the effective sample
    size there stays at a few per cent and changes with the seed more than with the settings.
    """
    mcmc = MCMC(
        NUTS(model, target_accept_prob=0.99),
        num_warmup=_WARMUP,
        num_samples=_DRAWS,
        num_chains=_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(key, **_DATA)
    samples = mcmc.get_samples(group_by_chain=True)
    draws = {name: np.asarray(samples[name]) for name in ("mu", "tau", "theta")}
    return Chains(draws, int(mcmc.get_extra_fields()["diverging"].sum()))


def comparison(fits: dict[str, Posterior], chains: dict[str, Chains], seconds: dict[str, float]) -> Table:
    """One row for each method; the gap is to the log evidence of the diffusion fit."""
    log_evidence = fits["diffusion"].diagnostics.log_evidence
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method")
    for column in ("ELBO", "gap", "k-hat", "ESS", "seconds"):
        table.add_column(column, justify="right")
    for name, posterior in fits.items():
        d = posterior.diagnostics
        cells = (f"{d.elbo:.3f}", f"{log_evidence - d.elbo:.3f}", f"{d.khat:.2f}", f"{d.ess:.2f}")
        table.add_row(name, *cells, f"{seconds[name]:.1f}")
    for name, run in chains.items():
        table.add_row(name, "-", "-", "-", f"{run.ess:.2f}*", f"{seconds[name]:.1f}")
    return table


def _caption(diffusion: Posterior, chains: dict[str, Chains]) -> str:
    d = diffusion.diagnostics
    return (
        f"gap: nats below the log evidence, {d.log_evidence:.3f} +- {d.log_evidence_se:.3f} by the "
        "diffusion fit.\nESS: effective share of the weighted draws.\n"
        f"* for NUTS the smallest bulk ESS over {_CHAINS * _DRAWS:,} draws; "
        f"{chains[_SAME].divergences} of them diverged, {chains[_REFERENCE].divergences} on the "
        "non-centred form, which is the reference of the figures.\nSeconds include compilation."
    )


def _checked_figures(folder: Path, force: bool) -> tuple[Path, Path]:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; give --out a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {str(folder)!r}: {error.strerror or error}.") from error
    marginals, plane = folder / "marginals.png", folder / "plane.png"
    check_file(marginals, force)
    check_file(plane, force)
    return marginals, plane


def _timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def _scalars(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The ten unknowns one by one, tau by its logarithm."""
    theta = {f"theta {j + 1}": draws["theta"][:, j] for j in range(draws["theta"].shape[1])}
    return {"mu": draws["mu"], "log tau": np.log(draws["tau"]), **theta}
