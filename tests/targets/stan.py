"""BridgeStan's documented interface without BridgeStan, which fetches sources when it compiles a model."""

import numpy as np


class FakeStan:
    """An object with BridgeStan's documented interface.

    The model is mu ~ N(0, 1); vector<lower=0>[2] s, each log s ~ N(mu, 1) with density in s; tau = s[1] s[2]
    as transformed parameter; matrix[2, 2] m as generated quantity, in Stan's column-major order.
    """

    def __init__(self):
        self.rngs = 0

    def param_unc_num(self):
        return 3

    def param_unc_names(self):
        return ["mu", "s.1", "s.2"]

    def param_names(self, *, include_tp=False, include_gq=False):
        assert include_tp
        assert include_gq
        return ["mu", "s.1", "s.2", "tau", "m.1.1", "m.2.1", "m.1.2", "m.2.2"]

    def param_constrain(self, theta_unc, *, include_tp=False, include_gq=False, out=None, rng=None):
        assert rng == "generator"
        mu, a, b = theta_unc
        return np.array([mu, np.exp(a), np.exp(b), np.exp(a + b), mu + 11, mu + 21, mu + 12, mu + 22])

    def new_rng(self, seed):
        return "generator"

    def log_density_gradient(self, theta_unc, *, propto=True, jacobian=True, out=None):
        assert not propto
        assert jacobian
        if np.abs(theta_unc).max() > 50:
            raise RuntimeError("rejected")
        mu, s = theta_unc[0], theta_unc[1:]
        value = -0.5 * mu**2 - 0.5 * ((s - mu) ** 2).sum() - 1.5 * np.log(2 * np.pi)
        return value, np.concatenate([[-mu + (s - mu).sum()], mu - s])
