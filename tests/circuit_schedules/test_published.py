"""What the published schedulers promise, and instances by hand."""

import itertools
import sys

import numpy as np
import pytest
from scipy.optimize import linprog

from mfabric_jax.checks import InputError
from mfabric_jax.circuit_schedules.bvn import bvn
from mfabric_jax.circuit_schedules.eclipse import eclipse, fill_window
from mfabric_jax.circuit_schedules.families import FAMILIES, moe, one_hot, standard, uniform
from mfabric_jax.circuit_schedules.keep_or_reconfigure import keep_or_reconfigure, shifts, topologies
from mfabric_jax.circuit_schedules.matching import heaviest, largest, stuff_lines
from mfabric_jax.circuit_schedules.placing import problem_of
from mfabric_jax.circuit_schedules.solstice import slice_demand, solstice
from mfabric_jax.circuit_schedules.spectra import partners, spectra
from mfabric_jax.circuit_schedules.whole_pair import whole_pair
from tests.circuit_schedules.schedulers import network

CYCLE, BACK = np.eye(3)[[1, 2, 0]], np.eye(3)[[2, 0, 1]]


def test_stuffed_lines_are_equal_and_nothing_is_taken():
    for family in FAMILIES.values():
        draw = family(9, 4)
        full = stuff_lines(draw)
        np.testing.assert_allclose([full.sum(0), full.sum(1)], 1)
        assert (full >= draw).all()
    # Lines of 3 and 5, columns of 4 and 4: positive entries first.
    np.testing.assert_array_equal(stuff_lines(np.array([[0, 3], [4, 1]])), [[1, 4], [4, 1]])


@pytest.mark.parametrize("directed", [True, False])
def test_heaviest_matchings_against_all(directed):
    for seed in range(8):
        weight = np.random.default_rng(seed).random((5, 5)) * (1 - np.eye(5))
        weight = weight if directed else weight + weight.T
        matching = heaviest(weight, directed)
        orders = itertools.permutations(range(5))
        tables = [np.eye(5)[list(o)] for o in orders if directed or all(o[o[i]] == i for i in range(5))]
        assert (matching * weight).sum() == pytest.approx(max((table * weight).sum() for table in tables))
        allowed = weight > 0.6
        assert (largest(allowed, directed) * allowed).sum() == max((table * allowed).sum() for table in tables)


def test_birkhoff_has_the_shortest_total():
    for family in FAMILIES.values():
        configurations, seconds, _ = bvn(3 * family(8, 1), **network(circuit_Bps=2.0))
        assert seconds.sum() == pytest.approx(1.5)
        assert len(seconds) <= 8 * 8 - 2 * 8 + 2
        assert (np.tensordot(seconds, configurations, 1) >= 1.5 * family(8, 1) * (1 - 1e-12)).all()


def test_birkhoff_of_both_directions_takes_every_pair():
    configurations, seconds, _ = bvn(np.ones((3, 3)), **network(directed=False))
    np.testing.assert_array_equal(configurations.sum(0), 1 - np.eye(3))
    np.testing.assert_array_equal(seconds, [1, 1, 1])


def test_spectra_has_as_many_permutations_as_partners():
    for family in FAMILIES.values():
        demand = family(9, 2)
        configurations, seconds, _ = spectra(demand, **network())
        assert len(seconds) == partners(demand)
        assert (np.tensordot(seconds, configurations, 1) >= demand * (1 - 1e-12)).all()


def test_spectra_levels_switches():
    # 10 s on one of two switches, turns of 1: half of what is over moves, (11 - 1 - 0) / 2 = 5, and pays a turn.
    _, seconds, switch = spectra(10 * CYCLE, **network(switches=2, delay_s=1.0))
    assert dict(zip(switch.tolist(), seconds.tolist(), strict=True)) == {0: 5.0, 1: 5.0}
    demand, given = standard(12, 0), network(switches=4, delay_s=0.01)
    load = problem_of(demand, **given).clocks(*spectra(demand, **given)[1:])
    assert load.max() - load.min() <= 0.01 + 1e-9


def test_whole_pairs_by_hand():
    # The heaviest matching holds 5, 4 and 3: 5 s. The other way round 1, 2 and 2: 2 s.
    demand = CYCLE * [[0, 5, 0], [0, 0, 4], [3, 0, 0]] + BACK * [[0, 0, 1], [2, 0, 0], [0, 2, 0]]
    configurations, seconds, _ = whole_pair(demand, **network())
    np.testing.assert_array_equal(configurations, [CYCLE, BACK])
    np.testing.assert_array_equal(seconds, [5, 2])
    _, seconds, _ = whole_pair(demand, **network(packet_Bps=0.5, delay_s=1.0))
    np.testing.assert_array_equal(seconds, [5])  # packet NICs carry the rest in 4 s of 6
    np.testing.assert_array_equal(whole_pair(demand, **network(ports=2))[0], [CYCLE + BACK])


