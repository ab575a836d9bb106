"""The loop of `relays`: who reaches a GPU without crossing another, compiled by numba."""

import numpy as np


def not_reaching(targets, alone, first, link, tail, end):
    """A node of kind `end` [N] that does not reach a target over other kinds, and the target, or (-1, -1). `alone`: of
    targets that need not reach themselves. Links into node n are `link[first[n] : first[n + 1]]`."""
    seen, queue = np.zeros(len(end), np.bool_), np.empty(len(end) + 1, np.int64)
    for d in range(len(targets)):
        seen[:] = False
        queue[0] = targets[d]
        begin, stop = 0, 1
        while begin < stop:
            node = queue[begin]
            if begin == 0 or not end[node]:
                for at in range(first[node], first[node + 1]):
                    other = tail[link[at]]
                    if not seen[other]:
                        seen[other] = True
                        queue[stop] = other
                        stop += 1
            begin += 1
        for node in range(len(end)):
            if end[node] and not seen[node] and not (alone[d] and node == targets[d]):
                return node, targets[d]
    return -1, -1
