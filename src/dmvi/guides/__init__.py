"""q: variational families with a density."""

from dmvi.guides._affine import Affine as Affine
from dmvi.guides._affine import anchored as anchored
from dmvi.guides._chain import Chain as Chain
from dmvi.guides._chain import ChainGuide as ChainGuide
from dmvi.guides._diffusion import Diffusion as Diffusion
from dmvi.guides._diffusion import DiffusionGuide as DiffusionGuide
from dmvi.guides._gaussian import Gaussian as Gaussian
from dmvi.guides._gaussian import GaussianGuide as GaussianGuide
from dmvi.guides._guide import Draw as Draw
from dmvi.guides._guide import Guide as Guide
from dmvi.guides._guide import GuideRecipe as GuideRecipe
