"""Completion times of flows under max-min sharing: exact event-driven fluid simulation.

Between two events (a flow ends or starts) rates are constant. At every event they are solved again, from where they can
have changed: when a flow of level x ends, every flow frozen below x keeps its rate, since no link on the ended flow's
path was full below x. Flows that end together are one event. One instance: callers `jax.vmap`.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from mfabric_jax.checks import InputError, not_negative
from mfabric_jax.flows.first_derivatives import once
from mfabric_jax.flows.max_min import SMALL, Filling, fill, has_nan, max_min_rates, nothing_frozen, pack
from mfabric_jax.flows.problem import FlowList, FlowProblem, Outcome, of_shape


class Completion(eqx.Module):
    """`finish` [F] seconds (infinity where a flow can never end), number of `events`, `outcome`."""

    finish: Float[Array, "F"]
    events: Int[Array, ""]
    outcome: Outcome


class _Clock(NamedTuple):
    """State between events. Times and bytes are kept in two floats each (value and what rounding took from it)."""

    now: Float[Array, "2"]
    left: Float[Array, "2 F"]
    finish: Float[Array, "F"]
    filled: Filling  # of the interval before
    keep: Bool[Array, "F"]  # flows whose rate the last event cannot have changed
    floor: Float[Array, ""]  # and the level below which nothing changed
    moving: Bool[Array, ""]
    events: Int[Array, ""]


def completion_times(
    problem: FlowProblem | FlowList, size: ArrayLike, start: ArrayLike = 0, *, resolution: ArrayLike | None = None
) -> Completion:
    """When each flow has moved its bytes.

    - `size` [F]: bytes, 0 or more.   - `start` [F]: seconds. One number is that of every flow; `InputError` for
      another shape.
    - `resolution` [s]: None is exact. A number is an approximation for hundreds of thousands of flows, without a
      derivative: rates are solved again at most that often, and the bandwidth of a flow that ends in between stays
      idle until then (a flow that starts is an event of its own). 0 is exact too.

    A flow without bytes ends at its start and takes no bandwidth. Differentiable in capacity, share, weight, cap, size
    and start, forward and reverse: the events are replayed in their known order, so the reverse pass keeps one set of
    rates per event. A second derivative is an `InputError`. At ties the derivative is that of one of the possible
    orders.
    """
    flows, dtype = problem.weight.shape, problem.capacity.dtype
    size, start = of_shape("size", size, dtype, flows), of_shape("start", start, dtype, flows)
    least = jnp.asarray(0 if resolution is None else not_negative("resolution", resolution)).astype(dtype)
    return _completion(problem, size, start, least, resolution is None)


@functools.partial(jax.jit, static_argnames="exact")
def _completion(problem: FlowProblem | FlowList, size, start, least, exact: bool) -> Completion:
    end = _simulate(*lax.stop_gradient((problem, size, start, least)))
    attach = _with_tangents if exact else _without_tangents
    finish = attach(end.finish, problem, size, start)
    nonfinite = has_nan(problem) | jnp.isnan(size).any() | jnp.isnan(start).any()
    outcome = Outcome.where(jnp.isinf(finish).any(), Outcome.starved, Outcome.solved)
    outcome = Outcome.where(end.moving, Outcome.unfinished, outcome)
    outcome = Outcome.where(nonfinite, Outcome.nonfinite, outcome)
    return Completion(jnp.where(nonfinite, jnp.nan, finish), end.events, outcome)


def _simulate(problem: FlowProblem | FlowList, size, start, least) -> _Clock:
    """All events. As flows end, a large table is packed to a quarter of its rows, again and again."""
    finish = jnp.where(size > 0, jnp.inf, start)
    origin = start.min(initial=jnp.inf)
    clock = _Clock(
        now=jnp.stack([jnp.where(jnp.isfinite(origin), origin, 0), 0]),
        left=jnp.stack([size, jnp.zeros_like(size)]),
        finish=finish,
        filled=nothing_frozen(problem),
        keep=jnp.zeros(size.shape, bool),
        floor=jnp.zeros((), size.dtype),
        moving=jnp.any(size > 0) & ~(has_nan(problem) | jnp.isnan(size).any() | jnp.isnan(start).any()),
        events=jnp.zeros((), jnp.int32),
    )
    rows, bound = jnp.arange(size.size), 2 * size.size + 1  # every flow starts once and ends once
    while isinstance(problem, FlowProblem) and size.size > SMALL:
        fewer = size.size // 4
        clock = _run(problem, size, start, clock, least, fewer, bound)
        finish = finish.at[rows].set(clock.finish, mode="drop")
        (row,) = jnp.nonzero(clock.left[0] > 0, size=fewer, fill_value=size.size)
        problem, size, start, clock = _packed(problem, size, start, clock, row)
        rows = rows.at[row].get(mode="fill", fill_value=finish.size)
    clock = _run(problem, size, start, clock, least, 0, bound)
    return clock._replace(finish=finish.at[rows].set(clock.finish, mode="drop"))


def _packed(problem: FlowProblem, size, start, clock: _Clock, row):
    """The chosen rows alone; rows beyond the table become absent flows."""

    def take(x, fill):
        return jnp.take(x, row, axis=-1, mode="fill", fill_value=fill)

    level, frozen, bottleneck, rounds = clock.filled
    filled = Filling(take(level, 0), take(frozen, True), take(bottleneck, -1), rounds)
    left, finish, keep = take(clock.left, 0), take(clock.finish, 0), take(clock.keep, False)
    clock = clock._replace(left=left, finish=finish, filled=filled, keep=keep)
    return pack(problem, row), take(size, 0), take(start, 0), clock


def _run(problem: FlowProblem | FlowList, size, start, clock: _Clock, least, fewer: int, bound: int) -> _Clock:
    """Event after event, `least` seconds apart, until at most `fewer` flows are left."""
    weight = problem.weight

    def running(clock: _Clock) -> Bool[Array, ""]:
        return clock.moving & (clock.events < bound) & ((clock.left[0] > 0).sum() > fewer)

    def next_event(clock: _Clock) -> _Clock:
        now, left = clock.now[0], clock.left[0]
        waiting = (start > now) & (left > 0)
        active = ~waiting & (left > 0)
        filled = fill(_only(problem, active), _kept(clock, active & (weight > 0)), clock.floor)
        rate = jnp.where(active, filled.rate(weight), 0)
        eta = jnp.where(rate > 0, left / jnp.where(rate > 0, rate, 1), jnp.inf)
        next_start = jnp.where(waiting, start, jnp.inf).min(initial=jnp.inf)
        until_start, until_end = next_start - now, eta.min(initial=jnp.inf)
        until_end = jnp.where(jnp.isfinite(until_end), jnp.maximum(until_end, least), until_end)
        step = jnp.minimum(until_start, until_end)
        moving = jnp.isfinite(step)
        step = jnp.where(moving, step, 0)
        then = _add(clock.now, step)
        starts = (until_start <= until_end) | (next_start <= then[0])  # rounding may reach a start a little early
        later = jnp.where(starts, jnp.stack([next_start, 0]), then)
        after = _add(clock.left, -jnp.where(step > 0, rate * step, 0))
        ended = moving & active & ((eta <= step) | (after[0] <= 0))
        after = jnp.where(ended[None], 0, after)
        changed = jnp.where(starts, 0, jnp.where(ended, filled.level, jnp.inf).min(initial=jnp.inf))
        return _Clock(
            now=jnp.where(moving, later, clock.now),
            left=after,
            finish=jnp.where(ended, jnp.minimum(now + eta, later[0]), clock.finish),
            filled=filled,
            keep=active & ~ended & (filled.level < changed),
            floor=changed,
            moving=moving & jnp.any(after[0] > 0),
            events=clock.events + moving.astype(jnp.int32),
        )

    return lax.while_loop(running, next_event, clock)


def _kept(clock: _Clock, active: Bool[Array, "F"]) -> Filling:
    """Where filling goes on: the kept flows stay frozen, all other active ones rise again."""
    level = jnp.where(clock.keep, clock.filled.level, 0)
    return Filling(level, ~active | clock.keep, clock.filled.bottleneck, jnp.zeros((), jnp.int32))


def _add(pair: Array, more: Array) -> Array:
    """value + more, with what rounding loses carried along (Kahan): [2 ...] -> [2 ...]."""
    step = more + pair[1]
    total = pair[0] + step
    return jnp.stack([total, step - (total - pair[0])])


def _only(problem: FlowProblem | FlowList, active: Bool[Array, "F"]) -> FlowProblem:
    return eqx.tree_at(lambda p: p.weight, problem, jnp.where(active, problem.weight, 0))


@jax.custom_jvp
def _with_tangents(finish, problem: FlowProblem | FlowList, size, start):
    """`finish`, with the derivative of the simulation attached."""
    return finish


@_with_tangents.defjvp
def _finish_tangents(primals, tangents):
    finish, *inputs = once(primals)
    _, d_finish = jax.jvp(lambda *args: replay(finish, *args), tuple(inputs), tuple(tangents[1:]))
    return finish, d_finish


@jax.custom_jvp
def _without_tangents(finish, problem: FlowProblem | FlowList, size, start):
    """`finish`, which cannot be differentiated: better none than a wrong derivative."""
    return finish


@_without_tangents.defjvp
def _refuse(primals, tangents):
    raise InputError("completion_times has no derivative with a resolution; leave resolution at None.")


def replay(known: Float[Array, "F"], problem: FlowProblem | FlowList, size, start) -> Float[Array, "F"]:
    """The finish times as a differentiable function, given the order of events in `known`."""
    flows = size.size
    moves = (size > 0) & (problem.weight > 0) & jnp.isfinite(known) & (known > start)
    order = jnp.argsort(jnp.concatenate([lax.stop_gradient(start), known]), stable=True)

    def event(state, index):
        now, served, finish, begun, ended = state
        flow, starts = index % flows, index < flows
        rate = max_min_rates(_only(problem, begun & ~ended)).rate
        begins, ends = moves[flow] & starts, moves[flow] & ~starts
        own_rate = jnp.where(ends & (rate[flow] > 0), rate[flow], 1)
        ends_at = now + (size[flow] - served[flow]) / own_rate
        later = jnp.where(begins, start[flow], jnp.where(ends, ends_at, now))
        served = served + jnp.where(begun & ~ended, rate, 0) * (later - now)
        finish = finish.at[flow].set(jnp.where(ends, later, finish[flow]))
        begun = begun.at[flow].set(begun[flow] | begins)
        ended = ended.at[flow].set(ended[flow] | ends)
        return (later, served, finish, begun, ended), None

    finish = jnp.where(moves | ~jnp.isfinite(known), lax.stop_gradient(known), start)
    none = jnp.zeros(flows, bool)
    first = (start.min(initial=jnp.inf), jnp.zeros_like(size), finish, none, none)
    return lax.scan(event, first, order)[0][2]
