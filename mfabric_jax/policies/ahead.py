"""The policy `ahead`: circuits for the next all-to-alls, proposed by a network and tried on demands that may come.

`greedy` fits the last demand, which no longer holds when the circuits serve. Here a network sees how demand drifts and
scores pairs for the next `horizon` demands. Circuits go one at a time to the pair with the largest score
D exp(value + first [count = 0]) / (count + 1). Without the network's corrections (`value`, `first`) this is `greedy`
with rule "next"; with a large `first` it is rule "printed". The network is permutation-equivariant (`PairLayer`), so
one set of weights serves regions of any size.

The network's circuits, those of noisy scores, of `greedy` and even ones then compete: the set with the least mean time
over drawn demands is taken. Demands are drawn from what history shows: logarithms of demand return to their mean over
senders, and these means to theirs, as autoregressive processes of order 1. No search follows: for 16 demands a decision
takes 1/6 (8 servers) to 1/20 (16 servers) of the time of `sample_average`.
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from mfabric_jax.checks import not_negative, one_of, positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import policy_file
from mfabric_jax.policies.arguments import WITHOUT_RELAY, demand_of, demands_of, unless_nan
from mfabric_jax.policies.greedy import allocate_greedily
from mfabric_jax.policies.index_rule import DATA
from mfabric_jax.policies.network import PairLayer, on_pairs
from mfabric_jax.policies.samples import normalise
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing import Plan, fluid_lower_bound
from mfabric_jax.support.array_module import Array

FEATURES = 30
FAINT = 1e-3  # of the mean pair's demand, added before logarithms
MOST_VALUE = 4.0  # largest correction to the logarithm of a score
SCORE = 0.3  # scores of outputs of 1
LAGS = (1, 4)  # all-to-alls over which changes of demand are measured
LEAST_MEMORY, MOST_MEMORY = 0.000001, 0.9999  # of a correlation, for logarithms
NOISE = 0.25  # standard deviation of the noise of further proposals
TRIES, SCENARIOS = 16, 32


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
        hidden = hidden / jnp.sqrt(1 + (hidden**2).mean(2, keepdims=True))
        regress = features[..., :1]  # predicted less last demand
        value, first = jnp.moveaxis(SCORE * on_pairs(self.score, jnp.concatenate([hidden, regress], axis=2)), 2, 0)
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
        routing: str = "split",
        tries: int = TRIES,
        scenarios: int = SCENARIOS,
    ) -> Plan:
        """Return circuits for the next `horizon` all-to-alls; arguments as for `ahead`."""
        demand = demand_of(demand, region)
        past = demand[None] if history is None else demands_of(history, region, "history")
        one_of("routing", routing, WITHOUT_RELAY)
        whole("tries", tries)
        whole("scenarios", scenarios, at_least=0)
        positive("horizon", horizon)
        if sigma is not None:
            not_negative("sigma", sigma)
        key = jax.random.key(0) if key is None else key
        chosen = choose_ahead(self, demand, past, region, key, horizon, sigma, routing, tries, scenarios)
        return Plan(Circuits(unless_nan(chosen, demand)))


@eqx.filter_jit
def choose_ahead(
    network: AheadNetwork,
    demand: Float[Array, "S S"],
    history: Float[Array, "H S S"],
    region: Region,
    key: PRNGKeyArray,
    horizon: Float[Array, ""] | float,
    sigma: Float[Array, ""] | float | None,
    routing: str,
    tries: int,
    scenarios: int,
) -> Int[Array, "S S"]:
    """Return the circuits of `ahead`, with this network."""
    servers, degrees = region.servers, region.degrees
    demand, history = demand.astype(jnp.float32), history.astype(jnp.float32)
    wanted = jnp.maximum(demand, history.max(0))
    wanted = wanted + wanted.T > 0
    scores = network.scores(demand, history, region, horizon, sigma)
    trying, drawing = jax.random.split(key)
    noise = NOISE * jax.random.normal(trying, (tries, 2, servers, servers), jnp.float32).at[0].set(0)
    noise = (noise + jnp.swapaxes(noise, 2, 3)) / math.sqrt(2)

    def propose(noise: Array):
        return deal_ahead(Scores(scores.level + noise[0], scores.first + noise[1]), wanted, degrees)

    count = jax.vmap(propose)(noise)
    if scenarios < 1:
        return count[0]
    usual = [allocate_greedily(demand, degrees, rule) for rule in ("printed", "next")]
    every = jnp.concatenate([count, jnp.stack([*usual, uniform_circuits(degrees).astype(count.dtype)])])
    drawn = imagine(demand, history, drawing, horizon, sigma, scenarios)

    def seconds(count: Array, demand: Array):
        return fluid_lower_bound(region, Circuits(count), demand, routing=routing)

    mean_s = jax.vmap(lambda count: jax.vmap(lambda demand: seconds(count, demand))(drawn).mean())(every)
    return every[jnp.argmin(mean_s)]


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
    past, known = log_demands(history.astype(jnp.float32), between), (history > 0).any((1, 2))
    need, log = normalise(demand, region).single(), log_demands(demand.astype(jnp.float32)[None], between)[0]
    drift = drifting(past, known, between)
    lasting, again = mean_power(drift.memory, horizon), mean_power(drift.memory**2, horizon)
    into, own, mean = _parts(log, between)
    predicted = jnp.where(between, mean + lasting[1] * into[None, :] + lasting[0] * own, 0)
    out = jnp.where(between, jnp.exp(log), 0).sum(1) / jnp.where(between, jnp.exp(predicted), 0).sum(1)
    predicted = jnp.where(between, predicted + jnp.log(out)[:, None], 0)  # servers send as much as before
    weight = known.astype(jnp.float32) / jnp.maximum(known.sum(), 1).astype(jnp.float32)
    usual = jnp.where(between, (weight[:, None, None] * past).sum(0) - log, 0)
    pairs = need.pairs
    pair = [predicted - log, log / 3, own / 3, usual / 3, predicted / 3, pairs / 4, jnp.log1p(16 * pairs) / 3]
    of_servers = [pairs.sum(1) / 8, pairs.sum(0) / 8, into / 3, region.degrees.astype(jnp.float32) / 8, need.ports / 8]
    ends = [end for value in of_servers for end in (value[:, None], value[None, :])]
    error = drift.changes[0, 0] if sigma is None else jnp.asarray(sigma, jnp.float32)
    rise = (1 - again) * drift.spread**2
    scalars = [jnp.log(horizon) / 3, *lasting, *rise, *drift.spread, *drift.changes.reshape(-1), error]
    scalars.append(jnp.log(jnp.asarray(servers / 8, jnp.float32)))
    every = [jnp.broadcast_to(value, (servers, servers)) for value in (*pair, *ends, *scalars)]
    return log, jnp.where(between[..., None], jnp.stack(every, axis=2), 0)


def imagine(
    demand: Float[Array, "S S"],
    history: Float[Array, "H S S"],
    key: PRNGKeyArray,
    horizon: Float[Array, ""] | float,
    sigma: Float[Array, ""] | float | None,
    scenarios: int,
) -> Float[Array, "R S S"]:
    """Return demands that may come, evenly spread over the next `horizon`; each server sends what it did."""
    servers = len(demand)
    between = ~jnp.eye(servers, dtype=bool)
    drift = drifting(log_demands(history, between), (history > 0).any((1, 2)), between)
    into, own, _ = _parts(log_demands(demand[None], between)[0], between)
    part = (jnp.arange(scenarios, dtype=jnp.float32) + 0.5) / scenarios
    steps = jnp.maximum(jnp.ceil(part * jnp.asarray(horizon, jnp.float32)), 1) - float(sigma is not None)
    kept = drift.memory[None] ** steps[:, None]  # [R 2]
    variance = (1 - kept**2) * drift.spread[None] ** 2
    if sigma is not None:  # of a forecast only this part is to be believed
        square = jnp.asarray(sigma, jnp.float32) ** 2
        total = drift.spread[0] ** 2 + square
        right = jnp.where(total > 0, drift.spread[0] ** 2 / jnp.where(total > 0, total, 1), 1)
        variance = variance.at[:, 0].add(kept[:, 0] ** 2 * right * square)
        kept = kept.at[:, 0].multiply(right)
    half = jax.random.normal(key, ((scenarios + 1) // 2, servers + 1, servers), jnp.float32)
    noise = jnp.stack([half, -half], axis=1).reshape(-1, servers + 1, servers)[:scenarios]
    spread = jnp.sqrt(variance)
    ends = kept[:, 1, None] * into[None] + spread[:, 1, None] * noise[:, 0]
    log = ends[:, None, :] + kept[:, 0, None, None] * own[None] + spread[:, 0, None, None] * noise[:, 1:]
    share = jax.nn.softmax(jnp.where(between[None], log, -jnp.inf), axis=2)
    out = jnp.where(between, demand, 0).sum(1)
    total = out.sum()
    return share * (out / jnp.where(total > 0, total, 1))[None, :, None]


def drifting(past: Float[Array, "H S S"], known: Bool[Array, "H"], between: Bool[Array, "S S"]) -> Drifting:
    into, own, _ = jax.vmap(lambda log: _parts(log, between))(past)
    others = max(len(between) - 1, 1)
    own = jnp.where(between[None], own - (own.sum(2) / others)[..., None], 0)  # servers' totals do not drift

    def mean_square(own: Array, into: Array, which: Array):
        squares = jnp.stack([(own**2).sum((1, 2)) / (others * into.shape[1]), (into**2).sum(1) / into.shape[1]])
        return jnp.where(which[None], squares, 0).sum(1) / jnp.maximum(which.sum(), 1).astype(jnp.float32)

    variance = mean_square(own, into, known)
    changes = []
    for lag in LAGS:
        both = known[lag:] & known[:-lag]
        changes.append(mean_square(own[lag:] - own[:-lag], into[lag:] - into[:-lag], both))
    lost = changes[0] / (2 * jnp.where(variance > 0, variance, 1))
    memory = jnp.where(variance > 0, jnp.clip(1 - lost, 0, MOST_MEMORY), MOST_MEMORY)
    return Drifting(memory, jnp.sqrt(variance), jnp.sqrt(jnp.stack(changes, axis=1)))


def mean_power(memory: Float[Array, "*B"], horizon: Float[Array, ""]) -> Float[Array, "*B"]:
    """Return the mean of memory^k over k from 1 to the horizon."""
    log = jnp.log(jnp.clip(memory, LEAST_MEMORY, MOST_MEMORY))
    return memory * jnp.expm1(horizon * log) / (horizon * jnp.expm1(log))


def log_demands(demand: Float[Array, "H S S"], between: Bool[Array, "S S"]) -> Float[Array, "H S S"]:
    demand = jnp.where(between[None], demand, 0)
    mean = demand.sum((1, 2), keepdims=True) / between.sum(dtype=jnp.int32).astype(demand.dtype)
    return jnp.where(between[None], jnp.log(demand / jnp.where(mean > 0, mean, 1) + FAINT), 0)


def _parts(log: Float[Array, "S S"], between: Bool[Array, "S S"]):
    """Return receivers' means around the mean of all, what pairs deviate from them, and the mean of all."""
    others = max(len(log) - 1, 1)
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
    routing: str = "split",
    tries: int = TRIES,
    scenarios: int = SCENARIOS,
) -> Plan:
    """Return circuits for the next `horizon` all-to-alls.

    - `demand` [S S]: bytes from server i to server j, as expected for the next all-to-all: the last one, or a forecast.
    - `history` [H S S]: demands so far, newest last; those of zeros are ignored. None: demand does not drift.
    - `sigma`: standard deviation of the log errors of `demand`; None: it is the last demand.
    - `routing`: "split" or "unsplit", by which circuits are timed. `tries`: proposals of the network. `scenarios`:
      demands on which circuits are tried; 0 takes the network's first proposal.
    - `key`: of the proposals and scenarios; None: a fixed one. `previous` is not used.

    The network was trained under split routing at 8 and 16 servers (`apps.learning.ahead_training`).
    """
    return shipped_ahead()(
        demand,
        region,
        previous=previous,
        key=key,
        history=history,
        horizon=horizon,
        sigma=sigma,
        routing=routing,
        tries=tries,
        scenarios=scenarios,
    )


@functools.cache
def shipped_ahead() -> AheadNetwork:
    return policy_file.read(DATA / "ahead.policy").network(AheadNetwork)
