"""The loop of `star`, compiled by numba.

The rate of a flow is the smaller of the levels of its two ports. Ports freeze lowest first (water filling). The end of
a flow does not change the ports below its rate, so filling resumes from the state stored after them. Source: Bertsekas
& Gallager, Data Networks, 2nd ed., 6.5.2.
"""

from typing import NamedTuple

import numpy as np

from mfabric_jax.flows.host import AT_ONE_TIME, NEAR
from mfabric_jax.support.loops import part_of_loops

NONE = 1e300  # no flow, or no level
UNLIMITED = 1e30  # level of a port that limits no flow
FAST = {"nsz", "contract", "nnan", "reassoc", "ninf"}  # without these, minima and sums are not vectorised
WINDOW = 6  # number of ports, in the order of the previous event, among which the next to freeze is sought
compiled = part_of_loops(FAST)


class StarState(NamedTuple):
    """One star: flows [N N], ports [2 N] (0: up, 1: down) and groups of ports [2 G].

    - `left` [N N]: bytes left (`NONE` without a flow); `has` [2 N N]: 1 where a flow runs, from either side.
    - `degree`, `group_degree`: numbers of running flows. `open`: 1 for ports that are not frozen yet. `level`: rates.
    - Filling, stored after every freeze: `order` [2N 2]: side and port; `reached` [2N]: its level; `version` [2N+1 2]:
      the row of `room` and `frozen` [2 N+1 N] (capacity left, flows frozen by the opposite side) valid for a side.
    """

    left: np.ndarray
    has: np.ndarray
    degree: np.ndarray
    open: np.ndarray
    level: np.ndarray
    room: np.ndarray
    frozen: np.ndarray
    order: np.ndarray
    reached: np.ndarray
    version: np.ndarray
    group_degree: np.ndarray
    group_room: np.ndarray
    group_frozen: np.ndarray


@compiled
def _update_frozen(row: np.ndarray, free: np.ndarray, before: np.ndarray, after: np.ndarray):
    for q in range(len(row)):
        after[q] = before[q] + row[q] * free[q]


@compiled
def _update_room(row: np.ndarray, free: np.ndarray, before: np.ndarray, after: np.ndarray, level: float):
    for q in range(len(row)):
        after[q] = before[q] - level * (row[q] * free[q])


@compiled
def _sum_of(row: np.ndarray, free: np.ndarray, begin: int, end: int):
    total = 0.0
    for q in range(begin, end):
        total += row[q] * free[q]
    return total


@compiled
def _soonest(left: np.ndarray, levels: np.ndarray, level: float, step: float, slow: np.ndarray, pace: float):
    """Subtract a step's bytes, at the old levels, from a source's flows; return the seconds until the next one ends."""
    low = NONE
    for j in range(len(left)):
        leftover = max(left[j] - step * min(level, levels[j]), 0.0)
        left[j] = leftover
        low = min(low, leftover * max(pace, slow[j]))
    return low


def ends_of_all(size: np.ndarray, leaf: np.ndarray, groups: np.ndarray, each: np.ndarray):
    """Return when the last flow of each star ends [B]; arguments as in `star.latest_ends`, without NaN.

    `each` [B N N] receives the end of every flow; with the shape [0 0 0], of none.
    """
    n, racks = size.shape[1], groups.shape[1]
    star = StarState(
        *(np.empty((n, n)), np.empty((2, n, n)), np.empty((2, n)), np.empty((2, n)), np.empty((2, n))),
        *(np.empty((2, n + 1, n)), np.empty((2, n + 1, n)), np.empty((2 * n, 2), np.int64), np.empty(2 * n)),
        *(np.zeros((2 * n + 1, 2), np.int64), np.empty((2, racks))),
        *(np.empty((2 * n + 1, 2, racks)), np.empty((2 * n + 1, 2, racks))),
    )
    ends, slow, old = np.zeros(len(size)), np.empty((2, n)), np.empty((2, n))
    until, hint = np.empty(n), np.empty((2 * n, 2), np.int64)
    for b in range(len(size)):
        flows, most, fastest = _begin(star, size[b], leaf, groups)
        if flows < 0:
            ends[b] = np.inf
            if len(each):
                each[b] = np.where(size[b] > 0, np.inf, 0.0)
            continue
        now, step, first, steps = 0.0, 0.0, np.int64(0), np.int64(0)  # functions compile once more for a literal 0
        old[:] = 0.0
        while flows > 0:
            steps = _fill(star, first, steps, hint)
            for s in range(2):
                for p in range(n):
                    if star.open[s, p] == 1.0:
                        star.level[s, p] = UNLIMITED
                    slow[s, p] = 1.0 / star.level[s, p]
            soonest = NONE
            for i in range(n):
                until[i] = _soonest(star.left[i], old[1], old[0, i], step, slow[1], slow[0, i])
                soonest = min(soonest, until[i])
            step = soonest
            now += step
            ended, least = _end(star, until, slow, step + AT_ONE_TIME * now, each[b : b + 1], now * (most / fastest))
            flows -= ended
            for s in range(2):
                for p in range(n):
                    old[s, p] = star.level[s, p]
            first = 0
            least *= 1 - NEAR  # else a port whose level differs only by rounding would be kept, too slow
            while first < steps and star.reached[first] < least:
                first += 1
        ends[b] = now * (most / fastest)
    return ends


