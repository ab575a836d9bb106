"""The best shares of relay routing as a linear programme: the least T by which every circuit and port has carried its
bytes, a relayed byte counting 1 / efficiency on its second circuit."""

import numpy as np
from scipy.optimize import linprog


def best_relay_shares(region, circuits, demand):
    """The shares [S S S+2] of (via server, direct, EPS) with which a paced all-to-all ends first, and when that is [s].

    Infinity where a pair with bytes has no path; its shares are then on the EPS, and the others' still the best. A pair
    without bytes keeps to its circuits or else the EPS.
    """
    demand, count = np.array(demand, float), np.maximum(np.array(circuits.count, float), 0)
    servers = len(demand)
    np.fill_diagonal(demand, 0)
    rate, efficiency = count * float(region.nic_Bps), float(region.relay_efficiency)
    port = np.broadcast_to(np.asarray(region.eps_Bps, float), servers)
    capacity = np.concatenate([rate.ravel(), port, port])
    columns, lost = [], False  # of every path: its pair, its place, {link: seconds of all of the pair's bytes}
    shares = np.zeros((servers, servers, servers + 2))
    for i, j in np.argwhere(~np.eye(servers, dtype=bool)):
        paths = {
            k: [(i * servers + k, 1), (k * servers + j, 1 / efficiency)] for k in range(servers) if k not in (i, j)
        }
        up, down = servers**2 + i, servers**2 + servers + j
        paths |= {servers: [(i * servers + j, 1)], servers + 1: [(up, 1), (down, 1)]}
        there = {place: links for place, links in paths.items() if all(capacity[link] > 0 for link, _ in links)}
        if demand[i, j] == 0 or not there:
            shares[i, j, servers if rate[i, j] > 0 else servers + 1] = 1
            lost |= demand[i, j] > 0
            continue
        for place, links in there.items():
            columns.append((i, j, place, {link: demand[i, j] * part / capacity[link] for link, part in links}))
    if not columns:
        return shares, np.inf if lost else 0.0
    direct = [sum(load.values()) for *_, load in columns]
    unit = np.median(direct)
    columns = [one for one, seconds in zip(columns, direct, strict=True) if seconds < 1e9 * unit]
    load, whole = np.zeros((len(capacity), len(columns) + 1)), np.zeros((servers**2, len(columns) + 1))
    load[:, -1] = -1
    for n, (i, j, _, links) in enumerate(columns):
        whole[i * servers + j, n] = 1
        for link, seconds in links.items():
            load[link, n] += seconds / unit
    sums = whole.any(axis=1)
    least = np.append(np.zeros(len(columns)), 1)
    done = linprog(least, A_ub=load, b_ub=np.zeros(len(load)), A_eq=whole[sums], b_eq=np.ones(sums.sum()))
    for (i, j, place, _), part in zip(columns, done.x[:-1], strict=True):
        shares[i, j, place] = part
    return shares, np.inf if lost else float(done.x[-1] * unit)
