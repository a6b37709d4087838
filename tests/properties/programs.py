"""Random NumPyro models for Hypothesis: hierarchies of random depth, supports, plates and missing data."""

# NumPyro types what a model samples as ArrayLike, which has no arithmetic.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform

PRIORS: dict[str, Callable] = {
    "real": lambda loc: dist.Normal(loc, 1.0),
    "heavy": lambda loc: dist.StudentT(4.0, loc, 0.7),
    "positive": lambda loc: dist.LogNormal(loc, 0.5),
    "gamma": lambda loc: dist.Gamma(2.0, jnp.exp(-loc)),
    "unit": lambda loc: dist.Beta(2.0, jnp.exp(0.5 * loc)),
    "interval": lambda loc: dist.Uniform(loc - 1.0, loc + 2.0),
    "vector": lambda loc: dist.MultivariateNormal(loc * jnp.ones(2), jnp.array([[1.0, 0.3], [0.3, 0.5]])),
    "simplex": lambda loc: dist.Dirichlet(jnp.exp(0.3 * loc) * jnp.ones(3)),
    "ordered": lambda loc: dist.TransformedDistribution(
        dist.Normal(loc, 1.0).expand([3]).to_event(1), OrderedTransform()
    ),
    "correlation": lambda loc: dist.LKJCholesky(3, 2.0),
    "shifted": lambda loc: dist.TruncatedNormal(loc, 1.0, low=loc),
}


@dataclass(frozen=True)
class Node:
    """A latent site: its prior, the site it hangs from, and whether it stands in the plate."""

    prior: str
    parent: int | None
    plated: bool


@dataclass(frozen=True)
class Spec:
    """A model.

    Attributes:
        nodes: latent sites, parents first.
        groups: size of the plate.
        missing: entries of y that are missing.
        seed: of the data.
    """

    nodes: tuple[Node, ...]
    groups: int
    missing: tuple[bool, ...]
    seed: int

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Data with NaN where they are missing."""
        y = np.random.default_rng(self.seed).normal(size=self.groups)
        return {"y": np.where(self.missing, np.nan, y)}

    def model(self) -> Callable:
        """The NumPyro model."""
        return lambda y: _run(self, y)


def _run(spec: Spec, y) -> None:
    values: list = []
    for i, node in enumerate(spec.nodes):
        above = 0.0 if node.parent is None else _level(values[node.parent], spec, node)
        prior = PRIORS[node.prior](above)
        if node.plated:
            with numpyro.plate("group", spec.groups):
                values.append((numpyro.sample(f"z{i}", prior), True, prior.event_dim))
        else:
            values.append((numpyro.sample(f"z{i}", prior), False, prior.event_dim))
    loc = sum(_summary(value, plated, event) for value, plated, event in values)
    numpyro.deterministic("loc", loc)
    seen = ~jnp.isnan(y)
    with numpyro.plate("group", spec.groups), numpyro.handlers.mask(mask=seen):
        numpyro.sample("y", dist.Normal(loc, 1.0), obs=jnp.where(seen, y, 0.0))


def _summary(value, plated: bool, event: int):
    """One number, or one for each group."""
    return value.sum(axis=tuple(range(-event, 0))) if event else value


def _level(parent, spec: Spec, node: Node):
    """A location from the parent: a number, or one for each group where both stand in the plate."""
    value, plated, event = parent
    level = 0.5 * jnp.tanh(_summary(value, plated, event))
    if plated and not node.plated:
        level = level.mean()
    if node.prior in ("vector", "simplex", "ordered", "correlation"):
        return jnp.mean(level)
    return level


@st.composite
def specs(draw) -> Spec:
    """Models of one to four sites."""
    count = draw(st.integers(1, 4))
    nodes = []
    for i in range(count):
        parent = draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None
        nodes.append(Node(draw(st.sampled_from(sorted(PRIORS))), parent, draw(st.booleans())))
    groups = draw(st.integers(1, 4))
    missing = tuple(draw(st.lists(st.booleans(), min_size=groups, max_size=groups)))
    return Spec(tuple(nodes), groups, missing, draw(st.integers(0, 100)))
