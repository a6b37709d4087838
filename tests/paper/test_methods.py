"""Methods from data to draws, where the exact posterior says what they should be."""

import numpy as np
import pytest

from dmvi.paper import METHODS, _methods, data_set, paper_model
from dmvi.paper._cells import Job
from dmvi.paper._methods import DRAWS, _sites, apply
from dmvi.paper._work import run_job


def test_names_and_configurations():
    assert [method.configuration for method in METHODS.values() if method.configuration] == [
        (d, s, o) for d in (50, 100) for s in (10, 20) for o in (1, 3)
    ]
    assert all(name == method.name for name, method in METHODS.items())


def test_sites_at_the_truth():
    for name in ("mixture", "hierarchical_5"):
        model = paper_model(name, "code")
        truth = data_set(model, 10, 0, None).truth
        sites = {site: value[None] for site, value in _sites(model, truth).items()}
        np.testing.assert_allclose(model.coordinates(sites)[0], truth, atol=1e-4)


@pytest.mark.parametrize(("limit", "longer"), [(np.inf, 1), pytest.param(0.0, 16, marks=pytest.mark.slow)])
def test_chains_that_do_not_agree_are_run_longer_and_thinned(monkeypatch, limit, longer):
    for name, value in {"DRAWS": 400, "WARM_UP": 50, "AGREEMENT": limit}.items():
        monkeypatch.setattr(_methods, name, value)
    model = paper_model("mean", "printed")
    (fitted,) = apply(METHODS["nuts"], model, [data_set(model, 20, 0, None)], [0])
    assert fitted.steps == 50 + longer * 100
    assert fitted.u.shape == (400, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nuts", "advi"])
def test_the_mean_model_is_met(name):
    """Gaussian and without correlations: NUTS and mean-field ADVI both have to be right."""
    (cell,) = run_job(Job("mean", "printed", 40, name, (3,), None), {})
    row = cell["row"]
    assert abs(row["mse_ratio"] - 1) < 0.1
    assert row["wasserstein_max"] < 0.1
    if name == "advi":
        assert abs(row["elbo"] - row["reference_log_evidence"]) < 0.02
        assert row["verdict"] == "trust"
    else:
        assert row["elbo"] is None
        assert "reference" not in cell  # there is an exact one


@pytest.mark.slow
def test_the_mixture_has_nuts_for_its_reference():
    job = Job("mixture", "code", 100, "nuts", (0,), None)
    (cell,) = run_job(job, {})
    assert cell["row"]["mse_ratio"] == 1.0
    assert cell["row"]["wasserstein_max"] < 1e-6
    other = Job("mixture", "code", 100, "full-rank", (0,), None)
    (fitted,) = run_job(other, {job.key(0): cell["reference"]})
    assert fitted["row"]["reference"] == "nuts"
    assert fitted["row"]["reference_mse"] == cell["row"]["mse_labelled"]


@pytest.mark.slow
def test_ours_on_a_hierarchy():
    model = paper_model("hierarchical_4", "printed")
    data = data_set(model, 100, 0, None)
    (fitted,) = apply(METHODS["diffusion"], model, [data], [0])
    assert fitted.u.shape == (DRAWS, len(model.names))
    (cell,) = run_job(Job("hierarchical_4", "printed", 100, "diffusion", (0,), None), {})
    assert abs(cell["row"]["mse_ratio"] - 1) < 0.1
    assert cell["row"]["wasserstein_max"] < 0.1
