"""Experts that are placed, that compute what they received, and replicas with traffic of their own."""

import math

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax import InputError, cases, resolve, simulate
from mfabric_jax.evaluate import example_timeline, iteration_of
from mfabric_jax.evaluate.resolving.traffic import traffic_of
from mfabric_jax.evaluate.solving import solve, times_of
from mfabric_jax.timing.passes import places
from mfabric_jax.traffic.placement import expert_moves
from mfabric_jax.traffic.placement_files import ExpertPlacement, write_placement
from mfabric_jax.workload import fullest_stage, iteration_bytes
from mfabric_jax.workload.compute import block_seconds
from mfabric_jax.workload.gpus import get_gpu
from mfabric_jax.workload.volume import replica_bytes
from tests.small import JOB, row, scenario, small
from tests.timing.test_iteration import plainly, plainly_left

pytestmark = pytest.mark.usefixtures("as_users_have_it")

UNEVEN = JOB | {"traffic.generated.skew": 0.8, "traffic.generated.drift": 0.2, "network.fabric": "fat-tree"}

RULE = "placement.longest-processing-time"

PLACED = UNEVEN | {f"{RULE}.redundant_experts": 8}

AGAIN = PLACED | {f"{RULE}.every": 2, "run.iterations": 3}


def test_copies_balance_ranks_and_nothing_moves_when_placed_once():
    before, after = row(small(UNEVEN)), row(small(PLACED))
    assert (before["placement"], after["placement"]) == ("contiguous", "longest-processing-time")
    assert before["rank_load_over_mean"] > 1.3 > 1.2 > after["rank_load_over_mean"]
    assert before["placement_s"] == after["placement_s"] == 0
    assert after["ep_comm_s"] < before["ep_comm_s"]
    assert after["memory_gb"] > before["memory_gb"]


def test_a_given_placement_is_that_of_the_rule_which_made_it(tmp_path):
    made = scenario(small(PLACED | {f"{RULE}.loads": 0}))
    path = write_placement(ExpertPlacement(made.tokens.slots[0]), tmp_path / "placement.json")
    given = scenario(small(UNEVEN | {"placement.file": str(path)}))
    assert given.workload == made.workload
    np.testing.assert_array_equal(given.tokens.slots, made.tokens.slots)
    np.testing.assert_array_equal(given.tokens.count, made.tokens.count)
    write_placement(
        ExpertPlacement(made.tokens.slots[0, :1]), path
    )  # one layer stands for all, and the file is read again
    alike = scenario(small(UNEVEN | {"placement.file": str(path)})).tokens.slots
    np.testing.assert_array_equal(alike, np.broadcast_to(made.tokens.slots[:1, :1], alike.shape))


def test_what_moves_takes_the_time_of_its_bytes_by_hand():
    """Ranks with NICs of their own, two a server here: the fullest port decides, of NICs and of NVSwitches."""
    one, found = scenario(small(AGAIN)), row(small(AGAIN))
    job = one.workload
    copied = expert_moves(one.tokens.slots, one.resolved.layout(job), 2)
    size = 3 * job.architecture.hidden * job.architecture.expert_hidden * (2 + 12 / job.dp)
    server = np.arange(job.ep) // job.ranks_per_server
    away = server[:, None] != server
    seconds = []
    for one in copied:
        stages = [sum(one[layer % len(one)] for layer in job.stage_layers(stage)) * size for stage in range(job.pp)]
        ports = [(moves * part).sum(axis=side) for moves in stages for part in (away, ~away) for side in (0, 1)]
        nic, inside = max(x.max() for x in ports[0::4] + ports[1::4]), max(x.max() for x in ports[2::4] + ports[3::4])
        seconds.append(max(nic / (12.5e9 * 8 / job.ranks_per_server), inside / (900e9 * job.tp)))
    assert found["placement_s"] > 0
    np.testing.assert_allclose(found["placement_s"], np.mean(seconds), rtol=1e-9)
    parts = found["compute_s"] + found["exposed_comm_s"] + found["reconfig_s"] + found["bubble_s"]
    np.testing.assert_allclose(parts, found["iteration_s"], rtol=1e-9)
    communication = found["tp_comm_s"] + found["ep_comm_s"] + found["dp_comm_s"] + found["placement_s"]
    np.testing.assert_allclose(communication, found["exposed_comm_s"], rtol=1e-9)


