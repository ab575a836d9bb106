"""Placed experts through a comparison, a function of cases, a timeline and sweeps: loads, what moves, memory."""

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax import InputError, load, resolve
from mfabric_jax.cluster.whole_cluster import solve_cluster
from mfabric_jax.failures.iterations import plans
from mfabric_jax.simulation import example_timeline, iteration_of
from mfabric_jax.simulation.scenario import traffic_of
from mfabric_jax.simulation.solving import simulate_scenario
from mfabric_jax.traffic.placement import copied_experts
from mfabric_jax.workload import fullest_stage, iteration_bytes
from mfabric_jax.workload.volume import replica_bytes
from tests.mistakes import check_refused
from tests.small import JOB, row, scenario, small

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


def test_what_moves_takes_the_time_of_its_bytes_by_hand():
    """Ranks with NICs of their own, two a server here: the fullest port decides, of NICs and of NVSwitches."""
    one, found = scenario(small(AGAIN)), row(small(AGAIN))
    job = one.workload
    copied = copied_experts(one.tokens.slots, one.settings.room(job), 2)
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


def test_failures_and_whole_clusters_do_not_place_experts():
    check_refused(f"{RULE}.every must be 0 beside failures, got 2", plans, small(AGAIN))
    check_refused("placement.rule must be contiguous beside a whole cluster", solve_cluster, small(PLACED))


def test_groups_of_a_node_limit_stay_whole():
    case = load(preset="paper").with_(
        {"model.name": "deepseek-r1", "job.per-server.node_limit": "model", "placement.rule": "hierarchical"}
    )
    resolved = resolve(case)
    assert resolved.settings.room(resolved.job).groups == 8


def test_experts_are_placed_on_the_servers_that_a_fabric_has():
    # Scale-up domains are servers of 64 GPUs: all 8 ranks of a group sit in one, and none in two as on servers of 8.
    given = {"traffic.generated.skew": 0.8, "placement.rule": "hierarchical", "network.nic_gbps": 400.0}
    tree, domain = (scenario(small(given | {"network.fabric": fabric})) for fabric in ("fat-tree", "nvl72"))
    rooms = [one.settings.room(one.workload) for one in (tree, domain)]
    assert [room.servers for room in rooms] == [4, 1]
    own = traffic_of(domain.settings, domain.workload)[0]
    np.testing.assert_array_equal(domain.tokens.count, own.count)
    assert (tree.tokens.count != domain.tokens.count).any()


def test_a_limit_to_groups_is_none_for_a_model_without_groups():
    limited = small({"job.per-server.node_limit": "model", "placement.rule": RULE[10:]})
    assert resolve(limited).settings.room(resolve(limited).job).groups == 8


SPREAD = JOB | {"job.batch.micro_batches": 2, "traffic.drawn": 2, "run.iterations": 2}
SPREAD |= {"traffic.generated.skew": 0.8, "traffic.generated.drift": 0.3}
THREE = SPREAD | {"run.replicas": 3}
PARTS = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s")


def test_an_iteration_takes_as_long_as_its_slowest_replica():
    asked = small(THREE | {"network.fabric": "mfabric", "circuits.turn": "predict"})
    one = scenario(asked)
    alone = [simulate_scenario(replica).times for replica in one.each_replica]
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
    for use, words in ((plans, "failures"), (example_timeline, "timeline"), (iteration_of, "function of numbers")):
        with pytest.raises(InputError, match=rf"{words}.*must be 1, got 2\.|must be 1 beside {words}, got 2\."):
            use(two)
    assert resolve(two).case.run.replicas == 2
