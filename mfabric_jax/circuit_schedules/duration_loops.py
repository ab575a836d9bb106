"""The linear programme of `joint`, compiled by numba: the best durations of known configurations.

    min T:  delays + sum of t on each switch <= T,  sum of t_k C_k + e >= need,  lines of e <= packet T.

The same without e, as cuts: for a line (what one server sends, or receives) and any set J of its partners,

    sum over J of (sum of t_k C_k) + packet T >= sum over J of need.

Without packet NICs there is a cut for every pair, with packet = 0. At known t and T, the most violated cut of a line
takes as J the partners with bytes left. So the primal simplex method solves the dual, which has a row for each t and
for T; cuts are its columns, generated as they enter. The dual value rises from 0 to the least T, so a programme whose T
cannot be below `limit` is abandoned as soon as that is proven. Right sides of 0 would stall the method: they are
perturbed by NUDGE, as if a second of circuits added that much to T. Source: column generation (Gilmore and Gomory,
Operations Research 9, 1961); the cuts are those of a flow with supplies.
"""

import numpy as np

from mfabric_jax.circuit_schedules.assignment_loops import compiled
from mfabric_jax.circuit_schedules.loop_rooms import ENDED, LATER, LOST, NEVER

NUDGE = 1e-9  # of T, added for a second of each configuration
MISSED = 1e-10  # of the least time of any schedule: smaller violations do not count
PIVOT = 1e-11  # smallest entry of a column that may be a pivot
PIVOTS = 40  # most pivots for each duration and server
EVEN = 1e-13  # ratios that differ by less are equal: the larger pivot leaves
NO_LINE, NOTHING = -1, -2  # instead of a line: a clock or a sign is violated; nothing is violated


def solve(need, circuits, turns, packet, limit, room, price):
    """Solve the programme and return how it ended (`loop_rooms`).

    `room.primal` receives t and T. `price` [S S] receives the seconds of T that one more second of circuit saves.
    `need` [S S], `turns` [switches] (delays of each switch) and `limit` are in units of the least time of any schedule.
    """
    many = len(room.level)
    _begin(room)
    for _ in range(PIVOTS * (many + len(need))):
        if _value(room) >= limit:
            return LATER
        line, more = _find_worst_cut(need, circuits, turns, packet, room)
        if line == NOTHING:
            _prices(room, price)
            return ENDED
        leaving = _leaving(room)
        if leaving < 0:
            return NEVER
        _pivot(room, leaving, line, more)
    return LOST


@compiled
def _value(room):
    """Return the value of the dual; write t and T to `room.primal`."""
    value = 0.0
    room.primal[:] = 0
    for r in range(len(room.level)):
        if room.gain[r] != 0:
            value += room.gain[r] * room.level[r]
            for k in range(len(room.level)):
                room.primal[k] += room.gain[r] * room.inverse[r, k]
    return value


@compiled
def _leaving(room):
    """Return the basic variable that reaches 0 first as the entering column rises, or -1; write the direction of all to
    `room.primal`."""
    leaving, step, most = -1, np.inf, 0.0
    for r in range(len(room.level)):
        along = 0.0
        for k in range(len(room.level)):
            along += room.inverse[r, k] * room.entering[k]
        room.primal[r] = along
        if along > PIVOT:
            ratio = room.level[r] / along
            if ratio < step - EVEN or (ratio < step + EVEN and along > most):
                step, leaving, most = min(ratio, step), r, along
    return leaving


@compiled
def _begin(room):
    many = len(room.level)
    room.inverse[:] = 0
    room.gain[:] = 0
    room.line[:] = -1
    for k in range(many):
        room.inverse[k, k] = 1
        room.level[k] = NUDGE * (1 + k / many)
    room.level[many - 1] = 1


