"""Completion times of flows under max-min sharing: exact event-driven fluid simulation.

Between two events (a flow ends, or one starts) rates are constant; at every event they are solved again.
Flows that end together are one event. One instance: callers `jax.vmap`.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from mfabric_jax.flows.max_min import fill, has_nan, max_min_rates
from mfabric_jax.flows.problem import FlowProblem, Outcome


class Completion(eqx.Module):
    """`finish` [F] seconds (infinity where a flow can never end), number of `events`, `outcome`."""

    finish: Float[Array, "F"]
    events: Int[Array, ""]
    outcome: Outcome


class _Clock(NamedTuple):
    now: Float[Array, ""]
    left: Float[Array, "F"]
    finish: Float[Array, "F"]
    moving: Bool[Array, ""]
    events: Int[Array, ""]


def completion_times(problem: FlowProblem, size: ArrayLike, start: ArrayLike = 0) -> Completion:
    """When each flow has moved its bytes.

    - `size` [F]: bytes, 0 or more.   - `start` [F]: seconds.

    A flow without bytes ends at its start and takes no bandwidth. Differentiable in capacity, share, weight, cap,
    size and start, forward and reverse: the events are replayed in their known order, so the reverse pass keeps
    one set of rates per event. First derivatives only; at ties, that of one of the possible orders.
    """
    flows, dtype = problem.weight.shape, problem.capacity.dtype
    size = jnp.broadcast_to(jnp.asarray(size).astype(dtype), flows)
    start = jnp.broadcast_to(jnp.asarray(start).astype(dtype), flows)
    end = _simulate(*lax.stop_gradient((problem, size, start)))
    finish = _with_tangents(end.finish, problem, size, start)
    nonfinite = has_nan(problem) | jnp.isnan(size).any() | jnp.isnan(start).any()
    outcome = Outcome.where(jnp.isinf(finish).any(), Outcome.starved, Outcome.solved)
    outcome = Outcome.where(end.moving, Outcome.unfinished, outcome)
    outcome = Outcome.where(nonfinite, Outcome.nonfinite, outcome)
    return Completion(jnp.where(nonfinite, jnp.nan, finish), end.events, outcome)


def _simulate(problem: FlowProblem, size, start) -> _Clock:
    bound = 2 * size.size + 1                                                    # every flow starts once, ends once

    def running(clock: _Clock) -> Bool[Array, ""]:
        return clock.moving & (clock.events < bound)

    def next_event(clock: _Clock) -> _Clock:
        waiting = (start > clock.now) & (clock.left > 0)
        active = ~waiting & (clock.left > 0)
        rate = fill(_only(problem, active)).rate
        eta = jnp.where(active & (rate > 0), clock.left / jnp.where(rate > 0, rate, 1), jnp.inf)
        next_start = jnp.where(waiting, start, jnp.inf).min(initial=jnp.inf)
        until_start, until_end = next_start - clock.now, eta.min(initial=jnp.inf)
        step = jnp.minimum(until_start, until_end)
        now = jnp.where(until_start <= until_end, next_start, clock.now + until_end)
        left = clock.left - jnp.where(step > 0, rate * step, 0)
        ended = active & ((eta <= step) | (left <= 0)) & jnp.isfinite(step)
        left = jnp.where(ended, 0, left)
        return _Clock(
            jnp.where(jnp.isfinite(step), now, clock.now),
            left,
            jnp.where(ended, now, clock.finish),
            jnp.isfinite(step) & jnp.any(left > 0),
            clock.events + jnp.isfinite(step).astype(jnp.int32),
        )

    finish = jnp.where(size > 0, jnp.inf, start)
    origin = start.min(initial=jnp.inf)
    first = jnp.where(jnp.isfinite(origin), origin, 0)
    return lax.while_loop(
        running, next_event, _Clock(first, size, finish, jnp.any(size > 0), jnp.zeros((), jnp.int32))
    )


def _only(problem: FlowProblem, active: Bool[Array, "F"]) -> FlowProblem:
    return eqx.tree_at(lambda p: p.weight, problem, jnp.where(active, problem.weight, 0))


@jax.custom_jvp
def _with_tangents(finish, problem: FlowProblem, size, start):
    """`finish`, with the derivative of the simulation attached."""
    return finish


@_with_tangents.defjvp
def _finish_tangents(primals, tangents):
    finish, *inputs = primals
    _, d_finish = jax.jvp(lambda *args: replay(finish, *args), tuple(inputs), tuple(tangents[1:]))
    return finish, d_finish


def replay(known: Float[Array, "F"], problem: FlowProblem, size, start) -> Float[Array, "F"]:
    """The finish times as a differentiable function, given the order of events in `known`."""
    flows = size.size
    moves = (size > 0) & (problem.weight > 0) & jnp.isfinite(known) & (known > start)
    order = jnp.argsort(jnp.concatenate([lax.stop_gradient(start), known]), stable=True)

    def event(state, index):
        now, served, finish, begun, ended = state
        flow, starts = index % flows, index < flows
        rate = max_min_rates(_only(problem, begun & ~ended)).rate
        here = moves[flow]
        own_rate = jnp.where(here & ~starts & (rate[flow] > 0), rate[flow], 1)
        ends_at = now + (size[flow] - served[flow]) / own_rate
        later = jnp.where(here, jnp.where(starts, start[flow], ends_at), now)
        served = served + jnp.where(begun & ~ended, rate, 0) * (later - now)
        finish = finish.at[flow].set(jnp.where(here & ~starts, later, finish[flow]))
        begun = begun.at[flow].set(begun[flow] | (here & starts))
        ended = ended.at[flow].set(ended[flow] | (here & ~starts))
        return (later, served, finish, begun, ended), None

    still = jnp.where(moves | ~jnp.isfinite(known), lax.stop_gradient(known), start)
    nobody = jnp.zeros(flows, bool)
    first = (start.min(initial=jnp.inf), jnp.zeros_like(size), still, nobody, nobody)
    return lax.scan(event, first, order)[0][2]
