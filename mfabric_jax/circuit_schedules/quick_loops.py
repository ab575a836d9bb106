"""The loops of `quick`, compiled by numba: three schedulers for one directed demand; the earliest end wins.

Demand is in seconds of a circuit. A matching is the column [S] of every row; the diagonal is an idle port.
`MatchingPlan` (of `loop_arrays`) holds matchings in the order in which they are made; `place_matchings` puts them on
switches, `ports` at a time, like `placing.ScheduleProblem.place_matchings`.
"""

import numpy as np

from mfabric_jax.circuit_schedules.assignment_loops import assign, compiled, match_above

ROUNDING = 1e-9  # of the busiest line, as in `placing`
DIGIT = float(np.finfo(float).eps)
LEVEL = 1e-12  # of the load: smaller moves are rounding, as in `spectra`


@compiled
def largest(values):
    """Return the largest number of a row."""
    top = values[0]
    for value in values:
        top = max(top, value)
    return top


@compiled
def largest_of(matrix):
    """Return the largest entry of a matrix."""
    top = matrix[0, 0]
    for row in matrix:
        top = max(top, largest(row))
    return top


@compiled
def busiest(matrix, lines):
    """Return the largest sum of a row or column; `lines` [2 S] receives all sums."""
    size = len(matrix)
    lines[:] = 0
    for i in range(size):
        for j in range(size):
            lines[i] += matrix[i, j]
            lines[size + j] += matrix[i, j]
    return largest(lines)


@compiled
def copy_matrix(matrix, into):
    for i in range(len(matrix)):
        for j in range(len(matrix)):
            into[i, j] = matrix[i, j]


@compiled
def write_remainder(need, plan, matching_count, left):
    """Write to `left` [S S] what the first `matching_count` matchings leave, negative where they have room."""
    copy_matrix(need, left)
    for k in range(matching_count):
        for i in range(len(need)):
            left[i, plan.column[k, i]] -= plan.seconds[k]


@compiled
def spectra(need, plan, work):
    """Cover every entry by as many matchings as the busiest line has entries; return their number.

    See `spectra.decompose`.
    """
    size, matching_count = len(need), 0
    rows, columns = work.index[:size], work.index[size : 2 * size]
    left, uncovered, most = work.left, work.uncovered, largest_of(need)
    rows[:] = 0
    columns[:] = 0
    copy_matrix(need, left)
    for i in range(size):
        for j in range(size):
            uncovered[i, j] = need[i, j] > 0
            rows[i] += need[i, j] > 0
            columns[j] += need[i, j] > 0
    work.price[:] = 0
    while matching_count < len(plan.seconds):
        rounds = max(largest(rows), largest(columns))
        if not rounds:
            break
        for i in range(size):
            for j in range(size):
                critical = (rows[i] == rounds) + (columns[j] == rounds)
                work.cost[i, j] = -left[i, j] - uncovered[i, j] * critical * 2 * size * most
        assign(work.cost, work.price, work.column, work.row, work.spare, work.index[2 * size :])
        sent = np.inf
        for i in range(size):
            entry = left[i, work.column[i]]
            if 0 < entry < sent:
                sent = entry
        sent = sent if sent < np.inf else 0.0
        for i in range(size):
            j = work.column[i]
            plan.column[matching_count, i] = j
            left[i, j] = max(left[i, j] - sent, 0.0)
            if uncovered[i, j]:
                uncovered[i, j] = 0
                rows[i] -= 1
                columns[j] -= 1
        plan.seconds[matching_count] = sent
        matching_count += 1
    return matching_count


@compiled
def whole_pairs(need, plan, work, matching_count):
    """Add heaviest matchings of what the first `matching_count` leave, each for its largest entry; return the new
    count."""
    size, left = len(need), work.left
    write_remainder(need, plan, matching_count, left)
    for i in range(size):
        for j in range(size):
            left[i, j] = left[i, j] if left[i, j] > ROUNDING * need[i, j] else 0.0
    work.price[:] = 0
    while matching_count < len(plan.seconds) and largest_of(left) > 0:
        for i in range(size):
            for j in range(size):
                work.cost[i, j] = -left[i, j]
        assign(work.cost, work.price, work.column, work.row, work.spare, work.index)
        longest = 0.0
        for i in range(size):
            longest = max(longest, left[i, work.column[i]])
            left[i, work.column[i]] = 0
            plan.column[matching_count, i] = work.column[i]
        plan.seconds[matching_count] = longest
        matching_count += 1
    return matching_count


@compiled
def slices(need, plan, work, facts):
    """Add slices of falling thresholds; return their number. See `solstice.slice_demand`."""
    size, left, lines, matching_count = len(need), work.left, work.lines, 0
    most = busiest(need, lines)
    copy_matrix(need, left)
    for empty in range(2):  # positive entries first, then the others
        for i in range(size):
            for j in range(size):
                if (need[i, j] <= 0) == empty:
                    more = most - max(lines[i], lines[size + j])
                    if more > 0:
                        left[i, j] += more
                        lines[i] += more
                        lines[size + j] += more
    least = ROUNDING * most if facts.packet > 0 else max(ROUNDING * most, facts.delay)
    threshold = 2.0 ** (np.ceil(np.log2(largest_of(left))) - 1)
    work.column[:] = -1
    work.row[:] = -1
    while threshold >= least and matching_count < len(plan.seconds):
        if (
            facts.packet > 0
            and busiest(left, lines) <= facts.packet * place_matchings(plan, matching_count, work, facts)[1]
        ):
            break
        if not match_above(left, threshold, work.column, work.row, work.index):
            threshold /= 2
            continue
        sent = np.inf
        for i in range(size):
            sent = min(sent, left[i, work.column[i]])
        for i in range(size):
            plan.column[matching_count, i] = work.column[i]
            left[i, work.column[i]] -= sent
        plan.seconds[matching_count] = sent
        matching_count += 1
    return matching_count


