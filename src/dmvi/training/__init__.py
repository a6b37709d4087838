"""The loop that fits a guide to a target."""

from dmvi.training._chunks import Outcome as Outcome
from dmvi.training._chunks import filled as filled
from dmvi.training._chunks import follow as follow
from dmvi.training._chunks import leaves_of as leaves_of
from dmvi.training._course import Budget as Budget
from dmvi.training._course import Course as Course
from dmvi.training._course import Kept as Kept
from dmvi.training._lanes import LaneOutcome as LaneOutcome
from dmvi.training._lanes import Lanes as Lanes
from dmvi.training._lanes import lanes_with_flat as lanes_with_flat
from dmvi.training._look import Look as Look
from dmvi.training._look import look_draws as look_draws
from dmvi.training._loop import Snapshot as Snapshot
from dmvi.training._loop import Trainer as Trainer
from dmvi.training._mesh import as_mesh as as_mesh
from dmvi.training._progress import Progress as Progress
from dmvi.training._progress import Silent as Silent
from dmvi.training._progress import progress_for as progress_for
from dmvi.training._state import Seen as Seen
from dmvi.training._state import Settings as Settings
from dmvi.training._state import State as State
from dmvi.training._state import Trained as Trained
from dmvi.training._state import default_optimizer as default_optimizer
from dmvi.training._state import initial_state as initial_state
from dmvi.training._state import run_chunk as run_chunk
