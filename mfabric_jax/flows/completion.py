"""Completion times of flows under max-min sharing, by exact event-driven fluid simulation with dependencies.

Two engines compute the same times: `host` runs compiled loops on the CPU (`flows.host`); `device` is one XLA program
for accelerators and batches of small problems (`flows.device_events`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Int

from mfabric_jax.checks import InputError, of_type, one_of
from mfabric_jax.flows import device_events, host_times
from mfabric_jax.flows.dependencies import Successors, check_after, run_order, successors
from mfabric_jax.flows.device_events import Release
from mfabric_jax.flows.max_min import SMALL
from mfabric_jax.flows.problem import FlowProblem, SolveOutcome, is_ill_posed, of_shape
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.host_arrays import NAN_OR_NOT_NEGATIVE
from mfabric_jax.support.platforms import platform

ENGINES = ("auto", "host", "device")


class Completion(eqx.Module):
    """Begin and end of each flow: the result of `completion_times`.

    - `begin`, `finish` [F] s: infinity where a flow never begins or ends.
    - `holder` [F]: the full link that limited a flow as it ended; -1: its cap, or nothing.
    - `events`: number of events; `outcome`: how the solve ended.
    """

    begin: Float[Array, "F"]
    finish: Float[Array, "F"]
    holder: Int[Array, "F"]
    events: Int[Array, ""]
    outcome: SolveOutcome


def completion_times(
    problem: FlowProblem,
    size: ArrayLike,
    start: ArrayLike = 0,
    after: ArrayLike | None = None,
    lag: ArrayLike = 0,
    *,
    engine: str = "auto",
) -> Completion:
    """Return when each flow begins, and when it has moved all of its bytes.

    - `size` [F]: bytes, 0 or more. `start` [F]: seconds. A single number applies to every flow.
    - `after` [D 2]: flow `after[d, 1]` waits for the end of flow `after[d, 0]`; known before tracing, the same for a
      whole batch.
    - `lag` [F] s: a flow begins that long after the later of `start` and the last end it waits for; 0 or more.
    - `engine`: host | device | auto. Auto is host on a CPU if flows wait for others or there are more than 512 flows,
      else device.

    A flow without bytes ends as it begins and takes no bandwidth. A flow without hops runs at its cap, as a computation
    does. Raise `InputError` for a wrong shape, a cycle (with its members) or a second derivative. Differentiable once,
    forward and reverse, in capacity, share, weight, cap, size, start and lag; at ties the derivative follows one
    possible order.
    """
    of_type("problem", problem, FlowProblem)
    flows, dtype = problem.weight.shape, problem.capacity.dtype
    size = of_shape("size", size, dtype, flows, NAN_OR_NOT_NEGATIVE)
    start = of_shape("start", start, dtype, flows)
    lag = of_shape("lag", lag, dtype, flows, NAN_OR_NOT_NEGATIVE)
    pairs = _known_pairs(after, flows[0])
    if one_of("engine", engine, ENGINES) == "auto":
        large = len(pairs) > 0 or flows[0] > SMALL
        engine = "host" if large and platform() == "cpu" else "device"
    if engine == "host":
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((problem, size, start, lag)))
        if traced and platform() != "cpu":
            raise InputError(f"engine host is for programs on a cpu, got one for {platform()}; choose device or auto.")
        return (_on_host if traced else _now)(problem, size, start, lag, successors(pairs, flows[0]))
    order = run_order(pairs, flows[0]) if len(pairs) else np.arange(flows[0])
    release = Release(start, lag, jnp.asarray(pairs, jnp.int32), jnp.asarray(order, jnp.int32))
    return _on_device(problem, size, release)


def _known_pairs(after: ArrayLike | None, flows: int) -> np.ndarray:
    if isinstance(after, Tracer):
        raise InputError("after must be known before tracing: pass a NumPy array that the traced function closes over.")
    pairs = check_after(after, flows)
    if len(pairs):
        run_order(pairs, flows)
    return pairs


def _now(problem: FlowProblem, size: Any, start: Any, lag: Any, order: Successors) -> Completion:
    """Solve outside any JAX program: nothing to trace or compile."""
    problem, size, start, lag = jax.tree.map(np.asarray, (problem, size, start, lag))
    nonfinite = bool(is_ill_posed(problem, size, start, lag))
    problem, size = _nothing_to_do(problem, size) if nonfinite else (problem, size)
    begin, finish, holder, events = host_times.times_now(problem, size, start, lag, order)
    if nonfinite:
        begin, finish = np.full_like(begin, np.nan), np.full_like(finish, np.nan)
    outcome = SolveOutcome.starved if np.isinf(finish).any() else SolveOutcome.solved
    begin, finish, holder, events = (jnp.asarray(part) for part in (begin, finish, holder, events))
    return Completion(begin, finish, holder, events, SolveOutcome.nonfinite if nonfinite else outcome)


@jax.jit
def _on_host(problem: FlowProblem, size: Any, start: Any, lag: Any, order: Successors) -> Completion:
    nonfinite = is_ill_posed(problem, size, start, lag)
    problem, size = jax.tree.map(
        lambda nothing, own: jnp.where(nonfinite, nothing, own), _nothing_to_do(problem, size), (problem, size)
    )
    begin, finish, holder, events = host_times.times(problem, size, start, lag, order)
    return _completion((begin, finish), holder, events, nonfinite, jnp.asarray(False))


def _nothing_to_do(problem: FlowProblem, size: Any):
    """Return flows without bytes or links. They replace an ill-posed problem: the host must not use wrong hops."""
    xp = array_module(problem, size)
    return eqx.tree_at(lambda tree: tree.hops, problem, xp.full_like(problem.hops, -1)), xp.zeros_like(size)


@jax.jit
def _on_device(problem: FlowProblem, size: Array, release: Release) -> Completion:
    end = device_events.simulate_events(*lax.stop_gradient((problem, size, release)))
    times: Any = device_events.with_tangents((end.begin, end.finish), problem, size, release)
    nonfinite = is_ill_posed(problem, size, release.start, release.lag)
    return _completion(times, end.holder, end.events, nonfinite, end.moving)


def _completion(
    times: tuple[Array, Array], holder: Array, events: Array, nonfinite: Array, moving: Array
) -> Completion:
    begin, finish = (jnp.where(nonfinite, jnp.nan, time) for time in times)
    outcome = SolveOutcome.where(jnp.isinf(finish).any(), SolveOutcome.starved, SolveOutcome.solved)
    outcome = SolveOutcome.where(moving, SolveOutcome.unfinished, outcome)
    return Completion(begin, finish, holder, events, SolveOutcome.where(nonfinite, SolveOutcome.nonfinite, outcome))
