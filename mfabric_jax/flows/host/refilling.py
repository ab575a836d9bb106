"""Max-min rates, updated when flows begin or end, and only as far as rates change.

Links fill with the rising flows in order of level (rate / weight); all other flows keep their rates. Two rules make
fixed flows rise at level x: a link that fills at x releases its fixed flows above x; a link that holds fixed flows at
x, and on which a flow rises or has ended, releases these. A flow joins before any link on its path fills above its
level, so no lower decision is ever undone.
"""

from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.flows.host import NEAR
from mfabric_jax.flows.host.heap import Heap, compiled, drop, first, least, put
from mfabric_jax.flows.host.tape import CAPPED, CLOSE, LEVEL, Tape, note, note_member

FIXED, RISING, FROZEN = 0, 1, 2
ROUNDING = 1e-15  # error that one change adds to a sum, relative to the largest term
MOST = 1e-6  # a sum that falls below this fraction of the term just subtracted is computed anew


_FLOW = {
    **{"weight": float, "cap": float, "rate": float, "level": float, "left": float, "since": float},
    **{"holder": np.int32, "first": np.int32, "end": np.int32, "changed": np.int32, "state": np.int8},
}
_LINK = {
    **{"capacity": float, "used": float, "rising": float, "full": float, "first": np.int32, "members": np.int32},
    **{"risers": np.int32, "held": np.int32, "changes": np.int32, "listed": np.int32, "stale": np.int32},
    **{"bound": float, "touched": np.bool_, "waits": np.bool_, "asked": np.bool_},
}
_HOP = {"link": np.int32, "flow": np.int32, "share": float, "place": np.int32, "member": np.int32}


class Sharing(NamedTuple):
    """Running flows: records of flows [F], links [L] and hops [N], laid out in memory as they are used.

    - A flow has hops `first` to `end`, the link that limits it (`holder`; -1: its cap, -2: nothing), and `left` bytes
      at time `since`, when its present rate began.
    - A link has `members` hops, listed in the hops' field `member` from `first` on; a hop is the `place`-th member.
      Fixed flows have bandwidth `used` (`changes`: changes of this sum since it was last computed anew). `risers` flows
      of total weight `rising` rise. The link holds `held` flows of total weight `bound` at the level at which it is
      `full`; they may have to rise (`waits`).
    - `flow.changed`, `link.listed`, `link.stale` are lists of lengths `counts` [3]: flows that rose, links touched,
      links that need a new key. `now` [2]: time, and event (flow number for a begin, plus F for an end).
    """

    flows: Any
    links: Any
    hops: Any
    counts: np.ndarray
    now: np.ndarray
    tape: Tape


TOUCHED, CHANGED, STALE = 0, 1, 2


def _records(count: int, fields: dict[str, type], **values: np.ndarray | int) -> np.ndarray:
    records = np.zeros(count, np.dtype(list(fields.items()), align=True))
    for name, value in values.items():
        records[name] = value
    return records


def nothing_shared(
    capacity: np.ndarray,
    weight: np.ndarray,
    cap: np.ndarray,
    flow: np.ndarray,
    link: np.ndarray,
    share: np.ndarray,
    tape: Tape,
) -> Sharing:
    """Return the state before the first flow. Hops `flow`, `link`, `share` [N] in order of flows, on finite links."""
    first, first_hop = _firsts(link, len(capacity)), _firsts(flow, len(weight))
    return Sharing(
        _records(len(weight), _FLOW, weight=weight, cap=cap, first=first_hop[:-1], end=first_hop[1:], holder=-2),
        _records(len(capacity), _LINK, capacity=capacity, first=first[:-1]),
        _records(len(link), _HOP, link=link, flow=flow, share=share),
        *(np.zeros(3, np.int64), np.zeros(2), tape),
    )


def _firsts(of: np.ndarray, many: int) -> np.ndarray:
    first = np.zeros(many + 1, np.int64)
    np.cumsum(np.bincount(of, minlength=many), out=first[1:])
    return first


@compiled
def enter(s: Sharing, flow: int):
    """Begin a flow: add it to its links, rising from 0."""
    for hop in range(s.flows[flow].first, s.flows[flow].end):
        link = s.hops[hop].link
        position = s.links[link].members
        s.links[link].members += 1
        s.hops[s.links[link].first + position].member, s.hops[hop].place = hop, position
    s.flows[flow].rate, s.flows[flow].level, s.flows[flow].holder, s.flows[flow].since = 0.0, 0.0, -2, s.now[0]
    _rise(s, flow)


