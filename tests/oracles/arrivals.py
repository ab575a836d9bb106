"""Experts that begin as tokens arrive: plain Python, one event after the other."""

import heapq


def delivered(steps, demand, until, nic=1.0):
    """Bytes that the switches' programmes have carried of every pair by a time [S][S]."""
    servers = len(demand)
    got = [[0.0] * servers for _ in range(servers)]
    for mine in steps:
        clock = 0.0
        for seconds, table in mine:
            shown = min(max(until - clock, 0.0), seconds)
            clock += seconds
            for i in range(servers):
                for j in range(servers):
                    got[i][j] += nic * shown * table[i][j]
    return [[min(got[i][j], demand[i][j]) if i != j else 0.0 for j in range(servers)] for i in range(servers)]


def block(arrival, tokens, batch_s, token_s, lanes):
    """(ends of every part [P][S], end of the combine). Servers take what has arrived in the order of the parts;
    `lanes`: (turn_s [P], busy_s [P]) of links that return the parts in order, from the end of the dispatch on."""
    parts, servers = len(arrival), len(arrival[0])
    end = [[0.0] * servers for _ in range(parts)]
    waiting = {s: [p for p in range(parts) if tokens[p][s] > 0] for s in range(servers)}
    missing = [sum(tokens[p][s] > 0 for s in range(servers)) for p in range(parts)]
    events = [(arrival[p][s], "there", p, s) for s in range(servers) for p in waiting[s]]
    over = max((event[0] for event in events), default=0.0)
    heapq.heapify(events)
    there, busy, ready, last = set(), set(), {}, 0.0
    while events:
        now, what, p, s = heapq.heappop(events)
        if what == "there":
            there.add((p, s))
        else:
            busy.discard(s)
            end[p][s], last = now, max(last, now)
            missing[p] -= 1
            if not missing[p]:
                ready[p] = now
        if s not in busy and waiting[s] and (waiting[s][0], s) in there:
            first = waiting[s].pop(0)
            busy.add(s)
            heapq.heappush(events, (now + batch_s + tokens[first][s] * token_s, "done", first, s))
    for turn_s, busy_s in lanes:
        clock = over
        for p in range(parts):
            if p in ready and busy_s[p] > 0:
                clock = max(clock + turn_s[p], ready[p]) + busy_s[p]
        last = max(last, clock)
    return end, last
