"""All moves of a local search around one server, by trying them: lists and loops."""

import itertools
import math

from tests.oracles.circuits import differing


def need(size, at, i, j):
    """Circuits for the larger direction of a pair."""
    return math.ceil(max(size[i][j], size[j][i]) / at)


def left(size, at, routing, i, j, count):
    """Bytes from i to j that circuits do not carry by `at`."""
    if routing == "split":
        return max(size[i][j] - count * at, 0.0)
    return 0.0 if count >= need(size, at, i, j) else size[i][j]


def too_many(count, size, port, at, routing, server):
    """Bytes that the EPS ports of a server, out and in, do not carry by `at`."""
    others = [j for j in range(len(size)) if j != server]
    out = sum(left(size, at, routing, server, j, count[server][j]) for j in others)
    into = sum(left(size, at, routing, j, server, count[server][j]) for j in others)
    return max(out - port[server] * at, 0.0), max(into - port[server] * at, 0.0)


def given(count, size, at, routing, i, j):
    """The pair's circuits after the next step up; None where there is none."""
    if max(size[i][j], size[j][i]) == 0:
        return None
    if routing == "split":
        return count[i][j] + 1
    return need(size, at, i, j) if count[i][j] < need(size, at, i, j) else None


def taken(count, size, at, routing, i, j):
    """The pair's circuits after the next step down; None where there is none."""
    if count[i][j] == 0:
        return None
    if routing == "split":
        return count[i][j] - 1
    enough = need(size, at, i, j)
    return enough if count[i][j] > enough else 0


def moves_around(w, count, size, degree, at, routing, limit):
    """Circuits after each move around w, in which w gets circuits to some b; `limit`: None or (origin, most)."""
    servers = range(len(size))
    found = []
    for b in servers:
        up = given(count, size, at, routing, w, b) if b != w else None
        if up is None:
            continue
        for c, d in itertools.product([None, *servers], repeat=2):
            if c in (w, b) or d in (w, b):
                continue
            downs = [(w, c)] if c is not None else []
            downs += [(b, d)] if d is not None else []
            after = {pair: taken(count, size, at, routing, *pair) for pair in downs}
            if None in after.values():
                continue
            end = changed_to(count, {**after, (w, b): up})
            if not legal(end, degree, (w, b)):
                continue
            if c is not None and d is not None and c != d:
                close = given(count, size, at, routing, c, d)
                if close is not None:
                    more = changed_to(end, {(c, d): close})
                    if legal(more, degree, (c, d)) and beyond(more, size, at, routing, limit) <= beyond(
                        end, size, at, routing, limit
                    ):
                        end = more
            found.append(end)
    return found


def changed_to(count, values):
    end = [list(row) for row in count]
    for (i, j), value in values.items():
        end[i][j] = end[j][i] = value
    return end


def legal(count, degree, servers):
    return all(sum(count[server]) <= degree[server] for server in servers)


def beyond(count, size, at, routing, limit):
    """Circuits taken down, or put up, beyond the limit; too few for their pair under unsplit will be inactive."""
    if limit is None:
        return 0
    origin, most = limit
    inactive = routing == "unsplit"
    active = [
        [0 if inactive and number < need(size, at, i, j) else number for j, number in enumerate(row)]
        for i, row in enumerate(count)
    ]
    return max(differing(active, origin) - most, 0)
