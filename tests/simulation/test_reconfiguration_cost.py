"""A switch that turns for every block, whether its circuits are new or not."""

import numpy as np
import pytest

from mfabric_jax.failures._failures import failures_of
from mfabric_jax.schedule.all_to_alls import places
from mfabric_jax.simulation.solving import solve
from tests.mistakes import check_refused
from tests.small import JOB, row, scenario, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
REGION = JOB | {"circuits.policy": "uniform", "traffic.generated.skew": 0.5}
ALWAYS = {"circuits.turn": "always"}


def test_circuits_that_stay_are_waited_for_in_every_block_and_pass():
    slow = {"circuits.delay_s": 10.0}
    case = small(REGION | ALWAYS | slow)
    one = scenario(case)
    solved, moe = solve(one), places(one.workload).layer >= 0
    np.testing.assert_array_equal(solved.switch[0, ..., 0], moe)
    assert not solved.switch[..., 1].any()
    assert not np.asarray(solved.anew).any()
    paid, free = row(case), row(small(REGION | slow))
    # A delay that nothing hides but a block's own computation: each of 32 blocks waits, forward and backward.
    assert free["reconfig_s"] == 0
    assert 64 * 9.9 < paid["reconfig_s"] < 64 * 10
    assert paid["circuit_changes"] == free["circuit_changes"] == 0
    assert paid["switch_turns"] == 64
    np.testing.assert_allclose(paid["ep_comm_s"], free["ep_comm_s"], rtol=1e-12)


def test_packet_fabrics_do_not_wait():
    tree = small(JOB | ALWAYS | {"network.fabric": "fat-tree"})
    assert row(tree)["reconfig_s"] == 0


def test_failures_do_not_model_it():
    check_refused("circuits.turn must be on-demand or reuse or predict beside failures", failures_of, small(ALWAYS))
