"""Many schedules in one call: as good as the best of the three by SciPy, and batched equal to looped."""

import importlib.util
from unittest.mock import patch

import jax
import numpy as np
import pytest
from numba.core import config
from scipy.optimize import linear_sum_assignment

from mfabric_jax import InputError, Region
from mfabric_jax.circuit_schedules import CircuitSchedule, get, schedule_time, schedules, stack_schedules
from mfabric_jax.circuit_schedules.families import FAMILIES, moe, standard
from mfabric_jax.circuit_schedules.placing import problem_of
from mfabric_jax.circuit_schedules.quick import quick
from mfabric_jax.circuit_schedules.solstice import solstice
from mfabric_jax.circuit_schedules.spectra import spectra
from mfabric_jax.circuit_schedules.whole_pair import whole_pair
from tests.circuit_schedules.schedulers import network

NETWORKS = [
    network(),
    network(packet_Bps=0.1, delay_s=0.05),
    network(switches=3, first_free=True),
    network(switches=2, ports=2, packet_Bps=0.3),
    network(delay_s=0.0, ports=3, first_free=True),
]


@pytest.mark.parametrize("given", NETWORKS, ids=range(len(NETWORKS)))
def test_the_best_of_three(given):
    """Spectra and whole pairs have one answer but for ties; slices are any of a threshold."""
    for seed in range(3):
        for demand in (moe(9, seed), moe(6, seed, skew=1.2), standard(8, seed)):
            problem = problem_of(demand, **given)
            ends = [problem.paced_end_s(one(demand, **given)) for one in (spectra, whole_pair, solstice)]
            found = problem.paced_end_s(quick(demand, **given))
            assert found <= min(ends[:2]) * (1 + 1e-9)
            assert found <= ends[2] * 1.15


def test_both_directions_are_the_best_of_three():
    given = network(directed=False, packet_Bps=0.1)
    demand = moe(6, 1)
    problem = problem_of(demand, **given)
    ends = [problem.paced_end_s(one(demand, **given)) for one in (spectra, whole_pair, solstice)]
    assert problem.paced_end_s(quick(demand, **given)) == min(ends)


def uncompiled():
    """The loops of assignments as plain Python."""
    spec = importlib.util.find_spec("mfabric_jax.circuit_schedules.assignment_loops")
    module = importlib.util.module_from_spec(spec)
    with patch.object(config, "DISABLE_JIT", True):
        spec.loader.exec_module(module)
    return module


def test_cheapest_assignments_from_any_prices():
    random = np.random.default_rng(0)
    for size in (1, 2, 5, 12):
        price = np.zeros(size)
        for draw in range(40):
            cost = random.random((size, size))
            cost = np.round(3 * cost) if draw % 3 == 0 else cost  # ties
            price = random.random(size) if draw % 4 == 0 else price  # else what the last one left
            column, row = np.empty((2, size), int)
            uncompiled().assign(cost, price, column, row, np.empty(2 * size), np.empty(2 * size, int))
            assert sorted(column) == list(range(size))
            np.testing.assert_array_equal(row[column], np.arange(size))
            assert cost[np.arange(size), column].sum() == pytest.approx(cost[linear_sum_assignment(cost)].sum())


def test_matchings_above_a_threshold_exist_or_not():
    random, seen = np.random.default_rng(1), []
    for _ in range(60):
        value = random.random((6, 6))
        column, row = np.full((2, 6), -1)
        for threshold in (0.8, 0.6, 0.4):  # what was matched stays
            found = uncompiled().match_above(value, threshold, column, row, np.empty(12, int))
            most = linear_sum_assignment(value >= threshold, maximize=True)
            assert found == (value >= threshold)[most].all()
            seen.append(found)
            if found:
                assert (value[np.arange(6), column] >= threshold).all()
                assert sorted(column) == list(range(6))
    assert 20 < sum(seen) < 160


def test_a_batch_is_its_loop():
    where = Region(7, 8e-9, 2, 0.25, 0.02)
    demands = np.array([family(7, seed) for seed, family in enumerate(FAMILIES.values())] + [np.zeros((7, 7))])
    with jax.enable_x64(True):
        batch = schedules(demands, where, 2, first_free=True)
        times = jax.vmap(lambda one, demand: schedule_time(where, one, demand))(batch, demands)
        ones = [get("quick", 2, first_free=True)(demand, where) for demand in demands]
        looped = [float(schedule_time(where, *pair)) for pair in zip(ones, demands, strict=True)]
        again = jax.vmap(lambda one, demand: schedule_time(where, one, demand))(stack_schedules(ones), demands)
    np.testing.assert_allclose(times, looped, rtol=1e-12)
    np.testing.assert_allclose(again, looped, rtol=1e-12)
    assert {len(one.seconds) for one in ones} != {len(batch.seconds[0])}, "some are filled up"


def test_refused():
    where, one = Region(3, 8e-9, 1, 0.0, 0.0), CircuitSchedule(np.zeros((1, 3, 3), int), [1.0])
    for ask, words in [
        (lambda: schedules(np.ones((3, 3)), where), r"demands must be \[B S S\] with S = 3 servers, got \[3, 3\]"),
        (lambda: schedules(-np.ones((1, 3, 3)), where), "demands must be finite and not negative"),
        (lambda: stack_schedules([]), "stack_schedules needs at least one schedule"),
        (
            lambda: stack_schedules([one, CircuitSchedule(np.zeros((1, 3, 3), int), [1.0], switches=2)]),
            r"must have the same switches: 1 and, in \[1\], 2",
        ),
        (
            lambda: stack_schedules([one, CircuitSchedule(np.zeros((1, 4, 4), int), [1.0])]),
            r"must have the same servers: 3 and, in \[1\], 4",
        ),
        (
            lambda: stack_schedules([one, CircuitSchedule(np.zeros((1, 3, 3), int), [1.0], delay_s=0.5)]),
            r"all have a delay_s, or none; \[1\] differs",
        ),
    ]:
        with pytest.raises(InputError, match=words):
            ask()
