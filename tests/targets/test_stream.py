"""Many rows: batches are unbiased, control variates too, and passes over all rows give the full sums."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dmvi
from dmvi.targets import anchored_at, as_target, from_rows
from dmvi.targets._rows import ArrayRows, NpyColumn, open_rows, prefetched

N, D, BATCH = 1_000, 3, 40
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = (RNG.uniform(size=N) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5, 0.2])))).astype(np.int8)
XI = jnp.array([0.9, -0.4, 0.3])


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


@pytest.fixture(scope="module")
def target():
    return from_rows(logistic, {"x": X, "y": Y}, BATCH)


@pytest.fixture(scope="module")
def full():
    return as_target(logistic, data={"x": X, "y": Y})


def every_batch_value(target) -> tuple[np.ndarray, np.ndarray]:
    """log pi and its gradient at XI on every batch of neighbours: what a batch of one piece is drawn from."""
    circle = np.arange(N)[:, None] + np.arange(BATCH)[None, :]
    batches = {"x": jnp.asarray(X[circle % N]), "y": jnp.asarray(Y[circle % N])}
    value_and_grad = jax.value_and_grad(target.log_density)
    values, slopes = jax.jit(jax.vmap(lambda batch: value_and_grad(XI, batch)))(batches)
    return np.asarray(values, float), np.asarray(slopes, float)


def mode_of(target, order=1):
    mode = np.array([0.95, -0.45, 0.25])
    found = target.stream.derivatives(mode)
    if order == 2:
        found = found._replace(curvature=target.stream.hessian(mode))
    return anchored_at(target, mode, found)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_batches_are_unbiased(target, full, order):
    """The mean over all N batches is the full density and gradient exactly, not just nearly."""
    estimated = mode_of(target, order) if order else target
    values, slopes = every_batch_value(estimated)
    value, slope = jax.value_and_grad(full.log_density)(XI)
    assert values.mean() + estimated.offset == pytest.approx(float(value), rel=1e-5)
    np.testing.assert_allclose(slopes.mean(0), slope, rtol=1e-3, atol=1e-2)


def test_control_variates_take_the_noise_away(target):
    plain, first, second = (
        every_batch_value(estimated)[1] for estimated in (target, mode_of(target), mode_of(target, order=2))
    )
    assert np.all(first.std(0) < 0.2 * plain.std(0))
    assert np.all(second.std(0) < 0.2 * first.std(0))


def test_drawn_batches_hold_every_row_equally_often():
    rows = ArrayRows({"i": np.arange(100)})
    rng = np.random.default_rng(0)
    counts = np.bincount(np.concatenate([rows.draw(rng, 37)["i"] for _ in range(4000)]), minlength=100)
    expected = 4000 * 0.37
    assert np.all(np.abs(counts - expected) < 6 * np.sqrt(expected * 3))  # pieces of three rows
    assert counts.sum() == 4000 * 37


def test_passes_over_all_rows(target, full):
    found = target.stream.derivatives(np.asarray(XI, float))

    def likelihood(xi):
        return sum(jnp.sum(term) for term in full.log_likelihood(xi).values())

    assert found.value == pytest.approx(float(likelihood(XI)), rel=1e-5)
    np.testing.assert_allclose(found.slope, jax.grad(likelihood)(XI), rtol=1e-3, atol=1e-3)
    hessian = target.stream.hessian(np.asarray(XI, float))
    np.testing.assert_allclose(hessian, jax.hessian(likelihood)(XI), rtol=1e-4, atol=1e-3)
    points = np.stack([np.asarray(XI), np.asarray(XI) + 0.1])
    excess = target.stream.excess(points, np.zeros(D))
    exact = [float(likelihood(point) - likelihood(jnp.zeros(D))) for point in points]
    np.testing.assert_allclose(excess, exact, rtol=1e-4)


def test_a_hessian_of_some_rows_is_scaled_to_all(target, full, monkeypatch):
    whole = target.stream.hessian(np.asarray(XI, float))
    assert target.stream.bends_of_all
    monkeypatch.setattr("dmvi.targets._stream.CURVATURE_ROWS", 500)
    monkeypatch.setattr("dmvi.targets._stream.ROWS_OF_A_COORDINATE", 1)
    assert not target.stream.bends_of_all
    estimated = target.stream.hessian(np.asarray(XI, float))
    assert not np.array_equal(estimated, whole)
    np.testing.assert_allclose(np.diagonal(estimated), np.diagonal(whole), rtol=0.3)


def test_files_give_the_same_rows_as_arrays(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    held = open_rows({"x": X, "y": Y})[0]
    named = open_rows({"x": str(tmp_path / "x.npy"), "y": tmp_path / "y.npy"})[0]
    mapped = open_rows({"x": np.load(tmp_path / "x.npy", mmap_mode="r"), "y": Y})[0]
    assert isinstance(mapped._columns["x"], NpyColumn)
    batches = [rows.draw(np.random.default_rng(1), 50) for rows in (held, named, mapped)]
    for batch in batches[1:]:
        np.testing.assert_array_equal(batch["x"], batches[0]["x"])
        np.testing.assert_array_equal(batch["y"], batches[0]["y"])
    whole = np.concatenate([block["x"] for block in prefetched(named.blocks(300))])
    np.testing.assert_array_equal(whole, X)
    np.save(tmp_path / "y.npy", 1 - Y)
    again = open_rows({"x": str(tmp_path / "x.npy"), "y": tmp_path / "y.npy"})[0]
    assert again.fingerprint() != named.fingerprint()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_tables_give_the_same_rows_as_arrays(tmp_path, suffix):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / f"rows{suffix}"
    x = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    table = pa.table({"x": x, "y": pa.array(Y)})
    if suffix == ".parquet":
        pq.write_table(table, path, row_group_size=300)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    rows, shared = open_rows(path)
    assert (rows.count, shared) == (N, {})
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in rows.blocks(128)]), X)
    np.testing.assert_array_equal(np.concatenate([b["y"] for b in rows.blocks(128)]), Y)
    assert rows.draw(np.random.default_rng(0), 40)["x"].shape == (40, D)
    on_table, in_memory = from_rows(logistic, path, BATCH), from_rows(logistic, {"x": X, "y": Y}, BATCH)
    assert float(on_table.log_density(XI)) == pytest.approx(float(in_memory.log_density(XI)), rel=1e-6)


@pytest.fixture(scope="module")
def always_trained():
    """Without the rule that a start which leaves nothing to gain is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dmvi._start.NOTHING_TO_GAIN", -1.0)
        yield


