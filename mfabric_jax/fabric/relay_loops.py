"""Loops over graphs, compiled by numba: which GPUs reach each other without crossing a third, and the slowest paths."""

import numpy as np


def not_reaching(targets, alone, first, link, tail, end):
    """Return a node of `end` [N] that cannot reach a target without crossing another of `end`, and the target.

    (-1, -1): all reach all. `alone`: targets that need not reach themselves. Links into node n are
    `link[first[n] : first[n + 1]]`.
    """
    seen, queue = np.zeros(len(end), np.bool_), np.empty(len(end) + 1, np.int64)
    for d in range(len(targets)):
        seen[:] = False
        queue[0] = targets[d]
        begin, stop = 0, 1
        while begin < stop:
            node = queue[begin]
            if begin == 0 or not end[node]:
                for index in range(first[node], first[node + 1]):
                    other = tail[link[index]]
                    if not seen[other]:
                        seen[other] = True
                        queue[stop] = other
                        stop += 1
            begin += 1
        for node in range(len(end)):
            if end[node] and not seen[node] and not (alone[d] and node == targets[d]):
                return node, targets[d]
    return -1, -1


def longest_delay(sources, server, first, link, head, delay, relay):
    """Return the largest delay of a path of fewest links between sources of different `server`s [N] (-1: no source).

    Links out of node n are `link[first[n] : first[n + 1]]`; `relay` [N]: nodes that forward.
    """
    nodes, longest = len(relay), 0.0
    hops, late, queue = np.full(nodes, -1, np.int64), np.zeros(nodes), np.empty(nodes, np.int64)
    for source in sources:
        hops[source], late[source], queue[0] = 0, 0.0, source
        begin, stop = 0, 1
        while begin < stop:  # all nearer nodes came before, so the node's delay is final
            node = queue[begin]
            begin += 1
            if server[node] >= 0 and server[node] != server[source]:
                longest = max(longest, late[node])
            if relay[node] or node == source:
                for index in range(first[node], first[node + 1]):
                    other, then = head[link[index]], late[node] + delay[link[index]]
                    if hops[other] < 0:
                        hops[other], late[other], queue[stop] = hops[node] + 1, then, other
                        stop += 1
                    elif hops[other] == hops[node] + 1 and then > late[other]:
                        late[other] = then
        for index in range(stop):
            hops[queue[index]] = -1
    return longest
