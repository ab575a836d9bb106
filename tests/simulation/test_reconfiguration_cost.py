"""A switch that turns for every block, whether its circuits are new or not."""

import numpy as np
import pytest

from mfabric_jax.schedule.all_to_alls import places
from mfabric_jax.simulation.scenario import scenarios
from mfabric_jax.simulation.solving import solve
from mfabric_jax.study import Failures
from tests.mistakes import check_refused
from tests.small import JOB, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
REGION = JOB | {"fabrics": ("mfabric",), "policy": "uniform", "traffic": "generated", "skew": 0.5}
ALWAYS = {"reconfiguration_cost": "always"}


def test_circuits_that_stay_are_waited_for_in_every_block_and_pass():
    config = small(**REGION, **ALWAYS, delay_s=10.0)
    (one,) = scenarios(config)
    solved, moe = solve(one), places(one.workload).layer >= 0
    np.testing.assert_array_equal(solved.switch[0, ..., 0], moe)
    assert not solved.switch[..., 1].any()
    assert not np.asarray(solved.anew).any()
    paid, free = row(config), row(small(**REGION, delay_s=10.0))
    # A delay that nothing hides but a block's own computation: each of 32 blocks waits, forward and backward.
    assert free["reconfig_s"] == 0
    assert 64 * 9.9 < paid["reconfig_s"] < 64 * 10
    assert paid["circuit_changes"] == free["circuit_changes"] == 0
    assert paid["switch_turns"] == 64
    np.testing.assert_allclose(paid["ep_comm_s"], free["ep_comm_s"], rtol=1e-12)


def test_packet_fabrics_do_not_wait():
    tree = small(**REGION | {"fabrics": ("fat-tree",), "policy": "greedy"}, **ALWAYS)
    assert row(tree)["reconfig_s"] == 0


def test_settings_that_do_not_go_together():
    for more in ({"first": "reuse"}, {"partial": True}, {"circuits_for": ("block",)}):
        check_refused("reconfiguration_cost 'always'", small, **REGION | more, **ALWAYS)
    check_refused("reconfiguration_cost must be changed for failures", Failures, small(**REGION, **ALWAYS))