@pytest.fixture(scope="module")
def fitted(always_trained):
    data = {"x": X, "y": Y}
    return dmvi.fit(logistic, data, batch_size=BATCH, guide="full-rank", steps=320, progress=False)


def test_a_fit_on_batches_is_the_fit_on_all_rows(fitted, full):
    posterior = fitted
    found = posterior.diagnostics
    slope = jax.jit(jax.grad(full.log_density))
    mode = np.zeros(D, np.float32)
    for _ in range(20):
        mode = mode + np.linalg.solve(-np.asarray(full.hessian(jnp.asarray(mode))), slope(jnp.asarray(mode)))
    sd = np.sqrt(np.diagonal(np.linalg.inv(-np.asarray(full.hessian(jnp.asarray(mode))))))
    draws = posterior.sample(4000)["beta"]
    np.testing.assert_allclose((draws.mean(0) - mode) / sd, 0, atol=0.1)
    np.testing.assert_allclose(draws.std(0) / sd, 1, atol=0.1)
    log_evidence = float(full.log_density(jnp.asarray(mode))) + 0.5 * D * np.log(2 * np.pi) + np.log(sd).sum()
    assert found.log_evidence == pytest.approx(log_evidence, abs=0.2)  # correlations of the columns are small
    assert found.gap < 0.05
    assert found.draws == 20_000
    assert posterior.run.history[-1] == pytest.approx(found.elbo, abs=0.5)


def test_a_site_that_does_not_belong_to_the_rows_is_refused():
    """It would be counted once for every batch."""

    def model(y, z):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("z", dist.Normal(mu, 1).expand([3]).to_event(1), obs=z)
        numpyro.sample("y", dist.Normal(mu, 1).expand([len(y)]).to_event(1), obs=y)

    with pytest.raises(dmvi.InputError, match="site 'z' does not belong to the rows"):
        from_rows(model, {"y": np.ones(50), "z": np.ones(3)}, 10)


def test_a_number_that_is_not_finite_in_a_row_nobody_had_looked_at(monkeypatch):
    monkeypatch.setattr("dmvi.targets._stream.REFERENCE", 64)
    monkeypatch.setattr("dmvi.targets._stream.PLACES", 1)
    x = np.resize(X, (100_000, D))
    x[70_001, 1] = np.nan
    with pytest.raises(dmvi.InputError, match="'x' in row 70,001"):
        dmvi.fit(logistic, {"x": x, "y": np.resize(Y, 100_000)}, batch_size=10, progress=False)


def test_a_fit_on_rows_is_loaded_without_its_model(fitted, tmp_path):
    path = fitted.save(tmp_path / "fit.dmvi", n=10)
    assert dmvi.load(path).draws == 10
    with pytest.raises(dmvi.InputError, match="without the model"):
        dmvi.load(path, logistic, data={"x": X, "y": Y})


