"""The all-to-alls of one iteration on a fabric: for every block of every pass, how long and with which circuits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Array, Bool, Float

from mfabric_jax import units
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.design import EpGroup
from mfabric_jax.policies import Policy, uniform
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.electrical import delegated, inside_time
from mfabric_jax.routing.fixed import fixed_time
from mfabric_jax.routing.region import part_times, relay_part_bounds
from mfabric_jax.routing.single import SinglePaths
from mfabric_jax.schedule._order import BACKWARD, order_of
from mfabric_jax.schedule.first import AHEAD, BLOCK, First, SlotsToServe, choose
from mfabric_jax.traffic import rank_bytes, server_bytes
from mfabric_jax.traffic.demand import inside_bytes
from mfabric_jax.workload import Workload

Carry = SinglePaths | Callable | None
RELAY_STEPS = 100  # 0.1 % from the best shares on average


class Exchanges(NamedTuple):
    """Dispatch-sized all-to-alls [P Q L 2], two in every block, blocks in the order in which the pass runs them.

    - `optical`, `electrical`: seconds times NIC bandwidth [bytes] of what circuits and packet switches carry: every
      link of a fabric is a multiple of its NICs, so the time at any bandwidth is the larger of them / bandwidth.
    - `inside` [P Q L]: the part inside servers, at the same time on the NVSwitch: seconds times its bandwidth [bytes].
    - `switch`: the circuits differ from those before.   - `ahead` [P Q L]: those of the first are known beforehand.
    - `count` [P Q L 2 S S]: the circuits (None: no optics).
    - `balanced`: the load if every token went to every expert equally often.
    """

    optical: Float[Array, "P Q L 2"]
    electrical: Float[Array, "P Q L 2"]
    inside: Float[Array, "P Q L"]
    switch: Bool[Array, "P Q L 2"]
    ahead: Bool[Array, "P Q L"]
    count: Array | None
    balanced: Float[Array, ""]

    @property
    def load(self) -> Float[Array, "P Q L 2"]:
        """Both parts together [bytes]."""
        return jnp.maximum(self.optical, self.electrical)


class Places(NamedTuple):
    """Static: which block every running slot [P Q L] is. `layer` counts MoE blocks; -1 where there is none."""

    present: np.ndarray
    layer: np.ndarray
    micro_batch: np.ndarray
    backward: np.ndarray

    def pick(self, layers: int, micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of every slot into [layers, micro-batches] arrays, read cyclically."""
        return np.maximum(self.layer, 0) % layers, self.micro_batch % micro_batches


def places(workload: Workload) -> Places:
    """Blocks in running order: a pass's own order forward, reversed backward; short passes are padded."""
    order, blocks = order_of(workload), workload.place_blocks
    most = max(blocks)
    present = np.arange(most) < np.asarray(blocks)[:, None]  # [place L]
    layer = np.full((len(blocks), most), -1)
    for place, count in enumerate(blocks):
        moe = workload.place_layers(place)
        layer[place, count - len(moe) : count] = moe  # dense blocks come first
    back = np.broadcast_to((order.kind == BACKWARD)[..., None], (*order.kind.shape, most))
    run = np.where(back, np.arange(most)[::-1], np.arange(most))  # [P Q L]
    place = (order.chunk * workload.pp + np.arange(workload.pp)[:, None])[..., None]
    micro_batch = np.broadcast_to(order.micro_batch[..., None], run.shape)
    return Places(present[place, run], layer[place, run], micro_batch, back)


def exchanges(
    workload: Workload,
    group: EpGroup,
    tokens: Float[Array, "layer M R E"],
    policy: Policy,
    *,
    routing: str = "unsplit",
    first: First = BLOCK,
    carry: Carry = None,
    key: Array | None = None,
) -> Exchanges:
    """All-to-all loads of one iteration of one pipeline (one data-parallel replica stands for all).

    - `tokens`: selections per MoE layer, micro-batch, source rank and expert; both are read
      cyclically where there are fewer.
    - `first`: which circuits the first all-to-all of a block finds.
    - `carry`: how it is carried if not by spraying or `routing`: `single_paths` on an electrical fabric, on a region
      `single_part_times` or any function (region, circuits, demand) -> when circuits and packet switches are through.

    Up and down directions of every fabric here are equal, so transposed demand takes equal time: one solve serves
    dispatch, combine and their gradients, each scaled by its element size.
    """
    between = exchanges_between(workload, group, tokens, policy, routing=routing, first=first, carry=carry, key=key)
    return between._replace(inside=exchanges_inside(workload, group, tokens))


def rank_demand(workload: Workload, tokens: Float[Array, "layer M R E"]) -> Float[Array, "layer M R R"]:
    """Bytes of every dispatch, from rank to rank."""
    return every_all_to_all(lambda one: rank_bytes(one, workload.dispatch_bytes_per_selection))(tokens)


