"""Switches that show one configuration after the other, in exact fractions; and the fewest seconds there are."""

import itertools
from fractions import Fraction

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from .tree import tree


def up(configurations, seconds, switch, delay_s, all_stop, first_free):
    """(start, end, circuits [S][S]) of everything that carries, as Fractions."""
    clock, held = {}, {}
    for table, shown, where in zip(np.asarray(configurations).tolist(), seconds, switch, strict=True):
        now, old = clock.get(where, Fraction(0)), held.get(where)
        turned = now if old is None and first_free else now + Fraction(delay_s)
        if old is not None and not all_stop:
            yield (
                now,
                turned,
                [[min(a, b) for a, b in zip(*rows, strict=True)] for rows in zip(old, table, strict=True)],
            )
        clock[where], held[where] = turned + Fraction(shown), table
        yield turned, clock[where], table


def end(demand, schedule, circuit_Bps, packet_Bps, delay_s, all_stop, first_free):
    """(when circuits carry the last byte, when packet NICs do, bytes that circuits leave [S S])."""
    spans = list(up(*schedule, delay_s, all_stop, first_free))
    times = sorted({time for start, stop, _ in spans for time in (start, stop)})
    demand = np.array(demand, float) * (1 - np.eye(len(demand)))
    left, last = np.zeros(demand.shape), Fraction(0)
    for i, j in np.argwhere(demand):
        rest = Fraction(demand[i, j])
        for now, then in itertools.pairwise(times):
            count = sum(table[i][j] for start, stop, table in spans if start <= now and then <= stop)
            sent = min(rest, count * Fraction(circuit_Bps) * (then - now))
            if sent:
                last = max(last, now + sent / (count * Fraction(circuit_Bps)))
                rest -= sent
        left[i, j] = rest if rest > Fraction(demand[i, j]) / 10**13 else 0
    packets = tree(left, *np.full((2, len(demand)), packet_Bps)).max() if left.any() else 0.0
    return float(last), packets, left


def fewest_seconds(need, packet, delay_s):
    """The least end on one directed all-stop switch, all turns paid: the choice among all permutations is enumerated.

    `need` [S S] seconds of a circuit, `packet` the paced rate of packet NICs over a circuit's. Variables: seconds and
    use of each permutation, what packets carry of each pair, the end.
    """
    servers = len(need)
    tables = [np.eye(servers)[list(order)] * (1 - np.eye(servers)) for order in itertools.permutations(range(servers))]
    tables = np.array([table for table in tables if table.any()])
    many, pairs, most = len(tables), [(i, j) for i in range(servers) for j in range(servers) if i != j], need.sum()
    rows, low = [], []

    def at_least(least, terms):
        row = np.zeros(2 * many + len(pairs) + 1)
        for variable, value in terms:
            row[variable] += value
        rows.append(row)
        low.append(least)

    for n, (i, j) in enumerate(pairs):
        at_least(need[i, j], [*((m, tables[m, i, j]) for m in range(many)), (2 * many + n, 1)])
    for m in range(many):
        at_least(0, [(m, -1), (many + m, most)])
    for server, side in itertools.product(range(servers), range(2)):
        at_least(0, [*((2 * many + n, -1) for n, pair in enumerate(pairs) if pair[side] == server), (-1, packet)])
    at_least(0, [*((m, -1) for m in range(many)), *((many + m, -delay_s) for m in range(many)), (-1, 1)])
    whole = np.repeat([0, 1, 0], [many, many, len(pairs) + 1])
    bounds = Bounds(0, np.where(whole, 1, np.inf))
    done = milp(
        np.eye(len(whole))[-1],
        constraints=LinearConstraint(np.array(rows), low),
        integrality=whole,
        bounds=bounds,
        options={"mip_rel_gap": 0},
    )
    assert done.status == 0, done.message
    return done.fun
