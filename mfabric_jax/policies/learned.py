"""Learned policies: an index rule of five numbers, a network, and the files of `mfabric train`.

The network is permutation-equivariant, so one set of weights serves any region. Messages pass between pairs of servers
over rows and columns (Hartford et al., ICML 2018, exchangeable matrices) and over third servers (Maron et al., NeurIPS
2019, provably powerful graph networks). The output shifts the logarithms of circuits proportional to demand.
"""

import dataclasses
import functools
import importlib.resources
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.case.policies import is_file
from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import policy_file
from mfabric_jax.policies.relaxed import demand_logits, soft_circuits
from mfabric_jax.policies.samples import NormalisedDemand, normalised
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.region import between_servers
from mfabric_jax.text_files import stamp
from mfabric_jax.traffic.demand_families import record_digests
from mfabric_jax.traffic.scenarios import expected

KINDS = ("network", "index")
DATA = importlib.resources.files("mfabric_jax.policies") / "data"
PAIR_FEATURES = 15
MOST_SCORE = 6.0  # largest change of the logarithm of a pair's circuits by the network
FIRST_SCORE = 0.01  # factor on the initial weights of the output layer
FAINT = 1e-4  # circuits added to every pair, so that spare NICs go to pairs without circuits
SHARE_STEPS = 60


