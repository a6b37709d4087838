"""AutoDiffusion keeps every promise of a NumPyro autoguide."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false, reportCallIssue=false, reportOptionalCall=false

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import (
    MCMC,
    NUTS,
    SVI,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    init_to_median,
    init_to_value,
)
from numpyro.infer.reparam import NeuTraReparam

import dmvi
from dmvi.numpyro import AutoChain, AutoDiffusion, PathELBO, PathEnumELBO

KEY = jax.random.key(0)
SMALL = dmvi.DiffusionGuide(steps=2, network=dmvi.Projected(rank=2, width=8, scale_width=8, depth=1))
Y = np.array([0.5, 1.5, 2.0])


def normal_mean(y=None):
    """Conjugate: mu | y ~ N(1, 1/4), log evidence in closed form; theta = exp(mu) is deterministic."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.deterministic("theta", jnp.exp(mu))
    with numpyro.plate("data", 3):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def log_evidence() -> float:
    covariance = np.eye(3) + 1
    return float(dist.MultivariateNormal(jnp.zeros(3), covariance).log_prob(Y))


def groups(y=None):
    """Latents in a plate, a positive scale and a simplex."""
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("group", 3):
        theta = numpyro.sample("theta", dist.Normal(0, tau))
        numpyro.sample("y", dist.Normal(theta, 1), obs=y)


def trained(model, elbo, *args, guide=None, steps=600, rate=0.02):
    guide = AutoDiffusion(model, SMALL) if guide is None else guide
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, 100, steps)
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))
    svi = SVI(model, guide, optimizer, elbo)
    return guide, svi.run(KEY, steps, *args, progress_bar=False)


def value_and_gradient(elbo, model, guide, params, *args):
    return jax.jit(jax.value_and_grad(lambda p: elbo.loss(KEY, p, model, guide, *args)))(params)


@pytest.fixture(scope="module")
def exact():
    """A guide trained on the conjugate model, whose posterior a diffusion guide can match."""
    return trained(normal_mean, PathELBO(num_particles=16), Y, steps=800)


def test_the_path_gradient_reaches_the_evidence(exact):
    _, result = exact
    assert np.isfinite(result.losses).all()
    assert float(np.mean(result.losses[-100:])) == pytest.approx(-log_evidence(), abs=2e-3)


def test_draws_median_and_quantiles_are_those_of_the_posterior(exact):
    guide, result = exact
    draws = guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(2, 10_000))
    assert draws["mu"].shape == draws["theta"].shape == (2, 10_000)
    assert float(draws["mu"].mean()) == pytest.approx(1.0, abs=0.02)
    assert float(draws["mu"].std()) == pytest.approx(0.5, abs=0.02)
    np.testing.assert_allclose(draws["theta"], np.exp(draws["mu"]), rtol=1e-5)
    median, quantiles = guide.median(result.params), guide.quantiles(result.params, [0.1, 0.5, 0.9])
    assert float(median["mu"]) == pytest.approx(1.0, abs=0.03)
    np.testing.assert_allclose(quantiles["mu"], 1 + 0.5 * np.array([-1.2816, 0, 1.2816]), atol=0.03)
    np.testing.assert_allclose(quantiles["theta"], np.exp(quantiles["mu"]), rtol=1e-3)
    assert guide.sample_posterior(KEY, result.params)["mu"].shape == ()


def test_predictive_takes_the_guide(exact):
    guide, result = exact
    latents = Predictive(guide, params=result.params, num_samples=500)(KEY, Y)
    assert float(latents["mu"].mean()) == pytest.approx(1.0, abs=0.08)
    predicted = Predictive(normal_mean, guide=guide, params=result.params, num_samples=2000)(KEY)
    assert predicted["y"].shape == (2000, 3)
    assert float(predicted["y"].std()) == pytest.approx(np.sqrt(1.25), abs=0.05)


def test_the_transform_is_the_guide(exact):
    guide, result = exact
    transform, posterior = guide.get_transform(result.params), guide.get_posterior(result.params)
    z = jax.random.normal(KEY, (4, 5, 1))
    xi = transform(z)
    np.testing.assert_allclose(transform.inv(xi), z, atol=1e-4)
    slope = jax.vmap(jax.vmap(jax.jacfwd(transform)))(z)[..., 0, 0]
    np.testing.assert_allclose(transform.log_abs_det_jacobian(z, xi), jnp.log(jnp.abs(slope)), atol=1e-4)
    density = jax.vmap(guide.get_guide(result.params).evidence)(xi[0])
    np.testing.assert_allclose(posterior.log_prob(xi[0]), density, atol=1e-4)


