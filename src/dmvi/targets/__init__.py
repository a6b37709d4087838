"""Any model becomes one Target."""

from dmvi.targets._bridgestan import from_bridgestan as from_bridgestan
from dmvi.targets._dispatch import as_target as as_target
from dmvi.targets._external import from_value_and_grad as from_value_and_grad
from dmvi.targets._family import Family as Family
from dmvi.targets._family import family as family
from dmvi.targets._jax import from_log_density as from_log_density
from dmvi.targets._jax import read_point as read_point
from dmvi.targets._numpyro import from_numpyro as from_numpyro
from dmvi.targets._rows import TABLES as TABLES
from dmvi.targets._simulate import Simulator as Simulator
from dmvi.targets._simulate import latents_of as latents_of
from dmvi.targets._simulate import log_joint as log_joint
from dmvi.targets._simulate import read_simulator as read_simulator
from dmvi.targets._simulate import seen_twice as seen_twice
from dmvi.targets._stream import Derivatives as Derivatives
from dmvi.targets._stream import Stream as Stream
from dmvi.targets._stream import anchored_at as anchored_at
from dmvi.targets._stream import from_rows as from_rows
from dmvi.targets._stream import prior_target as prior_target
from dmvi.targets._target import Batch as Batch
from dmvi.targets._target import Target as Target
