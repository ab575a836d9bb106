"""The all-to-alls of one iteration on a fabric: times and circuits."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax import units
from mfabric_jax.array_module import Array, array_module
from mfabric_jax.arrays import floats_or_nan
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.design import EpGroup, as_data
from mfabric_jax.host_arrays import NOT_NEGATIVE
from mfabric_jax.policies import Policy, uniform
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.fixed import SinglePaths, delegated, fixed_time, inside_time
from mfabric_jax.routing.graph_ways import GraphWays
from mfabric_jax.timing.passes import Exchanges, Places, behind_sends, places
from mfabric_jax.timing.scheduled import Pace, carries_schedule, planner_of, region_at, scheduled
from mfabric_jax.timing.switching import ALL_TO_ALL, BLOCK, First, Span, routed, routed_in_parts, switched
from mfabric_jax.traffic import likely_demands
from mfabric_jax.traffic.dispatch import dispatch_of, even_bytes, inside_bytes, summed_by_server
from mfabric_jax.workload import Workload

Carry = SinglePaths | GraphWays | Callable | None


def exchanges(
    workload: Workload,
    group: EpGroup,
    tokens: Float[Array, "layer M R E"],
    policy: Policy,
    *,
    routing: str = "unsplit",
    first: First = BLOCK,
    span: Span = ALL_TO_ALL,
    partial: bool = False,
    carry: Carry = None,
    key: Array | None = None,
) -> Exchanges:
    """All-to-all loads of one iteration of one pipeline (one data-parallel replica stands for all).

    - `tokens`: selections per MoE layer, micro-batch, source rank and expert, repeated cyclically; from
      `traffic.sent_tokens` where dispatch is "per-server".
    - `policy`: one whose plans hold a schedule is asked for every all-to-all, with its own bytes, at the region's
      bandwidth and delay; `first`, `span`, `partial`, `routing` say nothing then.
    - `first`, `span`: rule for the first all-to-all of a block, and how long circuits stay set.
    - `partial`: unchanged circuits carry while others turn.
    - `carry`: replaces spraying and `routing`: `single_paths` on an electrical fabric; on a region `single_part_times`
      or a function (region, circuits, demand) -> seconds until circuits and packet switches finish.

    Links have equal capacity in both directions, so one solve serves dispatch, combine and their gradients, scaled by
    element size. Compiled once; other bandwidths, delays or traffic of the same shape reuse the program.
    """
    tokens = _selections("tokens", tokens)
    if first.predicted is not None:
        first = dataclasses.replace(first, predicted=_selections("predicted", first.predicted))
    if span.seen is not None:
        span = dataclasses.replace(span, seen=_selections("seen", span.seen, "I layer M R E"))
    group = as_data(group, tokens.dtype)
    rest = {"routing": routing, "first": first, "span": span, "partial": partial, "carry": carry, "key": key}
    between = exchanges_between(workload, group, tokens, policy, **rest)
    return between._replace(inside=exchanges_inside(workload, group, tokens))


def _selections(field: str, tokens, axes: str = "layer M R E") -> Float[Array, "... layer M R E"]:
    tokens = floats_or_nan(field, tokens, NOT_NEGATIVE)
    if tokens.ndim != len(axes.split()):
        raise InputError(f"{field} must be [{axes}], selections of experts, got {list(tokens.shape)}.")
    return tokens


@eqx.filter_jit
def exchanges_inside(workload: Workload, group: EpGroup, tokens: Float[Array, "layer M R E"]) -> Float[Array, "P Q L"]:
    """`Exchanges.inside` [P Q L] bytes: between ranks of a server, and to and from NICs of other ranks."""
    inside = every_all_to_all(lambda one: inside_time(one, 1.0 * workload.tp))(crossing(workload, group, tokens))
    return placed_inside(workload, inside)


def placed_inside(workload: Workload, inside: Float[Array, "layer M"]) -> Float[Array, "P Q L"]:
    """The parts inside servers in running order."""
    where = places(workload)
    return array_module(inside).where(where.layer >= 0, inside[where.pick(*inside.shape)], 0)


def crossing(workload: Workload, group: EpGroup, tokens: Float[Array, "... R E"]) -> Float[Array, "... S g g"]:
    """Bytes of one dispatch that cross the NVSwitch of each server, from rank to rank."""
    return _crossing(workload, group, dispatch_of(workload, tokens))


def _crossing(workload: Workload, group: EpGroup, demand: Float[Array, "... R R"]) -> Float[Array, "... S g g"]:
    per_server = workload.ranks_per_server
    return inside_bytes(demand, per_server) + delegated(group, demand, per_server)


def every_all_to_all(work: Callable) -> Callable:
    """`work` for one all-to-all, mapped over [layer M ...]."""
    return jax.vmap(jax.vmap(work))


@eqx.filter_jit
def exchanges_between(
    workload: Workload,
    group: EpGroup,
    tokens: Float[Array, "layer M R E"],
    policy: Policy,
    *,
    routing: str = "unsplit",
    first: First = BLOCK,
    span: Span = ALL_TO_ALL,
    partial: bool = False,
    carry: Carry = None,
    acks: float = 0.0,
    key: Array | None = None,
) -> Exchanges:
    """`exchanges` without the part inside servers (`inside` is 0); `acks`: bytes of acknowledgement per byte."""
    demand = dispatch_of(workload, tokens)
    per_server = workload.ranks_per_server
    if not group.reconfigures:
        unit = at_unit_bandwidth(group, demand.dtype)
        paths = carry.time if isinstance(carry, SinglePaths | GraphWays) else None
        seconds = paths or (lambda group, one: fixed_time(group, one, per_server))
        found = steady(workload, places(workload), demand, jax.vmap(lambda one: seconds(unit, acknowledged(one, acks))))
        return in_phases(workload, found) if unit.phases else found
    guess = None
    if first.predicted is not None:
        guess = _likely(first, summed_by_server(dispatch_of(workload, first.predicted), per_server), key)
    if span.long and first.rule != "block":
        raise InputError(f"circuits_for {span.name!r} is known ahead: first must be 'block', got {first.rule!r}.")
    seen = summed_by_server(dispatch_of(workload, span.seen), per_server) if span.long else None
    if partial and carry is not None:
        raise InputError("partial needs flows that spread; carry must be None.")
    parts, partly = carry if callable(carry) else routed(routing), routed_in_parts(routing) if partial else None
    parts, partly = with_acks(parts, acks), None if partly is None else with_acks(partly, acks)
    servers = summed_by_server(demand, per_server)
    even = jnp.asarray(summed_by_server(even_bytes(workload, demand.dtype), per_server))
    pace = pace_of(workload, group) if first.trade_off is None else Pace.of(first.trade_off)
    there = region_at(group, pace)
    unit = at_unit_bandwidth(there, demand.dtype)
    if first.rule == "bound":
        limit = jax.vmap(lambda one: degree_bound(unit, acknowledged(summed_by_server(one, per_server), acks)))
        return steady(workload, places(workload), demand, limit)
    if carries_schedule(policy, unit, even, key):
        planner = planner_of(policy, there, key)
        return scheduled(places(workload), acknowledged(servers, acks), even, planner, pace, cold=first.cold)
    given = places(workload), unit, servers, even, policy, key, parts, first
    return switched(*given, guess, span, seen, partly)


def pace_of(workload: Workload, region: Any) -> Pace:
    """Of schedules at the region's own bandwidth and delay."""
    return Pace(region.delay_s, region.nic_Bps, (1.0, workload.combine_bytes / workload.dispatch_bytes))