def test_solstice_by_hand():
    # Lines of 8.5; at a threshold of 4 the cycle is a slice. Then 0.5 of packets are within 0.1 of 8 + 1 s.
    configurations, seconds, _ = solstice(8 * CYCLE + 0.5 * BACK, **network(packet_Bps=0.1, delay_s=1.0))
    np.testing.assert_array_equal(configurations, [CYCLE])
    np.testing.assert_array_equal(seconds, [8])
    # 0.95 is not: at a threshold of 0.5 the other way round is a second slice.
    configurations, seconds, _ = solstice(8 * CYCLE + 0.95 * BACK, **network(packet_Bps=0.1, delay_s=1.0))
    np.testing.assert_array_equal(configurations, [CYCLE, BACK])
    np.testing.assert_allclose(seconds, [8, 0.95])
    # Two servers, 8 and 4: the smaller is filled up, and its circuit idles.
    configurations, seconds, _ = solstice(np.array([[0, 8], [4, 0]]), **network(packet_Bps=0.1))
    np.testing.assert_array_equal(configurations, [[[0, 1], [1, 0]]])
    np.testing.assert_array_equal(seconds, [8])


def test_solstice_leaves_what_packet_nics_carry_meanwhile():
    for family in FAMILIES.values():
        problem = problem_of(family(10, 3), **(given := network(packet_Bps=0.1)))
        configurations, seconds, switch = solstice(family(10, 3), **given)
        packets = problem.packet_s(problem.remainder(configurations, seconds))
        assert packets <= problem.clocks(seconds, switch).max() * (1 + 1e-9)


def test_solstice_takes_no_short_slice_while_a_long_one_is_there():
    """No permutation had twice the power of two that a slice is at least as long as."""
    shorter = 0
    for seed in range(6):
        for demand in (uniform(6, seed), standard(9, seed)):
            problem = problem_of(demand, **network(packet_Bps=0.01))
            left = stuff_lines(demand)
            for matching, seconds in zip(*slice_demand(problem), strict=True):
                threshold = 2 * 2.0 ** np.floor(np.log2(seconds))
                assert (largest(left >= threshold, True) * (left >= threshold)).sum() < len(left)
                assert seconds == left[matching > 0].min()
                left = np.where(matching > 0, left - seconds, left)
                shorter += threshold < left.max()
    assert shorter > 20


def carried(demand, tables, seconds):
    return np.minimum(demand, np.tensordot(seconds, tables, 1)).sum()


def most_in_a_window(demand, window, delay):
    """Oracle: for every set of permutations of three servers, durations by a linear programme."""
    tables = np.array([np.eye(3)[list(order)] * (1 - np.eye(3)) for order in itertools.permutations(range(3))][1:])
    pairs = np.argwhere(demand > 0)
    best = 0.0
    for size in range(1, 5):
        for chosen in itertools.combinations(tables, size):
            if window <= size * delay:
                continue
            shown = np.array([[table[i, j] for table in chosen] for i, j in pairs])
            rows = np.block([[-shown, np.eye(len(pairs))], [np.ones((1, size)), np.zeros((1, len(pairs)))]])
            limits = [*np.zeros(len(pairs)), window - size * delay]
            top = [(0, None)] * size + [(0, demand[i, j]) for i, j in pairs]
            done = linprog([0] * size + [-1] * len(pairs), A_ub=rows, b_ub=limits, bounds=top)
            best = max(best, -done.fun)
    return best


def test_eclipse_carries_half_of_the_most_in_a_window():
    shares = []
    for seed in range(6):
        demand, delay = uniform(3, seed), 0.05
        problem = problem_of(demand, **network(delay_s=delay))
        for window in (0.2, 0.5, 0.9):
            tables, seconds = fill_window(problem, window, 24)
            assert sum(seconds) + delay * len(seconds) <= window * (1 + 1e-12)
            shares.append(carried(demand, tables, seconds) / most_in_a_window(demand, window, delay))
    assert min(shares) >= 0.5
    assert max(shares) <= 1 + 1e-9
    assert np.mean(shares) > 0.9