def every_all_to_all(work: Callable) -> Callable:
    """`work` on one all-to-all, over [layer M ...]."""
    return jax.vmap(jax.vmap(work))


@eqx.filter_jit
def exchanges_inside(workload: Workload, group: EpGroup, tokens: Float[Array, "layer M R E"]) -> Float[Array, "P Q L"]:
    """`Exchanges.inside`: what stays in a server, and what crosses its NVSwitch to or from a NIC elsewhere in it."""
    where, per_server = places(workload), workload.ranks_per_server

    def one(demand):
        crossing = inside_bytes(demand, per_server) + delegated(group, demand, per_server)
        return inside_time(crossing, 1.0 * workload.tp)

    inside = every_all_to_all(one)(rank_demand(workload, tokens))
    return jnp.where(where.layer >= 0, inside[where.pick(*tokens.shape[:2])], 0)


@eqx.filter_jit
def exchanges_between(
    workload: Workload,
    group: EpGroup,
    tokens: Float[Array, "layer M R E"],
    policy: Policy,
    *,
    routing: str = "unsplit",
    first: First = BLOCK,
    carry: Carry = None,
    key: Array | None = None,
) -> Exchanges:
    """`exchanges` without the part inside servers (`inside` is 0)."""
    demand = rank_demand(workload, tokens)
    unit, per_server = at_unit_bandwidth(group, demand.dtype), workload.ranks_per_server
    if not unit.reconfigures:
        paths = carry.time if isinstance(carry, SinglePaths) else None
        seconds = paths or (lambda group, one: fixed_time(group, one, per_server))
        return _steady(workload, demand, lambda one: seconds(unit, one))
    between = every_all_to_all(lambda one: server_bytes(one, per_server))
    guess = None if first.predicted is None else between(rank_demand(workload, first.predicted))
    even = server_bytes(_even(workload, demand), per_server)
    parts = carry if callable(carry) else routed(routing)
    return switched(places(workload), unit, between(demand), even, policy, key, parts, first, guess)


def failed_stage(
    workload: Workload,
    region: Region,
    tokens: Float[Array, "layer M R E"],
    share: Float[Array, "R S"],
    policy: Policy,
    stage: int,
    parts: Callable,
    *,
    first: First = BLOCK,
    key: Array | None = None,
) -> Exchanges:
    """The all-to-alls of one stage after a failure [1 Q L], without the part inside servers.

    - `region`: what is left, at any bandwidth.   - `share`: part of each rank that sits on each server.
    - `parts`: as in `switched`.
    """
    demand = rank_demand(workload, tokens)
    unit = at_unit_bandwidth(region, demand.dtype)
    where = Places(*(field[stage : stage + 1] for field in places(workload)))
    others = 1 - jnp.eye(workload.ep, dtype=demand.dtype)

    def between(ranks):
        servers = jnp.einsum("rs,rq,qt->st", share, ranks * others, share)
        return servers * (1 - jnp.eye(region.servers, dtype=ranks.dtype))

    every = every_all_to_all(between)
    guess = None if first.predicted is None else every(rank_demand(workload, first.predicted))
    return switched(where, unit, every(demand), between(_even(workload, demand)), policy, key, parts, first, guess)


def _even(workload: Workload, like: Float[Array, "... R R"]) -> Float[Array, "R R"]:
    """The dispatch if every token went to every expert equally often."""
    row = workload.selections * workload.dispatch_bytes_per_selection
    return jnp.full(like.shape[-2:], row / workload.ep, like.dtype)


def _steady(workload: Workload, demand, seconds: Callable) -> Exchanges:
    """On a fabric that does not change, where `seconds` says how long a demand between ranks takes."""
    where, even = places(workload), _even(workload, demand)
    every = jnp.concatenate([demand.reshape(-1, *even.shape), even[None]])  # one batch, one kernel
    load = jax.vmap(seconds)(every)
    by_layer = load[:-1].reshape(demand.shape[:2])[where.pick(*demand.shape[:2])]
    moe = where.layer >= 0
    nothing, calm = jnp.zeros((*moe.shape, 2), load.dtype), jnp.zeros((*moe.shape, 2), bool)
    twice = jnp.where(moe, by_layer, 0)[..., None] + nothing
    return Exchanges(nothing, twice, nothing[..., 0], calm, calm[..., 0], None, load[-1])


def routed(routing: str) -> Callable:
    """When circuits and packet switches are through, by a routing model.

    Relay: shares near the best for the circuits and the demand at hand, flows paced, as those of split routing are.
    """
    if routing == "relay":
        return _relayed
    return lambda region, circuits, demand: part_times(region, circuits, demand, routing=routing)


def _relayed(region: Region, circuits: Circuits, demand: Float[Array, "S S"]):
    shares = relay_shares(region, circuits, demand, steps=RELAY_STEPS)
    return relay_part_bounds(region, Plan(circuits, shares), demand)