@compiled
def leave(s: Sharing, flow: int):
    for hop in range(s.flows[flow].first, s.flows[flow].end):
        link = s.hops[hop].link
        _touch(s, link)
        _let_go(s, hop)
        last = s.links[link].members - 1
        moved = s.hops[s.links[link].first + last].member
        s.hops[s.links[link].first + s.hops[hop].place].member, s.hops[moved].place = moved, s.hops[hop].place
        s.links[link].members = last
        _give_back(s, link, s.hops[hop].share * s.flows[flow].rate)
    s.flows[flow].rate, s.flows[flow].holder = 0.0, -2


@compiled
def settle(s: Sharing, flow: int):
    had = s.now[0] - s.flows[flow].since
    note(s.tape, CLOSE, flow, int(s.now[1]), s.flows[flow].rate, had)
    if had > 0:
        s.flows[flow].left = max(s.flows[flow].left - s.flows[flow].rate * had, 0.0)
    s.flows[flow].since = s.now[0]


@compiled
def _touch(s: Sharing, link: int):
    if s.links[link].touched:
        return
    s.links[link].touched, s.links[link].waits = True, True
    s.links[link].rising, s.links[link].risers = 0.0, 0
    s.links[s.counts[TOUCHED]].listed = link
    s.counts[TOUCHED] += 1
    if s.links[link].changes > s.links[link].members:
        _sum(s, link)


@compiled
def _sum(s: Sharing, link: int):
    """Compute the sums over the link's flows anew; return the highest level of its fixed flows."""
    used, rising, risers, highest = 0.0, 0.0, 0, 0.0
    for slot in range(s.links[link].first, s.links[link].first + s.links[link].members):
        hop = s.hops[slot].member
        flow = s.hops[hop].flow
        if s.flows[flow].state == RISING:
            rising += s.hops[hop].share * s.flows[flow].weight
            risers += 1
        else:
            used += s.hops[hop].share * s.flows[flow].rate
            highest = max(highest, s.flows[flow].level)
    s.links[link].used, s.links[link].rising, s.links[link].risers, s.links[link].changes = used, rising, risers, 0
    return highest


@compiled
def _ask(s: Sharing, link: int):
    if not s.links[link].asked:
        s.links[link].asked = True
        s.links[s.counts[STALE]].stale = link
        s.counts[STALE] += 1


@compiled
def _rise(s: Sharing, flow: int):
    """Make a fixed flow rise: return its bandwidth to its links."""
    s.flows[s.counts[CHANGED]].changed = flow
    s.counts[CHANGED] += 1
    hops = range(s.flows[flow].first, s.flows[flow].end)
    for hop in hops:
        _touch(s, s.hops[hop].link)
        _let_go(s, hop)
    s.flows[flow].holder = -2
    s.flows[flow].state = RISING
    for hop in hops:
        link = s.hops[hop].link
        s.links[link].rising += s.hops[hop].share * s.flows[flow].weight
        s.links[link].risers += 1
        _give_back(s, link, s.hops[hop].share * s.flows[flow].rate)


@compiled
def _let_go(s: Sharing, hop: int):
    link, flow = s.hops[hop].link, s.hops[hop].flow
    if s.flows[flow].holder == link:
        s.links[link].held -= 1
        s.links[link].bound -= s.hops[hop].share * s.flows[flow].weight


@compiled
def _give_back(s: Sharing, link: int, rate: float):
    s.links[link].used -= rate
    s.links[link].changes += 1
    if s.links[link].used < MOST * rate:
        _sum(s, link)
    _ask(s, link)


@compiled
def _rise_again(s: Sharing, flow: int, caps: Heap):
    settle(s, flow)
    _rise(s, flow)
    if s.flows[flow].cap < np.inf:
        put(caps, flow, s.flows[flow].cap / s.flows[flow].weight)


@compiled
def _freeze(s: Sharing, flow: int, level: float, link: int, caps: Heap):
    s.flows[flow].state, s.flows[flow].level, s.flows[flow].holder = FROZEN, level, link
    s.flows[flow].rate = s.flows[flow].weight * level if link >= 0 else s.flows[flow].cap
    drop(caps, flow)
    for hop in range(s.flows[flow].first, s.flows[flow].end):
        other = s.hops[hop].link
        weight = s.hops[hop].share * s.flows[flow].weight
        s.links[other].used += s.hops[hop].share * s.flows[flow].rate
        s.links[other].rising -= weight
        s.links[other].risers -= 1
        s.links[other].changes += 1
        if s.links[other].risers == 0:
            s.links[other].rising = 0.0
        elif s.links[other].rising < MOST * weight:
            _sum(s, other)
        _ask(s, other)


