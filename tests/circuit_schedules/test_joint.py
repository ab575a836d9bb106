"""The joint search: never behind its starts, and better where they leave room."""

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.circuit_schedules.ending import end_s
from mfabric_jax.circuit_schedules.families import FAMILIES, moe
from mfabric_jax.circuit_schedules.joint import STARTS, Move, _durations, _Search, _trade_circuits, joint
from mfabric_jax.circuit_schedules.placing import problem_of
from tests.circuit_schedules.schedulers import network

NETWORKS = [
    network(),
    network(packet_Bps=0.1, delay_s=0.05),
    network(switches=2, packet_Bps=0.2, first_free=True),
    network(ports=2, all_stop=False),
    network(directed=False, packet_Bps=0.1),
]


@pytest.mark.parametrize("given", NETWORKS, ids=range(len(NETWORKS)))
def test_never_behind_the_best_start(given):
    for family, drawn in FAMILIES.items():
        demand = drawn(5, 7)
        problem = problem_of(demand, **given)
        best = min(end_s(problem, start(demand, **given)) for start in STARTS)
        for programmes in (1, 15):
            assert end_s(problem, joint(demand, programmes=programmes, **given)) <= best, family


def test_a_search_gains_where_hot_servers_leave_room():
    demand, given = moe(8, 0), network(packet_Bps=0.1)
    problem = problem_of(demand, **given)
    best = min(end_s(problem, start(demand, **given)) for start in STARTS)
    assert end_s(problem, joint(demand, programmes=60, **given)) < 0.97 * best


def searched(problem, configurations, switch, programmes):
    search = _Search(problem, _durations(problem, Move(configurations, switch)), programmes)
    search.run()
    return end_s(problem, search.best.schedule)


def test_durations_that_no_start_finds():
    # Two slices of 3 and 1, packet NICs of 0.25: the best leaves the lighter cycle to them, 4 s as by hand.
    demand = 3 * np.eye(3)[[1, 2, 0]] + np.eye(3)[[2, 0, 1]]
    configurations, seconds, _ = joint(demand, **network(packet_Bps=0.25, delay_s=1.0))
    np.testing.assert_array_equal(configurations, np.eye(3)[[1, 2, 0]][None])
    np.testing.assert_allclose(seconds, [3])


def test_a_search_drops_and_trades():
    # Two configurations of 5 s, each of which holds four circuits, two long and two short. Traded: 5 s and 1 s.
    here, there = np.zeros((2, 4, 4)), np.zeros((2, 4, 4))
    here[0, [0, 1], [2, 3]] = here[1, [0, 1], [3, 2]] = there[0, [2, 3], [0, 1]] = there[1, [2, 3], [1, 0]] = 1
    problem = problem_of(5 * here[0] + there[0] + here[1] + 5 * there[1], **network(delay_s=3.0))
    start = (here + there).astype(int), np.array([5.0, 5.0]), np.zeros(2, int)
    assert end_s(problem, start) == 16
    assert searched(problem, start[0], start[2], 30) == pytest.approx(12)
    # Both cycles with their best durations end at 4.8 s; the heavier alone at 4.
    cycles = np.eye(3, dtype=int)[[[1, 2, 0], [2, 0, 1]]]
    problem = problem_of(3 * cycles[0] + cycles[1], **network(packet_Bps=0.25, delay_s=1.0))
    assert searched(problem, cycles, np.zeros(2, int), 10) == pytest.approx(4)


def test_trades_keep_what_both_cover():
    random = np.random.default_rng(0)
    for _ in range(20):
        both = np.stack([np.eye(6, dtype=int)[random.permutation(6)] for _ in range(2)])
        entries = random.random((6, 6))
        traded = _trade_circuits(both, entries)
        np.testing.assert_array_equal(traded.sum(0), both.sum(0))
        assert (traded.sum(1) == 1).all()
        assert (traded.sum(2) == 1).all()
        before, after = ((one * entries).max((1, 2)) for one in (both, traded))
        assert after[0] == before.max()
        assert after[1] <= before.min()


def test_refused():
    with pytest.raises(InputError, match="programmes must be a whole number of at least 1"):
        joint(np.ones((3, 3)), programmes=0, **network())
