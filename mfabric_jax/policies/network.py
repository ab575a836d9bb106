"""A permutation-equivariant network from demand to circuits and relay shares; the same weights serve any region.

Every ordered pair of servers carries a vector. A layer mixes it with that of the opposite direction, with means and
maxima over both servers' rows and columns, and with products over third servers (what relaying needs to see). What
comes out favours or disfavours pairs in an index rule (`Index`), which allocates the circuits; given these, more
layers give logits of the shares.
Source: message passing over rows and columns as in Hartford et al., ICML 2018 (exchangeable matrices); products over
third vertices as in Maron et al., NeurIPS 2019 (provably powerful graph networks).
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.checks import whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies._index import Index, allocated, pair_worth
from mfabric_jax.policies._soft_circuits import soft_circuits
from mfabric_jax.policies.normalised_demand import NormalisedDemand, normalised
from mfabric_jax.routing import Plan
from mfabric_jax.routing.relay import is_path

PAIR_FEATURES = 15
ACTIVE_FEATURES = 5  # of a pair's circuits, once these are known
RANK = 4  # of the products that a relay's logit is made of
FAINT_WORTH = 0.01  # added to what pairs are worth: spare NICs go to pairs without bytes
FAINT = 0.05  # circuits, in logarithms that the network sees
MOST_SCORE = 6.0  # by which the network may move the logarithm of a pair's circuits
FIRST_SCORE = 0.01  # of the usual first weights of scores
INACTIVE = 1e-3  # real circuits below which a pair counts as having none


class Layer(eqx.Module):
    """One round of messages; its output is added to its input."""

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
        hop = jnp.einsum("ikc,kjc->ijc", on_pairs(self.first, pairs), on_pairs(self.second, pairs)) / servers
        own = on_pairs(self.pair, jnp.concatenate([pairs, jnp.swapaxes(pairs, 0, 1), hop], axis=2))
        high = jnp.where(between, pairs, jnp.finfo(pairs.dtype).min)
        pooled = [pairs.sum(1) / servers, pairs.sum(0) / servers, high.max(1), high.max(0)]
        sends, receives = jnp.split(jax.vmap(self.server)(jnp.concatenate(pooled, axis=1)), 2, axis=1)
        return pairs + jax.nn.gelu(own + sends[:, None] + receives[None, :])


class PolicyNetwork(eqx.Module):
    """The policy with its weights: `network(demand, region) -> Plan`, shares for relay routing included.

    - `width`: of the vectors; `depth`: layers before the circuits are chosen, and again before the shares are.
    - `rule`: the index rule that is corrected; a new network follows it nearly.
    """

    lift: eqx.nn.Linear
    layers: tuple[Layer, ...]
    score: eqx.nn.Linear
    active: eqx.nn.Linear
    share_layers: tuple[Layer, ...]
    relay: eqx.nn.Linear
    ways: eqx.nn.Linear
    rule: Index
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)

    def __init__(self, width: int = 18, depth: int = 2, rule: Index | None = None, *, key: PRNGKeyArray):
        self.width, self.depth = whole("width", width, at_least=3), whole("depth", depth)
        keys = jax.random.split(key, 5 + 2 * depth)
        self.lift = eqx.nn.Linear(PAIR_FEATURES, width, dtype=jnp.float32, key=keys[0])
        score = eqx.nn.Linear(width, 1, use_bias=False, dtype=jnp.float32, key=keys[1])
        self.score = eqx.tree_at(lambda linear: linear.weight, score, FIRST_SCORE * score.weight)
        self.rule = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), Index() if rule is None else rule)
        self.active = eqx.nn.Linear(width + ACTIVE_FEATURES, width, dtype=jnp.float32, key=keys[2])
        self.relay = eqx.nn.Linear(width, 2 * RANK, dtype=jnp.float32, key=keys[3])
        self.ways = eqx.nn.Linear(width, 3, dtype=jnp.float32, key=keys[4])
        self.layers = tuple(Layer(width, key=one) for one in keys[5 : 5 + depth])
        self.share_layers = tuple(Layer(width, key=one) for one in keys[5 + depth :])

    def settings(self) -> dict[str, int]:
        """What `PolicyNetwork` is built with, weights apart."""
        return {"width": self.width, "depth": self.depth}

    def __call__(self, demand, region: Region, *, previous: Plan | None = None, key=None) -> Plan:
        """Circuits and relay shares for `demand` [S S] bytes, exact or a forecast; `key` is not used."""
        need = normalised(demand, region)
        count, shares = _planned(self, need, region.degrees, None if previous is None else previous.circuits.count)
        return Plan(Circuits(count), shares.astype(need.dtype))

    def chosen(self, need: NormalisedDemand, degree: Int[Array, "S"], previous=None) -> "Chosen":
        """What circuits and shares are chosen by."""
        need = need.single()
        hidden = on_pairs(self.lift, _pair_features(need, degree, previous))
        for layer in self.layers:
            hidden = layer(hidden)
        score = on_pairs(self.score, hidden)[..., 0]
        score = MOST_SCORE * jnp.tanh((score + score.T) / MOST_SCORE)
        return Chosen(score, hidden, need, degree)

    def allocated(self, chosen: "Chosen", score: Float[Array, "S S"]) -> Int[Array, "S S"]:
        """Circuits by the index rule, worth exp(score) times as much in circuits; no derivatives flow through."""
        rule, need, score, degree = lax.stop_gradient((self.rule, chosen.need, score, chosen.degree))
        return allocated(rule, need, (pair_worth(rule, need) + FAINT_WORTH) * jnp.exp(rule.power * score), degree)

    def real(self, chosen: "Chosen") -> Float[Array, "S S"]:
        """Real circuits that have derivatives, in the proportions that those allocated tend to."""
        rule = lax.stop_gradient(self.rule)
        worth = pair_worth(rule, chosen.need) + FAINT_WORTH
        return soft_circuits(jnp.log(worth) / rule.power + chosen.score, chosen.degree)

    def shares(self, chosen: "Chosen", count: Float[Array, "S S"]) -> Float[Array, "S S S+2"]:
        """Shares over circuits, whole or real. Rows sum to 1, but 0 from a server to itself."""
        need = chosen.need
        spare = count - need.pairs
        seen = [count / 4, jnp.log(count + FAINT), spare / 4, jnp.log(jnp.maximum(spare, 0) + FAINT)]
        seen = jnp.stack([*seen, jnp.maximum(-spare, 0) / 4], axis=2)
        hidden = on_pairs(self.active, jnp.concatenate([chosen.hidden, seen], axis=2))
        for layer in self.share_layers:
            hidden = layer(hidden)
        inward, onward = jnp.split(on_pairs(self.relay, hidden), 2, axis=2)
        ways = on_pairs(self.ways, hidden)
        return _shares(need, count, jnp.einsum("ikr,kjr->ijk", inward, onward), ways)


class Chosen(NamedTuple):
    """What the first half of the network found: by how much each pair is favoured; symmetric."""

    score: Float[Array, "S S"]
    hidden: Float[Array, "S S W"]
    need: NormalisedDemand
    degree: Int[Array, "S"]


@jax.jit
def _planned(
    network: PolicyNetwork, need: NormalisedDemand, degree, previous
) -> tuple[Int[Array, "S S"], Float[Array, "S S S+2"]]:
    chosen = network.chosen(need, degree, previous)
    count = network.allocated(chosen, chosen.score)
    return count, network.shares(chosen, count.astype(chosen.score.dtype))


def on_pairs(linear: eqx.nn.Linear, pairs: Float[Array, "S S F"]) -> Float[Array, "S S G"]:
    """The same linear map on every pair's vector."""
    return jax.vmap(jax.vmap(linear))(pairs)


