"""Run one instance of NumPy arrays, or compute its derivative."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.flows.host.events import Heaps, Times, Waiting, run
from mfabric_jax.flows.host.heap import new_heap
from mfabric_jax.flows.host.refilling import nothing_shared
from mfabric_jax.flows.host.tape import Tape, new_tape, pull_back, push_forward
from mfabric_jax.support.loops import compile_loop, make_once


class HostInstance(NamedTuple):
    """One instance: `capacity` [L]; hops `flow`, `link`, `share` [N] in order of flows; `weight`, `cap`, `size`,
    `start`, `lag` [F]; flow f releases `then[first[f] : first[f + 1]]` [D]; `waits` [F]: number of flows waited for."""

    capacity: np.ndarray
    flow: np.ndarray
    link: np.ndarray
    share: np.ndarray
    weight: np.ndarray
    cap: np.ndarray
    size: np.ndarray
    start: np.ndarray
    lag: np.ndarray
    first: np.ndarray
    then: np.ndarray
    waits: np.ndarray


@make_once
def _programs() -> tuple[Callable[..., Any], ...]:
    return compile_loop(run), compile_loop(push_forward), compile_loop(pull_back)


def run_instance(instance: HostInstance) -> tuple[Times, int]:
    return _run(instance, new_tape(0, 0))


def _run(instance: HostInstance, tape: Tape) -> tuple[Times, int]:
    flows = len(instance.weight)
    sharing = nothing_shared(
        instance.capacity, instance.weight, instance.cap, instance.flow, instance.link, instance.share, tape
    )
    ready, last = np.full(flows, -np.inf), np.full(flows, -1, np.int32)
    waiting = Waiting(instance.start, instance.lag, instance.first, instance.then, instance.waits.copy(), ready, last)
    times = Times(np.full(flows, np.inf), np.full(flows, np.inf), np.full(flows, -1, np.int32))
    heaps = Heaps(new_heap(flows), new_heap(len(instance.capacity)), new_heap(flows))
    events, _, _ = _programs()
    return times, events(sharing, instance.size, waiting, heaps, times)


def record_tape(instance: HostInstance) -> Tape:
    """Run twice and return the tape: the first run counts its entries, the second writes them."""
    counted = new_tape(0, 0)
    _run(instance, counted)
    tape = new_tape(*(int(length) for length in counted.length))
    _run(instance, tape)
    return tape


def push_forward_times(instance: HostInstance, d: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the change of all begins and ends [2F] for changes of capacity, share, weight, cap, size, start, lag."""
    _, forward, _ = _programs()
    return forward(record_tape(instance), instance.flow, instance.share, instance.weight, d)


def pull_back_times(instance: HostInstance, of_time: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the transpose of `push_forward_times`, applied to cotangents of begins and ends [2F]."""
    _, _, back = _programs()
    return back(record_tape(instance), instance.flow, instance.share, instance.weight, len(instance.capacity), of_time)
