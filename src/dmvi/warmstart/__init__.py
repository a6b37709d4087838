"""Warm starts: from a target to a Gaussian in whose coordinates guides are trained."""

from dmvi.warmstart._gaussians import overlapping_modes as overlapping_modes
from dmvi.warmstart._high_dimension import DENSE_DIMENSION as DENSE_DIMENSION
from dmvi.warmstart._high_dimension import high_dimensional_start as high_dimensional_start
from dmvi.warmstart._many import START_NAMES as START_NAMES
from dmvi.warmstart._many import WarmStarts as WarmStarts
from dmvi.warmstart._many import visited_by as visited_by
from dmvi.warmstart._many import warm_starts as warm_starts
from dmvi.warmstart._residuals import with_drivers as with_drivers
from dmvi.warmstart._residuals import with_drivers_of_each as with_drivers_of_each
from dmvi.warmstart._sparse_precision import sparse_gaussian as sparse_gaussian
from dmvi.warmstart._streamed import streamed_start as streamed_start
from dmvi.warmstart._warm_start import WarmStart as WarmStart
from dmvi.warmstart._warm_start import cold_start as cold_start
from dmvi.warmstart._warm_start import warm_start as warm_start
from dmvi.warmstart._whitening import whitened_locally as whitened_locally
