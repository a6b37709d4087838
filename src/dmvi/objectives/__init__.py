"""What training minimises."""

from dmvi.objectives._objective import ELBO as ELBO
from dmvi.objectives._objective import CoveringELBO as CoveringELBO
from dmvi.objectives._objective import Objective as Objective
from dmvi.objectives._objective import PathELBO as PathELBO
from dmvi.objectives._objective import Value as Value
