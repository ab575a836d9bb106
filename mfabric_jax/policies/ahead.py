"""The policy `ahead`: a network that proposes circuits for the next all-to-alls, from the demands so far.

`greedy` fits the last demand, which no longer holds when the circuits serve. The network sees how demand drifts, and
scores pairs for the next `horizon` demands. It is permutation-equivariant (`PairLayer`), so one set of weights serves
regions of any size. Circuits go one at a time to the pair with the largest score
D exp(value + first [count = 0]) / (count + 1). Without the network's corrections (`value`, `first`) this is `greedy`
with rule "next"; with a large `first` it is rule "printed".

One input is the demand that a process with memory lets expect: logarithms of demand return to their mean over senders,
and these means to theirs, by a factor that history shows.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from mfabric_jax.checks import positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import policy_file
from mfabric_jax.policies.arguments import demand_of, demands_of, unless_nan
from mfabric_jax.policies.index_rule import DATA
from mfabric_jax.policies.network import PairLayer, on_pairs
from mfabric_jax.policies.samples import normalise
from mfabric_jax.routing import Plan
from mfabric_jax.support.array_module import Array

FEATURES = 30
FAINT = 1e-3  # of the mean pair's demand, added before logarithms
MOST_VALUE = 4.0  # largest correction to the logarithm of a score
LAGS = (1, 4)  # all-to-alls over which changes of demand are measured
MOST_MEMORY = 0.9999


class Scores(NamedTuple):
    """Symmetric [S S]: logarithm of a pair's score without circuits, and what is added for its `first` circuit."""

    level: Float[Array, "S S"]
    first: Float[Array, "S S"]


class Drifting(NamedTuple):
    """What history says of drift: [0] of pairs around their receiver's mean, [1] of these means; logarithms.

    - `memory`: correlation between steps. `spread`: standard deviation. `changes` [.. L]: root mean squares by lag.
    """

    memory: Float[Array, "2"]
    spread: Float[Array, "2"]
    changes: Float[Array, "2 L"]


class AheadNetwork(eqx.Module):
    """The network of `ahead`; before training its circuits are those of `greedy` with rule "next"."""

    lift: eqx.nn.Linear
    layers: tuple[PairLayer, ...]
    score: eqx.nn.Linear
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)

    def __init__(self, width: int = 16, depth: int = 2, *, key: PRNGKeyArray):
        self.width, self.depth = whole("width", width, at_least=3), whole("depth", depth)
        keys = jax.random.split(key, 2 + depth)
        self.lift = eqx.nn.Linear(FEATURES, width, dtype=jnp.float32, key=keys[0])
        score = eqx.nn.Linear(width + 1, 2, dtype=jnp.float32, key=keys[1])
        self.score = jax.tree.map(jnp.zeros_like, score)
        self.layers = tuple(PairLayer(width, key=layer_key) for layer_key in keys[2:])

    def settings(self) -> dict[str, int]:
        return {"width": self.width, "depth": self.depth}

    def scores(
        self,
        demand: Float[Array, "S S"],
        history: Float[Array, "H S S"],
        region: Region,
        horizon: Float[Array, ""] | float,
        sigma: Float[Array, ""] | float | None = None,
    ) -> Scores:
        log, features = _features(demand, history, region, jnp.asarray(horizon, jnp.float32), sigma)
        hidden = on_pairs(self.lift, features)
        for layer in self.layers:
            hidden = layer(hidden)
        regress = features[..., :1]  # predicted less last demand
        value, first = jnp.moveaxis(on_pairs(self.score, jnp.concatenate([hidden, regress], axis=2)), 2, 0)
        total = jnp.exp(log + MOST_VALUE * jnp.tanh(value / MOST_VALUE))
        total = total + total.T
        return Scores(jnp.log(total), first + first.T)

    def __call__(
        self,
        demand: Float[Array, "S S"],
        region: Region,
        *,
        previous: Plan | None = None,
        key: PRNGKeyArray | None = None,
        history: Float[Array, "H S S"] | None = None,
        horizon: float | Float[Array, ""] = 1.0,
        sigma: float | Float[Array, ""] | None = None,
    ) -> Plan:
        """Return circuits; arguments as for `ahead`."""
        demand = demand_of(demand, region)
        past = demand[None] if history is None else demands_of(history, region, "history")
        horizon = positive("horizon", horizon)
        return Plan(Circuits(unless_nan(_choose(self, demand, past, region, horizon, sigma), demand)))


