"""When training has reached its plateau."""

from dataclasses import dataclass, field

import numpy as np

TOLERANCE = 0.01  # nats
PATIENCE = 2  # looks


@dataclass
class Plateau:
    """Watches the fresh-draw ELBO between chunks.

    The plateau is reached when the mean of the last PATIENCE looks is no better than the mean of the
    PATIENCE before by more than TOLERANCE nats and the noise of the two means.
    """

    elbos: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def reached(self, elbo: float, error: float) -> bool:
        """Record one look; True once the plateau is reached."""
        self.elbos.append(elbo)
        self.errors.append(error)
        if len(self.elbos) < 2 * PATIENCE:
            return False
        recent, before = self.elbos[-PATIENCE:], self.elbos[-2 * PATIENCE : -PATIENCE]
        noise = np.sqrt(np.mean(np.square(self.errors[-2 * PATIENCE :])) * 2 / PATIENCE)
        return bool(np.mean(recent) - np.mean(before) < max(TOLERANCE, noise))
