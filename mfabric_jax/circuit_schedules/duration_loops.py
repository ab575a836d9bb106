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
from mfabric_jax.circuit_schedules.loop_arrays import ENDED, LATER, LOST, NEVER

NUDGE = 1e-9  # of T, added for a second of each configuration
MISSED = 1e-10  # of the least time of any schedule: smaller violations do not count
PIVOT = 1e-11  # smallest entry of a column that may be a pivot
PIVOTS = 40  # most pivots for each duration and server
EVEN = 1e-13  # ratios that differ by less are equal: the larger pivot leaves
NO_LINE, NOTHING = -1, -2  # instead of a line: a clock or a sign is violated; nothing is violated


def solve(need, circuits, reconfigure_s, packet, limit, work, price):
    """Solve the programme and return how it ended (`loop_arrays`).

    `work.primal` receives t and T. `price` [S S] receives the seconds of T that one more second of circuit saves.
    `need` [S S], `reconfigure_s` [switches] (delays of each switch) and `limit` are in units of the least time of any
    schedule.
    """
    many = len(work.level)
    _begin(work)
    for _ in range(PIVOTS * (many + len(need))):
        if _value(work) >= limit:
            return LATER
        line, more = _find_worst_cut(need, circuits, reconfigure_s, packet, work)
        if line == NOTHING:
            _prices(work, price)
            return ENDED
        leaving = _leaving(work)
        if leaving < 0:
            return NEVER
        _pivot(work, leaving, line, more)
    return LOST


@compiled
def _value(work):
    """Return the value of the dual; write t and T to `work.primal`."""
    value = 0.0
    work.primal[:] = 0
    for r in range(len(work.level)):
        if work.gain[r] != 0:
            value += work.gain[r] * work.level[r]
            for k in range(len(work.level)):
                work.primal[k] += work.gain[r] * work.inverse[r, k]
    return value


@compiled
def _leaving(work):
    """Return the basic variable that reaches 0 first as the entering column rises, or -1; write the direction of all to
    `work.primal`."""
    leaving, step, most = -1, np.inf, 0.0
    for r in range(len(work.level)):
        along = 0.0
        for k in range(len(work.level)):
            along += work.inverse[r, k] * work.entering[k]
        work.primal[r] = along
        if along > PIVOT:
            ratio = work.level[r] / along
            if ratio < step - EVEN or (ratio < step + EVEN and along > most):
                step, leaving, most = min(ratio, step), r, along
    return leaving


@compiled
def _begin(work):
    many = len(work.level)
    work.inverse[:] = 0
    work.gain[:] = 0
    work.line[:] = -1
    for k in range(many):
        work.inverse[k, k] = 1
        work.level[k] = NUDGE * (1 + k / many)
    work.level[many - 1] = 1


@compiled
def _pivot(work, leaving, line, more):
    """Replace the `leaving` basic column by the entering one, whose direction is `work.primal`."""
    inverse, level, along = work.inverse, work.level, work.primal
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
    work.gain[leaving], work.line[leaving] = more, line
    for j in range(len(work.partners)):
        work.members[leaving, j] = work.partners[j]


@compiled
def _find_worst_cut(need, circuits, reconfigure_s, packet, work):
    """Write the most violated constraint to `work.entering`; return its (line, right side), `NO_LINE` or `NOTHING`."""
    many, primal = len(work.level), work.primal
    _leave(need, circuits, reconfigure_s, work)
    worst, line, sign, lane = MISSED, NOTHING, -1, -1
    for k in range(many - 1):
        if -primal[k] > worst:
            worst, line, sign = -primal[k], NO_LINE, k
    for switch in range(len(reconfigure_s)):
        if work.clock[switch] - primal[many - 1] > worst:
            worst, line, sign, lane = work.clock[switch] - primal[many - 1], NO_LINE, -1, switch
    worst, line = _find_worst_line(need, packet, worst, line, work)
    work.entering[:] = 0
    if line >= 0:
        work.entering[many - 1] = packet
        return line, _column(need, circuits, work, line)
    work.partners[:] = False
    if lane >= 0:
        for k in range(many - 1):
            work.entering[k] = -1.0 if circuits.switch[k] == lane else 0.0
        work.entering[many - 1] = 1
        return line, reconfigure_s[lane]
    work.entering[max(sign, 0)] = 1
    return line, 0.0


@compiled
def _leave(need, circuits, reconfigure_s, work):
    """Write what circuits leave of every pair (negative where they carry more), and when every switch ends."""
    size = len(need)
    for lane in range(len(reconfigure_s)):
        work.clock[lane] = reconfigure_s[lane]
    for i in range(size):
        for j in range(size):
            work.left[i, j] = need[i, j]
    for k in range(len(work.primal) - 1):
        seconds = work.primal[k]
        if seconds != 0:
            work.clock[circuits.switch[k]] += seconds
            for n in range(circuits.first[k], circuits.first[k + 1]):
                work.left[circuits.row[n], circuits.column[n]] -= seconds * circuits.count[n]


@compiled
def _find_worst_line(need, packet, worst, line, work):
    """Return the largest violation above `worst` and its line; write its partners (only one without packet NICs)."""
    size, left, budget, pair = len(need), work.left, packet * work.primal[-1], -1
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
            work.partners[j] = here > 0 if packet > 0 else j == pair
    return worst, line


@compiled
def _column(need, circuits, work, line):
    """Write the circuits of every configuration to a line's partners; return what the partners need."""
    size, more = len(need), 0.0
    for j in range(size):
        if work.partners[j]:
            more += need[line, j] if line < size else need[j, line - size]
    for k in range(len(work.level) - 1):
        for n in range(circuits.first[k], circuits.first[k + 1]):
            i, j = circuits.row[n], circuits.column[n]
            if (line == i and work.partners[j]) or (line == size + j and work.partners[i]):
                work.entering[k] += circuits.count[n]
    return more


@compiled
def _prices(work, price):
    size = len(price)
    price[:] = 0
    for r in range(len(work.level)):
        line = work.line[r]
        if line >= 0:
            for j in range(size):
                if work.members[r, j]:
                    if line < size:
                        price[line, j] += work.level[r]
                    else:
                        price[j, line - size] += work.level[r]
