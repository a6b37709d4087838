"""What "auto" begins with, and how long a fit trains by default."""

from dataclasses import dataclass

from dmvi.diffusion import Projected, SparseBends, Stacked, Triangular
from dmvi.guides import DiffusionGuide


@dataclass(frozen=True)
class Thousands:
    """The default training where there are thousands of coordinates.

    The base there is a Gaussian of sparse precision or of low rank. What is left to gain is a few nats of
    thousands, most of it by the first hundreds of steps, and a step costs in proportion to the dimension. So
    all steps together cost about the same in any dimension: counted, not timed, as the same seed gives the
    same result.

    Attributes:
        above: dimensions.
        particles: of a step.
        coordinates: steps times dimension.
        fewest: steps in any dimension, as the rate takes a hundred to rise.
        chunk: steps from which a chunk's own draws tell its ELBO; fresh ones would cost as much as training.
    """

    above: int = 2000
    particles: int = 16
    coordinates: int = 2_400_000
    fewest: int = 120
    chunk: int = 120

    def steps(self, dim: int) -> int:
        """Steps at most in so many dimensions."""
        return max(self.coordinates // dim, self.fewest)


@dataclass(frozen=True)
class Choice:
    """What "auto" begins with, and how long a fit trains by default.

    Attributes:
        few: dimensions up to which a triangular step costs next to nothing.
        projected: projected steps above `few`.
        bends: steps of sparse bends after them.
        bends_of_many: the same above `several`; there a step would cost more than the model.
        several: dimensions from which the Gaussian leaves less to gain, and each step takes longer.
        steps: of a training, at most, up to `several` dimensions.
        steps_of_many: the same above.
        particles_few: dimensions up to which `particles` draws a step are enough.
        particles: draws of a step; what noise costs is in proportion to the weights, which are few here.
        particles_of_several: the same above, up to `several`.
        particles_of_many: the same above `several`.
        thousands: the training where there are thousands of coordinates.
    """

    few: int = 20
    projected: int = 4
    bends: int = 2
    bends_of_many: int = 1
    several: int = 200
    steps: int = 3600
    steps_of_many: int = 2400
    particles_few: int = 64
    particles: int = 32
    particles_of_several: int = 64
    particles_of_many: int = 48
    thousands: Thousands = Thousands()

    def guide(self, dim: int) -> DiffusionGuide:
        """The guide in so many dimensions."""
        if dim <= self.few:
            return DiffusionGuide(network=Stacked(Projected(), Triangular(), late_steps=1))
        late = self.bends if dim <= self.several else self.bends_of_many
        network = Stacked(Projected(), SparseBends(), late_steps=late)
        return DiffusionGuide(steps=self.projected + late, network=network)

    def most_steps(self, dim: int) -> int:
        """Steps of a training in so many dimensions."""
        if dim > self.thousands.above:
            return self.thousands.steps(dim)
        return self.steps if dim <= self.several else self.steps_of_many

    def draws(self, dim: int) -> int:
        """Draws of a step in so many dimensions."""
        if dim > self.thousands.above:
            return self.thousands.particles
        if dim <= self.particles_few:
            return self.particles
        return self.particles_of_several if dim <= self.several else self.particles_of_many


CHOICE = Choice()
