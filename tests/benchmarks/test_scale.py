"""The references of the scale benchmark are what they claim to be."""

import numpy as np
import pytest

from benchmarks import scale


def test_files_and_laplace(tmp_path):
    paths = scale.write_logistic(tmp_path, 2_000)
    x, y = (np.concatenate(parts) for parts in zip(*scale.blocks(paths), strict=True))
    np.testing.assert_array_equal(x, np.load(paths[0]))
    np.testing.assert_array_equal(y, np.load(paths[1]))
    mode, sd = scale.logistic_laplace(paths)
    p = 1 / (1 + np.exp(-x.astype(float) @ mode))
    np.testing.assert_allclose(x.T @ (y - p) - mode, 0, atol=1e-3)
    precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(scale.COEFFICIENTS)
    np.testing.assert_allclose(sd, np.sqrt(np.diagonal(np.linalg.inv(precision))), rtol=1e-4)
    assert scale.numpy_pass(paths) > 0


def test_the_exact_groups_agree_with_importance_sampling(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "GROUPS", 3)
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(3), 40)
    y = rng.normal(np.array([0.5, 1.0, 1.4])[g], 2.0)
    np.save(tmp_path / "g.npy", g)
    np.save(tmp_path / "y.npy", y)
    mean, sd = scale.groups_exact((tmp_path / "g.npy", tmp_path / "y.npy"))
    # The grid of the benchmark covers tau between 0.3 and 0.8, so draws of the prior are kept there too.
    tau = np.abs(rng.normal(size=4_000_000))
    tau = tau[(tau > 0.3) & (tau < 0.8)]
    theta = rng.normal(0, 2, tau.size)[:, None] + tau[:, None] * rng.normal(size=(tau.size, 3))
    means = np.bincount(g, y) / 40
    log_weights = -0.5 * np.sum((means - theta) ** 2 * 10, axis=1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    expected = weights @ theta
    np.testing.assert_allclose(mean, expected, atol=0.01)
    np.testing.assert_allclose(sd, np.sqrt(weights @ (theta - expected) ** 2), rtol=0.02)
    assert mean[0] == pytest.approx(expected[0], abs=0.01)