def test_the_chain_trains_and_has_no_transform():
    chain = GUIDES["chain"](normal_mean)
    _, result = trained(normal_mean, PathELBO(num_particles=16), Y, guide=chain)
    assert float(np.mean(result.losses[-100:])) == pytest.approx(-log_evidence(), abs=5e-2)
    draws = chain.sample_posterior(KEY, result.params, sample_shape=(4000,))
    assert float(draws["mu"].mean()) == pytest.approx(1.0, abs=0.05)
    with pytest.raises(ValueError, match="get_transform"):
        NeuTraReparam(chain, result.params)
    with pytest.raises(NotImplementedError, match=r"sample_posterior.*get_guide"):
        chain.get_posterior(result.params)
    with pytest.raises(dmvi.InputError, match="score"):
        AutoChain(normal_mean, dmvi.ChainGuide(score=True))


def test_neutra_samples_through_the_guide(exact):
    guide, result = exact
    neutra = NeuTraReparam(guide, result.params)
    mcmc = MCMC(NUTS(neutra.reparam(normal_mean)), num_warmup=100, num_samples=1000, progress_bar=False)
    mcmc.run(KEY, Y)
    mu = neutra.transform_sample(mcmc.get_samples()["auto_shared_latent"])["mu"]
    assert float(mu.mean()) == pytest.approx(1.0, abs=0.08)
    assert float(mu.std()) == pytest.approx(0.5, abs=0.05)


STOCK = {
    "Trace": Trace_ELBO(num_particles=4),
    "MeanField": TraceMeanField_ELBO(num_particles=4),
    "Graph": TraceGraph_ELBO(num_particles=4),
    "Renyi": RenyiELBO(alpha=1e-6, num_particles=4),
}


GUIDES = {
    "diffusion": lambda model: AutoDiffusion(model, SMALL),
    "chain": lambda model: AutoChain(model, dmvi.ChainGuide(steps=2, width=8, depth=1)),
    "normal": numpyro.infer.autoguide.AutoNormal,
}


@pytest.fixture(scope="module", params=["diffusion", "chain"])
def untrained(request):
    """A guide with random weights everywhere, so that no term of a gradient vanishes."""
    guide = GUIDES[request.param](groups)
    svi = SVI(groups, guide, optax.adam(1e-2), Trace_ELBO())
    params = svi.get_params(svi.init(KEY, Y))
    rng = np.random.default_rng(0)
    noisy = jax.tree.map(lambda leaf: leaf + 0.2 * rng.standard_normal(leaf.shape).astype(leaf.dtype), params)
    return guide, noisy


@pytest.mark.parametrize("name", STOCK)
def test_every_stock_elbo_sees_the_same_weight(name, untrained):
    guide, params = untrained
    keys = jax.random.split(KEY, 4)
    one_loss = jax.jit(
        jax.value_and_grad(lambda p: -jax.vmap(lambda k: log_weight(guide, p, k))(keys).mean())
    )
    loss, reference = one_loss(params)
    found, gradient = value_and_gradient(STOCK[name], groups, guide, params, Y)
    if name == "Renyi":  # at alpha near zero an importance-weighted bound, above the ELBO
        assert float(found) < float(loss)
    else:
        assert float(found) == pytest.approx(float(loss), rel=1e-4)
        assert relative_distance(gradient, reference) < 1e-3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def log_weight(guide, params, key):
    """log pi(xi) - log q(xi) by NumPyro's own densities, at the draw an ELBO makes of the key."""
    _, guide_key = jax.random.split(key)
    seeded = numpyro.handlers.seed(guide, guide_key)
    trace = numpyro.handlers.trace(numpyro.handlers.substitute(seeded, params)).get_trace(Y)
    xi = trace["_auto_latent"]["value"]
    log_pi = -numpyro.infer.util.potential_energy(groups, (Y,), {}, guide._unpack_latent(xi))
    return log_pi - trace["_auto_latent"]["intermediates"][0]


def relative_distance(left, right) -> float:
    left, right = (
        jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (left, right)
    )
    return float(jnp.linalg.norm(left - right) / jnp.linalg.norm(right))


@pytest.mark.parametrize("name", GUIDES)
def test_the_path_gradient_is_unbiased(name):
    """Mean over many draws of path minus full gradient, against its own standard error."""
    guide = GUIDES[name](groups)
    svi = SVI(groups, guide, optax.adam(1e-2), Trace_ELBO())
    state = svi.init(KEY, Y)
    params = svi.optim.get_params(state.optim_state)
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)

    def difference(key):
        def loss(elbo):
            return jax.grad(lambda p: elbo.loss(key, svi.constrain_fn(p), groups, guide, Y))(params)

        path, full = loss(PathELBO()), loss(Trace_ELBO())
        pairs = zip(jax.tree.leaves(path), jax.tree.leaves(full), strict=True)
        return jnp.concatenate([(a - b).ravel() for a, b in pairs])

    differences = np.asarray(jax.jit(jax.vmap(difference))(jax.random.split(KEY, 4000)), np.float64)
    error = differences.std(axis=0) / np.sqrt(len(differences))
    assert error.max() > 1e-4  # they do differ draw by draw
    assert (np.abs(differences.mean(axis=0)) < 4.5 * error + 1e-6).all()