def test_what_moves_has_the_links_of_its_own_case_beside_others():
    own = AGAIN | {"network.fabric": "mfabric"}
    degrees = (2, 6)
    asked = cases(small(own), {"network.mfabric.optical_degree": degrees})
    together = [each["placement_s"] for each in simulate(asked).rows()]
    alone = [row(small(own | {"network.mfabric.optical_degree": degree}))["placement_s"] for degree in degrees]
    assert alone[0] != alone[1]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_a_case_and_a_timeline_are_the_row():
    asked = small(AGAIN)
    function, numbers = iteration_of(asked)
    work = eqx.filter_jit(function)
    found = [work(numbers | {"run.sample": sample}) for sample in range(3)]
    for name in ("iteration_s", "placement_s", "exposed_comm_s"):
        np.testing.assert_allclose(np.mean([one[name] for one in found]), row(asked)[name], rtol=1e-9)
    segments, stages = example_timeline(asked)
    for stage in stages:
        np.testing.assert_allclose(stage["iteration_s"], found[2]["iteration_s"], rtol=1e-9)
        np.testing.assert_allclose(stage["placement_s"], found[2]["placement_s"], rtol=1e-9)
    last = [one for one in segments if one["kind"] == "placement"]
    assert len(last) == len(stages)
    np.testing.assert_allclose(last[0]["end_s"], found[2]["iteration_s"], rtol=1e-9)


def test_memory_and_gradients_of_copies_by_hand():
    plain, more = (resolve(small(some)).job for some in (UNEVEN, PLACED))
    assert (plain.experts_per_rank, more.experts_per_rank) == (2, 4)
    stage, before = fullest_stage(plain)
    after = fullest_stage(more)[1]
    expert = 2 * len(plain.stage_layers(stage)) * plain.architecture.expert_params / plain.tp
    assert after.weights - before.weights == pytest.approx(2 * expert)
    assert after.gradients - before.gradients == pytest.approx(2 * expert)
    assert after.optimizer - before.optimizer == pytest.approx(12 * expert / plain.dp)
    # two copies of each of 8 experts: every one of 4 ranks reduces four experts with 2 dp members
    for job, members in ((plain, plain.dp), (more, 2 * plain.dp)):
        held = sum(replica_bytes(job, stage).expert for stage in range(job.pp))
        dense = sum(replica_bytes(job, stage).dense for stage in range(job.pp))
        replicas = job.dp * job.ep
        rings = 2 * dense * (1 - 1 / replicas) + 2 * held * (1 - 1 / members)
        assert iteration_bytes(job)["DP"] == pytest.approx(replicas * rings, rel=1e-12)


def test_experts_are_placed_on_the_servers_that_a_fabric_has():
    # Scale-up domains are servers of 64 GPUs: all 8 ranks of a group sit in one, and none in two as on servers of 8.
    given = {"traffic.generated.skew": 0.8, "placement.rule": "hierarchical", "network.nic_gbps": 400.0}
    tree, domain = (scenario(small(given | {"network.fabric": fabric})) for fabric in ("fat-tree", "nvl72"))
    rooms = [one.resolved.layout(one.workload) for one in (tree, domain)]
    assert [layout.servers for layout in rooms] == [4, 1]
    own = traffic_of(domain.resolved.case, domain.workload, past=domain.resolved.past)[0]
    np.testing.assert_array_equal(domain.tokens.count, own.count)
    assert (tree.tokens.count != domain.tokens.count).any()


def test_a_limit_to_groups_is_none_for_a_model_without_groups():
    limited = small({"job.per-server.node_limit": "model", "placement.rule": RULE[10:]})
    assert resolve(limited).layout(resolve(limited).job).groups == 8


SPREAD = JOB | {"job.batch.micro_batches": 2, "traffic.drawn": 2, "run.iterations": 2}
SPREAD |= {"traffic.generated.skew": 0.8, "traffic.generated.drift": 0.3}
THREE = SPREAD | {"run.replicas": 3}
PARTS = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s")


def test_an_iteration_takes_as_long_as_its_slowest_replica():
    asked = small(THREE | {"network.fabric": "mfabric", "circuits.reconfigure": "predict"})
    one = scenario(asked)
    alone = [times_of(replica, solve(replica)) for replica in one.each_replica]
    seconds = np.array([times.iteration_s for times in alone])[..., 0]  # [replica iteration]
    assert seconds.shape == (3, 2)
    assert len(set(seconds[:, 0])) == 3
    got = row(asked)
    np.testing.assert_allclose(got["iteration_s"], seconds.max(axis=0).mean(), rtol=1e-9)
    np.testing.assert_allclose(got["slowest_over_mean"], seconds.max(axis=0).mean() / seconds.mean(), rtol=1e-9)
    assert got["slowest_over_mean"] > 1
    assert (got["replicas"], got["iterations"]) == (3, 2)
    np.testing.assert_allclose(sum(got[name] for name in PARTS), got["iteration_s"], rtol=1e-9)
    last = seconds.argmax(axis=0)
    exchange = np.mean([np.asarray(alone[which].ep_comm_s)[at, 0] for at, which in enumerate(last)])
    np.testing.assert_allclose(got["ep_comm_s"], exchange, rtol=1e-9)


