"""dmvi demo, its fits and its NUTS run replaced by known draws."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from typer.testing import CliRunner

from dmvi.cli import _demo
from dmvi.cli._app import app
from dmvi.cli._eight_schools import SIGMA, Y
from dmvi.guides import Draw, Guide
from dmvi.posterior import Posterior
from dmvi.targets import Target
from tests.posterior.gaussians import a_run


class Normal(Guide):
    """q = N(0, scale^2 I) in ten dimensions."""

    dim: int
    scale: float

    def draw(self, key):
        xi = self.sample(key)
        return Draw(xi, self.evidence(xi), xi / self.scale)

    def draw_path(self, key, far=None):
        raise NotImplementedError("nothing here is trained")

    def sample(self, key, shape=()):
        return self.scale * jax.random.normal(key, (*shape, 10))

    def evidence(self, xi, key=None):
        return norm.logpdf(xi, 0.0, self.scale).sum()


def ten_dimensions() -> Target:
    return Target(
        dim=10,
        names=("mu", "tau", *(f"theta[{j}]" for j in range(8))),
        params={},
        observed={},
        dims={},
        data_size=None,
        subsampled=False,
        _log_density=lambda xi, params, batch: norm.logpdf(xi).sum() - 31.4,
        _constrain=lambda xi, params: {"mu": xi[0], "tau": jnp.exp(xi[1]), "theta": xi[2:]},
        _constrain_params=lambda params: {},
        _log_likelihood=lambda xi, params: {},
        _start=lambda key: jnp.zeros(10),
        _draw_batch=lambda key: None,
    )


@pytest.fixture(scope="module")
def posteriors() -> dict[str, Posterior]:
    scales = {"auto": 1.0, "full-rank": 1.1, "mean-field": 1.2}
    target = ten_dimensions()
    return {
        guide: Posterior(target, Normal(10, scale), a_run(), jax.random.key(1))
        for guide, scale in scales.items()
    }


@pytest.fixture
def calls(monkeypatch, tmp_path, posteriors):
    """The guides asked for, while fits and NUTS are replaced."""
    guides = []

    def fit(model, *, data, guide, seed, progress):
        guides.append((guide, seed, progress))
        np.testing.assert_array_equal(data["y"], Y)
        return posteriors[guide]

    rng = np.random.default_rng(0)
    draws = {"mu": rng.normal(size=(4, 1000)), "theta": rng.normal(size=(4, 1000, 8))}
    draws["tau"] = np.exp(rng.normal(size=(4, 1000)))
    monkeypatch.setattr(_demo, "fit", fit)
    monkeypatch.setattr(_demo, "run_nuts", lambda model, key: _demo.Chains(draws, divergences=17))
    monkeypatch.chdir(tmp_path)
    return guides


def row(output: str, method: str) -> list[str]:
    return next(line.split() for line in output.splitlines() if line.startswith(f"{method}  "))


def test_the_table_compares_every_method_with_the_evidence(calls):
    result = CliRunner().invoke(app, ["demo", "--seed", "4"])
    assert result.exit_code == 0, result.output
    assert calls == [("auto", 4, True), ("full-rank", 4, False), ("mean-field", 4, False)]
    header = row(result.stdout, "method")
    assert header == ["method", "ELBO", "gap", "k-hat", "ESS", "seconds"]
    assert float(row(result.stdout, "diffusion")[1]) == pytest.approx(-31.4, abs=1e-3)
    assert float(row(result.stdout, "diffusion")[2]) == pytest.approx(0.0, abs=1e-3)
    # KL of a Gaussian stretched by s: 10 (s^2 - 1 - 2 log s) / 2.
    assert float(row(result.stdout, "full-rank")[2]) == pytest.approx(
        5 * (1.21 - 1 - 2 * np.log(1.1)), abs=0.02
    )
    assert float(row(result.stdout, "mean-field")[2]) == pytest.approx(
        5 * (1.44 - 1 - 2 * np.log(1.2)), abs=0.04
    )
    nuts = row(result.stdout, "NUTS, centred")
    assert row(result.stdout, "NUTS, non-centred")[2:5] == ["-", "-", "-"]
    assert nuts[2:5] == ["-", "-", "-"]
    assert float(nuts[5].rstrip("*")) == pytest.approx(1.0, abs=0.2)
    assert "17 of them diverged" in " ".join(result.stdout.split())
    assert "theta[7]" in result.stdout
    assert "Trust these draws" in result.stdout


def test_the_figures_are_written_and_not_overwritten_without_force(calls):
    assert CliRunner().invoke(app, ["demo", "--out", "pictures/here"]).exit_code == 0
    assert sorted(os.listdir("pictures/here")) == ["marginals.png", "plane.png"]
    for name in ("marginals.png", "plane.png"):
        with open(f"pictures/here/{name}", "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    calls.clear()
    again = CliRunner().invoke(app, ["demo", "--out", "pictures/here"])
    assert (again.exit_code, calls) == (2, [])
    assert "--force" in again.stderr
    assert CliRunner().invoke(app, ["demo", "--out", "pictures/here", "--force"]).exit_code == 0


def test_a_file_in_the_place_of_the_folder_is_refused_before_fitting(calls, tmp_path):
    (tmp_path / "demo").write_text("not a folder")
    result = CliRunner().invoke(app, ["demo"])
    assert (result.exit_code, calls) == (2, [])
    assert "folder" in result.stderr


def test_ess_of_nuts_is_the_smallest_of_all_scalars():
    rng = np.random.default_rng(1)
    walk = np.zeros((4, 2000))
    for t in range(1, 2000):  # autoregression of 0.9: ESS share (1 - 0.9) / (1 + 0.9)
        walk[:, t] = 0.9 * walk[:, t - 1] + rng.normal(size=4)
    chains = _demo.Chains({"x": rng.normal(size=(4, 2000, 3)), "slow": walk}, divergences=0)
    assert chains.ess == pytest.approx(0.1 / 1.9, rel=0.35)


def test_eight_schools_is_the_published_data():
    assert Y.tolist() == [28, 8, -3, 7, -1, 1, 18, 12]
    assert SIGMA.tolist() == [15, 10, 16, 11, 9, 11, 10, 18]
