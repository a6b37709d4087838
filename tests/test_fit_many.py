"""Many fits at once: each is the fit of its own data set."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dmvi
from dmvi._many_block import ROUND_LOOKS
from dmvi.posterior import Verdict
from dmvi.targets import as_target, family
from dmvi.training import Lanes
from dmvi.warmstart._many import climb
from tests.targets.models import SIGMA, Y, eight_schools

SETS, ROWS = 7, 5
DATA = np.random.default_rng(3).normal(2.0, 1.5, (SETS, ROWS))
STEPS = 160


def mean_model(y, scale=1.0):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    numpyro.sample("y", dist.Normal(mu, scale).expand([len(y)]).to_event(1), obs=y)


def mean_log_density(mu, y):
    return -0.5 * mu**2 / 4 - 0.5 * jnp.sum((y - mu) ** 2)


def exact(y: np.ndarray) -> tuple[float, float, float]:
    """Mean, sd and log evidence of mu ~ N(0, 2^2), y_i ~ N(mu, 1)."""
    precision = 1 / 4 + y.size
    covariance = np.eye(y.size) + 4.0
    log_evidence = -0.5 * (
        y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1] + y.size * np.log(2 * np.pi)
    )
    return y.sum() / precision, precision**-0.5, log_evidence


@pytest.fixture(scope="module")
def posteriors():
    return dmvi.fit_many(mean_model, {"y": DATA}, guide="full-rank", steps=STEPS, progress=False)


def test_every_posterior_is_that_of_its_own_data(posteriors):
    assert len(posteriors) == SETS
    for y, posterior in zip(DATA, posteriors, strict=True):
        mean, sd, log_evidence = exact(y)
        draws = posterior.sample(4000)["mu"]
        assert draws.mean() == pytest.approx(mean, abs=5 * sd / np.sqrt(4000))
        assert draws.std() == pytest.approx(sd, rel=0.06)
        assert posterior.diagnostics.log_evidence == pytest.approx(log_evidence, abs=0.02)
        assert posterior.diagnostics.gap < 0.01
        np.testing.assert_array_equal(posterior.observed["y"], y.astype(np.float32))


def test_posteriors_share_their_compiled_programs():
    traces = []

    def counted(mu, y):
        traces.append(None)
        return mean_log_density(mu, y)

    first, second, *_ = dmvi.fit_many(counted, DATA, init=0.0, guide="full-rank", steps=STEPS, progress=False)
    assert first.diagnostics.gap < 0.01
    first.sample(10)
    before = len(traces)
    assert second.diagnostics.gap < 0.01
    second.sample(10)
    assert len(traces) == before
    assert first.sample(10)["x"].shape == (10,)


def test_seed_and_order_decide_the_result(posteriors):
    again = dmvi.fit_many(
        mean_model, [{"y": y} for y in DATA], guide="full-rank", steps=STEPS, progress=False
    )
    for one, other in zip(posteriors, again, strict=True):
        np.testing.assert_array_equal(one.sample(20)["mu"], other.sample(20)["mu"])
    assert [posterior.run.seed for posterior in posteriors] == list(range(SETS))


def test_a_bad_data_set_fails_alone():
    data = DATA.copy()
    data[2, 1] = np.nan
    with pytest.warns(UserWarning, match=r"1 of 7 fits failed.*data set 2.*1 NaN"):
        found = dmvi.fit_many(mean_model, {"y": data}, guide="full-rank", steps=STEPS, progress=False)
    assert [bool(posterior) for posterior in found] == [i != 2 for i in range(SETS)]
    assert isinstance(found[2], dmvi.FailedFit)
    assert found[3].sample(4000)["mu"].mean() == pytest.approx(exact(DATA[3])[0], abs=0.05)


def test_a_guide_without_density_fails_unless_its_objective_is_no_bound(monkeypatch):
    """The paper's guide folds, and its draws are what was asked for."""
    nothing = lambda flats, trained, targets, keys, draws: np.full((len(flats), draws), np.nan)  # noqa: E731
    monkeypatch.setattr("dmvi.training._lanes.lanes_look", nothing)
    for guide, kind in (("full-rank", dmvi.FailedFit), (dmvi.PaperGuide(steps=2, width=4), dmvi.Posterior)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = dmvi.fit_many(mean_model, {"y": DATA[:3]}, guide=guide, steps=20, progress=False)
        assert [type(one) for one in found] == [kind] * 3


def test_only_bad_data_sets():
    with pytest.warns(UserWarning, match="2 of 2 fits failed"):
        found = dmvi.fit_many(mean_model, {"y": np.full((2, 3), np.nan)}, progress=False)
    assert not any(found)


def test_members_of_a_family_are_the_targets_of_their_data():
    ys = np.stack([Y, Y + 1])
    members = family(eight_schools, {"y": ys}, shared={"sigma": SIGMA}).targets
    xi = jnp.linspace(-1, 1, 10)
    for y, member in zip(ys, members, strict=True):
        alone = as_target(eight_schools, data={"y": y, "sigma": SIGMA})
        assert member.names == alone.names
        assert member.log_density(xi) == pytest.approx(float(alone.log_density(xi)), rel=1e-6)
        for name, value in alone.constrain(xi).items():
            np.testing.assert_allclose(member.constrain(xi)[name], value, rtol=1e-6)
        np.testing.assert_allclose(member.log_likelihood(xi)["y"], alone.log_likelihood(xi)["y"], rtol=1e-5)
        np.testing.assert_array_equal(member.constant["sigma"], alone.constant["sigma"])
    assert jax.tree.structure(members[0].shared()) == jax.tree.structure(members[1].shared())


def test_predictions_and_files_know_their_data_set(posteriors, tmp_path):
    drawn = posteriors[1].predictive(n=2000)["y"]
    assert drawn.shape == (2000, ROWS)
    assert drawn.mean() == pytest.approx(exact(DATA[1])[0], abs=0.1)
    path = posteriors[1].save(tmp_path / "one.dmvi", n=100)
    loaded = dmvi.load(path, mean_model, data={"y": DATA[1]})
    np.testing.assert_array_equal(loaded.sample(20)["mu"], posteriors[1].sample(20)["mu"])
    with pytest.raises(dmvi.InputError, match="log-density"):
        dmvi.load(path, mean_model, data={"y": DATA[2]})


@pytest.mark.slow
def test_those_for_whom_a_short_training_is_not_enough_go_on():
    """Funnels of different depth: the deeper, the longer."""
    widths = np.array([0.1, 3.0])

    def funnel(x, width):
        v, z = x[0], x[1:]
        return -0.5 * (v / width) ** 2 - 0.5 * jnp.sum(z**2) * jnp.exp(-v) - z.size * v / 2

    found = dmvi.fit_many(funnel, widths, init=jnp.zeros(3), steps=1200, progress=False)
    for width, posterior in zip(widths, found, strict=True):
        log_z = np.log(width) + 1.5 * np.log(2 * np.pi)
        assert posterior.diagnostics.log_evidence == pytest.approx(log_z, abs=0.15)
        assert posterior.diagnostics.gap < 0.3
    assert found[0].run.steps < found[1].run.steps


def test_generative_parameters_are_learned_for_each():
    def model(y):
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        mu = numpyro.sample("mu", dist.Normal(0, 0.01))
        numpyro.sample("y", dist.Normal(mu, scale).expand([len(y)]).to_event(1), obs=y)

    data = np.stack([DATA.ravel(), 3 * DATA.ravel()])
    found = dmvi.fit_many(model, {"y": data}, guide="full-rank", steps=800, progress=False)
    for y, posterior in zip(data, found, strict=True):
        assert posterior.params["scale"] == pytest.approx(np.sqrt(np.mean(y**2)), rel=0.05)


@pytest.mark.parametrize(
    ("datasets", "shared", "message"),
    [
        ({"y": DATA, "scale": np.ones(SETS + 1)}, None, r"lengths \[7, 8\]"),
        ({"y": 3.0}, None, "first axis"),
        ([{"y": DATA[0]}, {"y": DATA[0][:2]}], None, "same shapes"),
        ([{"y": DATA[0]}, {"x": DATA[0]}], None, "number 1"),
        ({"y": DATA}, {"y": DATA[0]}, "give it once"),
        ({"z": DATA}, None, "no argument 'z'"),
        (DATA, None, "is a dict"),
        ({"y": DATA.astype(str)}, None, "numbers"),
    ],
)
def test_data_that_do_not_fit_are_refused(datasets, shared, message):
    with pytest.raises(dmvi.InputError, match=message):
        dmvi.fit_many(mean_model, datasets, shared=shared, progress=False)


def test_sizes_belong_in_shared():
    def model(n, y):
        mu = numpyro.sample("mu", dist.Normal(0, 2).expand([int(n)]).to_event(1))
        numpyro.sample("y", dist.Normal(mu.sum(), 1.0).expand([len(y)]).to_event(1), obs=y)

    with pytest.raises(dmvi.InputError, match="shared"):
        dmvi.fit_many(model, {"y": DATA, "n": np.full(SETS, 2)}, progress=False)
    targets = family(model, {"y": DATA}, shared={"n": 2}).targets
    assert targets[0].dim == 2


def test_a_dask_cluster_gives_the_same_posteriors():
    distributed = pytest.importorskip("dask.distributed")
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = dmvi.fit_many(
            mean_model, {"y": DATA}, guide="full-rank", steps=STEPS, progress=False, client=client
        )
    for y, posterior in zip(DATA, found, strict=True):
        assert posterior.sample(4000)["mu"].mean() == pytest.approx(exact(y)[0], abs=0.05)


def test_an_interruption_keeps_what_is_there(monkeypatch):
    """Three fits at a time: the first three are done, the next three in training, the last has not begun."""
    advance, chunks = Lanes._advance, []

    def interrupted(self):
        chunks.append(None)
        if len(chunks) == chunks_of_a_block + 2:
            raise KeyboardInterrupt
        advance(self)

    chunks_of_a_block = ROUND_LOOKS
    monkeypatch.setattr("dmvi._many_block.LANES_ON_CPU", 3)
    monkeypatch.setattr(Lanes, "_advance", interrupted)
    monkeypatch.setattr("dmvi.training._course.CLOSE", -1.0)  # else these Gaussians would be done at once
    found = dmvi.fit_many(mean_model, {"y": DATA}, guide="full-rank", steps=STEPS, progress=False)
    done = [posterior.run.status is not dmvi.Status.INTERRUPTED for posterior in found]
    assert done == [True] * 3 + [False] * 4
    assert [posterior.run.steps > 0 for posterior in found] == [True] * 6 + [False]
    for y, posterior in zip(DATA, found, strict=True):
        mean, sd, _ = exact(y)
        assert posterior.sample(1000)["mu"].mean() == pytest.approx(mean, abs=0.3 * sd)


@pytest.mark.parametrize("scale", [1e-3, 1e5])
def test_searches_find_modes_in_coordinates_of_any_scale(scale):
    def pair(x, middle):
        squares = -0.5 * jnp.sum((x[None] / scale - jnp.array([[-5.0, 0.0], [5.0, 0.0]])) ** 2, axis=1)
        return jax.nn.logsumexp(squares) + 0.0 * middle

    targets = family(pair, np.zeros(2), init=scale * jnp.array([0.3, 1.0])).targets
    starts = scale * np.random.default_rng(0).normal(size=(8, 2), scale=5.0)
    ends = np.asarray(jax.vmap(lambda start: climb(targets[0], start))(jnp.asarray(starts, jnp.float32)))
    np.testing.assert_allclose(np.abs(ends[:, 0]) / scale, 5.0, atol=1e-2)
    np.testing.assert_allclose(ends[:, 1] / scale, 0.0, atol=1e-2)


def two_or_one_mode(x, apart):
    """Modes of 70 and 30 % at -apart and apart."""
    centres = jnp.array([[-1.0, 0.0], [1.0, 0.0]]) * apart
    squares = -0.5 * jnp.sum((x[None] - centres) ** 2, axis=1)
    return jax.nn.logsumexp(squares, b=jnp.array([0.7, 0.3]))


def test_modes_that_searches_have_visited_and_a_fit_misses_are_told():
    found = dmvi.fit_many(
        two_or_one_mode, np.array([8.0, 0.0]), init=jnp.zeros(2), guide="full-rank", steps=60, progress=False
    )
    several, single = found
    assert several.run.visited.shape == (2, 3, 2)
    np.testing.assert_allclose(np.sort(several.run.visited[:, 0, 0]), [-8.0, 8.0], atol=1e-3)
    np.testing.assert_allclose(np.abs(several.run.visited[:, 1:]), np.stack([np.eye(2)] * 2), atol=1e-3)
    assert several.diagnostics.ess > 0.9  # the weights alone see nothing
    assert several.diagnostics.missed > 0.2
    assert several.verdict is Verdict.DO_NOT_TRUST
    assert single.run.visited.shape == (0, 1, 0)
    assert single.verdict is Verdict.TRUST
