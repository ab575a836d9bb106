"""The greedy circuit allocation, pair by pair in plain loops, under its three rules."""

import functools
import math


def greedy(demand, degree, rule="printed", loss=None):
    """Circuits per pair of servers, a list of lists; `degree` is a number, or a list of one per server.

    - `printed`: the slowest pair D / C gets the next circuit; a pair without a circuit is infinitely slow. Ties: the
      least `loss` (None: `bounded_loss`).
    - `next`: the pair with the largest D / (C + 1).
    - `released`: the largest score, which starts at D; the c-th circuit of a pair divides its score by 100 c, and a
      server without free ports loses all its scores.

    D adds both directions. Further ties: the larger demand (`released`: none), then the first pair in row order.
    """
    servers = range(len(demand))
    pairs = {(i, j): float(demand[i][j]) + float(demand[j][i]) for i in servers for j in servers if i < j}
    pairs = {pair: wanted for pair, wanted in pairs.items() if wanted > 0}
    count = [[0 for _ in servers] for _ in servers]
    free = list(degree) if isinstance(degree, list) else [degree for _ in servers]
    score = dict(pairs)

    def urgency(pair):
        i, j = pair
        held, wanted = count[i][j], pairs[pair]
        if rule == "printed":
            return wanted / held if held else math.inf
        return wanted / (held + 1) if rule == "next" else score[pair]

    while ready := [(i, j) for i, j in pairs if free[i] > 0 and free[j] > 0]:
        first = max(urgency(pair) for pair in ready)
        tied = [pair for pair in ready if urgency(pair) == first]
        if rule == "printed" and len(tied) > 1:
            lost = {pair: (loss or bounded_loss)(pair, free, ready, tied) for pair in tied}
            tied = [pair for pair in tied if lost[pair] == min(lost.values())]
        i, j = min(tied, key=lambda pair: (0 if rule == "released" else -pairs[pair], pair))
        for a, b in ((i, j), (j, i)):
            count[a][b] += 1
            free[a] -= 1
        score[i, j] /= 100 * count[i][j]
    return count


def bounded_loss(pair, free, ready, tied):
    """What a circuit of the pair costs others: NICs that can be used no more, then circuits of other tied pairs."""
    return loses_two(pair, free, ready), needs(pair, free, tied)


def exact_loss(pair, free, ready, tied):
    """By trying all further circuits that there can be."""
    return -most(tuple(nics - (server in pair) for server, nics in enumerate(free)), tuple(ready))


def partners(pairs, servers):
    return {server: {b for pair in pairs if server in pair for b in pair if b != server} for server in range(servers)}


def spent(pair, scarce, rest):
    """Whether both ends are scarce, or one is and the other is of the rest."""
    i, j = pair
    return (i in scarce and j in scarce) or (i in scarce and j in rest) or (j in scarce and i in rest)


def loses_two(pair, free, ready):
    """By the bounds over the partners of each server in the pair's connected component."""
    of = partners(ready, len(free))
    together, reached = set(pair), None
    while reached != together:
        reached = set(together)
        together |= {b for a in reached for b in of[a]}

    def nics(servers):
        return sum(free[server] for server in servers)

    besieged = {b for a in together if free[a] > nics(of[a]) for b in of[a]}
    sets = [(nics(together) // 2, set(), set())]
    for server in together:
        scarce = of[server] | (set() if server in besieged else besieged)
        alike = {other for other in together - scarce if of[other] <= scarce}
        rest = together - scarce - alike
        sets.append((nics(scarce) + nics(rest) // 2, scarce, rest if nics(rest) % 2 == 0 else set()))
    least = min(bound for bound, _, _ in sets)
    return any(bound == least and spent(pair, scarce, rest) for bound, scarce, rest in sets)


def needs(pair, free, tied):
    """By the bounds on circuits of tied pairs that put the pairs of one server in place of its free NICs."""
    of = partners(tied, len(free))
    servers = [server for server in of if free[server] > 0]
    total = sum(free)
    twice = {server: total - free[server] + len(of[server]) for server in servers}
    least = min(total, *twice.values()) // 2
    for server in servers:
        if twice[server] // 2 == least and len(of[server]) >= free[server]:
            last = {other for other in of[server] if free[other] == 1}
            if spent(pair, last, set(servers) - {server} - last if twice[server] % 2 == 0 else set()):
                return True
    return False


@functools.cache
def most(free, pairs):
    """The largest number of circuits for `pairs`, any number on each, with `free` NICs: every first one is tried."""
    ready = [(i, j) for i, j in pairs if free[i] > 0 and free[j] > 0]
    return max((1 + most(tuple(f - (s in pair) for s, f in enumerate(free)), pairs) for pair in ready), default=0)