def acknowledged(demand: Float[Array, "... N N"], acks: float) -> Float[Array, "... N N"]:
    """Bytes in each direction with the acknowledgements of the other direction."""
    return demand + acks * demand.swapaxes(-1, -2) if acks else demand


def with_acks(parts: Callable, acks: float) -> Callable:
    """The function (region, circuits, demand, ...) applied to demand with its acknowledgements."""
    if not acks:
        return parts
    return lambda region, circuits, demand, *turning: parts(region, circuits, acknowledged(demand, acks), *turning)


def _likely(first: First, guess: Float[Array, "layer M S S"], key) -> Array:
    if not first.scenarios:
        return guess
    keys = jax.random.split(jax.random.key(0) if key is None else key, guess.shape[:2])
    drawn = every_all_to_all(lambda both: likely_demands(both[0], both[1], first.sigma, first.scenarios))
    return drawn((keys, guess))


def exchanges_left(
    workload: Workload,
    region: Region,
    tokens: Float[Array, "layer M R E"],
    share: Float[Array, "R S"],
    policy: Policy,
    parts: Callable,
    *,
    first: First = BLOCK,
    key: Array | None = None,
) -> Exchanges:
    """The all-to-alls of every stage as if it were the one with a failure, without the part inside servers.

    `region`: servers and links that are left; `share` [R S]: part of each rank on each server.
    """
    demand = dispatch_of(workload, tokens)
    unit = at_unit_bandwidth(region, demand.dtype)
    where = places(workload)
    others = 1 - jnp.eye(workload.ep, dtype=demand.dtype)

    def between(ranks):
        servers = jnp.einsum("rs,rq,qt->st", share, ranks * others, share)
        return servers * (1 - jnp.eye(region.servers, dtype=ranks.dtype))

    every = every_all_to_all(between)
    guess = None if first.predicted is None else every(dispatch_of(workload, first.predicted))
    even = between(jnp.asarray(even_bytes(workload, demand.dtype)))
    return switched(where, unit, every(demand), even, policy, key, parts, first, guess)


