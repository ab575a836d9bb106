"""The network policy.

The network is permutation-equivariant, so one set of weights serves any region. Pairs of servers exchange messages over
rows and columns (Hartford et al., ICML 2018, exchangeable matrices) and over third servers (Maron et al., NeurIPS 2019,
provably powerful graph networks). The output corrects the logarithm of circuits that are proportional to demand.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, PRNGKeyArray

from mfabric_jax.checks import not_negative, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.arguments import circuits_before, demand_of, unless_nan
from mfabric_jax.policies.relaxed import demand_logits, soft_circuits
from mfabric_jax.policies.rounding import deal_circuits
from mfabric_jax.policies.samples import NormalisedDemand, normalise
from mfabric_jax.policies.weighing import relative_delay, weigh_circuits
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.exchange import SHARE_STEPS
from mfabric_jax.support.array_module import Array
from mfabric_jax.traffic.scenarios import expected_demand

PAIR_FEATURES = 15
WEIGHED_FEATURES = 2
MOST_SCORE = 6.0  # largest correction to the logarithm of a pair's circuits
FIRST_SCORE = 0.01  # factor on the initial weights of the output layer


class PairLayer(eqx.Module):
    pair: eqx.nn.Linear
    server: eqx.nn.Linear
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, width: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        third = width // 3
        self.pair = eqx.nn.Linear(2 * width + third, width, dtype=jnp.float32, key=keys[0])
        self.server = eqx.nn.Linear(4 * width, 2 * width, use_bias=False, dtype=jnp.float32, key=keys[1])
        self.first = eqx.nn.Linear(width, third, use_bias=False, dtype=jnp.float32, key=keys[2])
        self.second = eqx.nn.Linear(width, third, use_bias=False, dtype=jnp.float32, key=keys[3])

    def __call__(self, pairs: Float[Array, "S S W"]) -> Float[Array, "S S W"]:
        servers = len(pairs)
        between = ~jnp.eye(servers, dtype=bool)[..., None]
        pairs = jnp.where(between, pairs, 0)
        # Without the barrier XLA of JAX 0.10.2 aborts on CPUs under nested vmap (a transpose folded into this product).
        each = on_pairs(self.first, pairs), on_pairs(self.second, pairs)
        first, second = jax.lax.platform_dependent(
            *each, cpu=lambda *x: jax.lax.optimization_barrier(x), default=lambda *x: x
        )
        hop = jnp.einsum("ikc,kjc->ijc", first, second) / servers
        own = on_pairs(self.pair, jnp.concatenate([pairs, jnp.swapaxes(pairs, 0, 1), hop], axis=2))
        high = jnp.where(between, pairs, jnp.finfo(pairs.dtype).min)
        pooled = [pairs.sum(1) / servers, pairs.sum(0) / servers, high.max(1), high.max(0)]
        sends, receives = jnp.split(jax.vmap(self.server)(jnp.concatenate(pooled, axis=1)), 2, axis=1)
        return pairs + jax.nn.gelu(own + sends[:, None] + receives[None, :])


class PolicyNetwork(eqx.Module):
    """The network policy: `network(demand, region, sigma=0.0) -> Plan`. Before training, circuits follow demand.

    `weighs`: the network sees the current circuits and the delay of a change. Its proposal is then `weigh_circuits`
    against the current circuits and evenly spread ones. `patience`: logarithm of the number of all-to-alls within
    which a change must pay for itself.
    """

    lift: eqx.nn.Linear
    layers: tuple[PairLayer, ...]
    score: eqx.nn.Linear
    patience: Float[Array, ""] | None
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    weighs: bool = eqx.field(static=True)

    def __init__(self, width: int = 18, depth: int = 2, weighs: bool = False, *, key: PRNGKeyArray):
        self.width, self.depth = whole("width", width, at_least=3), whole("depth", depth)
        self.weighs, self.patience = bool(weighs), jnp.zeros((), jnp.float32) if weighs else None
        keys = jax.random.split(key, 2 + depth)
        features = PAIR_FEATURES + WEIGHED_FEATURES * self.weighs
        self.lift = eqx.nn.Linear(features, width, dtype=jnp.float32, key=keys[0])
        score = eqx.nn.Linear(width, 1, use_bias=False, dtype=jnp.float32, key=keys[1])
        self.score = eqx.tree_at(lambda linear: linear.weight, score, FIRST_SCORE * score.weight)
        self.layers = tuple(PairLayer(width, key=layer_key) for layer_key in keys[2:])

    def weighing(self) -> "PolicyNetwork":
        """Return this network as one that weighs, with the same logits; the weights of its new inputs are 0."""
        if self.weighs:
            return self
        wide = PolicyNetwork(self.width, self.depth, True, key=jax.random.key(0))
        unseen = jnp.zeros((self.width, WEIGHED_FEATURES), jnp.float32)
        lift = jnp.concatenate([self.lift.weight, unseen], axis=1)
        weights = lift, self.lift.bias, self.layers, self.score
        return eqx.tree_at(
            lambda network: (network.lift.weight, network.lift.bias, network.layers, network.score), wide, weights
        )

    def settings(self) -> dict[str, int]:
        return {"width": self.width, "depth": self.depth} | ({"weighs": True} if self.weighs else {})

    def __call__(
        self,
        demand: Float[Array, "S S"],
        region: Region,
        *,
        previous: Plan | None = None,
        key: PRNGKeyArray | None = None,
        sigma: float | Float[Array, ""] = 0.0,
        share_steps: int = SHARE_STEPS,
        hidden_s: float | Float[Array, ""] = 0.0,
    ) -> Plan:
        """Return circuits and relay shares; arguments as for `learned`."""
        demand, before = demand_of(demand, region), circuits_before(previous, region)
        options = {"sigma": not_negative("sigma", sigma), "hidden_s": not_negative("hidden_s", hidden_s)}
        circuits = Circuits(unless_nan(self.choose_circuits(demand, region, before, **options), demand))
        seen, _ = expected_demand(demand, sigma)
        return Plan(circuits, relay_shares(region, circuits, seen, steps=share_steps))

    @eqx.filter_jit
    def choose_circuits(
        self,
        demand: Float[Array, "S S"],
        region: Region,
        before: Int[Array, "S S"] | None,
        *,
        sigma: float | Float[Array, ""] = 0.0,
        hidden_s: float | Float[Array, ""] = 0.0,
        noise: Float[Array, "S S"] | float = 0.0,
    ) -> Int[Array, "S S"]:
        """Return the circuits of a plan; training adds `noise` to the logits to try other circuits."""
        count = self.propose_circuits(demand, region, before, sigma=sigma, hidden_s=hidden_s, noise=noise)
        if not self.weighs:
            return count
        patience = jnp.zeros((), jnp.float32) if self.patience is None else self.patience
        delay = relative_delay(region, expected_demand(demand, sigma)[0], hidden_s) / jnp.exp(patience)
        return weigh_circuits(count, demand, region, previous=before, sigma=sigma, delay=delay)

    def propose_circuits(
        self,
        demand: Float[Array, "S S"],
        region: Region,
        before: Int[Array, "S S"] | None,
        *,
        sigma: float | Float[Array, ""] = 0.0,
        hidden_s: float | Float[Array, ""] = 0.0,
        noise: Float[Array, "S S"] | float = 0.0,
    ) -> Int[Array, "S S"]:
        """Return the proposed circuits, before they are weighed against the current ones."""
        seen, spread = expected_demand(demand, sigma)
        need, degrees = normalise(seen, region), region.degrees
        delay = relative_delay(region, seen, hidden_s)
        return deal_circuits(
            soft_circuits(self.logits(need, degrees, spread, before, delay) + noise, degrees), need, degrees
        )

    def logits(
        self,
        need: NormalisedDemand,
        degrees: Int[Array, "S"],
        spread: Float[Array, ""],
        before: Float[Array, "S S"] | Int[Array, "S S"] | None = None,
        delay: Float[Array, ""] | float = 0.0,
    ) -> Float[Array, "S S"]:
        """Return symmetric logits for `soft_circuits`.

        - `spread`: standard deviation of the logarithm of the demand.
        - `before`: current circuits. `delay`: of a change, in degree bounds. Only a network that weighs sees both.
        """
        need = need.single()
        features = _pair_features(need, degrees, spread)
        if self.weighs:
            features = jnp.concatenate([features, _weighing_features(len(degrees), before, delay)], axis=2)
        hidden = on_pairs(self.lift, features)
        for layer in self.layers:
            hidden = layer(hidden)
        score = on_pairs(self.score, hidden)[..., 0]
        return demand_logits(need.pairs) + MOST_SCORE * jnp.tanh((score + score.T) / MOST_SCORE)


def on_pairs(linear: eqx.nn.Linear, pairs: Float[Array, "S S F"]) -> Float[Array, "S S G"]:
    return jax.vmap(jax.vmap(linear))(pairs)


def _weighing_features(servers: int, before: Array | None, delay: Array) -> Float[Array, "S S 2"]:
    in_place = jnp.zeros((servers, servers), jnp.float32) if before is None else before.astype(jnp.float32)
    cost = jnp.log1p(jnp.asarray(delay, jnp.float32))
    return jnp.stack([in_place / 4, jnp.broadcast_to(cost, in_place.shape)], axis=2)


def _pair_features(need: NormalisedDemand, degrees: Int[Array, "S"], spread: Array) -> Float[Array, "S S F"]:
    bytes_ = need.pairs
    dtype, servers = bytes_.dtype, len(bytes_)
    seen = [bytes_ / 4, bytes_.T / 4, jnp.log1p(16 * bytes_), jnp.log1p(16 * bytes_.T)]
    seen.append(jnp.broadcast_to(spread.astype(dtype), bytes_.shape))
    server = [bytes_.sum(1) / 8, bytes_.sum(0) / 8, degrees.astype(dtype) / 8, need.ports / 8]
    server = jnp.stack([*server, jnp.broadcast_to(need.efficiency, servers)], axis=1)
    shape = (servers, servers, server.shape[1])
    ends = [jnp.broadcast_to(server[:, None], shape), jnp.broadcast_to(server[None], shape)]
    return jnp.concatenate([jnp.stack(seen, axis=2), *ends], axis=2)