@compiled
def _begin(star: StarState, size: np.ndarray, leaf: np.ndarray, groups: np.ndarray):
    """Set up one star, scaled to about 1; return the number of flows (-1: one crosses a dead port) and both scales."""
    n, racks = len(size), groups.shape[1]
    share = n // racks if racks else 1
    most, fastest, flows = 0.0, 0.0, 0
    for i in range(n):
        fastest = max(fastest, max(leaf[0, i], leaf[1, i]))
        for j in range(n):
            most = max(most, size[i, j])
    fastest = fastest if fastest > 0.0 else 1.0
    for s in range(2):
        for p in range(n):
            star.degree[s, p], star.open[s, p] = 0.0, 1.0
            star.room[s, 0, p] = leaf[s, p] / fastest
            star.frozen[s, 0, p] = 0.0
        for r in range(racks):
            star.group_degree[s, r] = 0.0
            star.group_room[0, s, r] = min(groups[s, r] / fastest, UNLIMITED)
            star.group_frozen[0, s, r] = 0.0
    for i in range(n):
        for j in range(n):
            there = size[i, j] > 0.0
            star.has[0, i, j] = star.has[1, j, i] = 1.0 if there else 0.0
            star.left[i, j] = size[i, j] / most if there else NONE
            if there:
                if leaf[0, i] <= 0.0 or leaf[1, j] <= 0.0:
                    return -1, most, fastest
                if racks and (groups[0, i // share] <= 0.0 or groups[1, j // share] <= 0.0):
                    return -1, most, fastest
                flows += 1
                _count(star, i, j, 1.0)
    return flows, most, fastest


@compiled
def _count(star: StarState, i: int, j: int, change: float):
    star.degree[0, i] += change
    star.degree[1, j] += change
    racks = star.group_degree.shape[1]
    if racks:
        share = len(star.left) // racks
        star.group_degree[0, i // share] += change
        star.group_degree[1, j // share] += change


@compiled
def _end(star: StarState, until: np.ndarray, slow: np.ndarray, border: float, each: np.ndarray, now: float):
    """End the flows that finish by `border`; return their number and their least rate. `each` [1 N N] or [0 N N]
    receives their ends."""
    ended, least = 0, NONE
    for i in range(len(until)):
        if until[i] > border:
            continue
        for j in range(len(until)):
            if star.has[0, i, j] == 1.0 and star.left[i, j] * max(slow[0, i], slow[1, j]) <= border:
                star.has[0, i, j] = star.has[1, j, i] = 0.0
                star.left[i, j] = NONE
                for b in range(len(each)):
                    each[b, i, j] = now
                _count(star, i, j, -1.0)
                ended += 1
                least = min(least, min(star.level[0, i], star.level[1, j]))
    return ended, least


@compiled
def _fill(star: StarState, first: int, steps: int, hint: np.ndarray):
    """Freeze ports from step `first` on, lowest first; return the number of steps.

    The order of the previous event is a hint: the lowest of its next few ports freezes. If the levels ascend, they are
    the max-min levels. If one falls, filling goes back to the step to which it belongs, and compares all ports up to
    this step.
    """
    every, racks = len(star.order), star.group_degree.shape[1]
    window = WINDOW + (len(star.left) // racks if racks else 0)  # ports of a group move together
    many, step, begin, compared = _reopen_ports(star, first, steps, hint), first, 0, 0 if steps else every
    while True:
        end = many if step < compared else min(begin + window, many)
        x, lowest, k = NONE, -1, begin
        while k < end:
            value = _share(star, step, hint[k, 0], hint[k, 1])
            if value < x:
                x, lowest = value, k
            if value >= NONE:  # all its flows are frozen, so it no longer limits any
                hint[k, 0], hint[k, 1] = hint[begin, 0], hint[begin, 1]
                lowest = k if lowest == begin else lowest
                begin += 1
                end = min(end + 1, many)
            k += 1
        if lowest < 0 and begin < many:
            continue
        if lowest < 0 and (compared == every or not _is_overfull(star, step)):
            return step
        if lowest < 0 or (step > first and x < star.reached[step - 1] * (1 - NEAR)):
            compared = every if lowest < 0 else max(compared, step + 1)
            back = first
            while lowest >= 0 and back < step and star.reached[back] <= x:
                back += 1
            many, step, begin = _reopen_ports(star, back, step, hint), back, 0
            continue
        _freeze(star, step, hint[lowest, 0], hint[lowest, 1], max(x, star.reached[step - 1]) if step > 0 else x)
        hint[lowest, 0], hint[lowest, 1] = hint[begin, 0], hint[begin, 1]
        begin += 1
        step += 1


@compiled
def _reopen_ports(star: StarState, back: int, step: int, hint: np.ndarray):
    """Reopen the ports frozen from step `back` up to `step`; list all open ports in `hint`, and return their number."""
    many = 0
    for k in range(back, step):
        hint[many, 0], hint[many, 1] = star.order[k, 0], star.order[k, 1]
        many += 1
    for s in range(2):
        for p in range(len(star.left)):
            if star.open[s, p] == 1.0:
                hint[many, 0], hint[many, 1] = s, p
                many += 1
    for k in range(back, step):
        star.open[star.order[k, 0], star.order[k, 1]] = 1.0
    return many


@compiled
def _is_overfull(star: StarState, step: int):
    """Return whether a port or group whose flows are all frozen by others carries more than its capacity."""
    for s in range(2):
        for p in range(len(star.left)):
            if star.open[s, p] == 1.0 and star.room[s, star.version[step, s], p] < -NEAR:
                return True
        for r in range(star.group_degree.shape[1]):
            if star.group_room[step, s, r] < -NEAR:
                return True
    return False


@compiled
def _share(star: StarState, step: int, side: int, port: int):
    """Return the level at which a port would be full, or `NONE` if all its flows are frozen."""
    version, racks = star.version[step, side], star.group_degree.shape[1]
    count = star.degree[side, port] - star.frozen[side, version, port]
    if count <= 0.0:
        return NONE
    value = star.room[side, version, port] / count
    if racks:
        mine = port // (star.left.shape[0] // racks)
        together = star.group_degree[side, mine] - star.group_frozen[step, side, mine]
        value = min(value, star.group_room[step, side, mine] / together)
    return value


@compiled
def _freeze(star: StarState, step: int, side: int, port: int, level: float):
    other, racks = 1 - side, star.group_degree.shape[1]
    own, theirs = star.version[step, side], star.version[step, other]
    row, free = star.has[side, port], star.open[other]
    _update_frozen(row, free, star.frozen[other, theirs], star.frozen[other, theirs + 1])
    _update_room(row, free, star.room[other, theirs], star.room[other, theirs + 1], level)
    star.order[step, 0], star.order[step, 1] = side, port
    star.reached[step] = star.level[side, port] = level
    star.open[side, port] = 0.0
    star.version[step + 1, side], star.version[step + 1, other] = own, theirs + 1
    if racks:
        share = star.left.shape[0] // racks
        room, then = star.group_room[step], star.group_room[step + 1]
        frozen, after = star.group_frozen[step], star.group_frozen[step + 1]
        for r in range(racks):
            total = _sum_of(row, free, r * share, (r + 1) * share)
            then[other, r] = room[other, r] - level * total
            after[other, r] = frozen[other, r] + total
            then[side, r], after[side, r] = room[side, r], frozen[side, r]
        mine, count = port // share, star.degree[side, port] - star.frozen[side, own, port]
        then[side, mine] = room[side, mine] - level * count
        after[side, mine] = frozen[side, mine] + count
