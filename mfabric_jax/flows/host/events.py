"""Event loop: an event is the begin or the end of a flow; rates are constant between events."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.flows.host import AT_ONE_TIME
from mfabric_jax.flows.host.heap import Heap, compiled, drop, first, least, put
from mfabric_jax.flows.host.refilling import CHANGED, Sharing, enter, leave, refill
from mfabric_jax.flows.host.tape import AT_ONCE, BEGIN, CAPPED, END, note


class Waiting(NamedTuple):
    """Dependencies: `start`, `lag` [F] s; flow f releases `then[first[f] : first[f + 1]]`; `waits` [F]: number of flows
    still awaited; `ready` [F]: their last end so far; `last` [F]: the flow that ended then (-1: its own start)."""

    start: np.ndarray
    lag: np.ndarray
    first: np.ndarray
    then: np.ndarray
    waits: np.ndarray
    ready: np.ndarray
    last: np.ndarray


class Heaps(NamedTuple):
    """`clock`: flows by their next begin or end; `links`, `caps`: by level, for filling."""

    clock: Heap
    links: Heap
    caps: Heap


class Times(NamedTuple):
    """`begin`, `finish` [F] s (infinity: never); `holder` [F]: the link that limited a flow as it ended, or -1."""

    begin: np.ndarray
    finish: np.ndarray
    holder: np.ndarray


def run(s: Sharing, size: np.ndarray, waiting: Waiting, heaps: Heaps, times: Times) -> int:
    """Fill in `times`; return the number of distinct event times."""
    clock, of_links, of_caps = heaps
    for flow in range(len(size)):
        if waiting.waits[flow] == 0:
            _release(waiting, flow, clock)
    events = 0
    while least(clock) < np.inf:
        s.now[0] = least(clock)
        until = s.now[0] + AT_ONE_TIME * abs(s.now[0])
        events += 1
        while least(clock) <= until:
            flow, time = first(clock), least(clock)
            drop(clock, flow)
            if times.begin[flow] == np.inf:
                _begin(s, size, waiting, times, flow, time, clock)
            else:
                _end(s, waiting, times, flow, time, clock)
        if s.counts[0]:
            refill(s, of_links, of_caps)
        _expect(s, clock)
    return events


@compiled
def _expect(s: Sharing, clock: Heap):
    for index in range(s.counts[CHANGED]):
        flow = s.flows[index].changed
        if s.flows[flow].rate > 0:
            put(clock, flow, s.now[0] + s.flows[flow].left / s.flows[flow].rate)
        else:
            drop(clock, flow)
    s.counts[CHANGED] = 0


@compiled
def _release(waiting: Waiting, flow: int, clock: Heap):
    if waiting.ready[flow] <= waiting.start[flow]:
        waiting.last[flow] = -1
    time = max(waiting.start[flow], waiting.ready[flow]) + waiting.lag[flow]
    if time < np.inf:
        put(clock, flow, time)


@compiled
def _begin(s: Sharing, size: np.ndarray, waiting: Waiting, times: Times, flow: int, time: float, clock: Heap):
    times.begin[flow] = time
    s.now[1] = flow
    s.flows[flow].left, s.flows[flow].since = size[flow], time
    note(s.tape, BEGIN, flow, waiting.last[flow], 0.0, 0.0)
    crosses = s.flows[flow].first < s.flows[flow].end
    unlimited = s.flows[flow].weight > 0 and not crosses and s.flows[flow].cap == np.inf
    if size[flow] == 0 or (unlimited and size[flow] < np.inf):
        note(s.tape, AT_ONCE, flow, 0, 0.0, 0.0)
        _finish_flow(waiting, times, flow, time, clock)
    elif s.flows[flow].weight > 0 and crosses:
        enter(s, flow)
    elif s.flows[flow].weight > 0 and s.flows[flow].cap > 0 and size[flow] < np.inf:
        s.flows[flow].rate = s.flows[flow].cap
        note(s.tape, CAPPED, flow, 0, 0.0, 0.0)
        put(clock, flow, time + size[flow] / s.flows[flow].cap)


@compiled
def _end(s: Sharing, waiting: Waiting, times: Times, flow: int, time: float, clock: Heap):
    s.now[1] = len(s.flows) + flow
    note(s.tape, END, flow, 0, s.flows[flow].left, s.flows[flow].rate)
    times.holder[flow] = max(s.flows[flow].holder, -1)
    if s.flows[flow].first < s.flows[flow].end:
        leave(s, flow)
    _finish_flow(waiting, times, flow, time, clock)


@compiled
def _finish_flow(waiting: Waiting, times: Times, flow: int, time: float, clock: Heap):
    times.finish[flow] = time
    for index in range(waiting.first[flow], waiting.first[flow + 1]):
        then = waiting.then[index]
        waiting.waits[then] -= 1
        if time >= waiting.ready[then]:
            waiting.ready[then], waiting.last[then] = time, flow
        if waiting.waits[then] == 0:
            _release(waiting, then, clock)
