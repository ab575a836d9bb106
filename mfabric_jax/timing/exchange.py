"""The all-to-alls of one iteration on a fabric: times and circuits."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.design import EpGroup, as_data
from mfabric_jax.policies import Policy, uniform
from mfabric_jax.routing.fixed import SinglePaths, delegated, fixed_time, inside_time
from mfabric_jax.timing.passes import Exchanges, Places, places
from mfabric_jax.timing.switching import ALL_TO_ALL, BLOCK, First, Span, routed, routed_in_parts, switched
from mfabric_jax.traffic import dispatched_bytes, likely_demands, server_bytes
from mfabric_jax.traffic.dispatch import even_bytes, inside_bytes
from mfabric_jax.workload import Workload

Carry = SinglePaths | Callable | None


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
    - `first`, `span`: rule for the first all-to-all of a block, and how long circuits stay set.
    - `partial`: unchanged circuits carry while others turn.
    - `carry`: replaces spraying and `routing`: `single_paths` on an electrical fabric; on a region `single_part_times`
      or a function (region, circuits, demand) -> seconds until circuits and packet switches finish.

    Links have equal capacity in both directions, so one solve serves dispatch, combine and their gradients, scaled by
    element size. Compiled once; other bandwidths, delays or traffic of the same shape reuse the program.
    """
    real = jnp.issubdtype(jnp.asarray(tokens).dtype, jnp.floating)
    group = as_data(group, jnp.asarray(tokens).dtype if real else jnp.result_type(float))
    rest = {"routing": routing, "first": first, "span": span, "partial": partial, "carry": carry, "key": key}
    between = exchanges_between(workload, group, tokens, policy, **rest)
    return between._replace(inside=exchanges_inside(workload, group, tokens))


def rank_demand(workload: Workload, tokens: Float[Array, "layer M R E"]) -> Float[Array, "layer M R R"]:
    """Bytes of every dispatch, from rank to rank."""
    return every_all_to_all(lambda one: dispatched_bytes(workload, one))(tokens)


def every_all_to_all(work: Callable) -> Callable:
    """`work` for one all-to-all, mapped over [layer M ...]."""
    return jax.vmap(jax.vmap(work))


@eqx.filter_jit
def exchanges_inside(workload: Workload, group: EpGroup, tokens: Float[Array, "layer M R E"]) -> Float[Array, "P Q L"]:
    """`Exchanges.inside` [P Q L] bytes: between ranks of a server, and to and from NICs of other ranks."""
    where, demand = places(workload), rank_demand(workload, tokens)
    inside = every_all_to_all(lambda one: _inside_time(workload, group, one))(demand)
    return jnp.where(where.layer >= 0, inside[where.pick(*tokens.shape[:2])], 0)


def _inside_time(workload: Workload, group: EpGroup, demand: Float[Array, "R R"]):
    per_server = workload.ranks_per_server
    crossing = inside_bytes(demand, per_server) + delegated(group, demand, per_server)
    return inside_time(crossing, 1.0 * workload.tp)


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
    demand = rank_demand(workload, tokens)
    unit, per_server = at_unit_bandwidth(group, demand.dtype), workload.ranks_per_server
    if not unit.reconfigures:
        paths = carry.time if isinstance(carry, SinglePaths) else None
        seconds = paths or (lambda group, one: fixed_time(group, one, per_server))
        return _steady(workload, places(workload), demand, lambda one: seconds(unit, acknowledged(one, acks)))
    between = every_all_to_all(lambda one: server_bytes(one, per_server))
    guess = None if first.predicted is None else _likely(first, between(rank_demand(workload, first.predicted)), key)
    even = server_bytes(even_bytes(workload, demand.dtype), per_server)
    if span.long and first.rule != "block":
        raise InputError(f"circuits_for {span.name!r} is known ahead: first must be 'block', got {first.rule!r}.")
    seen = jax.vmap(lambda one: between(rank_demand(workload, one)))(span.seen) if span.long else None
    if partial and carry is not None:
        raise InputError("partial needs flows that spread; carry must be None.")
    parts, partly = carry if callable(carry) else routed(routing), routed_in_parts(routing) if partial else None
    parts, partly = with_acks(parts, acks), None if partly is None else with_acks(partly, acks)
    given = places(workload), unit, between(demand), even, policy, key, parts, first
    return switched(*given, guess, span, seen, partly)


def acknowledged(demand: Float[Array, "... N N"], acks: float) -> Float[Array, "... N N"]:
    """Bytes in each direction with the acknowledgements of the other direction."""
    return demand + acks * jnp.swapaxes(demand, -1, -2) if acks else demand


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

    `region`: servers and links that are left; `share` [R S]: part of each rank on each server.
    """
    demand = rank_demand(workload, tokens)
    unit = at_unit_bandwidth(region, demand.dtype)
    where = places(workload).of_stage(stage)
    others = 1 - jnp.eye(workload.ep, dtype=demand.dtype)

    def between(ranks):
        servers = jnp.einsum("rs,rq,qt->st", share, ranks * others, share)
        return servers * (1 - jnp.eye(region.servers, dtype=ranks.dtype))

    every = every_all_to_all(between)
    guess = None if first.predicted is None else every(rank_demand(workload, first.predicted))
    return switched(
        where, unit, every(demand), between(even_bytes(workload, demand.dtype)), policy, key, parts, first, guess
    )


def steady_stage(workload: Workload, tokens: Float[Array, "layer M R E"], seconds: Callable, stage: int) -> Exchanges:
    """The all-to-alls of one stage [1 Q L]; `seconds`: time of a demand [R R] at 1 byte/s per NIC."""
    return _steady(workload, places(workload).of_stage(stage), rank_demand(workload, tokens), seconds)


def _steady(workload: Workload, where: Places, demand, seconds: Callable) -> Exchanges:
    even = even_bytes(workload, demand.dtype)
    every = jnp.concatenate([demand.reshape(-1, *even.shape), even[None]])  # one batch, one kernel
    load = jax.vmap(seconds)(every)
    by_layer = load[:-1].reshape(demand.shape[:2])[where.pick(*demand.shape[:2])]
    moe = where.layer >= 0
    nothing, calm = jnp.zeros((*moe.shape, 2), load.dtype), jnp.zeros((*moe.shape, 2), bool)
    twice = jnp.where(moe, by_layer, 0)[..., None] + nothing
    return Exchanges(nothing, twice, nothing[..., 0], calm, calm[..., 0], None, load[-1])


def at_unit_bandwidth(group: Any, dtype) -> Any:
    """The group with NICs of 1 byte/s."""
    return eqx.tree_at(lambda g: g.nic_gbps, group, jnp.asarray(units.to_gbps(1.0), dtype))


# --------------------------------------------------------------------------------------------------- experts that move
def moving(workload: Workload, group: EpGroup, moves: Float[Array, "P R R"], routing: str) -> Float[Array, "P 2"]:
    """`Exchanges.moved` for `moves` [P R R] bytes from rank to rank: seconds of NICs and NVSwitches at 1 byte/s."""
    unit, per_server = at_unit_bandwidth(group, moves.dtype), workload.ranks_per_server

    def between(demand):
        if not unit.reconfigures:
            return fixed_time(unit, demand, per_server)
        servers = server_bytes(demand, per_server)
        return jnp.maximum(*routed(routing)(unit, uniform(servers, unit).circuits, servers))

    return jax.vmap(lambda demand: jnp.stack([between(demand), _inside_time(workload, unit, demand)]))(moves)
