"""The gain of two configurations that trade circuits, compiled by numba: see `joint`."""

from mfabric_jax.circuit_schedules.assignment_loops import compiled


def gains(circuits, seconds, over, largest, whole, gain):
    """Write to `gain` [K K] the seconds that a trade saves for pairs k < l, if each lasts as long as its largest entry.

    - `circuits`: `loop_arrays.CircuitLists`; `seconds` [K]: of each configuration.
    - `over` [S S]: what all of them leave, negative where they carry more than the demand.
    - `largest`, `whole` [2 S]: working arrays.

    Rows that share a column in either configuration, directly or through other rows, form a component. In every
    component the longer configuration takes the side with the larger entry.
    """
    for lower in range(len(seconds)):
        for upper in range(lower + 1, len(seconds)):
            gain[lower, upper] = _gain(circuits, seconds, over, largest, whole, lower, upper)


@compiled
def _gain(circuits, seconds, over, largest, whole, lower, upper):
    size = len(over)
    leader, owner = whole[0], whole[1]
    for i in range(size):
        leader[i], owner[i] = i, -1
        largest[0, i] = largest[1, i] = 0
    for side in range(2):
        which = upper if side else lower
        for n in range(circuits.first[which], circuits.first[which + 1]):
            i, j = circuits.row[n], circuits.column[n]
            if owner[j] < 0:
                owner[j] = i
            else:
                leader[_leader(leader, i)] = _leader(leader, owner[j])
    for side in range(2):
        which, other = (upper, lower) if side else (lower, upper)
        for n in range(circuits.first[which], circuits.first[which + 1]):
            i, j, count = circuits.row[n], circuits.column[n], circuits.count[n]
            entry = over[i, j] + seconds[which] * count
            for m in range(circuits.first[other], circuits.first[other + 1]):
                if circuits.row[m] == i and circuits.column[m] == j:
                    entry += seconds[other] * circuits.count[m]
            here = _leader(leader, i)
            largest[side, here] = max(largest[side, here], count * entry)
    first = second = longer = shorter = 0.0
    for i in range(size):
        first, second = max(first, largest[0, i]), max(second, largest[1, i])
        longer = max(longer, largest[0, i], largest[1, i])
        shorter = max(shorter, min(largest[0, i], largest[1, i]))
    return first + second - longer - shorter


@compiled
def _leader(leader, i):
    while leader[i] != i:
        leader[i] = leader[leader[i]]
        i = leader[i]
    return i