@compiled
def refine(need, plan, work, matching_count):
    """Raise seconds, matching by matching, until everything is carried. See `matching.refine_seconds`."""
    size, left = len(need), work.left
    write_remainder(need, plan, matching_count, left)
    for k in range(matching_count):
        more = 0.0
        for i in range(size):
            if plan.column[k, i] != i:
                more = max(more, left[i, plan.column[k, i]])
        plan.seconds[k] += more
        for i in range(size):
            left[i, plan.column[k, i]] -= more


@compiled
def place_matchings(plan, matching_count, work, facts):
    """Place matchings, the longest first, on the switch that is free first; return (configurations, last end)."""
    for k in range(matching_count):  # by falling seconds, stable
        position = k
        while position > 0 and plan.seconds[plan.order[position - 1]] < plan.seconds[k]:
            plan.order[position] = plan.order[position - 1]
            position -= 1
        plan.order[position] = k
    work.free[:] = -facts.delay if facts.first_free else 0.0
    count = (matching_count + facts.ports - 1) // facts.ports
    for group in range(count):
        lane = 0
        for other in range(1, facts.switches):
            lane = other if work.free[other] < work.free[lane] else lane
        plan.shown[group], plan.switch[group] = group, lane
        plan.length[group] = plan.seconds[plan.order[group * facts.ports]]
        work.free[lane] += facts.delay + plan.length[group]
    return count, max(largest(work.free), 0.0)


@compiled
def equalise(plan, count, work, facts):
    """Even out the switches; return (configurations, last end). See `spectra.equalise`."""
    free = work.free
    while 0 < count < len(plan.length):
        full, empty = 0, 0
        for lane in range(1, facts.switches):
            full = lane if free[lane] > free[full] else full
            empty = lane if free[lane] < free[empty] else empty
        move, longest = (free[full] - free[empty] - facts.delay) / 2, -1
        for k in range(count):
            if plan.switch[k] == full and (longest < 0 or plan.length[k] > plan.length[longest]):
                longest = k
        if move <= LEVEL * free[full] or plan.length[longest] <= move:
            break
        plan.length[longest] -= move
        plan.shown[count], plan.length[count], plan.switch[count] = plan.shown[longest], move, empty
        free[full] -= move
        free[empty] += move + facts.delay
        count += 1
    return count, max(largest(free), 0.0)


@compiled
def packets(need, plan, count, matching_count, work, facts):
    """Return the seconds in which packet NICs carry what the configurations leave."""
    size, left = len(need), work.left
    copy_matrix(need, left)
    for k in range(count):
        first = plan.shown[k] * facts.ports
        for position in range(first, min(first + facts.ports, matching_count)):
            for i in range(size):
                left[i, plan.column[plan.order[position], i]] -= plan.length[k]
    for i in range(size):
        for j in range(size):
            kept = left[i, j] > (count + 8) * DIGIT * need[i, j] and i != j
            left[i, j] = left[i, j] if kept else 0.0
    return busiest(left, work.lines) / facts.packet


@compiled
def fewest(need, plan, start, matching_count, work, facts):
    """Return (matchings, configurations, end) for the number of matchings, at least `start`, that ends first."""
    best, end = start, np.inf
    for some in range(start, matching_count + 1):
        count, clock = place_matchings(plan, some, work, facts)
        clock = max(clock, packets(need, plan, count, some, work, facts))
        if clock < end:
            best, end = some, clock
    return best, place_matchings(plan, best, work, facts)[0], end


@compiled
def one_plan(need, how, plan, work, facts):
    """Plan by Spectra (`how` 0), whole pairs (1) or slices (2); return (matchings, configurations, end)."""
    if how == 0:
        matching_count = spectra(need, plan, work)
        refine(need, plan, work, matching_count)
        count, end = place_matchings(plan, matching_count, work, facts)
        if facts.switches > 1:
            count, end = equalise(plan, count, work, facts)
        return matching_count, count, end
    start = slices(need, plan, work, facts) if how == 2 else 0
    if facts.packet > 0:
        matching_count = whole_pairs(need, plan, work, start) if how == 1 else start
        return fewest(need, plan, start, matching_count, work, facts)
    matching_count = whole_pairs(need, plan, work, start)
    refine(need, plan, work, matching_count)
    count, end = place_matchings(plan, matching_count, work, facts)
    return matching_count, count, end if matching_count < len(plan.seconds) or largest_of(work.left) <= 0 else np.inf


def plans(need, facts, plan, work, matchings, length, switch, counts):
    """Write the best of three plans for every demand [B S S] in seconds.

    It fills `matchings` [B K ports S], `length` and `switch` [B K], and `counts` [B], the number of configurations.
    """
    for b in range(len(need)):
        first = np.inf
        counts[b] = 0
        for how in range(3):
            if largest_of(need[b]) <= 0:
                break
            matching_count, count, end = one_plan(need[b], how, plan, work, facts)
            if end < first and count <= matchings.shape[1]:
                first, counts[b] = end, count
                for k in range(count):
                    length[b, k], switch[b, k] = plan.length[k], plan.switch[k]
                    for p in range(facts.ports):
                        position = plan.shown[k] * facts.ports + p
                        for i in range(need.shape[1]):
                            matchings[b, k, p, i] = (
                                plan.column[plan.order[position], i] if position < matching_count else i
                            )
        for k in range(counts[b], length.shape[1]):
            length[b, k], switch[b, k] = 0, 0
