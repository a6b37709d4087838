"""What a diffusion is: score networks, solver steps, flows from noise to the posterior."""

from dmvi.diffusion._bends import SparseBends as SparseBends
from dmvi.diffusion._bends import SparseBendsFlow as SparseBendsFlow
from dmvi.diffusion._chain import ReverseChain as ReverseChain
from dmvi.diffusion._chain import build_chain as build_chain
from dmvi.diffusion._dpm_solver import GRIDS as GRIDS
from dmvi.diffusion._dpm_solver import NoiseModel as NoiseModel
from dmvi.diffusion._dpm_solver import SolverFlow as SolverFlow
from dmvi.diffusion._flow import TAU_MAX as TAU_MAX
from dmvi.diffusion._flow import Flow as Flow
from dmvi.diffusion._flow import FlowRecipe as FlowRecipe
from dmvi.diffusion._flow import FlowSequence as FlowSequence
from dmvi.diffusion._flow import Stacked as Stacked
from dmvi.diffusion._networks import MLP as MLP
from dmvi.diffusion._networks import ScoreNetwork as ScoreNetwork
from dmvi.diffusion._networks import as_score_network as as_score_network
from dmvi.diffusion._noise_model import NoiseMLP as NoiseMLP
from dmvi.diffusion._projected import Projected as Projected
from dmvi.diffusion._projected import ProjectedFlow as ProjectedFlow
from dmvi.diffusion._schedules import CosineSchedule as CosineSchedule
from dmvi.diffusion._schedules import LinearSchedule as LinearSchedule
from dmvi.diffusion._schedules import NoiseSchedule as NoiseSchedule
from dmvi.diffusion._solver import ORDERS as ORDERS
from dmvi.diffusion._solver import NetworkFlow as NetworkFlow
from dmvi.diffusion._triangle import lower_inverse as lower_inverse
from dmvi.diffusion._triangular import Triangular as Triangular
from dmvi.diffusion._triangular import TriangularFlow as TriangularFlow
