"""All-to-alls of one iteration inside a JAX program: choose circuits block by block, and time the all-to-alls on
them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.demands import (
    Forecasts,
    forecasts_of,
    forecasts_of_spans,
    in_numbers,
    samples_of_spans,
)
from mfabric_jax.evaluate.links import (
    at_unit_bandwidth,
    crossing,
    degree_bounds,
    each_and_even,
    in_phases,
    inside_in_order,
    seconds_on_links,
    steady,
    timer_of_routing,
    with_acks,
)
from mfabric_jax.evaluate.loads import loads_on_circuits
from mfabric_jax.evaluate.rules import CircuitRule, CircuitSpan, First
from mfabric_jax.evaluate.solver import Numbered, Tables, Traced
from mfabric_jax.fabric.design import EpGroup
from mfabric_jax.policies import KEYWORDS, Policy, of_package, reads_of, takes_many
from mfabric_jax.routing.fixed import SinglePaths, inside_time
from mfabric_jax.routing.graph_paths import GraphPaths
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import as_data, floats_or_nan
from mfabric_jax.support.host_arrays import NOT_NEGATIVE
from mfabric_jax.timing.passes import Exchanges, Places, places
from mfabric_jax.timing.scheduled import carries_schedule, planner_of, region_at, schedule_exchanges
from mfabric_jax.traffic import likely_demands
from mfabric_jax.traffic.dispatch import dispatch_of, even_bytes, summed_by_server
from mfabric_jax.workload import Workload

BLOCK, ALL_TO_ALL = First(), CircuitSpan()
Carry = SinglePaths | GraphPaths | Callable[..., Any] | None


def exchanges(
    workload: Workload,
    group: EpGroup,
    tokens: Float[Array, "layer M R E"],
    policy: Policy,
    *,
    routing: str = "unsplit",
    first: First = BLOCK,
    span: CircuitSpan = ALL_TO_ALL,
    partial: bool = False,
    carry: Carry = None,
    key: Array | None = None,
) -> Exchanges:
    """Return the all-to-all loads of one iteration of one pipeline (one data-parallel replica stands for all).

    - `tokens`: selections per MoE layer, micro-batch, source rank and expert, repeated cyclically; from
      `traffic.sent_tokens` where dispatch is "per-server".
    - `policy`: a policy whose plans hold a schedule plans every all-to-all for its own bytes, at the region's bandwidth
      and delay; `first`, `span`, `partial` and `routing` are then ignored.
    - `first`, `span`: rule for the first all-to-all of a block, and how long circuits stay set.
    - `partial`: unchanged circuits carry bytes while others reconfigure.
    - `carry`: replaces spraying and `routing`. On an electrical fabric: `single_paths`; on a region:
      `single_part_times`, or a function (region, circuits, demand) -> seconds until circuits and packet switches end.

    Links have equal capacity in both directions, so one solve serves dispatch, combine and their gradients, scaled by
    element size. Compiled once; other bandwidths, delays or traffic of the same shape reuse the program.
    """
    tokens = _selections("tokens", tokens)
    if first.predicted is not None:
        first = dataclasses.replace(first, predicted=_selections("predicted", first.predicted))
    if span.seen is not None:
        span = dataclasses.replace(span, seen=_selections("seen", span.seen, "I layer M R E"))
    group = as_data(group, tokens.dtype)
    options: dict[str, Any] = {
        "routing": routing,
        "first": first,
        "span": span,
        "partial": partial,
        "carry": carry,
        "key": key,
    }
    between = exchanges_between(workload, group, tokens, policy, **options)
    return between._replace(inside=exchanges_inside(workload, group, tokens))


def _selections(field: str, tokens: Any, axes: str = "layer M R E") -> Float[Array, "... layer M R E"]:
    tokens = floats_or_nan(field, tokens, NOT_NEGATIVE)
    if tokens.ndim != len(axes.split()):
        raise InputError(f"{field} must be [{axes}], selections of experts, got {list(tokens.shape)}.")
    return tokens


@eqx.filter_jit
def exchanges_inside(workload: Workload, group: EpGroup, tokens: Float[Array, "layer M R E"]) -> Float[Array, "P Q L"]:
    """Return `Exchanges.inside` [P Q L] in bytes: between ranks of a server, and to and from NICs of other ranks."""
    every = crossing(workload, group, dispatch_of(workload, tokens))
    inside = jax.vmap(jax.vmap(lambda demand: inside_time(demand, 1.0 * workload.tp)))(every)
    return inside_in_order(workload, inside[None])[0]


@eqx.filter_jit
def exchanges_between(
    workload: Workload,
    group: EpGroup,
    tokens: Float[Array, "layer M R E"],
    policy: Policy,
    *,
    routing: str = "unsplit",
    first: First = BLOCK,
    span: CircuitSpan = ALL_TO_ALL,
    partial: bool = False,
    carry: Carry = None,
    acks: float = 0.0,
    key: Array | None = None,
) -> Exchanges:
    """Return `exchanges` with `inside` 0; `acks`: bytes of acknowledgement per byte of data."""
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
        bounds = lambda every: degree_bounds(with_acks(every, acks), unit)  # noqa: E731
        return _alone(steady(where, *each_and_even(servers[None], even, bounds)))
    if span.long and first.rule != "block":
        raise InputError(
            f"first must be 'block' with circuits_for {span.name!r} (circuits known ahead), got {first.rule!r}."
        )
    if first.rule == "random" and key is None:
        raise InputError("first 'random' needs a key, got none.")
    if partial and carry is not None:
        raise InputError("carry must be None with partial, which needs flows that spread.")
    if carries_schedule(policy, unit, even, key):
        planner = planner_of(policy, there, key)
        return schedule_exchanges(workload, with_acks(servers, acks), even, planner, costs.nic_Bps, cold=first.cold)
    parts = carry if callable(carry) else timer_of_routing(routing)
    spans_key = key if span.key is None else span.key
    ahead = _forecasts(workload, where, servers, policy, first, span, key)
    busy = None if first.trade_off is None else jnp.asarray(first.trade_off.busy, demand.dtype)
    table, sent = in_numbers(where, servers[None], even, ahead, keyed=spans_key is not None, busy=busy)
    keys, rates = None, None
    if spans_key is not None:
        of_steps = jax.random.split(spans_key, sent.key.shape[1:]).reshape(-1)
        keys = jnp.concatenate([(spans_key if key is None else key)[None], of_steps])
    if not of_package(policy):  # it reads the region of the case, not the solver's
        rates = jnp.stack([jnp.asarray(x, demand.dtype) for x in (there.nic_gbps, there.delay_s)])[None]
    reads = reads_of(policy, unit)
    if reads.memory:
        keywords = " and ".join((", ".join(KEYWORDS[:-1]), KEYWORDS[-1]))
        raise InputError(f"policy must not have the keywords {keywords} in a traced function: only rows fill them.")
    kind = Numbered if reads.demand_alone else Traced
    solver = kind(Tables(table, ahead.samples, ahead.times, keys, rates), unit, policy, parts, acks)
    rule = CircuitRule(first.rule, span.name, first.cold, partial)
    return _alone(loads_on_circuits(where, solver, sent, rule, first.trade_off))


def _alone(batch: Exchanges) -> Exchanges:
    return jax.tree.map(lambda x: x[0], batch)


def _on_links(
    workload: Workload, group: Any, where: Places, demand: Array, even: Array, carry: Carry, acks: float
) -> Exchanges:
    unit, per_server = at_unit_bandwidth(group, demand.dtype), workload.ranks_per_server
    paths = carry if isinstance(carry, SinglePaths | GraphPaths) else None

    def seconds(every: Array):
        return seconds_on_links(with_acks(every, acks), unit, paths, per_server)

    return _alone(in_phases(workload, unit, steady(where, *each_and_even(demand[None], even, seconds))))


def _forecasts(
    workload: Workload,
    where: Places,
    demand: Float[Array, "layer M S S"],
    policy: Policy,
    first: First,
    span: CircuitSpan,
    key: Any,
) -> Forecasts:
    def between(tokens: Any):
        return summed_by_server(dispatch_of(workload, tokens), workload.ranks_per_server)

    if span.long:
        samples, times = samples_of_spans(where, span.name, demand, between(span.seen))
        own = np.zeros(1, np.int32)
        return forecasts_of_spans(samples[None], times[None], own, takes_many(policy), demand.dtype)
    if first.predicted is None:
        return Forecasts()
    guess = between(first.predicted)
    ahead = forecasts_of(guess[None])
    if not first.scenarios:
        return ahead
    keys = jax.random.split(jax.random.key(0) if key is None else key, guess.shape[:2]).reshape(-1)
    drawn = jax.vmap(lambda key, forecast: likely_demands(key, forecast, first.sigma, first.scenarios))
    return ahead._replace(single=None, samples=drawn(keys, ahead.single))
