"""The threshold rule without noise: bisection on T and one pair at a time, in lists and loops."""

from tests.oracles import moves
from tests.oracles.circuits import paced


def bisected(first, demand, degree, port, routing, bisections):
    """The best count[i][j] met; bytes in units of what a NIC carries in one unit of time, `first` where it starts."""
    servers = range(len(demand))
    best, least = first, paced(first, demand, port, routing)
    low = 0.0
    for i in servers:
        for wanted in (sum(demand[i]), sum(row[i] for row in demand)):
            low = max(low, wanted / (degree[i] + port[i]) if wanted else 0.0)
    high = least
    for _ in range(bisections):
        middle = (low + high) / 2
        count = allocated(demand, degree, port, middle, routing)
        then = paced(count, demand, port, routing)
        if then < least:
            best, least = count, then
        if then <= middle:
            high = min(high, then)
        else:
            low = middle
    return best


def allocated(demand, degree, port, at, routing):
    """Circuits to the pair that relieves late ports of most bytes per NIC, until none is late or nothing helps."""
    servers = range(len(demand))
    count, free = [[0 for _ in servers] for _ in servers], list(degree)

    def left(i, j, circuits):
        return moves.left(demand, at, routing, i, j, circuits)

    while True:
        out = [max(sum(left(i, j, count[i][j]) for j in servers) - port[i] * at, 0.0) for i in servers]
        into = [max(sum(left(i, j, count[i][j]) for i in servers) - port[j] * at, 0.0) for j in servers]
        best, most = None, 0.0
        for i in servers:
            for j in range(i + 1, len(demand)):
                if max(demand[i][j], demand[j][i]) == 0:
                    continue
                nics = 1 if routing == "split" else moves.need(demand, at, i, j) - count[i][j]
                if not 0 < nics <= min(free[i], free[j]):
                    continue
                relief = 0.0
                for a, b in ((i, j), (j, i)):
                    gain = left(a, b, count[a][b]) - left(a, b, count[a][b] + nics)
                    relief += min(gain, out[a]) + min(gain, into[b])
                if relief / nics > most * (1 + 1e-12):
                    best, most = (i, j, nics), relief / nics
        if best is None:
            return count
        i, j, nics = best
        for a, b in ((i, j), (j, i)):
            count[a][b] += nics
            free[a] -= nics
