"""The engine as one XLA program, for accelerators, batches and small problems; every event updates all flows.

Rates are constant between two events (the begin or end of a flow). When a flow of level x ends, flows frozen clearly
below x keep their rates, since no link on its path was full below x. Flows that end together are one event. Solves one
instance; use `jax.vmap` for batches.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.flows.max_min import Filling, fill, max_min_rates, nothing_frozen
from mfabric_jax.flows.problem import FlowProblem, is_ill_posed, once


class Release(NamedTuple):
    """When flows may begin: `start`, `lag` [F] s; pairs `after` [D 2]; `order` [F]: an order in which all can run."""

    start: Float[Array, "F"]
    lag: Float[Array, "F"]
    after: Int[Array, "D 2"]
    order: Int[Array, "F"]

    def begin(self, finish: Float[Array, "F"]) -> Float[Array, "F"]:
        """Return begin times for the finish times known so far; infinity for a flow that waits for an unknown one."""
        ready = jnp.full_like(finish, -jnp.inf).at[self.after[:, 1]].max(finish[self.after[:, 0]])
        return jnp.maximum(self.start, ready) + self.lag

    def known_times(self, size: Float[Array, "F"], finish: Float[Array, "F"]) -> tuple[Array, Array]:
        """Return begin and finish times; flows without bytes end as they begin, which may release others."""

        def further(state: tuple[Any, ...]):
            begin, finish, _ = state
            then = jnp.where(size > 0, finish, begin)
            return self.begin(then), then, jnp.any(then != finish)

        begin = self.begin(finish)
        if not len(self.after):
            return begin, jnp.where(size > 0, finish, begin)
        return lax.while_loop(lambda state: state[2], further, (begin, finish, jnp.asarray(True)))[:2]


class EventState(NamedTuple):
    """State between events. Times and bytes are pairs of floats: the value and its rounding error."""

    now: Float[Array, "2"]
    left: Float[Array, "2 F"]
    begin: Float[Array, "F"]
    finish: Float[Array, "F"]
    holder: Int[Array, "F"]  # the link that limited a flow as it ended
    filled: Filling  # the filling in the previous interval
    keep: Bool[Array, "F"]  # flows whose rate the last event cannot have changed
    floor: Float[Array, ""]  # the level below which nothing changed
    moving: Bool[Array, ""]
    events: Int[Array, ""]


def simulate_events(problem: FlowProblem, size: Array, release: Release) -> EventState:
    begin, finish = release.known_times(size, jnp.full_like(size, jnp.inf))
    origin = jnp.where(size > 0, begin, jnp.inf).min(initial=jnp.inf)
    finite = ~is_ill_posed(problem, size, release.start, release.lag)
    clock = EventState(
        now=jnp.stack([jnp.where(jnp.isfinite(origin), origin, 0), 0]),
        left=jnp.stack([size, jnp.zeros_like(size)]),
        begin=begin,
        finish=finish,
        holder=jnp.full(size.shape, -1, jnp.int32),
        filled=nothing_frozen(problem),
        keep=jnp.zeros(size.shape, bool),
        floor=jnp.zeros((), size.dtype),
        moving=jnp.any(size > 0) & finite,
        events=jnp.zeros((), jnp.int32),
    )
    weight, bound = problem.weight, 2 * size.size + 1  # every flow begins once and ends once

    def running(clock: EventState) -> Bool[Array, ""]:
        return clock.moving & (clock.events < bound)

    def next_event(clock: EventState) -> EventState:
        now, left = clock.now[0], clock.left[0]
        waiting = (clock.begin > now) & (left > 0)
        active = ~waiting & (left > 0)
        filled = fill(only(problem, active), _kept_filling(clock, active & (weight > 0)), clock.floor)
        rate = jnp.where(active, filled.rate(weight), 0)
        eta = jnp.where(rate > 0, left / jnp.where(rate > 0, rate, 1), jnp.inf)
        next_begin = jnp.where(waiting, clock.begin, jnp.inf).min(initial=jnp.inf)
        until_begin, until_end = next_begin - now, eta.min(initial=jnp.inf)
        step = jnp.minimum(until_begin, until_end)
        moving = jnp.isfinite(step)
        step = jnp.where(moving, step, 0)
        then = _add(clock.now, step)
        begins = (until_begin <= until_end) | (next_begin <= then[0])  # rounding may reach a begin too early
        later = jnp.where(moving, jnp.where(begins, jnp.stack([next_begin, 0]), then), clock.now)
        after = _add(clock.left, -jnp.where(step > 0, rate * step, 0))
        ended = moving & active & ((eta <= step) | (after[0] <= 0))
        after = jnp.where(ended[None], 0, after)
        finish = jnp.where(ended, jnp.minimum(now + eta, later[0]), clock.finish)
        begin = clock.begin
        if len(release.after):
            begin, finish = release.known_times(size, finish)
            begins |= jnp.any((begin <= later[0]) & (after[0] > 0) & ~active)
        lowest = jnp.where(ended, filled.level, jnp.inf).min(initial=jnp.inf)
        # Equal levels of several links differ by rounding: only flows clearly below are surely limited by other links.
        changed = jnp.where(begins, 0, lowest * (1 - jnp.finfo(lowest.dtype).eps ** 0.5))
        return EventState(
            now=later,
            left=after,
            begin=begin,
            finish=finish,
            holder=jnp.where(ended, filled.bottleneck, clock.holder),
            filled=filled,
            keep=active & ~ended & (filled.level < changed),
            floor=changed,
            moving=moving & jnp.any(after[0] > 0),
            events=clock.events + moving.astype(jnp.int32),
        )

    return lax.while_loop(running, next_event, clock)


def _kept_filling(clock: EventState, active: Bool[Array, "F"]) -> Filling:
    level = jnp.where(clock.keep, clock.filled.level, 0)
    return Filling(level, ~active | clock.keep, clock.filled.bottleneck, jnp.zeros((), jnp.int32))


def _add(pair: Array, more: Array) -> Array:
    """Add `more` to the pair (value, rounding error) [2 ...], by Kahan summation."""
    step = more + pair[1]
    total = pair[0] + step
    return jnp.stack([total, step - (total - pair[0])])


def only(problem: FlowProblem, active: Bool[Array, "F"]) -> FlowProblem:
    return eqx.tree_at(lambda p: p.weight, problem, jnp.where(active, problem.weight, 0))


@jax.custom_jvp
def with_tangents(times: tuple[Array, Array], problem: FlowProblem, size: Array, release: Release):
    """Return `times` (begins and ends [F]) with the derivative of the simulation attached."""
    return times


@with_tangents.defjvp
def _tangents(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    times, problem, size, release = once(primals)

    def again(problem: FlowProblem, size: Array, start: Array, lag: Array):
        return in_known_order(times, problem, size, release._replace(start=start, lag=lag))

    d_release = tangents[3]
    _, d_times = jax.jvp(
        again, (problem, size, release.start, release.lag), (*tangents[1:3], d_release.start, d_release.lag)
    )
    return times, d_times


def in_known_order(
    known: tuple[Array, Array], problem: FlowProblem, size: Array, release: Release
) -> tuple[Array, Array]:
    """Return begins and ends as a differentiable function, with events in the order of the `known` times."""
    if not (flows := size.size):
        return known
    k_begin, k_finish = lax.stop_gradient(known)
    moves = (size > 0) & (problem.weight > 0) & jnp.isfinite(k_finish) & (k_finish > k_begin)

    def event(state: tuple[Any, ...], index: Array):
        now, served, begin, finish, begun, ended = state
        flow, begins = index // 2, index % 2 == 0
        rate = max_min_rates(only(problem, begun & ~ended)).rate
        waited = jnp.where(release.after[:, 1] == flow, finish[release.after[:, 0]], -jnp.inf).max(initial=-jnp.inf)
        own_begin = jnp.maximum(release.start[flow], waited) + release.lag[flow]
        real = jnp.isfinite(k_begin[flow])
        begin = begin.at[flow].set(jnp.where(begins & real, own_begin, begin[flow]))
        starts, ends = moves[flow] & begins, moves[flow] & ~begins
        own_rate = jnp.where(ends & (rate[flow] > 0), rate[flow], 1)
        ends_at = now + (size[flow] - served[flow]) / own_rate
        later = jnp.where(starts, own_begin, jnp.where(ends, ends_at, now))
        served = served + jnp.where(begun & ~ended, rate, 0) * (later - now)
        finish = finish.at[flow].set(jnp.where(ends, later, begin[flow]))
        begun = begun.at[flow].set(begun[flow] | starts)
        ended = ended.at[flow].set(ended[flow] | ends)
        return (later, served, begin, finish, begun, ended), None

    none = jnp.zeros(flows, bool)
    first = (jnp.where(jnp.isfinite(k_begin), k_begin, jnp.inf).min(initial=jnp.inf), jnp.zeros_like(size))
    events = _events_in_order(k_begin, k_finish, release)
    (_, _, begin, finish, _, _), _ = lax.scan(event, (*first, k_begin, k_finish, none, none), events)
    return begin, jnp.where(jnp.isfinite(k_finish), finish, k_finish)


def _events_in_order(begin: Float[Array, "F"], finish: Float[Array, "F"], release: Release) -> Int[Array, "E"]:
    """Return events in order of time: 2 f for the begin of flow f, 2 f + 1 for its end.

    Ties follow `release.order`, begins first."""
    if not len(release.after):  # any order can run
        return jnp.argsort(_interleave(begin, finish), stable=True).astype(jnp.int32)
    times = _interleave(begin[release.order], finish[release.order])
    events = _interleave(2 * release.order, 2 * release.order + 1)
    return events[jnp.argsort(times, stable=True)]


def _interleave(first: Array, second: Array) -> Array:
    """Interleave two [F] arrays to [2 F]; a reshaped stack would be copied before a GPU sorts it."""
    nothing = jnp.zeros((), first.dtype)
    return lax.pad(first, nothing, [(0, 1, 1)]) + lax.pad(second, nothing, [(1, 0, 1)])
