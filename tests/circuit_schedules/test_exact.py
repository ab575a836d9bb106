"""Provably best schedules: beside all permutations, beside all pairs of matchings, and how far above them joint is."""

import itertools

import numpy as np
import pytest

from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.circuit_schedules.exact import exact
from mfabric_jax.circuit_schedules.families import moe, uniform
from mfabric_jax.circuit_schedules.joint import joint
from mfabric_jax.circuit_schedules.placing import problem_of
from tests.circuit_schedules.schedulers import network
from tests.circuit_schedules.test_durations import by_highs
from tests.circuit_schedules.test_every_scheduler import check_legal
from tests.oracles.switch_clock import fewest_seconds


def planned(scheduler, demand, given, **settings):
    schedule = scheduler(demand, **settings, **given)
    check_legal(schedule, given, len(demand))
    return problem_of(demand, **given).paced_end_s(schedule)


def test_the_best_of_all_permutations():
    for demand, packet in itertools.product([uniform(3, 0), moe(4, 1)], (0.0, 0.3)):
        given = network(packet_Bps=packet, delay_s=0.1)
        assert planned(exact, demand, given) == pytest.approx(fewest_seconds(demand, packet, 0.1), rel=1e-5)


@pytest.mark.parametrize("switches", [1, 2])
@pytest.mark.parametrize("directed", [True, False])
def test_the_best_of_all_pairs_of_matchings(switches, directed):
    """Two configurations on one switch, or one on each of two."""
    servers = 4 if directed else 5
    given = network(packet_Bps=0.2, delay_s=0.1, switches=switches, directed=directed)
    demand = moe(servers, 3)
    problem = problem_of(demand, **given)
    every = np.array([np.eye(servers, dtype=int)[list(order)] for order in itertools.permutations(range(servers))])
    every = every if directed else every[(every == every.swapaxes(1, 2)).all((1, 2))]
    every = every * (1 - np.eye(servers, dtype=int))
    on = np.array([0, switches - 1])
    pairs = itertools.combinations(range(len(every)), 2)
    ends = [by_highs(problem, every[list(pair)], on) for pair in pairs]  # the one without circuits among them
    assert planned(exact, demand, given, most=2 // switches) == pytest.approx(min(ends), rel=1e-5)


def test_parallel_circuits_of_a_pair():
    # 0 -> 1 of 4 s on two ports: both at once, 2 s, beside the other pairs' one circuit each; the turn is free.
    demand = np.array([[0, 4.0, 0], [0, 0, 1], [1, 0, 0]])
    given = network(ports=2, delay_s=1.0, first_free=True)
    configurations, seconds, _ = exact(demand, most=1, **given)
    assert (configurations[0, 0, 1], seconds[0]) == (2, pytest.approx(2))


def test_joint_is_seldom_far_above():
    over = []
    for given in (network(delay_s=0.1), network(delay_s=0.05, packet_Bps=0.3), network(delay_s=0.1, switches=2)):
        for demand in (moe(4, 0), moe(4, 5, skew=1.0), moe(5, 2)):
            most = len(demand) if given["switches"] == 1 else 3
            over.append(planned(joint, demand, given) / planned(exact, demand, given, most=most))
    assert min(over) >= 1 - 1e-5
    assert max(over) < 1.03
    assert np.mean(over) < 1.005


def test_refused():
    with pytest.raises(InputError, match=r"(?s)binary circuits: at most 400 are allowed"):
        exact(np.ones((12, 12)), **network())
    with pytest.raises(InputError, match="most must be a whole number of at least 1"):
        exact(np.ones((3, 3)), most=0, **network())
    with pytest.raises(Misfit, match="no schedule of most = 2 configurations on each switch carries everything"):
        exact(np.ones((4, 4)), most=2, **network())
    with pytest.raises(Misfit, match=r"within limit_s = 0\.001"):
        exact(uniform(5, 0), most=6, limit_s=0.001, **network())
    assert exact(3 * np.eye(3), **network())[0].shape == (0, 3, 3)