def test_a_start_that_leaves_nothing_to_gain_is_kept(tmp_path):
    choices = {"batch_size": BATCH, "progress": False, "checkpoint": tmp_path}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dmvi._start.NOTHING_TO_GAIN", 0.005)
        kept, again = (dmvi.fit(logistic, {"x": X, "y": Y}, **choices) for _ in range(2))
    assert kept.run.status is dmvi.Status.SETTLED
    assert kept.run.steps == 0
    assert kept.diagnostics.gap < 0.005
    assert kept.run.history[-1] == pytest.approx(kept.diagnostics.elbo, abs=0.02)
    assert again.run.status is dmvi.Status.SETTLED  # out of the checkpoint
    np.testing.assert_array_equal(again.sample(20)["beta"], kept.sample(20)["beta"])


def test_groups_in_rows(tmp_path, always_trained):
    """A hierarchy whose rows name their group."""
    groups = 30
    rng = np.random.default_rng(2)
    g = rng.integers(0, groups, 600)
    y = rng.normal(rng.normal(size=groups)[g], 1.0)

    def model(g, y, groups):
        with numpyro.plate("groups", groups):
            theta = numpyro.sample("theta", dist.Normal(0, 1))
        with numpyro.plate("rows", g.shape[0]):
            numpyro.sample("y", dist.Normal(theta[g], 1.0), obs=y)

    data = {"g": g, "y": y, "groups": groups}
    fitted = dmvi.fit(model, data, batch_size=60, guide="full-rank", steps=320, progress=False)
    n, total = np.bincount(g, minlength=groups), np.bincount(g, y, groups)
    draws = fitted.sample(4000)["theta"]
    np.testing.assert_allclose(draws.mean(0), total / (n + 1), atol=0.1)
    np.testing.assert_allclose(draws.std(0), (n + 1) ** -0.5, rtol=0.15)


def test_an_interrupted_fit_on_batches_goes_on(always_trained, fitted, tmp_path, monkeypatch):
    from dmvi.training import _loop

    looks, look_at = [], _loop.look_at

    def failing(*asked):
        looks.append(None)
        if len(looks) == 3:  # the first is at the start, the second after a chunk that a checkpoint holds
            raise OSError("the machine went away")
        return look_at(*asked)

    choices = {"batch_size": BATCH, "guide": "full-rank", "steps": 320, "progress": False}
    saved = {"checkpoint": tmp_path, "checkpoint_every": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(_loop, "look_at", failing)
        with pytest.raises(OSError, match="went away"):
            dmvi.fit(logistic, {"x": X, "y": Y}, **choices, **saved)
    again = dmvi.fit(logistic, {"x": X, "y": Y}, **choices, **saved)
    np.testing.assert_array_equal(again.run.history, fitted.run.history)
    np.testing.assert_array_equal(again.sample(20)["beta"], fitted.sample(20)["beta"])
    with pytest.raises(dmvi.InputError, match="data are not the same"):
        dmvi.fit(logistic, {"x": X, "y": 1 - Y}, **choices, **saved)


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        ({"x": X, "y": Y}, N + 1, "from 1 to 1,000"),
        ({"x": X, "y": Y}, 0, "from 1 to 1,000"),
        ({"x": 1.0, "y": 2.0}, 1, "rows"),
        ({"x": X, "y": "nowhere.npy"}, 10, "no readable"),
        ("nowhere.parquet", 10, "no file ending"),
    ],
)
def test_rows_that_cannot_be_read_are_refused(data, size, message):
    with pytest.raises(dmvi.InputError, match=message):
        dmvi.fit(logistic, data, batch_size=size, progress=False)


def test_models_that_cannot_be_cut_into_rows_are_refused():
    def local(x, y):
        with numpyro.plate("rows", x.shape[0]):
            noise = numpyro.sample("noise", dist.Normal(0, 1))
            numpyro.sample("y", dist.Bernoulli(logits=noise), obs=y)

    def learned(x, y):
        scale = numpyro.param("scale", 1.0)
        beta = numpyro.sample("beta", dist.Normal(0, scale))
        numpyro.sample("y", dist.Bernoulli(logits=x[:, 0] * beta), obs=y)

    def declared(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1))
        with numpyro.plate("rows", x.shape[0], subsample_size=10) as i:
            numpyro.sample("y", dist.Bernoulli(logits=x[i, 0] * beta), obs=y[i])

    for model, message in ((local, "single rows"), (learned, "numpyro.param"), (declared, "subsamples")):
        with pytest.raises(dmvi.InputError, match=message):
            from_rows(model, {"x": X, "y": Y}, BATCH)
    with pytest.raises(dmvi.InputError, match="give batch_size"):
        dmvi.fit(logistic, "rows.parquet")