@compiled
def _pivot(room, leaving, line, more):
    """Replace the `leaving` basic column by the entering one, whose direction is `room.primal`."""
    inverse, level, along = room.inverse, room.level, room.primal
    many = len(level)
    scale = 1 / along[leaving]
    for k in range(many):
        inverse[leaving, k] *= scale
    level[leaving] = max(level[leaving] * scale, 0.0)
    for r in range(many):
        if r != leaving and along[r] != 0:
            for k in range(many):
                inverse[r, k] -= along[r] * inverse[leaving, k]
            level[r] = max(level[r] - along[r] * level[leaving], 0.0)
    room.gain[leaving], room.line[leaving] = more, line
    for j in range(len(room.partners)):
        room.members[leaving, j] = room.partners[j]


@compiled
def _find_worst_cut(need, circuits, turns, packet, room):
    """Write the most violated constraint to `room.entering`; return its (line, right side), `NO_LINE` or `NOTHING`."""
    many, primal = len(room.level), room.primal
    _leave(need, circuits, turns, room)
    worst, line, sign, lane = MISSED, NOTHING, -1, -1
    for k in range(many - 1):
        if -primal[k] > worst:
            worst, line, sign = -primal[k], NO_LINE, k
    for switch in range(len(turns)):
        if room.clock[switch] - primal[many - 1] > worst:
            worst, line, sign, lane = room.clock[switch] - primal[many - 1], NO_LINE, -1, switch
    worst, line = _find_worst_line(need, packet, worst, line, room)
    room.entering[:] = 0
    if line >= 0:
        room.entering[many - 1] = packet
        return line, _column(need, circuits, room, line)
    room.partners[:] = False
    if lane >= 0:
        for k in range(many - 1):
            room.entering[k] = -1.0 if circuits.switch[k] == lane else 0.0
        room.entering[many - 1] = 1
        return line, turns[lane]
    room.entering[max(sign, 0)] = 1
    return line, 0.0


@compiled
def _leave(need, circuits, turns, room):
    """Write what circuits leave of every pair (negative where they carry more), and when every switch ends."""
    size = len(need)
    for lane in range(len(turns)):
        room.clock[lane] = turns[lane]
    for i in range(size):
        for j in range(size):
            room.left[i, j] = need[i, j]
    for k in range(len(room.primal) - 1):
        seconds = room.primal[k]
        if seconds != 0:
            room.clock[circuits.switch[k]] += seconds
            for n in range(circuits.first[k], circuits.first[k + 1]):
                room.left[circuits.row[n], circuits.column[n]] -= seconds * circuits.count[n]


@compiled
def _find_worst_line(need, packet, worst, line, room):
    """Return the largest violation above `worst` and its line; write its partners (only one without packet NICs)."""
    size, left, budget, pair = len(need), room.left, packet * room.primal[-1], -1
    for i in range(size):
        sent = received = -budget
        for j in range(size):
            if packet > 0:
                sent += max(left[i, j], 0.0)
                received += max(left[j, i], 0.0)
            elif left[i, j] > worst and need[i, j] > 0:
                worst, line, pair = left[i, j], i, j
        if packet > 0 and sent > worst:
            worst, line = sent, i
        if packet > 0 and received > worst:
            worst, line = received, size + i
    if line >= 0:
        for j in range(size):
            here = left[line, j] if line < size else left[j, line - size]
            room.partners[j] = here > 0 if packet > 0 else j == pair
    return worst, line


@compiled
def _column(need, circuits, room, line):
    """Write the circuits of every configuration to a line's partners; return what the partners need."""
    size, more = len(need), 0.0
    for j in range(size):
        if room.partners[j]:
            more += need[line, j] if line < size else need[j, line - size]
    for k in range(len(room.level) - 1):
        for n in range(circuits.first[k], circuits.first[k + 1]):
            i, j = circuits.row[n], circuits.column[n]
            if (line == i and room.partners[j]) or (line == size + j and room.partners[i]):
                room.entering[k] += circuits.count[n]
    return more


@compiled
def _prices(room, price):
    size = len(price)
    price[:] = 0
    for r in range(len(room.level)):
        line = room.line[r]
        if line >= 0:
            for j in range(size):
                if room.members[r, j]:
                    if line < size:
                        price[line, j] += room.level[r]
                    else:
                        price[j, line - size] += room.level[r]
