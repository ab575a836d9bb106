"""The all-to-alls of one iteration inside a program of JAX: policy, seconds and walk composed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax.array_module import Array
from mfabric_jax.arrays import floats_or_nan
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.links import (
    acknowledged,
    at_unit_bandwidth,
    crossing,
    in_phases,
    placed_inside,
    routed,
    routed_in_parts,
    steady,
    with_acks,
)
from mfabric_jax.evaluate.loads import AllToAlls, loads_on_circuits, mean_of, samples_of_spans
from mfabric_jax.evaluate.rules import First, Rule, Span
from mfabric_jax.evaluate.solver import Tables, traced_solver
from mfabric_jax.fabric.design import EpGroup, as_data
from mfabric_jax.host_arrays import NOT_NEGATIVE
from mfabric_jax.policies import Policy, of_package, reads_of, takes_many
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.fixed import SinglePaths, fixed_time, inside_time
from mfabric_jax.routing.graph_ways import GraphWays
from mfabric_jax.timing.passes import Exchanges, Places, places
from mfabric_jax.timing.scheduled import carries_schedule, planner_of, region_at, scheduled
from mfabric_jax.traffic import likely_demands
from mfabric_jax.traffic.dispatch import dispatch_of, even_bytes, summed_by_server
from mfabric_jax.workload import Workload

BLOCK, ALL_TO_ALL = First(), Span()
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
    inside = _every_all_to_all(lambda one: inside_time(one, 1.0 * workload.tp))(crossing(workload, group, tokens))
    return placed_inside(workload, inside[None])[0]


def _every_all_to_all(work: Callable) -> Callable:
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
    demand, where = dispatch_of(workload, tokens), places(workload)
    even = jnp.asarray(even_bytes(workload, demand.dtype))
    if not group.reconfigures:
        return _on_links(workload, group, where, demand, even, carry, acks)
    per_server = workload.ranks_per_server
    servers, even = summed_by_server(demand, per_server), summed_by_server(even, per_server)
    costs = group if first.trade_off is None else first.trade_off
    there = region_at(group, costs.nic_Bps, costs.delay_s)
    unit = at_unit_bandwidth(there, demand.dtype)
    if first.rule == "bound":
        bounds = jax.vmap(lambda one: degree_bound(unit, acknowledged(one, acks)))
        return _alone(steady(where, servers[None], even, bounds))
    if span.long and first.rule != "block":
        raise InputError(f"circuits_for {span.name!r} is known ahead: first must be 'block', got {first.rule!r}.")
    if first.rule == "random" and key is None:
        raise InputError("first 'random' needs a key, got none.")
    if partial and carry is not None:
        raise InputError("partial needs flows that spread; carry must be None.")
    if carries_schedule(policy, unit, even, key):
        planner = planner_of(policy, there, key)
        return scheduled(workload, acknowledged(servers, acks), even, planner, costs.nic_Bps, cold=first.cold)
    parts, partly = carry if callable(carry) else routed(routing), routed_in_parts(routing) if partial else None
    parts, partly = with_acks(parts, acks), None if partly is None else with_acks(partly, acks)
    guess = None
    if first.predicted is not None:
        guess = _likely(first, summed_by_server(dispatch_of(workload, first.predicted), per_server), key)
    seen = summed_by_server(dispatch_of(workload, span.seen), per_server) if span.long else None
    asked_at = None if of_package(policy) else there
    tables, sent = _numbered(where, servers, even, policy, first, span, guess, seen, key, asked_at)
    solver = traced_solver(tables, unit, policy, reads_of(policy, unit), parts, partly)
    rule = Rule(first.rule, span.name, first.cold, partial)
    return _alone(loads_on_circuits(where, solver, sent, rule, first.trade_off))


def _alone(found: Exchanges) -> Exchanges:
    return jax.tree.map(lambda x: x[0], found)


def _on_links(workload: Workload, group, where: Places, demand, even, carry: Carry, acks: float) -> Exchanges:
    unit, per_server = at_unit_bandwidth(group, demand.dtype), workload.ranks_per_server
    paths = carry.time if isinstance(carry, SinglePaths | GraphWays) else None
    seconds = paths or (lambda group, one: fixed_time(group, one, per_server))
    found = steady(where, demand[None], even, jax.vmap(lambda one: seconds(unit, acknowledged(one, acks))))
    return _alone(in_phases(workload, found) if unit.phases else found)


def _likely(first: First, guess: Float[Array, "layer M S S"], key) -> Array:
    if not first.scenarios:
        return guess
    keys = jax.random.split(jax.random.key(0) if key is None else key, guess.shape[:2])
    drawn = _every_all_to_all(lambda both: likely_demands(both[0], both[1], first.sigma, first.scenarios))
    return drawn((keys, guess))


def _numbered(
    where: Places, demand: Float[Array, "layer M S S"], even, policy, first: First, span: Span, guess, seen, key, there
) -> tuple[Tables, AllToAlls]:
    """The all-to-alls of one iteration as numbers, and what they are numbers of; `there`: the region that a policy is
    asked in, if it is not the solver's."""
    layers, micro_batches, servers, _ = demand.shape
    shape, many = where.layer.shape, layers * micro_batches
    table, samples, times, spans = [demand.reshape(many, servers, servers), even[None]], None, None, None
    number = np.arange(many, dtype=np.int32).reshape(1, layers, micro_batches)
    forecast, steps = number, (shape[0], shape[1] * shape[2])
    if guess is not None:
        flat = guess.reshape(-1, *guess.shape[2:])
        forecast = np.arange(len(flat), dtype=np.int32).reshape(1, *guess.shape[:2])
        if first.scenarios:
            samples = flat
        else:
            table, forecast = [*table, flat], forecast + np.int32(many + 1)
    if seen is not None:
        each, often = samples_of_spans(where, span.name, demand, seen)
        steps, spans = often.shape[:2], often.sum(-1) > 0
        forecast = np.arange(spans.size, dtype=np.int32).reshape(1, *steps)
        if takes_many(policy):
            samples = each.reshape(-1, *each.shape[2:])
            times = jnp.asarray(often.reshape(len(samples), -1), demand.dtype)
        else:
            table.append(mean_of(each, often).reshape(-1, servers, servers))
            forecast = forecast + np.int32(many + 1)
    keys, places_key = _keys(key if span.key is None else span.key, key, steps)
    rates = None
    if there is not None:
        rates = jnp.stack([jnp.asarray(x, demand.dtype) for x in (there.nic_gbps, there.delay_s)])[None]
    nothing = np.zeros(1, np.int32)
    busy = None if first.trade_off is None else jnp.asarray(first.trade_off.busy, demand.dtype)
    sent = AllToAlls(number, nothing + np.int32(many), forecast, places_key, nothing, nothing, busy, spans)
    return Tables(jnp.concatenate(table), samples, times, keys, rates), sent


def _keys(key: Any, own: Any, steps: tuple[int, int]) -> tuple[Any, np.ndarray]:
    """Keys of the iteration and of every step [P B], and their numbers [1 P B]."""
    if key is None:
        return None, np.zeros((1, *steps), np.int32)
    every = jax.random.split(key, steps).reshape(-1)
    number = 1 + np.arange(len(every), dtype=np.int32).reshape(1, *steps)
    return jnp.concatenate([(key if own is None else own)[None], every]), number
