"""Stages that relay: hand cases from a configuration a pair to one for all, every block arrives, never later."""

import itertools
import math

import numpy as np
import pytest

from mfabric_jax import Region
from mfabric_jax.circuit_schedules import bruck, get, relay_shares, relay_stages, staged_time, ternary, valiant
from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.circuit_schedules.families import FAMILIES
from mfabric_jax.circuit_schedules.relayed import digit_steps
from mfabric_jax.circuit_schedules.stages import stages_end_s as end
from tests.circuit_schedules.arrivals import carries


def region(servers, delay, switches=1, packet=0.0):
    return Region(servers, 8e-9, switches, packet, delay)  # circuits of 1 byte/s


def others_of(demand, where, switches=1, **how):
    """The all-to-alls that ours may not end later than."""
    direct = get("joint", switches, programmes=5, **how)(demand, where)
    every = [bruck(demand, where, switches, base=base, **how) for base in range(2, max(3, len(demand)))]
    return [schedule_end_s(where, direct, demand), *(end(where, stages) for stages in every)] + [
        end(where, stages(demand, where, switches, **how)) for stages in (ternary, valiant)
    ]


def test_the_longer_the_delay_the_fewer_reconfigurations():
    """Four servers, 1 byte a pair. Direct: 3 (delay + 1). Shifts by 1 and by 2, each of which carries its own pairs and
    those on the way to the third: 2 (delay + 2). Three passes over a shift by 1: delay + 3 + 2 + 1."""
    demand = 1 - np.eye(4)
    for delay, count, time in ((0.5, 1, 3 * 1.5), (1.5, 2, 2 * 3.5), (10, 3, 10 + 6)):
        where = region(4, delay)
        stages = relay_stages(demand, where)
        assert len(stages) == count
        assert end(where, stages) == pytest.approx(time)
        paid = sum(len(stage.schedule.seconds) - stage.schedule.first_free for stage in stages)
        assert paid == 4 - count


def test_latency_of_stages_is_weighed():
    demand, where = 1 - np.eye(4), region(4, 10)
    assert len(relay_stages(demand, where, step_s=100.0)) == 1
    assert end(where, relay_stages(demand, where, step_s=100.0), 100.0) == pytest.approx(3 * 11 + 100)
    assert len(relay_stages(demand, where, step_s=8.0)) == 2, "2 (10 + 2) + 16 < 10 + 6 + 24 < 33 + 8"


def test_steps_of_all_candidates_lead_to_the_server():
    for servers in (2, 3, 4, 9, 16):
        every = digit_steps(servers)
        for steps in every:
            np.testing.assert_array_equal(steps.sum(0) % servers, np.arange(servers))
        assert max(map(len, every)) == servers - 1, "the ring"
    assert len(digit_steps(16)) > 20


@pytest.mark.parametrize("seed", range(4))
def test_never_later_than_any(seed):
    """Drawn: servers, ports, delay, bytes, demand, direction; equal servers of 400 Gbps."""
    random = np.random.default_rng(seed)
    for _ in range(6):
        servers = int(random.integers(2, 8))
        switches, ports = int(random.integers(1, 3)), int(random.integers(1, 4))
        delay = float(random.choice([0, 1e-6, 1e-3, 1]))
        bytes_ = 10.0 ** random.integers(3, 13)
        family = random.choice(["moe", "uniform", "one-hot", "permutation"])
        where = Region(servers, 400, switches * ports, float(random.choice([0, 0, 1])), delay)
        demand, how = bytes_ * FAMILIES[family](servers, seed), {"directed": bool(random.integers(3))}
        stages = relay_stages(demand, where, switches, programmes=5, **how)
        assert end(where, stages) <= min(others_of(demand, where, switches, **how)) * (1 + 1e-9)
        assert math.isfinite(end(where, stages))
        assert float(staged_time(where, stages)) == pytest.approx(end(where, stages), rel=1e-4)
        if servers <= 5:
            assert carries(demand, [stage.demand for stage in stages])
        assert not any(stage.schedule.first_free for stage in stages[:1])
        for before, after in itertools.pairwise(stages):
            if after.schedule.first_free:
                np.testing.assert_array_equal(before.schedule.configurations, after.schedule.configurations)


def test_never_later_without_linear_programmes(monkeypatch):
    """Too large for the programme: the digits' own paths remain."""
    monkeypatch.setattr(relay_shares, "MOST_VARIABLES", 0)
    demand = FAMILIES["moe"](9, 0)
    for ports, delay in ((1, 0.2), (2, 1.0)):
        where = region(9, delay, ports)
        stages = relay_stages(demand, where, programmes=5)
        assert len(stages) > 1
        assert end(where, stages) <= min(others_of(demand, where)) * (1 + 1e-9)


def test_edges():
    nothing = relay_stages(np.zeros((3, 3)), region(3, 1.0))
    assert end(region(3, 1.0), nothing) == 0
    one_pair = np.zeros((6, 6))
    one_pair[0, 4] = 3.0
    for delay in (0.0, 1.0):
        assert end(region(6, delay), relay_stages(one_pair, region(6, delay))) == pytest.approx(delay + 3)
    two = np.array([[0, 2.0], [5, 0]])
    for directed in (True, False):
        assert end(region(2, 1.0), relay_stages(two, region(2, 1.0), directed=directed)) == pytest.approx(1 + 5)


@pytest.mark.parametrize("packet", [0.0, 0.2])
@pytest.mark.parametrize("directed", [True, False])
def test_long_delays_pay_a_single_topology(packet, directed):
    """Two ports show a ring of both directions: all reach all, however long the delay is."""
    demand, where = FAMILIES["moe"](5, 0), region(5, 1e4, 2, packet)
    stages = relay_stages(demand, where, programmes=5, directed=directed)
    assert carries(demand, [stage.demand for stage in stages])
    assert end(where, stages) < (1.001e4 if packet == 0 else 10)


def test_one_stage_is_that_of_joint():
    demand, where = FAMILIES["moe"](6, 0), region(6, 0.01)
    (stage,) = relay_stages(demand, where, programmes=20)
    np.testing.assert_array_equal(stage.demand, demand)
    np.testing.assert_array_equal(stage.schedule.seconds, get("joint", programmes=20)(demand, where).seconds)
