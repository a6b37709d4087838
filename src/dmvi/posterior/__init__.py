"""The posterior: draws, diagnostics, verdict, summary, ArviZ, plots."""

from dmvi.posterior._atomic import WriteError as WriteError
from dmvi.posterior._atomic import told as told
from dmvi.posterior._compare import Comparison as Comparison
from dmvi.posterior._compare import compare as compare
from dmvi.posterior._container import FileError as FileError
from dmvi.posterior._diagnostics import DRAWS as DRAWS
from dmvi.posterior._diagnostics import Diagnostics as Diagnostics
from dmvi.posterior._diagnostics import later_draws as later_draws
from dmvi.posterior._draws import Draws as Draws
from dmvi.posterior._expectation import Expectation as Expectation
from dmvi.posterior._named import digest as digest
from dmvi.posterior._named import library_versions as library_versions
from dmvi.posterior._plots import COLOURS as COLOURS
from dmvi.posterior._plots import few_ticks as few_ticks
from dmvi.posterior._plots import label as label
from dmvi.posterior._plots import plot_marginals as plot_marginals
from dmvi.posterior._plots import plot_plane as plot_plane
from dmvi.posterior._posterior import Posterior as Posterior
from dmvi.posterior._save import Fit as Fit
from dmvi.posterior._save import read_fit as read_fit
from dmvi.posterior._stored import StoredPosterior as StoredPosterior
from dmvi.posterior._summary import Summary as Summary
from dmvi.posterior._verdict import Judgement as Judgement
from dmvi.posterior._verdict import Verdict as Verdict
from dmvi.posterior._views import Views as Views