def _pair_features(need: NormalisedDemand, degree: Int[Array, "S"], previous) -> Float[Array, "S S F"]:
    """What is known of every ordered pair before circuits are chosen: [S S 15]."""
    bytes_ = need.pairs
    dtype, servers = bytes_.dtype, len(bytes_)
    before = jnp.zeros_like(bytes_) if previous is None else lax.stop_gradient(previous).astype(dtype)
    seen = [bytes_ / 4, bytes_.T / 4, jnp.log1p(16 * bytes_), jnp.log1p(16 * bytes_.T), before / 4]
    server = [bytes_.sum(1) / 8, bytes_.sum(0) / 8, degree.astype(dtype) / 8, need.ports / 8]
    server = jnp.stack([*server, jnp.broadcast_to(need.efficiency, servers)], axis=1)
    shape = (servers, servers, server.shape[1])
    ends = [jnp.broadcast_to(server[:, None], shape), jnp.broadcast_to(server[None], shape)]
    return jnp.concatenate([jnp.stack(seen, axis=2), *ends], axis=2)


def _shares(need: NormalisedDemand, count: Float[Array, "S S"], products, ways) -> Float[Array, "S S S+2"]:
    """Softmax over the paths there are; without corrections from the network, in proportion to their widths."""
    width = functools.partial(jnp.maximum, INACTIVE)
    spare = width(count - need.pairs)
    via = jnp.log(jnp.minimum(spare[:, None, :], spare.T[None])) + products + ways[..., :1]
    port = jnp.minimum(need.ports[:, None], need.ports[None, :])
    straight = jnp.stack([jnp.log(width(count)), jnp.log(width(port))], axis=2) + ways[..., 1:]
    active = count > INACTIVE
    joined = jnp.stack([active, port > 0], axis=2)
    path = jnp.concatenate([active[:, None, :] & active.T[None], joined], axis=2)
    served = path.any(2, keepdims=True)
    eps = jnp.zeros_like(path).at[..., -1].set(True)
    path = jnp.where(served, path, eps) & is_path(len(count))
    logits = jnp.where(path, jnp.concatenate([via, straight], axis=2), jnp.finfo(count.dtype).min / 2)
    return jnp.where(path, jax.nn.softmax(logits, axis=2), 0)
