"""Experts that compute what they received, through a comparison, a function of cases and failures."""

import math

import numpy as np
import pytest

from mfabric_jax import resolve
from mfabric_jax.simulation.solving import solve
from mfabric_jax.timing.passes import places
from mfabric_jax.workload.compute import block_seconds
from mfabric_jax.workload.gpus import get_gpu
from tests.small import JOB, row, scenario, small
from tests.timing.test_iteration import plainly, plainly_left

pytestmark = pytest.mark.usefixtures("as_users_have_it")

UNEVEN = JOB | {"traffic.generated.skew": 0.8, "network.fabric": "fat-tree"}

TILE = 64

RECEIVED = {"compute.received.tile": TILE}


def test_compute_is_that_of_the_busiest_ranks_by_hand():
    even, received = small(UNEVEN), small(UNEVEN | RECEIVED)
    job = resolve(even).job
    (iteration,) = scenario(even).tokens.count
    loads = [plainly(layer[0].tolist(), job.ep, job.selections, TILE) for layer in iteration]
    assert min(loads) > 1.2
    seconds = block_seconds(job, get_gpu("A100-80GB-SXM"))
    more = sum(3 * (load - 1) * seconds.expert_s for load in loads)
    before, after = row(even), row(received)
    assert (before["expert_load"], after["expert_load"]) == ("balanced", "received")
    np.testing.assert_allclose(after["compute_s"] - before["compute_s"], more, rtol=1e-9)
    np.testing.assert_allclose(after["iteration_s"] - before["iteration_s"], more, rtol=1e-9)
    assert after["ep_comm_s"] == before["ep_comm_s"]


def test_ranks_that_send_when_they_are_done_by_hand():
    how = UNEVEN | {"network.nic_gbps": 400.0, "network.nic_use": "pooled", "compute.received.tile": 1}
    waits, sends = (small(how | {"compute.received.combine": start}) for start in ("barrier", "rank"))
    one = scenario(waits)
    job = one.workload
    load = np.asarray(solve(one).electrical, np.float64)[0]  # [P Q L 2], every block once forward and once backward
    assert load.shape[1] == 2
    (iteration,) = one.tokens.count
    seconds, rates = one.seconds, one.rates(400.0)
    saved = 0.0
    for layer, ((tokens,), bytes_) in enumerate(zip(iteration, load[0, 0, :, 0], strict=True)):
        received = tokens.reshape(job.ep, job.ep, -1).sum(axis=-1)
        loads = (received.sum(axis=0) / job.selections).tolist()
        server = np.arange(job.ep) // job.ranks_per_server
        ahead, left = plainly_left((received * (server[:, None] != server)).tolist(), loads, job.ranks_per_server)
        assert load[0, 1, -1 - layer, 1] == bytes_
        whole = bytes_ / float(rates.nic_Bps)
        for factor in (1, 2):
            ends = [part * whole - factor * seconds.expert_s * more for more, part in zip(ahead, left, strict=True)]
            saved += whole - max(ends)
    before, after = row(waits), row(sends)
    assert saved > 0.01 * before["ep_comm_s"]
    np.testing.assert_allclose(before["ep_comm_s"] - after["ep_comm_s"], saved, rtol=1e-6)
    np.testing.assert_allclose(before["iteration_s"] - after["iteration_s"], saved, rtol=1e-6)


TREE = {"network.fabric": "fat-tree"}
EVEN = JOB | TREE | {"traffic.knobs": "balanced"}
ONCE = {"job.dispatch": "per-server"}
REACHED = 1 - math.comb(4, 2) / math.comb(8, 2)  # of a token with 2 of 8 experts on 2 servers, each of these
COPIES = 2 * REACHED / 2  # over selections


def test_a_copy_a_server_makes_all_to_alls_shorter_by_hand():
    plain, once = (row(small(EVEN | how)) for how in ({}, ONCE))
    assert (plain["dispatch"], once["dispatch"]) == ("per-expert", "per-server")
    np.testing.assert_allclose(once["ep_comm_s"] / plain["ep_comm_s"], COPIES, rtol=1e-9)
    limited = row(small(EVEN | {"job.per-server.node_limit": 1}))
    np.testing.assert_allclose(limited["ep_comm_s"] / plain["ep_comm_s"], 1 / 2, rtol=1e-9)
    on_circuits = row(small(EVEN | ONCE | {"network.fabric": "mfabric"}))
    for one in (once, limited, on_circuits):
        np.testing.assert_allclose(one["ep_over_balanced"], 1, rtol=1e-6)
        assert one["dropped_share"] == 0


def test_what_is_dropped_is_said_and_not_sent():
    given = JOB | TREE | {"traffic.generated.skew": 0.8}
    whole, cut = row(small(given)), row(small(given | {"job.capacity_factor": 1.0}))
    assert 0 < cut["dropped_share"] < 0.5
    assert cut["ep_comm_s"] < whole["ep_comm_s"]
    np.testing.assert_allclose(cut["rank_load_over_mean"], 1 / (1 - cut["dropped_share"]), rtol=0.2)
    assert whole["rank_load_over_mean"] > 1.3


ONE = JOB | {"network.fabric": "fat-tree"}
COUNTED = {"job.head": True, "job.optimizer_step": True}


def test_the_head_and_the_optimizer_are_computed():
    plain, counted = small(ONE), small(ONE | COUNTED)
    job, gpu = resolve(plain).job, get_gpu()
    head_s = job.tokens * 2 * job.architecture.head_params / (job.tp * gpu.bf16_flops * 0.5)
    passes = 3 * job.micro_batches
    before, after = row(plain), row(counted)
    # One stage: all of the model, of which a GPU updates its share.
    model, replicas = job.architecture, job.dp * job.ep
    experts = len(model.moe_blocks) * job.experts_per_rank * model.expert_params
    dense = model.params() - experts * job.ep
    updated = dense / job.tp / replicas + experts / job.tp / job.dp
    step_s = updated * (job.grad_bytes + 12 + 12 + 2) / gpu.memory_Bps
    assert job.pp == 1
    np.testing.assert_allclose(after["compute_s"] - before["compute_s"], passes * head_s + step_s, rtol=1e-6)
    assert after["memory_gb"] == before["memory_gb"]


def test_a_gpu_whose_memory_is_not_known_takes_no_step(tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text("bf16_tflops = 100\nnvlink_gigabytes_per_s = 300\n")
    without, asked = (row(small(ONE | {"gpu.name": str(own), "job.optimizer_step": on})) for on in (False, True))
    assert asked["compute_s"] == without["compute_s"]


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
