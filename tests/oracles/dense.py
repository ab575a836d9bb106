"""Fluid flows that divide over links, in float64 NumPy on a matrix of links and flows: hundreds of flows."""

import numpy as np


def matrix(hops, share, links):
    """[L F] part of each flow's rate on each link; -1 in `hops` [F H] pads."""
    table = np.zeros((links, len(hops)))
    for flow, row in enumerate(hops):
        for link, part in zip(row, share[flow], strict=True):
            if link >= 0:
                table[link, flow] += part
    return table


def max_min(capacity, table, sending):
    """Rate of each flow: all that rise do so together; the link that fills first stops those on it."""
    rate, rising = np.zeros(table.shape[1]), sending.copy()
    while rising.any():
        load = table @ rising
        room = np.maximum(capacity - table @ rate, 0)
        level = np.divide(room, load, out=np.full(len(load), np.inf), where=load > 0)
        if np.isinf(level.min()):
            rate[rising] = np.inf
            return rate
        full = level <= level.min() * (1 + 1e-12)  # links that fill at once
        stops = rising & (table[full] > 0).any(axis=0)
        rate[stops] = level.min()
        rising &= ~stops
    return rate


def completion(capacity, table, size, start):
    """Finish time of each flow; infinity where it never ends. Rates hold until the next flow starts or ends."""
    size, start = (np.broadcast_to(np.asarray(x, float), table.shape[1]).copy() for x in (size, start))
    finish, left, now = np.where(size > 0, np.inf, start), size, start.min(initial=np.inf)
    while (left > 0).any():
        rate = max_min(capacity, table, (left > 0) & (start <= now))
        ends = np.divide(left, rate, out=np.full(len(left), np.inf), where=rate > 0)
        ends[rate == np.inf] = 0
        upcoming = start[(left > 0) & (start > now)].min(initial=np.inf) - now
        step = min(ends.min(), upcoming)
        if np.isinf(step):
            return finish
        over = (left > 0) & (ends <= step * (1 + 1e-12))
        now = start[(left > 0) & (start > now)].min() if upcoming <= step else now + step
        left = np.where(over, 0, left - np.where(np.isinf(rate), 0, rate) * step)
        finish[over] = now
    return finish