def test_progress_bar_update_and_stable_update():
    guide = AutoDiffusion(normal_mean, SMALL, init_loc_fn=init_to_median)
    svi = SVI(normal_mean, guide, numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=2))
    result = svi.run(KEY, 20, Y, progress_bar=True, stable_update=True)
    assert np.isfinite(result.losses).all()
    state, _ = jax.jit(svi.update)(result.state, Y)
    state, loss = jax.jit(svi.stable_update)(state, Y)
    assert np.isfinite(loss)
    assert np.isfinite(svi.evaluate(state, Y))


def test_init_loc_fn_decides_the_start():
    guide = AutoDiffusion(normal_mean, SMALL, init_loc_fn=init_to_value(values={"mu": 3.0}), init_scale=0.01)
    svi = SVI(normal_mean, guide, optax.adam(1e-2), Trace_ELBO())
    params = svi.get_params(svi.init(KEY, Y))
    draws = guide.sample_posterior(KEY, params, sample_shape=(100,))
    np.testing.assert_allclose(draws["mu"], 3.0, atol=0.05)


def test_jitted_and_vmapped_initialisation():
    guide = AutoDiffusion(normal_mean, SMALL)
    svi = SVI(normal_mean, guide, optax.adam(1e-2), Trace_ELBO())
    states = jax.jit(jax.vmap(lambda key: svi.init(key, Y)))(jax.random.split(KEY, 3))
    states, losses = jax.jit(jax.vmap(lambda state: svi.update(state, Y)))(states)
    assert np.isfinite(losses).all()
    weights = jax.vmap(svi.get_params)(states)["auto_guide"]["flow.scale.hidden.first"]
    assert np.std(weights, axis=0).min() > 0  # every seed has its own network


def test_subsampled_plate_with_global_latents():
    y = np.linspace(-1, 3, 40)

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("data", 40, subsample_size=10):
            batch = numpyro.subsample(jnp.asarray(y), event_dim=0)
            numpyro.sample("y", dist.Normal(mu, 1), obs=batch)

    guide, result = trained(model, PathELBO(num_particles=8), steps=1000, rate=0.01)
    assert float(guide.median(result.params)["mu"]) == pytest.approx(y.sum() / 41, abs=0.06)


def test_model_params_are_learned_along():
    def model(y):
        mean = numpyro.param("mean", 0.0)
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        with numpyro.plate("data", 4):
            z = numpyro.sample("z", dist.Normal(mean, 1))
            numpyro.deterministic("shifted", z - mean)
            numpyro.sample("y", dist.Normal(z, scale), obs=y)

    y = jnp.array([0.0, 4.0, 1.0, 7.0])  # sd 2.74: the likelihood's best is mean 3, 1 + scale^2 = 7.5
    guide, result = trained(model, PathELBO(num_particles=8), y, steps=1500)
    assert float(result.params["mean"]) == pytest.approx(3.0, abs=0.1)
    assert float(result.params["scale"]) == pytest.approx(np.sqrt(6.5), abs=0.1)
    draws = guide.sample_posterior(KEY, result.params, sample_shape=(2000,))
    np.testing.assert_allclose(draws["shifted"], draws["z"] - result.params["mean"], atol=1e-5)


def test_double_precision():
    with jax.enable_x64(True):
        y = jnp.asarray(Y)  # JAX keeps what it made of the NumPy array in single precision
        guide = AutoDiffusion(normal_mean, SMALL)
        svi = SVI(normal_mean, guide, optax.adam(1e-2), PathELBO(num_particles=2))
        state, loss = jax.jit(svi.update)(svi.init(jax.random.key(0), y), y)
        params = svi.get_params(state)
        assert loss.dtype == jnp.float64
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float64")}
        assert guide.sample_posterior(KEY, params)["mu"].dtype == jnp.float64


def mixture(y):
    """Each point from one of two normals; the assignment is discrete and enumerated."""
    weight = numpyro.sample("weight", dist.Beta(2, 2))
    means = numpyro.sample("means", dist.Normal(jnp.array([-2.0, 2.0]), 1).to_event(1))
    with numpyro.plate("data", len(y)):
        kind = numpyro.sample("kind", dist.Bernoulli(weight), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(means[kind], 1), obs=y)


