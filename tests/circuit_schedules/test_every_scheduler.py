"""Every scheduler: legal configurations, everything carried, no end before the bounds."""

import numpy as np
import pytest

from mfabric_jax.circuit_schedules.ending import end_s
from mfabric_jax.circuit_schedules.families import FAMILIES, moe, standard, uniform
from mfabric_jax.circuit_schedules.placing import problem_of
from tests.circuit_schedules.schedulers import SCHEDULERS, network
from tests.oracles.switch_clock import end, fewest_seconds

NETWORKS = [
    network(),
    network(packet_Bps=0.1),
    network(circuit_Bps=50e9, packet_Bps=10e9, first_free=True),
    network(switches=3, packet_Bps=0.2),
    network(switches=2, ports=2, first_free=True),
    network(all_stop=False, packet_Bps=0.05, delay_s=0.05),
    network(directed=False),
    network(directed=False, switches=2, ports=2, packet_Bps=0.1, all_stop=False),
    network(delay_s=0.0),
]


def ended(demand, schedule, given):
    circuits, packets, _ = end(
        demand, schedule, *(given[name] for name in ("circuit_Bps", "packet_Bps", "delay_s", "all_stop", "first_free"))
    )
    return max(circuits, packets)


def busiest(matrix):
    return max(matrix.sum(0).max(), matrix.sum(1).max())


def bound(demand, given):
    """Bounds 1 and 2: a line's bytes and turns over all its switches; bound 3 without turns."""
    wanted = demand / given["circuit_Bps"]
    lanes = given["switches"] * given["ports"]
    if given["packet_Bps"] or not given["all_stop"]:
        return busiest(wanted) / (lanes + given["packet_Bps"] / given["circuit_Bps"])
    turns = max(busiest(demand > 0) / lanes, 1) - given["first_free"]
    return busiest(wanted) / lanes + given["delay_s"] * turns


def check_legal(schedule, given, servers):
    configurations, seconds, switch = schedule
    assert configurations.dtype.kind == switch.dtype.kind == "i"
    assert configurations.shape == (len(seconds), servers, servers)
    assert switch.shape == seconds.shape
    assert (configurations >= 0).all()
    assert (configurations.diagonal(0, 1, 2) == 0).all()
    for axis in (1, 2):
        assert (configurations.sum(axis) <= given["ports"]).all()
    assert given["directed"] or (configurations == configurations.swapaxes(1, 2)).all()
    assert (seconds > 0).all()
    assert ((switch >= 0) & (switch < given["switches"])).all()


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: scheduler.__name__)
@pytest.mark.parametrize("given", NETWORKS, ids=range(len(NETWORKS)))
def test_legal_and_everything_arrives(scheduler, given):
    for family, drawn in FAMILIES.items():
        demand = drawn(5, 3) * given["circuit_Bps"]
        schedule = scheduler(demand, **given)
        check_legal(schedule, given, 5)
        time = ended(demand, schedule, given)
        assert bound(demand, given) * (1 - 1e-9) <= time < np.inf, family
        problem = problem_of(demand, **given)
        np.testing.assert_allclose(end_s(problem, schedule), time, rtol=1e-9)
        assert given["packet_Bps"] or time <= problem.paced_end_s(schedule) * (1 + 1e-9)


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: scheduler.__name__)
def test_no_demand_needs_no_circuits(scheduler):
    for packet in (0.0, 0.1):
        configurations, seconds, switch = scheduler(5 * np.eye(4), **network(packet_Bps=packet))
        assert (configurations.shape, len(seconds), len(switch)) == ((0, 4, 4), 0, 0)


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: scheduler.__name__)
def test_entries_of_all_sizes_arrive(scheduler):
    demand = np.array([[0, 1, 1e-13, 3e-7], [1e-11, 0, 1, 0], [2e-4, 1e-12, 0, 1], [1, 0, 5e-9, 0]])
    for directed in (True, False):
        given = network(directed=directed)
        assert ended(demand, scheduler(demand, **given), given) < np.inf


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: scheduler.__name__)
def test_one_permutation_is_one_configuration(scheduler):
    demand = 4 * np.eye(5)[[1, 2, 3, 4, 0]]
    configurations, seconds, _ = scheduler(demand, **network(delay_s=0.25))
    np.testing.assert_array_equal(configurations, demand[None] / 4)
    np.testing.assert_allclose(seconds, [4.0])


def test_nobody_beats_the_best_of_all_permutations():
    close = []
    for seed in range(4):
        for demand in (uniform(3, seed), moe(4, seed)):
            for packet in (0.0, 0.3):
                given = network(packet_Bps=packet, delay_s=0.1)
                best = fewest_seconds(demand, packet, 0.1)
                times = {one.__name__: ended(demand, one(demand, **given), given) for one in SCHEDULERS}
                assert min(times.values()) >= best * (1 - 1e-7), times
                close.append(times["short_joint"] / best)
    assert np.mean(close) < 1.03


def test_the_search_for_the_best_by_hand():
    # Pairs 0 -> 1 and 1 -> 0 of 4 and 2 seconds: one swap. A cycle of 3 and one of 1 the other way round: two turns, or
    # one turn and packet NICs that carry the lighter cycle meanwhile: half of it at a rate of 0.125 in 4 seconds.
    swap = np.array([[0, 4.0, 0], [2, 0, 0], [0, 0, 0]])
    assert fewest_seconds(swap, 0, 1) == pytest.approx(5)
    cycles = 3 * np.eye(3)[[1, 2, 0]] + np.eye(3)[[2, 0, 1]]
    assert fewest_seconds(cycles, 0, 1) == pytest.approx(6)
    assert fewest_seconds(cycles, 0.25, 1) == pytest.approx(4)


def test_as_published_within_a_few_percent():
    """Own reference values of another implementation on its own draws, in units of the busiest line."""
    from mfabric_jax.circuit_schedules import bvn, eclipse, solstice, spectra, whole_pair

    def mean(scheduler, draws, delay, packet=0.0):
        given = network(delay_s=delay, packet_Bps=packet)
        schedules = [(draw, scheduler(draw, **given)) for draw in draws]
        times = [problem_of(draw, **given).paced_end_s(schedule) for draw, schedule in schedules]
        return np.mean(times), np.mean([len(schedule[1]) for _, schedule in schedules])

    draws = [moe(16, seed) for seed in range(5)]
    assert mean(bvn.bvn, draws, 0.01) == pytest.approx((3.11, 211), rel=0.005)
    assert mean(solstice.solstice, draws, 0.01, 0.1) == pytest.approx((1.173, 28), rel=0.1)
    assert mean(eclipse.eclipse, draws, 0.01, 0.1)[0] == pytest.approx(1.272, rel=0.05)
    assert mean(spectra.spectra, draws, 0.01) == pytest.approx((1.192, 15), rel=0.06)
    assert mean(whole_pair.whole_pair, draws, 0.01)[0] == pytest.approx(1.21, rel=0.06)
    draws = [standard(32, seed) for seed in range(5)]
    assert mean(bvn.bvn, draws, 0.001) == pytest.approx((1.353, 353), rel=0.03)
    assert mean(solstice.solstice, draws, 0.001, 0.1)[0] == pytest.approx(0.933, rel=0.02)
    assert mean(eclipse.eclipse, draws[:2], 0.001, 0.1)[0] == pytest.approx(0.929, rel=0.02)
    assert mean(whole_pair.whole_pair, draws, 0.01) == pytest.approx((1.691, 15), rel=0.07)
