r"""DPM-Solver of orders 1 to 3 with any score network and an exact density.

With the linear part solved exactly, DPM-Solver of order p is the p-th order explicit Runge-Kutta
method of du/dtau = r(u, tau), from tau down to tau - delta:

    order 1   u' = u - delta r(u, tau)
    order 2   u' = u - delta r(u - delta/2 k_1, tau - delta/2)
    order 3   u' = u - delta (2 k_1 + 3 k_2 + 4 k_3) / 9

(order 3 is Ralston's). The d x d Jacobian of the step comes from forward mode: no constraint on the
network, O(d^3) a step.
"""

import equinox as eqx

from dmvi.diffusion._jacobian import JacobianFlow
from dmvi.diffusion._networks import ScoreNetwork

ORDERS = (1, 2, 3)


class NetworkFlow(JacobianFlow):
    """Solver steps of a given order through a score network."""

    network: ScoreNetwork
    steps: int = eqx.field(static=True)
    order: int = eqx.field(static=True)

    @property
    def may_drop(self) -> bool:
        return True

    def straighter(self, share):
        return eqx.tree_at(lambda flow: flow.network, self, self.network.straighter(share))

    def knots(self):
        return self.taus()

    def step(self, knot, u, key=None):
        tau, delta = knot, self.delta

        def slope(u, tau):
            return self.network(u, tau, key)

        k1 = slope(u, tau)
        if self.order == 1:
            return u - delta * k1
        if self.order == 2:
            return u - delta * slope(u - 0.5 * delta * k1, tau - 0.5 * delta)
        k2 = slope(u - 0.5 * delta * k1, tau - 0.5 * delta)
        k3 = slope(u - 0.75 * delta * k2, tau - 0.75 * delta)
        return u - delta * (2 * k1 + 3 * k2 + 4 * k3) / 9
