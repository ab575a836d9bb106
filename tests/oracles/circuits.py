"""All circuits of a tiny region, and when an all-to-all is through with each: lists and loops."""

import itertools
import math


def topologies(degree):
    """Every legal count[i][j] of circuits; `degree[i]` is the most of server i."""
    servers = len(degree)
    pairs = list(itertools.combinations(range(servers), 2))

    def deal(place, free):
        if place == len(pairs):
            yield []
            return
        i, j = pairs[place]
        for circuits in range(min(free[i], free[j]) + 1):
            left = list(free)
            left[i] -= circuits
            left[j] -= circuits
            for rest in deal(place + 1, left):
                yield [circuits, *rest]

    for circuits in deal(0, degree):
        count = [[0] * servers for _ in range(servers)]
        for (i, j), number in zip(pairs, circuits, strict=True):
            count[i][j] = count[j][i] = number
        yield count


def paced(count, demand, port, routing):
    """Time of paced flows; bytes in units of what a NIC carries in one unit of time, `port[i]` EPS NICs."""
    servers = range(len(count))
    times = [0.0]
    for i in servers:
        for wanted, number in (
            ([demand[i][j] for j in servers if j != i], [count[i][j] for j in servers if j != i]),
            ([demand[j][i] for j in servers if j != i], [count[i][j] for j in servers if j != i]),
        ):
            times.append((unsplit_port if routing == "unsplit" else split_port)(wanted, number, port[i]))
    for i, j in itertools.permutations(servers, 2):
        if demand[i][j] > 0 and count[i][j] == 0 and not (port[i] > 0 and port[j] > 0):
            return math.inf
    return max(times)


def unsplit_port(wanted, number, port):
    slowest = max((bytes_ / circuits for bytes_, circuits in zip(wanted, number, strict=True) if circuits), default=0)
    rest = sum(bytes_ for bytes_, circuits in zip(wanted, number, strict=True) if not circuits)
    return max(slowest, (rest / port if port else math.inf) if rest else 0.0)


def split_port(wanted, number, port):
    """The largest of bytes over NICs, of the pairs that are slowest on their circuits: all prefixes are tried."""
    flows = sorted(
        ((bytes_, circuits) for bytes_, circuits in zip(wanted, number, strict=True) if bytes_),
        key=lambda flow: -flow[0] / flow[1] if flow[1] else -math.inf,
    )
    worst, load, speed = 0.0, 0.0, port
    for bytes_, circuits in flows:
        load, speed = load + bytes_, speed + circuits
        worst = max(worst, load / speed if speed else math.inf)
    return worst


def best(degree, demand, port, routing):
    """The least time of all."""
    return min(paced(count, demand, port, routing) for count in topologies(degree))


def heaviest(weight, free):
    """The most weight of a set of pairs of which server i is in at most free[i]; `weight` {(i, j): number}."""
    most = 0.0
    for taken in itertools.product([False, True], repeat=len(weight)):
        chosen = [pair for pair, take in zip(weight, taken, strict=True) if take]
        if all(sum(server in pair for pair in chosen) <= room for server, room in enumerate(free)):
            most = max(most, sum(weight[pair] for pair in chosen))
    return most


def differing(count, origin):
    """The circuits taken down or those put up, whichever are more."""
    pairs = list(itertools.combinations(range(len(count)), 2))
    more = [count[i][j] - origin[i][j] for i, j in pairs]
    return max(sum(max(change, 0) for change in more), sum(max(-change, 0) for change in more))
