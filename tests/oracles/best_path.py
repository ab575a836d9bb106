"""Best-path routing by brute force: which flows stay on their circuits?"""

import itertools


def best_path(demand, circuit, electrical):
    """(T, kept): the smallest max(slowest flow kept on circuits, EPS port bound of the rest), over all subsets.

    `demand[i][j]` bytes, `circuit[i][j]` bytes/s of the pair's circuits, `electrical` bytes/s up and down of a
    server's EPS ports. `kept` is one set of ordered pairs that attains T.
    """
    servers = range(len(demand))
    flows = [(i, j) for i in servers for j in servers if i != j and demand[i][j] > 0]
    active = [(i, j) for i, j in flows if circuit[i][j] > 0]
    best = None
    for choice in itertools.product([False, True], repeat=len(active)):
        kept = {flow for flow, stays in zip(active, choice, strict=True) if stays}
        slowest = max((demand[i][j] / circuit[i][j] for i, j in kept), default=0.0)
        bound = max(slowest, port_bound([flow for flow in flows if flow not in kept], demand, electrical))
        if best is None or bound < best[0]:
            best = bound, kept
    return best


def port_bound(flows, demand, electrical):
    """Seconds that the busiest EPS port needs for these flows."""
    out, into = [0.0] * len(demand), [0.0] * len(demand)
    for i, j in flows:
        out[i] += demand[i][j]
        into[j] += demand[i][j]
    busiest = max(out + into)
    if busiest == 0:
        return 0.0
    return busiest / electrical if electrical else float("inf")