def test_the_first_replica_is_the_one_that_stands_for_all():
    measured = {"traffic.shares.drift": 0.3}
    for given in ({}, measured, {"circuits.span.length": "iteration"}):
        one, three = (scenario(small(SPREAD).with_(given | {"run.replicas": count})) for count in (1, 3))
        (alone,), every = one.every_replica, three.every_replica
        np.testing.assert_array_equal(every[0].count, alone.count)
        assert len(every) == 3
        for other in every[1:]:
            assert other.count.shape == alone.count.shape
            assert np.any(other.count != alone.count)
            assert (other.before is None) == (alone.before is None)
    whole = scenario(small(SPREAD | {"run.replicas": "all"}))
    assert len(whole.every_replica) == whole.workload.dp


def test_replicas_read_records_in_turn(tmp_path):
    count = np.random.default_rng(0).integers(1, 9, (6, 1, 1, 4, 8))
    np.save(tmp_path / "run.npy", count)
    traced = {path: value for path, value in JOB.items() if path != "traffic.drawn"}
    traced |= {"traffic.trace.path": str(tmp_path / "run.npy"), "run.iterations": 2, "run.replicas": 3}
    every = scenario(small(traced)).every_replica
    for replica, tokens in enumerate(every):
        for iteration in range(2):
            want = count[3 * iteration + replica, 0, 0].astype(float)
            share = tokens.count[iteration, 0, 0] / tokens.count[iteration, 0, 0].sum(-1, keepdims=True)
            np.testing.assert_allclose(share, want / want.sum(-1, keepdims=True), rtol=1e-12)


def test_only_rows_are_of_several_replicas():
    two = small({"run.replicas": 2})
    for use, words in ((example_timeline, "timeline"), (iteration_of, "function of numbers")):
        with pytest.raises(InputError, match=rf"{words}.*must be 1, got 2\.|must be 1 for a {words}, got 2\."):
            use(two)
    assert resolve(two).case.run.replicas == 2


HOT = JOB | {"traffic.generated.skew": 0.8, "network.fabric": "fat-tree"}

TILE = 64

RECEIVED = {"compute.received.tile": TILE}


def test_compute_is_that_of_the_busiest_ranks_by_hand():
    even, received = small(HOT), small(HOT | RECEIVED)
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
    how = HOT | {"network.nic_gbps": 400.0, "network.nic_use": "pooled", "compute.received.tile": 1}
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
    step_s = updated * (2 + 12 + 12 + 2) / gpu.memory_Bps
    assert job.pp == 1
    np.testing.assert_allclose(after["compute_s"] - before["compute_s"], passes * head_s + step_s, rtol=1e-6)
    assert after["memory_gb"] == before["memory_gb"]


def test_a_gpu_whose_memory_is_not_known_takes_no_step(tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text("bf16_tflops = 100\nnvlink_gigabytes_per_s = 300\n")
    without, asked = (row(small(ONE | {"gpu.name": str(own), "job.optimizer_step": on})) for on in (False, True))
    assert asked["compute_s"] == without["compute_s"]


REGION = JOB | {"circuits.policy": "uniform", "traffic.generated.skew": 0.5}
ALWAYS = {"circuits.reconfigure": "always"}


def test_circuits_that_stay_are_waited_for_in_every_block_and_pass():
    slow = {"circuits.delay_s": 10.0}
    case = small(REGION | ALWAYS | slow)
    one = scenario(case)
    solved, moe = solve(one), places(one.workload).layer >= 0
    np.testing.assert_array_equal(solved.switch[0, ..., 0], moe)
    assert not solved.switch[..., 1].any()
    assert not np.asarray(solved.new_circuits).any()
    paid, free = row(case), row(small(REGION | slow))
    # A delay that nothing hides but a block's own computation: each of 32 blocks waits, forward and backward.
    assert free["reconfig_s"] == 0
    assert 64 * 9.9 < paid["reconfig_s"] < 64 * 10
    assert paid["circuit_changes"] == free["circuit_changes"] == 0
    assert paid["reconfigurations"] == 64
    np.testing.assert_allclose(paid["ep_comm_s"], free["ep_comm_s"], rtol=1e-12)


def test_packet_fabrics_do_not_wait():
    tree = small(JOB | ALWAYS | {"network.fabric": "fat-tree"})
    assert row(tree)["reconfig_s"] == 0
