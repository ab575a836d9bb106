"""The all-to-alls of one iteration on a fabric: for every block of every pass, how long and with which circuits."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from mfabric_jax import units
from mfabric_jax.fabric import Circuits, Electrical, Flat, Region
from mfabric_jax.policies import Policy, uniform
from mfabric_jax.routing import Plan, delegated, forward_time, inside_time, part_times, spray_time
from mfabric_jax.schedule.order import BACKWARD, one_f_one_b
from mfabric_jax.traffic import rank_bytes, server_bytes, split_local
from mfabric_jax.workload import Workload

Fabric = Electrical | Region | Flat
NVSWITCH_GIGABYTES_PER_S = 900.0           # per GPU and direction, as the paper simulates it


class Exchanges(NamedTuple):
    """Dispatch-sized all-to-alls [P Q L], blocks in the order in which the pass runs them.

    - `optical`, `electrical`: seconds times NIC bandwidth [bytes] of what circuits and packet switches carry: every
      link of a fabric is a multiple of its NICs, so the time at any bandwidth is the larger of them / bandwidth.
    - `inside_s`: the part inside servers, at the same time on the NVSwitch [s].
    - `switch`: the circuits differ from those before.   - `count` [P Q L S S]: the circuits (None: no optics).
    - `balanced`: the load if every token went to every expert equally often.
    """

    optical: Float[Array, "P Q L"]
    electrical: Float[Array, "P Q L"]
    inside_s: Float[Array, "P Q L"]
    switch: Bool[Array, "P Q L"]
    count: Array | None
    balanced: Float[Array, ""]

    @property
    def load(self) -> Float[Array, "P Q L"]:
        """Both parts together [bytes]."""
        return jnp.maximum(self.optical, self.electrical)


class Places(NamedTuple):
    """Static: which block every running slot [P Q L] is. `layer` counts MoE blocks; -1 where there is none."""

    present: np.ndarray
    layer: np.ndarray
    micro_batch: np.ndarray

    def pick(self, micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of every slot into [layer, micro-batch] arrays that hold `micro_batches`, read cyclically."""
        return np.maximum(self.layer, 0), self.micro_batch % micro_batches


def places(workload: Workload) -> Places:
    """Blocks in running order: a stage's own order forward, reversed backward; short stages are padded."""
    order = one_f_one_b(workload.pp, workload.micro_batches)
    most = max(workload.stage_blocks)
    present = np.arange(most) < np.asarray(workload.stage_blocks)[:, None]                     # [P L]
    layer = np.full((workload.pp, most), -1)
    for stage, blocks in enumerate(workload.stage_blocks):
        moe = workload.stage_layers(stage)
        layer[stage, blocks - len(moe) : blocks] = moe                                         # dense blocks come first
    back = order.kind[..., None] == BACKWARD
    run = np.where(back, np.arange(most)[::-1], np.arange(most))                               # [P Q L]
    stage = np.arange(workload.pp)[:, None, None]
    micro_batch = np.broadcast_to(order.micro_batch[..., None], run.shape)
    return Places(present[stage, run], layer[stage, run], micro_batch)


def exchanges(
    workload: Workload,
    fabric: Fabric,
    tokens: Float[Array, "layer M R E"],
    policy: Policy,
    *,
    routing: str = "unsplit",
    nvswitch_Bps: float = units.gigabytes_per_s(NVSWITCH_GIGABYTES_PER_S),
    key: Array | None = None,
) -> Exchanges:
    """All-to-all loads of one iteration of one pipeline (one data-parallel replica stands for all).

    - `tokens`: selections per MoE layer, micro-batch, source rank and expert; micro-batch m reads m mod M.

    Up and down directions of every fabric here are equal, so transposed demand takes equal time: one solve serves
    dispatch, combine and their gradients, each scaled by its element size.
    """
    apart = between_servers(workload, fabric, tokens, policy, routing=routing, key=key)
    return apart._replace(inside_s=inside_servers(workload, fabric, tokens, nvswitch_Bps))


def rank_demand(workload: Workload, tokens: Float[Array, "layer M R E"]) -> Float[Array, "layer M R R"]:
    """Bytes of every dispatch, from rank to rank."""
    return jax.vmap(jax.vmap(lambda one: rank_bytes(one, workload.dispatch_bytes_per_selection)))(tokens)


def inside_servers(
    workload: Workload, fabric: Fabric, tokens: Float[Array, "layer M R E"], nvswitch_Bps
) -> Float[Array, "P Q L"]:
    """`Exchanges.inside_s`: what stays in a server, and what crosses its NVSwitch to or from a NIC elsewhere in it."""
    where, per_server = places(workload), workload.ranks_per_server

    def one(demand):
        crossing = split_local(demand, per_server).inside + delegated(fabric, demand, per_server)
        return inside_time(crossing, nvswitch_Bps * workload.tp)

    inside = jax.vmap(jax.vmap(one))(rank_demand(workload, tokens))
    return jnp.where(where.layer >= 0, inside[where.pick(tokens.shape[1])], 0)


