"""The references of the scale benchmark are what they claim to be."""

import numpy as np

from benchmarks import rows


def test_files_and_laplace(tmp_path):
    paths = rows.write_logistic(tmp_path, 2_000)
    x, y = (np.concatenate(parts) for parts in zip(*rows.blocks(paths), strict=True))
    np.testing.assert_array_equal(x, np.load(paths[0]))
    np.testing.assert_array_equal(y, np.load(paths[1]))
    mode, sd = rows.logistic_laplace(paths)
    p = 1 / (1 + np.exp(-x.astype(float) @ mode))
    np.testing.assert_allclose(x.T @ (y - p) - mode, 0, atol=1e-3)
    precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(rows.COEFFICIENTS)
    np.testing.assert_allclose(sd, np.sqrt(np.diagonal(np.linalg.inv(precision))), rtol=1e-4)
    assert rows.numpy_pass(paths) > 0


def test_the_exact_groups_agree_with_a_gibbs_sampler(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "GROUPS", 100)
    paths = rows.write_groups(tmp_path, 6_000)
    mean, sd = rows.groups_exact(paths)
    g, y = np.load(paths[0]), np.load(paths[1])
    n, k = np.bincount(g, minlength=100), np.bincount(g, y, 100)
    rng = np.random.default_rng(0)
    grid, scales = np.linspace(-1.5, 4.0, 401), np.linspace(0.1, 1.2, 400)
    likelihood = k[:, None] * grid - n[:, None] * np.logaddexp(0.0, grid)
    likelihood -= likelihood.max(axis=1, keepdims=True)
    mu, tau, draws = 1.0, 0.5, []
    for _ in range(3_000):
        mass = np.cumsum(np.exp(likelihood - 0.5 * ((grid - mu) / tau) ** 2), axis=1)
        chosen = np.sum(mass < rng.uniform(size=(100, 1)) * mass[:, -1:], axis=1)
        theta = grid[chosen]
        precision = 100 / tau**2 + 1 / 4
        mu = rng.normal(theta.sum() / tau**2 / precision, precision**-0.5)
        log_tau = -100 * np.log(scales) - 0.5 * np.sum((theta - mu) ** 2) / scales**2 - scales**2 / 2
        tau = rng.choice(scales, p=np.exp(log_tau - log_tau.max()) / np.exp(log_tau - log_tau.max()).sum())
        draws.append(theta)
    found = np.array(draws[100:])
    assert np.max(np.abs(found.mean(0) - mean) / sd) < 0.12
    np.testing.assert_allclose(found.std(0), sd, rtol=0.08)