@eqx.filter_jit
def _choose(network: AheadNetwork, demand: Array, past: Array, region: Region, horizon, sigma) -> Int[Array, "S S"]:
    wanted = jnp.maximum(demand, past.max(0)).astype(jnp.float32)
    return deal_ahead(network.scores(demand, past, region, horizon, sigma), wanted + wanted.T > 0, region.degrees)


def deal_ahead(scores: Scores, wanted: Bool[Array, "S S"], degrees: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Return whole circuits [S S], one at a time to the `wanted` pair with the largest score and free NICs."""
    servers = len(degrees)
    upper = jnp.triu(wanted, 1)

    def score(count: Array, free: Array):
        able = upper & (free > 0)[:, None] & (free > 0)[None, :]
        now = scores.level + jnp.where(count == 0, scores.first, 0) - jnp.log1p(count.astype(jnp.float32))
        return jnp.where(able, now, -jnp.inf)

    def deal(state: tuple[Array, Array, Array]):
        count, free, now = state
        i, j = jnp.divmod(jnp.argmax(now), servers)
        count, free = count.at[i, j].add(1), free.at[i].add(-1).at[j].add(-1)
        return count, free, score(count, free)

    nothing = jnp.zeros((servers, servers), jnp.int32)
    start = nothing, degrees, score(nothing, degrees)
    count = lax.while_loop(lambda state: (state[2] > -jnp.inf).any(), deal, start)[0]
    return count + count.T


# ------------------------------------------------------------------------------------------------------------ features
def _features(
    demand: Float[Array, "S S"],
    history: Float[Array, "H S S"],
    region: Region,
    horizon: Float[Array, ""],
    sigma: Float[Array, ""] | float | None,
) -> tuple[Float[Array, "S S"], Float[Array, "S S F"]]:
    """Return log demand [S S] over the mean pair's, and features of ordered pairs, the first predicted less log."""
    servers = region.servers
    between = ~jnp.eye(servers, dtype=bool)
    past, known = _logs(history.astype(jnp.float32), between), history.sum((1, 2)) > 0
    need, log = normalise(demand, region).single(), _logs(demand.astype(jnp.float32)[None], between)[0]
    drift = drifting(past, known, between)
    lasting, again = mean_power(drift.memory, horizon), mean_power(drift.memory**2, horizon)
    into, own, mean = _parts(log, between)
    predicted = jnp.where(between, mean + lasting[1] * into[None, :] + lasting[0] * own, 0)
    out = jnp.where(between, jnp.exp(log), 0).sum(1) / jnp.where(between, jnp.exp(predicted), 0).sum(1)
    predicted = jnp.where(between, predicted + jnp.log(out)[:, None], 0)  # servers send as much as before
    weight = known.astype(jnp.float32) / jnp.maximum(known.sum(), 1)
    usual = jnp.where(between, (weight[:, None, None] * past).sum(0) - log, 0)
    pairs = need.pairs
    pair = [predicted - log, log, own, usual, predicted, pairs / 4, jnp.log1p(16 * pairs)]
    of_servers = [pairs.sum(1) / 8, pairs.sum(0) / 8, into, region.degrees.astype(jnp.float32) / 8, need.ports / 8]
    ends = [end for value in of_servers for end in (value[:, None], value[None, :])]
    error = drift.changes[0, 0] if sigma is None else jnp.asarray(sigma, jnp.float32)
    rise = (1 - again) * drift.spread**2
    scalars = [jnp.log(horizon), *lasting, *rise, *drift.spread, *drift.changes.reshape(-1), error]
    scalars.append(jnp.log(jnp.asarray(servers / 8, jnp.float32)))
    every = [jnp.broadcast_to(value, (servers, servers)) for value in (*pair, *ends, *scalars)]
    return log, jnp.where(between[..., None], jnp.stack(every, axis=2), 0)


def drifting(past: Float[Array, "H S S"], known: Bool[Array, "H"], between: Bool[Array, "S S"]) -> Drifting:
    into, own, _ = jax.vmap(lambda log: _parts(log, between))(past)
    own = jnp.where(between, own - (own.sum(2) / (len(between) - 1))[..., None], 0)  # servers' totals do not drift
    size = own.shape[1] * (own.shape[1] - 1), into.shape[1]

    def mean_square(values: tuple[Array, Array], which: Array):
        squares = jnp.stack([(each**2).reshape(len(which), -1).sum(1) / many for each, many in zip(values, size)])
        return jnp.where(which, squares, 0).sum(1) / jnp.maximum(which.sum(), 1).astype(jnp.float32)

    variance = mean_square((own, into), known)
    changes = []
    for lag in LAGS:
        both = known[lag:] & known[:-lag]
        changes.append(mean_square((own[lag:] - own[:-lag], into[lag:] - into[:-lag]), both))
    lost = changes[0] / (2 * jnp.where(variance > 0, variance, 1))
    memory = jnp.where(variance > 0, jnp.clip(1 - lost, 0, MOST_MEMORY), MOST_MEMORY)
    return Drifting(memory, jnp.sqrt(variance), jnp.sqrt(jnp.stack(changes, axis=1)))


def mean_power(memory: Float[Array, "*B"], horizon: Float[Array, ""]) -> Float[Array, "*B"]:
    """Return the mean of memory^k over k from 1 to the horizon."""
    log = jnp.log(jnp.clip(memory, 1e-6, MOST_MEMORY))
    return memory * jnp.expm1(horizon * log) / (horizon * jnp.expm1(log))


def _logs(demand: Float[Array, "H S S"], between: Bool[Array, "S S"]) -> Float[Array, "H S S"]:
    demand = jnp.where(between, demand, 0)
    mean = demand.sum((1, 2), keepdims=True) / between.sum(dtype=jnp.int32).astype(demand.dtype)
    return jnp.where(between, jnp.log(demand / jnp.where(mean > 0, mean, 1) + FAINT), 0)


def _parts(log: Float[Array, "S S"], between: Bool[Array, "S S"]):
    """Return receivers' means around the mean of all, what pairs deviate from them, and the mean of all."""
    others = len(log) - 1
    into = log.sum(0) / others
    mean = into.mean()
    return into - mean, jnp.where(between, log - into[None, :], 0), mean


# ---------------------------------------------------------------------------------------------------------- the policy
def ahead(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    history: Float[Array, "H S S"] | None = None,
    horizon: float | Float[Array, ""] = 1.0,
    sigma: float | Float[Array, ""] | None = None,
) -> Plan:
    """Return the circuits of the package's network for the next `horizon` all-to-alls.

    - `demand` [S S]: bytes from server i to server j, as expected for the next all-to-all: the last one, or a forecast.
    - `history` [H S S]: demands so far, newest last; those of zeros are ignored. None: nothing is known of drift.
    - `sigma`: standard deviation of the log errors of `demand`. None: it is the last demand.

    Trained for split routing at 8 and 16 servers. `previous` and `key` are not used.
    """
    settings = {"history": history, "horizon": horizon, "sigma": sigma}
    return shipped_ahead()(demand, region, previous=previous, key=key, **settings)


@functools.cache
def shipped_ahead() -> AheadNetwork:
    return read_ahead(DATA / "ahead.policy")


def read_ahead(path) -> AheadNetwork:
    stored = policy_file.read(path)
    with jax.ensure_compile_time_eval():  # the first use may be inside jit
        shape = eqx.filter_eval_shape(AheadNetwork, **stored.header["settings"], key=jax.random.key(0))
        return stored.leaves(shape)
