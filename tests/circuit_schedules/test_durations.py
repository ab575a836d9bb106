"""The best durations of given configurations: the compiled programme beside one by HiGHS; what trades gain."""

import numpy as np
import pytest
from scipy.optimize import linprog

from mfabric_jax.circuit_schedules.durations import programme, trade_gains
from mfabric_jax.circuit_schedules.families import FAMILIES
from mfabric_jax.circuit_schedules.joint import STARTS, _trade_circuits
from mfabric_jax.circuit_schedules.placing import problem_of
from tests.circuit_schedules.schedulers import network

NETWORKS = [
    network(),
    network(packet_Bps=0.1, delay_s=0.05),
    network(packet_Bps=3.0),
    network(switches=3, packet_Bps=0.2, first_free=True),
    network(switches=2, ports=2),
    network(directed=False, switches=2, packet_Bps=0.1),
    network(delay_s=0.0),
]


def by_highs(problem, configurations, switch):
    """Least T; variables t [K], e [S S], T. None: infeasible."""
    servers, count = len(problem.need), len(switch)
    rows, limits = [], []
    packets = np.eye(servers * servers).reshape(servers, servers, -1)

    def at_most(limit, seconds, packet, end):
        rows.append(np.concatenate([np.broadcast_to(seconds, count), np.broadcast_to(packet, servers**2), [end]]))
        limits.append(limit)

    for i, j in np.argwhere(problem.need):
        at_most(-problem.need[i, j], -configurations[:, i, j], -packets[i, j], 0)
    for line in range(servers):
        for side in (packets[line], packets[:, line]):
            at_most(0, 0, side.sum(0), -problem.packet)
    for lane, turns in enumerate(problem.clocks(np.zeros(count), switch)):
        at_most(-turns, switch == lane, 0, -1)
    done = linprog(np.eye(count + servers**2 + 1)[-1], A_ub=rows, b_ub=limits)
    return done.fun if done.status == 0 else None


@pytest.mark.parametrize("given", NETWORKS, ids=range(len(NETWORKS)))
def test_as_short_as_by_highs(given):
    for drawn in FAMILIES.values():
        demand = drawn(6, 1)
        problem = problem_of(demand, **given)
        for start in STARTS:
            configurations, _, switch = start(demand, **given)
            best = by_highs(problem, configurations, switch)
            assert best is not None
            seconds, price = programme(problem, configurations, switch, problem.packet)
            left = problem.need - np.tensordot(seconds, configurations, 1)
            assert given["packet_Bps"] or left.max() < 1e-8
            end = max(problem.clocks(seconds, switch).max(), problem.packet_s(np.where(left > 1e-8, left, 0)))
            assert end == pytest.approx(best, rel=1e-7)
            # Prices prove it: no configuration is worth more than a second of its switch, which all switches share.
            worth = (price * configurations).sum((1, 2))
            shares = sum(worth[switch == lane].max(initial=0) for lane in range(problem.switches))
            assert shares <= 1 + 1e-6
            assert programme(problem, configurations, switch, problem.packet, best * (1 - 1e-5)) is None
            assert programme(problem, configurations, switch, problem.packet, best * (1 + 1e-5)) is not None


def test_pairs_without_circuits_or_packets_have_no_durations():
    demand = np.ones((3, 3))
    circle = np.eye(3, dtype=int)[None, [1, 2, 0]]
    assert programme(problem_of(demand, **network()), circle, np.zeros(1, int), 0.0) is None
    assert by_highs(problem_of(demand, **network()), circle, np.zeros(1, int)) is None
    # With packet NICs: t + 1 turn beside the other circle's second at half of the rate: T = 2, and t = 1.
    problem = problem_of(demand, **network(packet_Bps=0.5))
    found = programme(problem, circle, np.zeros(1, int), 0.5)
    end = max(found.seconds[0] + 0.01, (1 + max(1 - found.seconds[0], 0)) / 0.5)
    assert end == pytest.approx(2)


def test_trades_gain_what_traded_configurations_are_shorter():
    random, found = np.random.default_rng(0), 0
    for given in (network(), network(directed=False), network(ports=2)):
        for seed in range(4):
            demand = FAMILIES["moe"](7, seed)
            problem = problem_of(demand, **given)
            configurations, seconds, switch = STARTS[1](demand, **given)
            seconds = seconds * random.uniform(0.8, 1.2, len(seconds))
            over = problem.wanted - np.tensordot(seconds, configurations, 1)
            gain = trade_gains(configurations, seconds, switch, over)
            for one, two in zip(*np.triu_indices(len(seconds), 1), strict=True):
                both = configurations[[one, two]]
                entries = np.maximum(over + np.tensordot(seconds[[one, two]], both, 1), 0)
                before, after = ((x * entries).max((1, 2)).sum() for x in (both, _trade_circuits(both, entries)))
                assert gain[one, two] == pytest.approx(before - after, abs=1e-12)
                found += before - after > 1e-6
    assert found >= 5
