"""Relay shares: a hand case where they pay, none where they do not, every byte kept, never later."""

import numpy as np
import pytest

from mfabric_jax import Region
from mfabric_jax.circuit_schedules import get, relay_stages, valiant
from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.circuit_schedules.families import FAMILIES
from mfabric_jax.circuit_schedules.relayed import _shares


def region(servers, delay, switches=1, packet=0.0):
    return Region(servers, 8e-9, switches, packet, delay)  # circuits of 1 byte/s


def end(where, stages):
    return sum(schedule_end_s(where, *stage) for stage in stages)


def test_two_turns_instead_of_three():
    """Four servers, 1 byte a pair, turns of 10 s. Direct: 3 (10 + 1). One shift by 1, then one by 2: each carries its
    own pairs and the way to the third: 2 (10 + 2)."""
    demand, where = 1 - np.eye(4), region(4, 10.0)
    stages = relay_stages(demand, where)
    assert end(where, stages) == pytest.approx(24)
    for stage, shift in zip(stages, (1, 2), strict=True):
        np.testing.assert_allclose(stage.demand, 2 * np.roll(np.eye(4), shift, axis=1))
    direct = relay_stages(demand, region(4, 0.5))
    assert len(direct) == 1
    assert end(region(4, 0.5), direct) == pytest.approx(3 * 1.5)


def test_pairs_out_of_reach_have_no_shares():
    reach = np.array([np.roll(np.eye(4, dtype=bool), 1, axis=1)] * 2)
    assert _shares(1 - np.eye(4), reach, 1.0, 0.0) is None
    assert _shares(1 - np.eye(4), reach, 1.0, 0.5) is not None, "packet NICs reach everyone"


@pytest.mark.parametrize("switches", [1, 2])
@pytest.mark.parametrize("packet", [0.0, 0.2])
def test_never_later_and_every_byte_arrives(switches, packet):
    stages_of = []
    for family in ("moe", "uniform", "one-hot"):
        for delay in (0.01, 0.3):
            demand, where = FAMILIES[family](6, 1), region(6, delay, switches, packet)
            stages = relay_stages(demand, where, switches, programmes=20)
            joint = schedule_end_s(where, get("joint", switches, programmes=20)(demand, where), demand)
            assert end(where, stages) <= min(joint, end(where, valiant(demand, where, switches))) * (1 + 1e-12)
            sent = sum(np.asarray(stage.demand) for stage in stages)
            np.testing.assert_allclose(sent.sum(1) - sent.sum(0), demand.sum(1) - demand.sum(0), atol=1e-9)
            assert sent.sum() >= demand.sum() * (1 - 1e-9)
            stages_of.append(len(stages))
    assert 1 in stages_of


def test_one_stage_is_that_of_joint():
    demand, where = FAMILIES["moe"](6, 0), region(6, 0.01)
    (stage,) = relay_stages(demand, where, programmes=20)
    np.testing.assert_array_equal(stage.demand, demand)
    np.testing.assert_array_equal(stage.schedule.seconds, get("joint", programmes=20)(demand, where).seconds)
    assert len(relay_stages(demand, where, programmes=5, directed=False)) >= 1
    nothing = relay_stages(np.zeros((3, 3)), region(3, 1.0))
    assert end(region(3, 1.0), nothing) == 0
