"""The posterior: draws, diagnostics, verdict, summary, ArviZ, plots."""

from dmvi.posterior._diagnostics import Diagnostics as Diagnostics
from dmvi.posterior._plots import plot_marginals as plot_marginals
from dmvi.posterior._plots import plot_plane as plot_plane
from dmvi.posterior._posterior import Posterior as Posterior
from dmvi.posterior._summary import Summary as Summary
from dmvi.posterior._verdict import Judgement as Judgement
from dmvi.posterior._verdict import Verdict as Verdict