def steady(workload: Workload, where: Places, demand: Float[Array, "layer M R R"], seconds: Callable) -> Exchanges:
    """All-to-alls on links that do not change; `seconds`: of many demands [B R R] at 1 byte/s per NIC [B]."""
    xp, even = array_module(demand), even_bytes(workload, demand.dtype)
    load = seconds(xp.concatenate([demand.reshape(-1, *even.shape), even[None]]))  # one batch, one kernel
    by_layer = load[:-1].reshape(demand.shape[:2])[where.pick(*demand.shape[:2])]
    moe = where.layer >= 0
    nothing, calm = xp.zeros((*moe.shape, 2), load.dtype), xp.zeros((*moe.shape, 2), bool)
    twice = xp.where(moe, by_layer, 0)[..., None] + nothing
    return Exchanges(nothing, twice, nothing[..., 0], calm, calm[..., 0], None, load[-1])


def in_phases(workload: Workload, found: Exchanges) -> Exchanges:
    """All-to-alls of `steady` on circuits that sends take in between: they turn back ahead of the next pass."""
    switch = np.broadcast_to(behind_sends(workload), found.electrical.shape)
    return found._replace(optical=found.electrical, electrical=found.optical, switch=switch, ahead=switch.any(-1))


def at_unit_bandwidth(group: Any, dtype) -> Any:
    """The group with NICs of 1 byte/s, whose turns take as long beside its all-to-alls as at its own bandwidth."""
    xp = array_module(group)
    unit = eqx.tree_at(lambda g: g.nic_gbps, group, xp.asarray(units.to_gbps(1.0), dtype))
    if not group.reconfigures:
        return unit
    return eqx.tree_at(lambda g: g.delay_s, unit, xp.asarray(group.delay_s * group.nic_Bps, dtype))


# --------------------------------------------------------------------------------------------------- experts that move
def moving(
    workload: Workload, group: EpGroup, moves: Float[Array, "P R R"], routing: str, carry: Any = None
) -> Float[Array, "P 2"]:
    """`Exchanges.moved` for `moves` [P R R] bytes from rank to rank: seconds of NICs and NVSwitches at 1 byte/s."""
    unit, per_server = at_unit_bandwidth(group, moves.dtype), workload.ranks_per_server

    def between(demand):
        if unit.shares_links:
            return carry.time(unit, demand)
        if not unit.reconfigures:
            return fixed_time(unit, demand, per_server)
        servers = summed_by_server(demand, per_server)
        return jnp.maximum(*routed(routing)(unit, uniform(servers, unit).circuits, servers))

    def inside(demand):
        return inside_time(_crossing(workload, unit, demand), 1.0 * workload.tp)

    return jax.vmap(lambda demand: jnp.stack([between(demand), inside(demand)]))(moves)