def between_servers(
    workload: Workload,
    fabric: Fabric,
    tokens: Float[Array, "layer M R E"],
    policy: Policy,
    *,
    routing: str = "unsplit",
    key: Array | None = None,
) -> Exchanges:
    """`exchanges` without the part inside servers (`inside_s` is 0)."""
    demand = rank_demand(workload, tokens)
    unit = at_unit_bandwidth(fabric, demand.dtype)
    if isinstance(unit, Electrical):
        return _steady(workload, demand, lambda one: spray_time(unit, one, workload.ranks_per_server))
    if isinstance(unit, Flat):
        return _steady(workload, demand, lambda one: forward_time(unit, server_bytes(one, workload.ranks_per_server)))
    per_server = workload.ranks_per_server
    between = jax.vmap(jax.vmap(lambda one: server_bytes(one, per_server)))(demand)
    even = server_bytes(_even(workload, demand), per_server)
    return switched(places(workload), unit, between, even, policy, key, routed(routing))


def failed_stage(
    workload: Workload,
    region: Region,
    tokens: Float[Array, "layer M R E"],
    share: Float[Array, "R S"],
    policy: Policy,
    stage: int,
    parts: Callable,
    *,
    key: Array | None = None,
) -> Exchanges:
    """The all-to-alls of one stage after a failure [1 Q L], without the part inside servers.

    - `region`: what is left, at any bandwidth.   - `share`: part of each rank that sits on each server.
    - `parts`: as in `switched`.
    """
    demand = rank_demand(workload, tokens)
    unit = at_unit_bandwidth(region, demand.dtype)
    assert isinstance(unit, Region)
    where = Places(*(field[stage : stage + 1] for field in places(workload)))
    others = 1 - jnp.eye(workload.ep, dtype=demand.dtype)

    def between(ranks):
        servers = jnp.einsum("rs,rq,qt->st", share, ranks * others, share)
        return servers * (1 - jnp.eye(region.servers, dtype=ranks.dtype))

    every = jax.vmap(jax.vmap(between))(demand)
    return switched(where, unit, every, between(_even(workload, demand)), policy, key, parts)


def _even(workload: Workload, like: Float[Array, "... R R"]) -> Float[Array, "R R"]:
    """The dispatch if every token went to every expert equally often."""
    row = workload.selections * workload.dispatch_bytes_per_selection
    return jnp.full(like.shape[-2:], row / workload.ep, like.dtype)


def _steady(workload: Workload, demand, seconds: Callable) -> Exchanges:
    """On a fabric that does not change, where `seconds` says how long a demand between ranks takes."""
    where, even = places(workload), _even(workload, demand)
    every = jnp.concatenate([demand.reshape(-1, *even.shape), even[None]])                     # one batch, one kernel
    load = jax.vmap(seconds)(every)
    by_layer = load[:-1].reshape(demand.shape[:2])[where.pick(demand.shape[1])]
    moe = where.layer >= 0
    nothing = jnp.zeros(moe.shape, load.dtype)
    return Exchanges(nothing, jnp.where(moe, by_layer, 0), nothing, jnp.zeros(moe.shape, bool), None, load[-1])


def routed(routing: str) -> Callable:
    """When circuits and packet switches are through, by a routing model."""
    return lambda region, circuits, demand: part_times(region, circuits, demand, routing=routing)


def switched(
    where: Places,
    unit: Region,
    demand: Float[Array, "layer M S S"],
    even: Float[Array, "S S"],
    policy: Policy,
    key,
    parts: Callable,
) -> Exchanges:
    """The all-to-alls between the servers of a region at unit bandwidth, circuits chosen block after block.

    - `parts`: (region, circuits, demand) -> when circuits and when packet switches are through.
    """
    moe = where.layer >= 0
    between = demand[where.pick(demand.shape[1])]                                              # [P Q L S S]
    count, switch = _choose(unit, policy, between, moe, key)
    calm = policy(even, unit, previous=None, key=key).circuits.count.astype(count.dtype)
    counts = jnp.concatenate([count.reshape(-1, *even.shape), calm[None]])
    every = jnp.concatenate([between.reshape(-1, *even.shape), even[None]])
    both = jax.vmap(lambda c, d: parts(unit, Circuits(c), d))(counts, every)
    optical, electrical = (jnp.where(moe, part[:-1].reshape(moe.shape), 0) for part in both)
    balanced = jnp.maximum(both[0][-1], both[1][-1])
    return Exchanges(optical, electrical, jnp.zeros_like(optical), switch, count, balanced)


def at_unit_bandwidth(fabric: Fabric, dtype) -> Electrical | Region:
    return eqx.tree_at(lambda f: f.nic_gbps, fabric, jnp.asarray(units.to_gbps(1.0), dtype))


def _choose(region: Region, policy: Policy, demand: Float[Array, "P Q L S S"], moe: np.ndarray, key):
    """Ask the policy block after block, in the order in which each stage runs them; before the first block of the
    iteration the region has the uniform topology."""
    stages, passes, blocks = moe.shape
    steps = demand.reshape(stages, passes * blocks, *demand.shape[-2:])
    active = jnp.asarray(moe.reshape(stages, -1))
    keys = None if key is None else jax.random.split(key, active.shape)
    start = uniform(None, region).circuits.count

    def one_stage(steps, active, keys):
        def choose(before, step):
            demand, here, key = step
            plan = policy(demand, region, previous=Plan(Circuits(before)), key=key)
            count = jnp.where(here, plan.circuits.count.astype(before.dtype), before)
            return count, (count, jnp.any(count != before))

        return lax.scan(choose, start, (steps, active, keys))[1]

    count, switch = jax.vmap(one_stage)(steps, active, keys)
    return count.reshape(demand.shape), switch.reshape(moe.shape)
