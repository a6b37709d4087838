"""Calibration: ranks of the truth among draws, whether they are uniform, and what that says."""

from dmvi.calibration._calibration import Calibration as Calibration
from dmvi.calibration._calibration import SiteVerdict as SiteVerdict
from dmvi.calibration._ranks import rank_of as rank_of
from dmvi.calibration._ranks import scalar_names as scalar_names
from dmvi.calibration._uniformity import Bands as Bands
from dmvi.calibration._uniformity import simultaneous_bands as simultaneous_bands
from dmvi.calibration._uniformity import uniformity as uniformity
