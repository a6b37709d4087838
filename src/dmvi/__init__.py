"""Posteriors of probabilistic programs with a diffusion model as the variational family."""

from dmvi import numpyro as numpyro
from dmvi import objectives as objectives
from dmvi._calibrate import calibrate as calibrate
from dmvi._errors import InputError as InputError
from dmvi._fit import fit as fit
from dmvi._fit_many import FailedFit as FailedFit
from dmvi._fit_many import fit_many as fit_many
from dmvi._load import load as load
from dmvi._resume import resume as resume
from dmvi._run import Status as Status
from dmvi.calibration import Calibration as Calibration
from dmvi.diffusion import MLP as MLP
from dmvi.diffusion import CosineSchedule as CosineSchedule
from dmvi.diffusion import LinearSchedule as LinearSchedule
from dmvi.diffusion import Projected as Projected
from dmvi.diffusion import SparseBends as SparseBends
from dmvi.diffusion import Stacked as Stacked
from dmvi.diffusion import Triangular as Triangular
from dmvi.guides import ChainGuide as ChainGuide
from dmvi.guides import DiffusionGuide as DiffusionGuide
from dmvi.guides import FlowGuide as FlowGuide
from dmvi.guides import GaussianGuide as GaussianGuide
from dmvi.guides import Guide as Guide
from dmvi.guides import PaperGuide as PaperGuide
from dmvi.posterior import Posterior as Posterior
from dmvi.posterior import StoredPosterior as StoredPosterior
from dmvi.posterior import compare as compare
from dmvi.targets import Target as Target

__version__ = "0.1.0"