def marginal(y):
    """The same with the assignment summed out by hand."""
    weight = numpyro.sample("weight", dist.Beta(2, 2))
    means = numpyro.sample("means", dist.Normal(jnp.array([-2.0, 2.0]), 1).to_event(1))
    parts = dist.Categorical(probs=jnp.stack([1 - weight, weight]))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(parts, dist.Normal(means, 1)), obs=y)


@pytest.mark.parametrize(
    "elbos",
    [pytest.param((TraceEnum_ELBO, Trace_ELBO), marks=pytest.mark.slow), (PathEnumELBO, PathELBO)],
)
def test_enumerated_sites_are_summed_out(elbos):
    pytest.importorskip("funsor", reason="TraceEnum_ELBO needs funsor")
    y = jnp.array([-2.5, -1.0, 1.5, 2.5, 3.0])
    enumerated, summed = AutoDiffusion(mixture, SMALL), AutoDiffusion(marginal, SMALL)
    losses, gradients, params = [], [], None
    for elbo, model, guide in ((elbos[0](), mixture, enumerated), (elbos[1](), marginal, summed)):
        svi = SVI(model, guide, optax.adam(1e-2), elbo)
        start = svi.get_params(svi.init(KEY, y))
        params = start if params is None else params  # the same point of both guides
        loss, gradient = value_and_gradient(elbo, model, guide, params, y)
        losses.append(float(loss))
        gradients.append(gradient)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert relative_distance(*gradients) < 1e-3


def test_a_plate_of_latents_beside_enumeration():
    pytest.importorskip("funsor", reason="TraceEnum_ELBO needs funsor")

    def model(y):
        with numpyro.plate("group", 3):
            level = numpyro.sample("level", dist.Normal(0, 1))
            kind = numpyro.sample("kind", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(level + kind, 1), obs=y)

    guide = AutoDiffusion(model, SMALL)
    svi = SVI(model, guide, optax.adam(1e-2), TraceEnum_ELBO(num_particles=2))
    _, loss = jax.jit(svi.update)(svi.init(KEY, Y), Y)
    assert np.isfinite(loss)


def test_local_latents_in_a_subsampled_plate_are_refused():
    def model():
        with numpyro.plate("users", 40, subsample_size=10):
            numpyro.sample("ability", dist.Normal(0, 1))

    svi = SVI(model, AutoDiffusion(model), optax.adam(1e-2), Trace_ELBO())
    with pytest.raises(dmvi.InputError, match=r"local latent.*'ability'.*'users'.*10 of 40.*subsample_size"):
        svi.init(KEY)


def test_discrete_sites_are_refused_unless_enumerated():
    def model():
        numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("kind", dist.Bernoulli(0.5))

    svi = SVI(model, AutoDiffusion(model), optax.adam(1e-2), Trace_ELBO())
    with pytest.raises(dmvi.InputError, match=r"discrete site 'kind'.*enumerat.*TraceEnum_ELBO"):
        svi.init(KEY)


@pytest.mark.filterwarnings("ignore:Currently, SVI with PathELBO")
def test_the_path_elbo_leaves_no_site_to_enumerate():
    y = jnp.array([-2.5, -1.0, 1.5])
    svi = SVI(mixture, AutoDiffusion(mixture, SMALL), optax.adam(1e-2), PathELBO())
    with pytest.raises(dmvi.InputError, match=r"'kind'.*PathEnumELBO"):
        svi.update(svi.init(KEY, y), y)


@pytest.mark.parametrize("infer", [{}, {"enumerate": "parallel"}])
def test_discrete_sites_without_end_are_refused(infer):
    def model():
        numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("count", dist.Poisson(3.0), infer=infer)

    svi = SVI(model, AutoDiffusion(model), optax.adam(1e-2), TraceEnum_ELBO())
    with pytest.raises(dmvi.InputError, match=r"'count' is Poisson.*cannot be enumerated; sum it out"):
        svi.init(KEY)


def test_models_without_latents_and_wrong_arguments_are_refused():
    def empty(y):
        numpyro.sample("y", dist.Normal(0, 1), obs=y)

    with pytest.raises(dmvi.InputError, match="no latent variables"):
        SVI(empty, AutoDiffusion(empty), optax.adam(1e-2), Trace_ELBO()).init(KEY, 1.0)
    with pytest.raises(dmvi.InputError, match=r"DiffusionGuide.*GaussianGuide"):
        AutoDiffusion(normal_mean, dmvi.GaussianGuide())
    with pytest.raises(dmvi.InputError, match="init_scale"):
        AutoDiffusion(normal_mean, init_scale=0.0)
    with pytest.raises(dmvi.InputError, match=r"svi\.init"):
        AutoDiffusion(normal_mean).get_guide({})