@compiled
def _room_ends(s: Sharing, link: int):
    if s.links[link].risers == 0:
        return np.inf
    return max(s.links[link].capacity - s.links[link].used, 0.0) / s.links[link].rising


@compiled
def _find_keys(s: Sharing, links: Heap):
    for index in range(s.counts[STALE]):
        link = s.links[index].stale
        s.links[link].asked = False
        key = _room_ends(s, link)
        if s.links[link].waits and s.links[link].held > 0:
            key = min(key, s.links[link].full)
        if key < np.inf:
            put(links, link, key)
        else:
            drop(links, link)
    s.counts[STALE] = 0


@compiled
def refill(s: Sharing, links: Heap, caps: Heap):
    """Update rates after flows entered and left, and list the flows that rose. `links`, `caps`: empty heaps."""
    for index in range(s.counts[CHANGED]):
        flow = s.flows[index].changed
        if s.flows[flow].cap < np.inf:
            put(caps, flow, s.flows[flow].cap / s.flows[flow].weight)
    reached = 0.0
    while True:
        _find_keys(s, links)
        link_level, cap_level = least(links), least(caps)
        if link_level == np.inf and cap_level == np.inf:
            break
        if cap_level <= link_level:
            flow = first(caps)
            reached = max(reached, cap_level)
            _freeze(s, flow, reached, -1, caps)
            note(s.tape, CAPPED, flow, 0, 0.0, 0.0)
        else:
            link = first(links)
            if s.links[link].waits and s.links[link].held > 0 and s.links[link].full <= link_level:
                _wake(s, link, caps)
            else:
                reached = _fill(s, link, reached, caps)
    _finish(s)


@compiled
def _wake(s: Sharing, link: int, caps: Heap):
    """Make the flows held by a link rise if it has room at their level."""
    s.links[link].waits = False
    _ask(s, link)
    level = s.links[link].full
    equal = NEAR * s.links[link].bound * level
    room = s.links[link].capacity - s.links[link].used - s.links[link].rising * level
    if abs(room - equal) <= ROUNDING * s.links[link].changes * s.links[link].capacity:
        _sum(s, link)
        room = s.links[link].capacity - s.links[link].used - s.links[link].rising * level
    if room <= equal:
        return
    for slot in range(s.links[link].first, s.links[link].first + s.links[link].members):
        flow = s.hops[s.hops[slot].member].flow
        if s.flows[flow].holder == link and s.flows[flow].state == FIXED:
            _rise_again(s, flow, caps)


@compiled
def _fill(s: Sharing, link: int, reached: float, caps: Heap):
    """Make flows above a full link's level rise or, without any, hold its flows; return the level reached.

    Do nothing if the link still has room.
    """
    expected = max(_room_ends(s, link), reached)
    highest = _sum(s, link)
    _ask(s, link)
    level = max(_room_ends(s, link), reached)
    if level > expected * (1 + NEAR):
        return reached
    if highest > level * (1 + NEAR):
        for slot in range(s.links[link].first, s.links[link].first + s.links[link].members):
            flow = s.hops[s.hops[slot].member].flow
            if s.flows[flow].state == FIXED and s.flows[flow].level > level * (1 + NEAR):
                _rise_again(s, flow, caps)
        return level
    weights = s.links[link].rising
    if s.links[link].held == 0:
        s.links[link].bound = 0.0
    s.links[link].bound += weights
    for slot in range(s.links[link].first, s.links[link].first + s.links[link].members):
        hop = s.hops[slot].member
        flow = s.hops[hop].flow
        rises = s.flows[flow].state == RISING
        note_member(s.tape, hop, rises, s.flows[flow].rate)
        if rises:
            s.links[link].held += 1
            _freeze(s, flow, level, link, caps)
    note(s.tape, LEVEL, link, s.links[link].members, level, weights)
    s.links[link].full = level
    return level


@compiled
def _finish(s: Sharing):
    for index in range(s.counts[CHANGED]):
        s.flows[s.flows[index].changed].state = FIXED
    for index in range(s.counts[TOUCHED]):
        s.links[s.links[index].listed].touched = False
    s.counts[TOUCHED] = 0