def test_a_step_of_eclipse_carries_most_per_second_of_circuit_and_turn():
    tables = [np.eye(4)[list(order)] for order in itertools.permutations(range(4))]
    for seed in range(6):
        demand, delay = uniform(4, seed), 0.08
        (matching, *_), (alpha, *_) = fill_window(problem_of(demand, **network(delay_s=delay)), 2.0, 24)
        densities = [
            (np.minimum(demand, one) * table).sum() / (one + delay) for one in demand[demand > 0] for table in tables
        ]
        assert (np.minimum(demand, alpha) * matching).sum() / (alpha + delay) == pytest.approx(max(densities))


def test_more_durations_to_choose_from_serve_eclipse():
    demand, given = moe(8, 0), network(packet_Bps=0.1)
    problem = problem_of(demand, **given)
    one, many = (problem.paced_end_s(eclipse(demand, alphas=alphas, **given)) for alphas in (1, 24))
    assert many < one
    with pytest.raises(InputError, match="alphas must be a whole number of at least 1"):
        eclipse(demand, alphas=0, **given)


def best_sequence(cost, delay, first_free):
    """Oracle: every sequence of topologies."""
    choices, steps = range(len(cost)), range(len(cost[0]))
    every = itertools.product(choices, repeat=len(steps))

    def seconds(held):
        turns = sum(a != b for a, b in itertools.pairwise(held)) + (not first_free)
        return sum(cost[held[step]][step] for step in steps) + turns * delay

    return min(map(seconds, every))


def test_topologies_against_every_sequence():
    for seed in range(12):
        random = np.random.default_rng(seed)
        cost = random.random((3, 5))
        cost[random.integers(3), random.integers(5)] = np.inf
        delay, free = random.choice([0.0, 0.1, 0.5]), bool(seed % 2)
        seconds, held = topologies(cost, delay, free)
        assert seconds == pytest.approx(best_sequence(cost.tolist(), delay, free))
        turns = (np.diff(held) != 0).sum() + (not free)
        assert seconds == pytest.approx(cost[held, np.arange(5)].sum() + turns * delay)


def test_shifts_turn_as_long_as_turns_are_cheap():
    hops = shifts(4, 1.0, 1.0)
    np.testing.assert_array_equal(hops, [[1, 2, 3], [np.inf, 1, np.inf], [3, 2, 1]])
    np.testing.assert_allclose(shifts(4, 6.0, 1.0, circuits=2, step_s=0.5)[0], [3.5, 7, 10.5])
    # 0: three hops and no wait. 1: 3 + 2 of turns, or 6 on one ring. 2: one ring.
    for delay, best in [(0.0, 3.0), (1.0, 5.0), (2.0, 6.0), (9.0, 6.0)]:
        assert topologies(hops, delay, first_free=True)[0] == best


def test_keep_or_reconfigure_leaves_light_matchings_to_packet_nics():
    demand = 8 * CYCLE + 0.5 * BACK
    given = network(packet_Bps=0.5, delay_s=1.0)
    configurations, seconds, _ = keep_or_reconfigure(demand, **given)
    np.testing.assert_array_equal(configurations, [CYCLE])  # 0.5 / 0.5 is no more than a turn and 0.5
    np.testing.assert_array_equal(seconds, [8])
    assert len(keep_or_reconfigure(demand, **network(packet_Bps=0.5, delay_s=0.1))[1]) == 2
    assert len(keep_or_reconfigure(demand, **network(packet_Bps=0.5, delay_s=100.0))[1]) == 0
    for drawn in (moe(7, 0), one_hot(7, 0)):
        for got, same in zip(keep_or_reconfigure(drawn, **network()), whole_pair(drawn, **network()), strict=True):
            np.testing.assert_array_equal(got, same)


def test_symmetric_circuits_ask_for_networkx(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(InputError, match=r"needs networkx, .* pip install 'mfabric-jax\[plot\]'"):
        whole_pair(np.ones((4, 4)), **network(directed=False))


@pytest.mark.parametrize(
    ("demand", "changed", "message"),
    [
        (np.ones((2, 3)), {}, r"demand must be square, \[servers servers\], got the shape \[2, 3\]"),
        (-np.ones((2, 2)), {}, "demand must be finite and not negative"),
        (np.ones((2, 2)), {"circuit_Bps": 0.0}, "circuit_Bps must be finite and above 0"),
        (np.ones((2, 2)), {"packet_Bps": -1.0}, "packet_Bps must be finite and not negative"),
        (np.ones((2, 2)), {"switches": 0}, "switches must be a whole number of at least 1"),
        (np.ones((2, 2)), {"ports": 1.5}, "ports must be a whole number"),
        (np.ones((2, 2)), {"delay_s": np.inf}, "delay_s must be finite and not negative"),
    ],
)
def test_refused(demand, changed, message):
    with pytest.raises(InputError, match=message):
        bvn(demand, **network(**changed))