def switched(
    where: Places,
    unit: Region,
    demand: Float[Array, "layer M S S"],
    even: Float[Array, "S S"],
    policy: Policy,
    key,
    parts: Callable,
    first: First = BLOCK,
    guess: Float[Array, "layer M S S"] | None = None,
) -> Exchanges:
    """The all-to-alls between the servers of a region at unit bandwidth, circuits chosen block after block.

    - `parts`: (region, circuits, demand) -> when circuits and when packet switches are through.
    - `guess`: the demand as predicted.
    """
    if first.rule == "block" and not remembers(policy, unit, even, uniform(None, unit).circuits.count, key):
        return _once_each(where, unit, demand, even, policy, key, parts, first.cold)
    moe = where.layer >= 0
    between = demand[where.pick(*demand.shape[:2])]  # [P Q L S S]
    guess = between if guess is None else guess[where.pick(*guess.shape[:2])]
    slots = SlotsToServe(between, guess, jnp.asarray(moe), jnp.asarray(where.backward))
    count, switch = choose(unit, policy, slots, parts, first, key)
    calm = policy(even, unit, previous=None, key=key).circuits.count.astype(count.dtype)
    alike = first.rule == "block"  # both of a block
    served = count[..., :1, :, :] if alike else count
    counts = jnp.concatenate([served.reshape(-1, *even.shape), calm[None]])
    asked = jnp.broadcast_to(between[..., None, :, :], served.shape)
    every = jnp.concatenate([asked.reshape(-1, *even.shape), even[None]])
    both = jax.vmap(lambda c, d: parts(unit, Circuits(c), d))(counts, every)
    nothing = jnp.zeros((*moe.shape, 2), both[0].dtype)
    optical, electrical = (nothing + jnp.where(moe[..., None], part[:-1].reshape(*moe.shape, -1), 0) for part in both)
    ahead = jnp.asarray(where.backward | (first.rule in AHEAD))
    return Exchanges(optical, electrical, nothing[..., 0], switch, ahead, count, jnp.maximum(both[0][-1], both[1][-1]))


def remembers(policy: Policy, region: Region, demand, start, key) -> bool:
    """Whether a policy's circuits can depend on the plan in place or on the key, as far as its program shows.

    - `demand` [S S], `start` [S S]: of the shapes and types that it is called with.
    """

    def circuits(demand, before, key):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count

    program = jax.make_jaxpr(circuits)(demand, jnp.zeros_like(start), key).jaxpr
    _, used = partial_eval.dce_jaxpr(program, [True])
    return any(used[1:])


def _once_each(where: Places, unit: Region, demand, even, policy, key, parts, cold: bool) -> Exchanges:
    """`switched` for circuits that depend on the demand alone: chosen and timed once for each demand."""
    moe, start = where.layer >= 0, uniform(None, unit).circuits.count
    every = jnp.concatenate([demand.reshape(-1, *even.shape), even[None]])
    previous = Plan(Circuits(start))
    counts = jax.vmap(lambda one: policy(one, unit, previous=previous, key=key).circuits.count)(every)
    both = jax.vmap(lambda count, one: parts(unit, Circuits(count), one))(counts, every)
    layer, micro_batch = where.pick(*demand.shape[:2])
    at = np.where(moe, layer * demand.shape[1] + micro_batch, -1)
    serving = _last(at.reshape(len(at), -1)).reshape(at.shape)  # which demand the circuits are for
    by_stage = serving.reshape(len(at), -1)
    begin = np.full((len(at), 1), -1) if cold else by_stage[:, -1:]  # as the iteration before left them
    before = np.concatenate([begin, by_stage[:, :-1]], axis=1).reshape(at.shape)
    chosen = jnp.concatenate([counts[:-1].astype(start.dtype), start[None]])  # the last: where nothing ran before
    switch = jnp.any(chosen[serving] != chosen[before], axis=(-2, -1))
    nothing = jnp.zeros((*moe.shape, 2), both[0].dtype)
    optical, electrical = (nothing + jnp.where(moe, part[:-1][at], 0)[..., None] for part in both)
    count = jnp.broadcast_to(chosen[serving][..., None, :, :], (*moe.shape, 2, *even.shape))
    switches = jnp.stack([switch, jnp.zeros_like(switch)], axis=-1)
    calm_s = jnp.maximum(both[0][-1], both[1][-1])
    return Exchanges(optical, electrical, nothing[..., 0], switches, jnp.asarray(where.backward), count, calm_s)


def _last(at: np.ndarray) -> np.ndarray:
    """Along the last axis, the value at a place or, where it is -1, the last one before it."""
    place = np.maximum.accumulate(np.where(at >= 0, np.arange(at.shape[-1]), -1), axis=-1)
    return np.where(place >= 0, np.take_along_axis(at, np.maximum(place, 0), axis=-1), -1)


def at_unit_bandwidth(group: Any, dtype) -> Any:
    """The group with NICs of 1 byte/s."""
    return eqx.tree_at(lambda g: g.nic_gbps, group, jnp.asarray(units.to_gbps(1.0), dtype))
