"""Settings of the authors' baselines: which groups are busy, pooled circuits, wirings of TopoOpt, preset released."""

import dataclasses

import numpy as np
import pytest

from mfabric_jax import load, resolve
from mfabric_jax.routing.single import single_part_times
from mfabric_jax.simulation.solving import carried
from mfabric_jax.simulation.wiring import all_to_all_sent, gradient_sent, rings_of
from tests.small import row, small
from tests.small import scenario as scenario_of

pytestmark = pytest.mark.usefixtures("as_users_have_it")
ECMP = {"network.paths": "ecmp", "network.radix": 16}
SINGLE = ECMP | {"traffic.source": "authors", "traffic.alike": "everything"}


def scenario(model, fabric, changes):
    return scenario_of(small({"network.fabric": fabric, "traffic.drawn": 1} | changes, model))


def test_groups_at_one_rail_switch_are_busy_together():
    # 8 servers at a rail switch: 4 groups of llama-moe's 2 servers, 2 of mixtral-8x7b's 4; one server under each edge
    # switch of a fat-tree, so a group meets nobody there.
    for model, groups in (("llama-moe", 4), ("mixtral-8x7b", 2)):
        found = [
            carried(scenario(model, fabric, SINGLE | {"network.ecmp.busy": busy})).groups
            for fabric in ("rail-optimized", "fat-tree")
            for busy in ("cluster", "group")
        ]
        assert found == [groups, 1, 1, 1]
    wide = carried(
        scenario("llama-moe", "rail-optimized", SINGLE | {"network.ecmp.busy": "cluster", "network.radix": 32})
    )
    assert wide.groups == 8


def test_switches_grow_until_the_cluster_fits():
    large = ECMP | {"network.ecmp.busy": "cluster", "network.nic_gbps": 400.0, "traffic.knobs": "balanced"}
    large |= {f"job.parallel.{name}": degree for name, degree in (("tp", 1), ("ep", 8), ("pp", 16), ("dp", 16))}
    one = scenario("deepseek-v3", "fat-tree", large)
    assert carried(one).groups == 1  # 2,048 GPUs: radix 32


def test_circuits_that_are_one_queue_spread():
    single, pooled = ({"network.paths": "ecmp", "network.ecmp.circuits": how} for how in ("single", "pooled"))
    for paths, spreads in ((pooled, True), (single, False), ({"network.paths": "spray"}, True)):
        one = scenario("llama-moe", "mfabric", paths)
        assert (carried(one) is None) == spreads


def test_one_copy_a_server_is_a_flow_from_each_rank():
    # To the rank at its own place: llama-moe has 8 ranks a server, mixtral-8x7b 2 of 4 GPUs.
    for model, dispatch, flows in (
        ("llama-moe", "per-expert", 64),
        ("llama-moe", "per-server", 8),
        ("mixtral-8x7b", "per-expert", 16),
        ("mixtral-8x7b", "per-server", 8),
    ):
        one = scenario(model, "mfabric", ECMP | {"job.dispatch": dispatch})
        assert carried(one) is single_part_times(flows, 2, seed=0)  # drawn once for as many


def test_rings_over_the_stage():
    rings = SINGLE | {"network.topoopt.wiring": "rings"}
    one = scenario("mixtral-8x7b", "topoopt", rings)  # 32 servers a stage, 8 groups of 4
    count = one.group.mesh.count
    np.testing.assert_array_equal(np.flatnonzero(count[0]), [1, 3, 5, 27, 29, 31])
    assert (count.max(), one.group.groups, one.group.ring_nics) == (1, 8, 6)
    assert carried(one).groups == 8
    inside = {f"job.parallel.{name}": degree for name, degree in (("tp", 1), ("ep", 4), ("dp", 8), ("pp", 1))}
    alone = scenario("llama-moe", "topoopt", rings | inside)
    assert carried(alone).time(alone.group, np.ones((4, 4))) == 0  # a group inside a server


def test_rings_and_matchings_share_the_nics_by_bytes():
    assert [rings_of(6, *sent) for sent in ((1, 99), (1, 2), (34, 66), (2, 1), (99, 1), (0, 1), (0, 0))] == [
        1, 1, 2, 2, 3, 1, 1,
    ]  # fmt: off
    one = scenario("mixtral-8x7b", "topoopt", SINGLE | {"network.topoopt.wiring": "totient-perms"})
    job, demand = one.workload, np.asarray(one.mean_demand, float)
    # By hand: 4 all-to-alls of 8 blocks a stage, 2 micro-batches; what the four servers send each other.
    away = (demand.sum() - np.trace(demand)) / 4
    np.testing.assert_allclose(all_to_all_sent(job, demand), away * 4 * 8 * 2, rtol=1e-12)
    # Gradients of a stage around 32 servers, those of a server's 2 experts around 8 replicas.
    model = job.architecture
    dense, expert = 8 * (model.attention_params + model.gate_params) * 2, 8 * 2 * model.expert_params * 2
    np.testing.assert_allclose(gradient_sent(job), 2 * dense * 31 / 32 + 2 * expert * 7 / 8, rtol=1e-6)
    # Weights of 2 bytes gathered for two micro-batches, forward and backward, and gradients scattered: thrice as much.
    # Blocks computed again send their forward all-to-alls again.
    again = dataclasses.replace(job, sharding="parameters", recompute="block")
    np.testing.assert_allclose(gradient_sent(again), 3 * gradient_sent(job), rtol=1e-12)
    np.testing.assert_allclose(all_to_all_sent(again, demand), away * 6 * 8 * 2, rtol=1e-12)
    rings = rings_of(6, gradient_sent(job), all_to_all_sent(job, demand))
    count = one.group.mesh.count
    assert (count.sum(axis=1) <= 6).all()
    assert one.group.ring_nics == 2 * rings
    assert count.sum() > 32 * 2 * rings  # and matchings, inside the groups alone
    assert one.group.groups == 8


def test_released_is_these_settings():
    case = load(preset="released", changes={"model.name": "llama-moe", "network.fabric": "topoopt"})
    paths = case.network.paths
    assert (paths.name, paths.busy, paths.circuits, case.network.radix) == ("ecmp", "cluster", "pooled", 16)
    assert (case.network.topoopt.wiring, case.traffic.alike) == ("rings", "everything")
    assert (case.circuits.policy, case.circuits.turn.name) == ("greedy-released", "on-demand")
    assert resolve(case).settings.rules.eps_waits


def test_two_neighbours_on_rings_have_one_circuit():
    # llama-moe's groups are two servers: of the rings only step 1 joins them, and nothing is forwarded. A rank sends
    # half of its 8 x 4096 tokens to the other server, 8 ranks share one NIC of 100 Gbps.
    even = {"network.fabric": "topoopt", "traffic.knobs": "balanced", "traffic.drawn": 1}
    case = small(even, "llama-moe", "released")
    one, job = row(case), resolve(case).job
    seconds = 8 * job.selections / 2 * job.dispatch_bytes_per_selection / 12.5e9
    blocks = job.moe_layers / job.pp
    np.testing.assert_allclose(one["ep_comm_s"] / (4 * blocks * 2), seconds, rtol=0.01)