class Index(eqx.Module):
    """Score of one more circuit for a pair: y (1 + relief r) / (count + offset)^power.

    - y: circuits that the pair needs (`NormalisedDemand`): `larger` times its larger direction plus 1 - `larger` times
      the mean of both. A fraction `spread` of y is what the pair would need if each server sent to all others in
      proportion to their total bytes.
    - r: sum over both servers of the load of their EPS ports (the busier direction), relative to what the ports carry
      within the degree bound.

    Offset 1, power 1 and zeros are greedy's rule "next". `spread` above 0 hedges against wrong forecasts and gives
    spare NICs to pairs without bytes, where relays may use them.
    """

    offset: float | Float[Array, ""] = 1.0
    power: float | Float[Array, ""] = 1.0
    larger: float | Float[Array, ""] = 0.0
    spread: float | Float[Array, ""] = 0.0
    relief: float | Float[Array, ""] = 0.0

    def __check_init__(self):
        positive("offset", self.offset)
        for field in ("power", "larger", "spread", "relief"):
            not_negative(field, getattr(self, field))
        for field in ("larger", "spread"):
            value = getattr(self, field)
            if not isinstance(value, Tracer) and np.any(np.asarray(value) > 1):
                raise InputError(f"{field} must be at most 1, got {value}.")

    def settings(self) -> dict[str, float]:
        return {field.name: float(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def __call__(self, demand, region: Region, *, previous=None, key=None) -> Plan:
        need = normalised(demand, region)
        return Plan(Circuits(allocated(self, need, pair_worth(self, need), region.degrees)))


class _Allocation(NamedTuple):
    count: Int[Array, "S S"]
    free: Int[Array, "S"]


def index(
    demand: Float[Array, "S S"], region: Region, *, previous=None, key=None, parameters: Index | None = None
) -> Plan:
    """Give circuits one at a time to the pair with the largest `Index` score and a free NIC at both ends.

    - `demand` [S S]: bytes from server i to server j, exact or a forecast; the diagonal is ignored.
    - `parameters`: None: those of the package, trained by `mfabric train --kind index`.

    Ties go to the lower (i, j). At most S * degree / 2 rounds. `previous` and `key` are not used.
    """
    return (shipped() if parameters is None else parameters)(demand, region, previous=previous, key=key)


@functools.cache
def shipped() -> Index:
    return Index(**policy_file.read(DATA / "index.policy").header["settings"])


@jax.jit
def allocated(
    rule: Index, need: NormalisedDemand, worth: Float[Array, "S S"], degree: Int[Array, "S"]
) -> Int[Array, "S S"]:
    """Circuits by the rule; `worth` is y of `Index` (upper triangle)."""
    rule = _typed(rule, need)
    servers = len(need.pairs)
    worth = jnp.triu(worth, 1)

    def scores(state: _Allocation):
        spare = state.free > 0
        count = state.count.astype(worth.dtype)
        busy = _port_load(need, count)
        score = worth * (1 + rule.relief * (busy[:, None] + busy[None, :])) / (count + rule.offset) ** rule.power
        return jnp.where(spare[:, None] & spare[None, :], score, 0)

    def deal(state: tuple[_Allocation, Float[Array, "S S"]]):
        (count, free), score = state
        i, j = jnp.divmod(jnp.argmax(score), servers)
        after = _Allocation(count.at[i, j].add(1).at[j, i].add(1), free.at[i].add(-1).at[j].add(-1))
        return after, scores(after)

    start = _Allocation(jnp.zeros((servers, servers), jnp.int32), degree)
    (count, _), _ = lax.while_loop(lambda state: (state[1] > 0).any(), deal, (start, scores(start)))
    return count  # ends: free NICs run out


@jax.jit
def pair_worth(rule: Index, need: NormalisedDemand) -> Float[Array, "S S"]:
    """y of `Index`, symmetric."""
    rule = _typed(rule, need)
    out, into, total = need.pairs.sum(1), need.pairs.sum(0), need.pairs.sum()
    even = out[:, None] * into[None, :] / jnp.where(total > 0, total, 1)
    one_way = (1 - rule.spread) * need.pairs + rule.spread * even
    return rule.larger * jnp.maximum(one_way, one_way.T) + (1 - rule.larger) * (one_way + one_way.T) / 2


def _typed(rule: Index, need: NormalisedDemand) -> Index:
    return jax.tree.map(lambda x: jnp.asarray(x, need.pairs.dtype), rule)


def _port_load(need: NormalisedDemand, count: Float[Array, "S S"]) -> Float[Array, "S"]:
    """EPS load of every server over what its ports carry within the degree bound."""
    left, some = jnp.maximum(need.pairs - count, 0), need.ports > 0
    return jnp.where(some, jnp.maximum(left.sum(0), left.sum(1)) / jnp.where(some, need.ports, 1), 0)


# ------------------------------------------------------------------------------------------------------ network
class Layer(eqx.Module):
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
    """The network policy: `network(demand, region, sigma=0.0) -> Plan`. Before training, circuits follow demand."""

    lift: eqx.nn.Linear
    layers: tuple[Layer, ...]
    score: eqx.nn.Linear
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)

    def __init__(self, width: int = 18, depth: int = 2, *, key: PRNGKeyArray):
        self.width, self.depth = whole("width", width, at_least=3), whole("depth", depth)
        keys = jax.random.split(key, 2 + depth)
        self.lift = eqx.nn.Linear(PAIR_FEATURES, width, dtype=jnp.float32, key=keys[0])
        score = eqx.nn.Linear(width, 1, use_bias=False, dtype=jnp.float32, key=keys[1])
        self.score = eqx.tree_at(lambda linear: linear.weight, score, FIRST_SCORE * score.weight)
        self.layers = tuple(Layer(width, key=layer_key) for layer_key in keys[2:])

    def settings(self) -> dict[str, int]:
        return {"width": self.width, "depth": self.depth}

    def __call__(
        self,
        demand: Float[Array, "S S"],
        region: Region,
        *,
        previous: Plan | None = None,
        key: PRNGKeyArray | None = None,
        sigma: float | Float[Array, ""] = 0.0,
        share_steps: int = SHARE_STEPS,
    ) -> Plan:
        """Circuits and relay shares; arguments as for `learned`."""
        seen, spread = expected(between_servers(region, demand), not_negative("sigma", sigma))
        circuits = Circuits(self.circuits(normalised(seen, region), region.degrees, spread))
        return Plan(circuits, relay_shares(region, circuits, seen, steps=share_steps))

    @eqx.filter_jit
    def circuits(self, need: NormalisedDemand, degrees: Int[Array, "S"], spread: Float[Array, ""]) -> Int[Array, "S S"]:
        real = soft_circuits(self.logits(need, degrees, spread), degrees)
        return allocated(shipped(), need.single(), real + FAINT, degrees)

    def logits(self, need: NormalisedDemand, degrees: Int[Array, "S"], spread: Float[Array, ""]) -> Float[Array, "S S"]:
        """Symmetric logits for `soft_circuits`. `spread`: standard deviation of the logarithm of the demand."""
        need = need.single()
        hidden = on_pairs(self.lift, _pair_features(need, degrees, spread))
        for layer in self.layers:
            hidden = layer(hidden)
        score = on_pairs(self.score, hidden)[..., 0]
        return demand_logits(need.pairs) + MOST_SCORE * jnp.tanh((score + score.T) / MOST_SCORE)


def on_pairs(linear: eqx.nn.Linear, pairs: Float[Array, "S S F"]) -> Float[Array, "S S G"]:
    return jax.vmap(jax.vmap(linear))(pairs)


def _pair_features(need: NormalisedDemand, degrees: Int[Array, "S"], spread) -> Float[Array, "S S F"]:
    bytes_ = need.pairs
    dtype, servers = bytes_.dtype, len(bytes_)
    seen = [bytes_ / 4, bytes_.T / 4, jnp.log1p(16 * bytes_), jnp.log1p(16 * bytes_.T)]
    seen.append(jnp.broadcast_to(spread.astype(dtype), bytes_.shape))
    server = [bytes_.sum(1) / 8, bytes_.sum(0) / 8, degrees.astype(dtype) / 8, need.ports / 8]
    server = jnp.stack([*server, jnp.broadcast_to(need.efficiency, servers)], axis=1)
    shape = (servers, servers, server.shape[1])
    ends = [jnp.broadcast_to(server[:, None], shape), jnp.broadcast_to(server[None], shape)]
    return jnp.concatenate([jnp.stack(seen, axis=2), *ends], axis=2)


# -------------------------------------------------------------------------------------------------------- files
@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A trained policy, callable as any other, and its training `configuration`; equal only to itself."""

    model: PolicyNetwork | Index
    configuration: Mapping[str, Any]

    def __call__(self, demand, region: Region, *, previous: Plan | None = None, key=None, **settings: Any) -> Plan:
        return self.model(demand, region, previous=previous, key=key, **settings)


def save(path: str | os.PathLike, model: PolicyNetwork | Index, configuration: Mapping[str, Any]) -> Path:
    """Write a policy to one file. `configuration` must fit in JSON."""
    kind = KINDS[isinstance(model, Index)]
    header = {"kind": kind, "settings": model.settings(), "configuration": dict(configuration)}
    return policy_file.write(path, header, model if isinstance(model, PolicyNetwork) else ())


def load(path: str | os.PathLike) -> Trained:
    """The policy in a file written by `save`; the same object until the file changes.

    `InputError` for a missing or damaged file, or one that holds no policy.
    """
    path = os.fspath(path)
    return _loaded(path, *stamp(path))


@functools.lru_cache(maxsize=64)
def _loaded(path: str, changed_ns: int, size: int) -> Trained:
    return _trained(policy_file.read(path))


def check_unseen(names: Sequence[str], trace: str, records: tuple[int, int] | None, axes: str | None = None) -> None:
    """`InputError` if a policy was trained on records that it would be judged by, even from another file."""
    for name in filter(is_file, names):
        configuration = load(name).configuration
        if configuration.get("trace") is None:
            continue
        learned = configuration.get("learned_from")
        if not learned:
            raise InputError(
                f"policies must say which records they were trained on; {name!r}, of an earlier version, does not: "
                f"train it again."
            )
        judged = record_digests(trace, records, axes)
        seen = {digest for _, digest in judged} & set(learned["digests"])
        if seen:
            left = _last_run([(number, digest not in seen) for number, digest in judged]) or learned["held_out"]
            allowed = f"; allowed: {left[0]}-{left[1]}" if left else ", and this trace has no others"
            raise InputError(
                f"records must be none of those that {name!r} was trained on, got {judged[0][0]}-{judged[-1][0]}"
                f"{allowed}."
            )


def _last_run(numbers: Sequence[tuple[int, bool]]) -> tuple[int, int] | None:
    runs = [[number for number, _ in run] for true, run in itertools.groupby(numbers, lambda pair: pair[1]) if true]
    return (runs[-1][0], runs[-1][-1]) if runs else None


def learned(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    sigma: float | Float[Array, ""] = 0.0,
    share_steps: int = SHARE_STEPS,
) -> Plan:
    """Circuits by the network of the package, and relay shares for the expected demand.

    - `demand` [S S]: bytes from server i to server j, exact or a forecast; the diagonal is ignored.
    - `sigma`: standard deviation of the logarithm of the forecast's errors. `share_steps`: gradient steps of the
      shares.

    Trained for relay routing at 8 and 16 servers with sigma up to 1. `previous` and `key` are not used.
    """
    return _shipped_network()(demand, region, sigma=sigma, share_steps=share_steps)


@functools.cache
def _shipped_network() -> Trained:
    return _trained(policy_file.read(DATA / "network.policy"))


def _trained(stored: policy_file.Stored) -> Trained:
    header = stored.header
    kind = one_of(f"kind of the policy in {stored.path!r}", str(header.get("kind")), KINDS)
    try:
        if kind == "index":
            model = Index(**header["settings"])
        else:
            with jax.ensure_compile_time_eval():  # the first use may be inside jit
                shape = eqx.filter_eval_shape(PolicyNetwork, **header["settings"], key=jax.random.key(0))
                model = stored.leaves(shape)
        return Trained(model, header["configuration"])
    except (KeyError, TypeError) as error:
        raise InputError(f"policy file {stored.path!r} lacks what a policy of kind {kind!r} needs.") from error
