"""The paper's experiments: its models, exact posteriors, methods, tables."""

from dmvi.paper._cells import Plan as Plan
from dmvi.paper._exact import ExactPosterior as ExactPosterior
from dmvi.paper._exact import exact_posterior as exact_posterior
from dmvi.paper._methods import METHODS as METHODS
from dmvi.paper._models import MODELS as MODELS
from dmvi.paper._models import data_set as data_set
from dmvi.paper._models import paper_model as paper_model
from dmvi.paper._output import check_page as check_page
from dmvi.paper._output import write_page as write_page
from dmvi.paper._output import write_tables as write_tables
from dmvi.paper._runner import run as run
