"""The models: their densities against SciPy, their simulated data, the coordinates of the metric."""

import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy.special import logsumexp
from scipy.stats import dirichlet, halfnorm, norm

from dmvi import InputError
from dmvi.paper import MODELS, data_set, paper_model
from dmvi.paper._models import HIERARCHIES, POSITIVE, fixed_path, simulate, softplus_inverse

ROWS = 7


def hierarchy_by_hand(name: str, sites: dict, y: np.ndarray) -> float:
    """log p(y, theta) with the equations of the paper's appendix, one by one."""
    mu = sites.get("gamma_loc", 0.0)
    g, b, s = (sites.get(scale, 1.0) for scale in ("gamma_scale", "beta_scale", "scale"))
    total = norm.logpdf(mu) if "gamma_loc" in sites else 0.0
    total += sum(halfnorm.logpdf(sites[scale]) for scale in POSITIVE if scale in sites)
    total += norm.logpdf(sites["gamma"], mu, g).sum()
    per_group = 2 if name == "hierarchical_5" else 5
    for j, beta in enumerate(sites["beta"]):
        total += norm.logpdf(beta, sites["gamma"][j // per_group], b) + norm.logpdf(y[:, j], beta, s).sum()
    return total


def mixture_by_hand(variant: str, sites: dict, y: np.ndarray) -> float:
    centre = np.array([-1.0, 0.0, 1.0])[:, None] if variant == "code" else 0.0
    total = norm.logpdf(sites["loc"], centre).sum() + halfnorm.logpdf(sites["scale"]).sum()
    weights = sites.get("weights", np.full(3, 1 / 3))
    if variant == "printed":
        total += dirichlet.logpdf(weights, np.ones(3))
    parts = norm.logpdf(y[:, None], sites["loc"][None], sites["scale"][None]).sum(-1) + np.log(weights)[None]
    return total + logsumexp(parts, axis=1).sum()


def some_sites(model, rng) -> dict:
    sites = {
        name: np.abs(rng.normal(size=shape)) + 0.3 if name in POSITIVE else rng.normal(size=shape)
        for name, shape in model.shapes.items()
    }
    if model.name == "mixture" and model.variant == "printed":
        sites["weights"] = np.array([0.2, 0.5, 0.3])
    return sites


@pytest.mark.parametrize("variant", ["printed", "code"])
@pytest.mark.parametrize("name", MODELS)
def test_density(name, variant):
    model, rng = paper_model(name, variant), np.random.default_rng(0)
    sites = some_sites(model, rng)
    y = rng.normal(size=(ROWS, {"mean": 5, "mixture": 2}.get(name, 10)))
    if name == "mean":
        expected = norm.logpdf(sites["loc"]).sum() + norm.logpdf(y, sites["loc"][None]).sum()
    elif name == "mixture":
        expected = mixture_by_hand(variant, sites, y)
    else:
        expected = hierarchy_by_hand(name, sites, y)
    values = {site: np.asarray(value, np.float32) for site, value in sites.items()}
    found, _ = log_density(model.program, (y.astype(np.float32),), {}, values)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_replicates_have_their_own_data_and_truth(name):
    model = paper_model(name, "printed")
    first, again, other = (data_set(model, ROWS, replicate, None) for replicate in (0, 0, 1))
    np.testing.assert_array_equal(first.y, again.y)
    assert np.abs(first.y - other.y).min() > 0
    assert np.abs(first.truth - other.truth).min() > 0
    assert first.truth.shape == (len(model.names),)


@pytest.mark.parametrize("variant", ["printed", "code"])
def test_noise_of_simulated_data(variant):
    """As printed it has the scale that was drawn; in the code it has scale 1 whatever was drawn."""
    model, n = paper_model("hierarchical_1", variant), 4000
    data = simulate(model, n, 3)
    sites = dict(zip(model.names, data.truth, strict=True))
    scale = 1.0 if variant == "code" else np.logaddexp(0, sites["scale"])
    residuals = (data.y - data.truth[None, :10]) / scale
    assert abs(np.logaddexp(0, sites["scale"]) - 1) > 0.2
    assert abs(residuals.std() - 1) < 5 / np.sqrt(2 * 10 * n)
    assert np.abs(residuals.mean(0)).max() < 5 / np.sqrt(n)


def test_groups_are_contiguous():
    """beta_j stands below gamma_{j // per_group}: with a vast gap between groups the data show it."""
    for name, has in HIERARCHIES.items():
        model = paper_model(name, "printed")
        sites = {"gamma": 1000.0 * np.arange(has.groups), "gamma_loc": 0.0, "gamma_scale": 1000.0}
        near = np.repeat(sites["gamma"], has.per_group)
        values = {"beta": near, "gamma": sites["gamma"]} | {
            site: np.float32(1000.0 if site == "gamma_scale" else 1.0)
            for site in model.shapes
            if site not in ("beta", "gamma")
        }
        y = near[None].astype(np.float32)
        right, _ = log_density(model.program, (y,), {}, values)
        wrong, _ = log_density(model.program, (y,), {}, values | {"gamma": sites["gamma"][::-1].copy()})
        assert right > wrong + 1e4


def test_coordinates_of_the_metric():
    model = paper_model("hierarchical_5", "printed")
    sites = {site: np.full((3, *shape), 2.0) for site, shape in model.shapes.items()}
    u = model.coordinates(sites)
    at = [model.names.index(name) for name in ("beta[0]", "beta_scale", "gamma[4]", "gamma_scale")]
    np.testing.assert_allclose(u[0, at], [2.0, np.log(np.expm1(2.0)), 2.0, np.log(np.expm1(2.0))])
    x = np.array([1e-8, 0.1, 3.0, 50.0])
    np.testing.assert_allclose(np.logaddexp(0, softplus_inverse(x)), x, rtol=1e-7)
    assert np.isfinite(softplus_inverse(np.zeros(1))).all()


def test_fixed_data(tmp_path):
    model = paper_model("hierarchical_4", "code")
    path = fixed_path("hierarchical_4", 6, tmp_path)
    assert path.name == "hierarchical_model_4_6.npz"
    assert fixed_path("mean", 100, tmp_path).name == "mean_model_100.npz"
    y, truth = np.ones((6, 10), np.float32), np.zeros(len(model.names))
    np.savez(path, y=y, truth_u=truth)
    for replicate in (0, 1):
        np.testing.assert_array_equal(data_set(model, 6, replicate, tmp_path).y, y)
    with pytest.raises(InputError, match=r"hierarchical_model_4_7\.npz"):
        data_set(model, 7, 0, tmp_path)
    np.savez(path, y=y[:5], truth_u=truth)
    with pytest.raises(InputError, match=r"\(6, 10\)"):
        data_set(model, 6, 0, tmp_path)
    np.savez(path, y=y * np.nan, truth_u=truth)
    with pytest.raises(InputError, match="finite"):
        data_set(model, 6, 0, tmp_path)
    np.savez(path, y=y)
    with pytest.raises(InputError, match="truth_u"):
        data_set(model, 6, 0, tmp_path)


def test_names_that_do_not_exist():
    with pytest.raises(InputError, match="hierarchical_1"):
        paper_model("hierarchical", "printed")
    with pytest.raises(InputError, match="printed"):
        paper_model("mean", "as printed")
