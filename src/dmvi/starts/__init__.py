"""Warm starts: from a target to a Gaussian in whose coordinates guides are trained."""

from dmvi.starts._warm_start import WarmStart as WarmStart
from dmvi.starts._warm_start import cold_start as cold_start
from dmvi.starts._warm_start import warm_start as warm_start
