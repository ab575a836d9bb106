"""The greedy circuit allocation, pair by pair in plain loops, under its three rules."""

import math


def greedy(demand, degree, rule="printed"):
    """Circuits per pair of servers, a list of lists; `degree` is a number, or a list of one per server.

    - `printed`: the slowest pair D / C gets the next circuit; a pair without a circuit is infinitely slow.
    - `next`: the pair with the largest D / (C + 1).
    - `released`: the largest score, which starts at D; the c-th circuit of a pair divides its score by 100 c, and a
      server without free ports loses all its scores.

    D adds both directions. Ties: the larger demand (`released`: none), then the first pair in row order.
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
            return (wanted / held if held else math.inf, wanted, -i, -j)
        if rule == "next":
            return (wanted / (held + 1), wanted, -i, -j)
        return (score[pair], -i, -j)

    while ready := [(i, j) for i, j in pairs if free[i] > 0 and free[j] > 0]:
        i, j = max(ready, key=urgency)
        for a, b in ((i, j), (j, i)):
            count[a][b] += 1
            free[a] -= 1
        score[i, j] /= 100 * count[i][j]
    return count
