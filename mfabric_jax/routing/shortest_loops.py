"""The loops of `shortest`: breadth-first searches from destinations, compiled by numba.

`first`, `link`: usable links by node, as in `shortest._Fan`; with prefix `into` they lead into the node, with `out` out
of it. `relay` [N]: nodes that forward for others.
"""

import numpy as np


def hops_to(
    targets: np.ndarray, first: np.ndarray, link: np.ndarray, tail: np.ndarray, relay: np.ndarray, distance: np.ndarray
):
    """Write to `distance` [D N] the hops from every node to each target; -1 without a path."""
    queue = np.empty(distance.shape[1], np.int64)
    for d in range(len(targets)):
        hops = distance[d]
        hops[:] = -1
        hops[targets[d]], queue[0] = 0, targets[d]
        begin, end = 0, 1
        while begin < end:
            node = queue[begin]
            begin += 1
            if relay[node] or node == targets[d]:
                for slot in range(first[node], first[node + 1]):
                    other = tail[link[slot]]
                    if hops[other] < 0:
                        hops[other] = hops[node] + 1
                        queue[end] = other
                        end += 1


def spread(
    targets: np.ndarray,
    flows: np.ndarray,
    source: np.ndarray,
    amount: np.ndarray,
    into_first: np.ndarray,
    into_link: np.ndarray,
    out_first: np.ndarray,
    out_link: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    relay: np.ndarray,
    weight: np.ndarray,
    load: np.ndarray,
):
    """Add to `load` [L] the part of each `amount` [F] that every link carries; return a flow without a path, or -1.

    Flows `flows[d]` to `flows[d + 1]` go from `source` [F] to target d; every node splits them by `weight` [L].
    """
    tail, head = ends
    nodes = len(relay)
    hops, queue, left = np.full(nodes, -1, np.int32), np.empty(nodes, np.int64), np.zeros(nodes)
    waits = np.zeros(nodes, np.bool_)
    for d in range(len(targets)):
        target, sources = targets[d], 0
        for f in range(flows[d], flows[d + 1]):
            if source[f] != target:
                left[source[f]] += amount[f]
                sources += not waits[source[f]]
                waits[source[f]] = True
        hops[target], queue[0] = 0, target
        begin, end = 0, 1
        while begin < end and sources > 0:  # stop once all sources are reached
            node = queue[begin]
            begin += 1
            if relay[node] or node == target:
                for slot in range(into_first[node], into_first[node + 1]):
                    other = tail[into_link[slot]]
                    if hops[other] < 0:
                        hops[other] = hops[node] + 1
                        queue[end] = other
                        end += 1
                        sources -= waits[other]
        if sources > 0:
            for f in range(flows[d], flows[d + 1]):
                if hops[source[f]] < 0:
                    return f
        for index in range(end - 1, -1, -1):
            node = queue[index]
            if left[node] > 0 and node != target:
                total = 0.0
                for slot in range(out_first[node], out_first[node + 1]):
                    then = head[out_link[slot]]
                    if hops[then] == hops[node] - 1 and (relay[then] or then == target):
                        total += weight[out_link[slot]]
                for slot in range(out_first[node], out_first[node + 1]):
                    then = head[out_link[slot]]
                    if hops[then] == hops[node] - 1 and (relay[then] or then == target):
                        part = left[node] * (weight[out_link[slot]] / total)
                        load[out_link[slot]] += part
                        left[then] += part
            left[node], waits[node], hops[node] = 0.0, False, -1
    return -1
