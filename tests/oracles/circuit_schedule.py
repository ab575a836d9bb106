"""An all-to-all while optical switches turn: plain Python, one event after the other."""

import math

TINY = 1e-12  # of a pair's bytes: rounding


def programmes(configurations, seconds, switch, *, switches, delay, all_stop, first_free):
    """What every switch does: a list of (seconds, circuits [S][S]) each."""
    servers = len(configurations[0])
    dark = [[0] * servers for _ in range(servers)]
    steps = [[] for _ in range(switches)]
    for table, shown, where in zip(configurations, seconds, switch, strict=True):
        mine = steps[where]
        if mine or not first_free:
            old = mine[-1][1] if mine and not all_stop else dark
            kept = [[min(a, b) for a, b in zip(*rows, strict=True)] for rows in zip(old, table, strict=True)]
            mine.append((delay, kept))
        mine.append((shown, table))
    return steps


def room(steps, nic):
    """Bytes that the circuits of every pair could carry [S][S]."""
    every = [step for mine in steps for step in mine]
    servers = len(every[0][1])
    return [[sum(nic * t * table[i][j] for t, table in every) for j in range(servers)] for i in range(servers)]


def completion(steps, demand, *, nic, packet):
    """When the last byte arrives: circuits as the switches' programmes have them, what they leave on packet NICs."""
    end, left = on_circuits(steps, demand, nic)
    return max(end, on_packets(left, packet))


def on_circuits(steps, demand, nic):
    """(when a circuit carries the last byte, bytes left at the end of all programmes)."""
    pairs = [(i, j) for i, row in enumerate(demand) for j, size in enumerate(row) if size > 0 and i != j]
    left = {(i, j): demand[i][j] for i, j in pairs}
    at = [0] * len(steps)  # the step that each switch is in
    rest = [mine[0][0] if mine else math.inf for mine in steps]
    clock = end = 0.0
    while any(step < len(mine) for step, mine in zip(at, steps, strict=True)):
        now = [mine[step][1] for step, mine in zip(at, steps, strict=True) if step < len(mine)]
        rate = {(i, j): nic * sum(table[i][j] for table in now) for i, j in pairs}
        ends = [left[pair] / rate[pair] for pair in pairs if left[pair] and rate[pair]]
        step_s = min([*rest, *ends])
        clock += step_s
        for i, j in pairs:
            if left[i, j] and rate[i, j] and step_s:
                left[i, j] -= rate[i, j] * step_s
                left[i, j] = 0.0 if left[i, j] <= TINY * demand[i][j] else left[i, j]
                end = clock
        for w, mine in enumerate(steps):
            rest[w] -= step_s
            while at[w] < len(mine) and rest[w] <= TINY * mine[at[w]][0]:
                at[w] += 1
                rest[w] = mine[at[w]][0] if at[w] < len(mine) else math.inf
    return end, left


def on_packets(size, packet):
    """When the last of the flows {(i, j): bytes} ends on ports of `packet` bytes/s that they share max-min fairly."""
    left = {pair: bytes_ for pair, bytes_ in size.items() if bytes_}
    if left and not packet:
        return math.inf
    clock = 0.0
    while left:
        rate = fair(left, packet)
        step_s = min(left[pair] / rate[pair] for pair in left)
        clock += step_s
        left = {pair: bytes_ - rate[pair] * step_s for pair, bytes_ in left.items()}
        left = {pair: bytes_ for pair, bytes_ in left.items() if bytes_ > TINY * size[pair]}
    return clock


def fair(flows, packet):
    """Max-min fair rates: the fullest port first, then what it leaves."""
    rate, waiting = {}, set(flows)
    ports = {("up", i) for i, _ in flows} | {("down", j) for _, j in flows}
    users = {port: {pair for pair in flows if pair[port[0] == "down"] == port[1]} for port in ports}
    while waiting:
        share, full = min(
            ((packet - sum(rate[f] for f in used - waiting)) / len(used & waiting), port)
            for port, used in users.items()
            if used & waiting
        )
        for pair in users[full] & waiting:
            rate[pair] = share
        waiting -= users[full]
    return rate
