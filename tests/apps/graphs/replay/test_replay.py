"""Small graphs replayed by hand: shared NICs, rings, latency, circuits that turn, own graphs; what holds the end."""

import json

import equinox as eqx
import jax
import numpy as np
import pytest

from mfabric_jax.apps.graphs.replay import Replay, replay
from mfabric_jax.apps.graphs.replay.reconfigurations import Phases, exchange_order, with_reconfigurations
from mfabric_jax.apps.graphs.replay.replayed import (
    at_a_tie,
    gain_rows,
    gains,
    link_use_rows,
    path_of,
    path_rows,
    rank_rows,
    replay_row,
    savings_rows,
    spans,
    time_spent,
)
from mfabric_jax.apps.graphs.tasks import read_tasks
from mfabric_jax.apps.graphs.tasks.critical import union_s
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.case import Case, cases
from mfabric_jax.evaluate.exchanges import exchanges_between
from mfabric_jax.fabric import Region
from mfabric_jax.flows.dependencies import run_order
from mfabric_jax.flows.flows import flows_of
from mfabric_jax.policies import greedy
from mfabric_jax.routing.shortest import Routes
from mfabric_jax.routing.transfers import Routed
from tests.mistakes import check_refused
from tests.timing.jobs import job

NEAR = {"rel": 1e-9, "abs": 0}

WORKLOAD = job(ep=8, experts=8, micro_batches=1)  # one stage, two blocks on 4 servers of two ranks
NIC = 50e9  # bytes/s of 400 Gbps

ALONE = {  # every rank on a server of its own, whose NVLink is 900 GB/s
    **{"network.fabric": "fat-tree", "gpu.gpus_per_server": 1, "gpu.nvlink_gigabytes_per_s": 900},
    "network.link_delay_s": 0.0,
}


def two_sends():
    """Rank 0 computes 1 ms, sends 50 MB to rank 1 and 25 MB to rank 2; rank 1 computes 2 ms when it has all."""
    tasks = Tasks(3)
    first = tasks.add(TaskKind.COMPUTE, 0, "first", seconds=1e-3)
    tasks.add(TaskKind.SEND, 0, "long", after=first, bytes=50e6, peer=1, match=0)
    tasks.add(TaskKind.SEND, 0, "short", after=first, bytes=25e6, peer=2, match=1)
    there = tasks.add(TaskKind.RECV, 1, "there", peer=0, match=0)
    tasks.add(TaskKind.COMPUTE, 1, "last", after=there, seconds=2e-3)
    return tasks.graph()


def one(graph, changes=None, **settings):
    """The replay of a graph on a case with these changes."""
    (done,) = replay(graph, case(changes), Replay(**settings))
    return done


def case(changes=None):
    return Case().with_(ALONE | (changes or {}))


def test_two_messages_share_a_nic():
    # Both at half of 50 GB/s until the short one ends after 1 ms; then 25 MB at 50 GB/s take 0.5 ms.
    done = one(two_sends())
    assert done.makespan_s == pytest.approx(4.5e-3, **NEAR)
    np.testing.assert_allclose(done.finish[:5], [1e-3, 2.5e-3, 2e-3, 2.5e-3, 4.5e-3], rtol=1e-9)
    parts = time_spent(done)
    np.testing.assert_allclose(parts.compute_s, [1e-3, 2e-3, 0], rtol=1e-9)
    np.testing.assert_allclose(parts.exposed_comm_s, [1.5e-3, 1.5e-3, 1e-3], rtol=1e-9)
    np.testing.assert_allclose(parts.idle_s, [2e-3, 1e-3, 3.5e-3], rtol=1e-9)
    steps = [(row["name"], row["held_by"]) for row in path_rows(done)]
    assert steps == [("first", "computation"), ("long", "gpu 0 -> edge 0"), ("last", "computation")]
    links = {row["from"] + " " + row["to"]: row for row in link_use_rows(done)}
    assert links["gpu 0 edge 0"]["bytes"] == 75e6
    assert links["gpu 0 edge 0"]["utilisation"] == pytest.approx(75e6 / NIC / 4.5e-3, **NEAR)
    assert [row["received_bytes"] for row in rank_rows(done)] == [0, 50e6, 25e6]
    assert replay_row(done).items() >= {"fabric": "fat-tree", "ranks": 3, "tasks": 5, "bytes": 75e6}.items()


def test_what_holds_the_makespan_adds_up_to_it():
    # The NIC of rank 0 moves 75 MB, all of which the last computation waits for; 3 ms are computation.
    done = one(two_sends(), alpha_s=1e-5)
    held = {row["what"]: row["holds_s"] for row in gain_rows(done, gains(done))}
    assert held == pytest.approx({"nic up": 1.5e-3, "computation": 3e-3, "latency": 1e-5}, rel=1e-9)
    assert sum(held.values()) == pytest.approx(done.makespan_s, **NEAR)


def test_scaled_computation_and_latency():
    assert one(two_sends(), compute_scale=2.0).makespan_s == pytest.approx(7.5e-3, **NEAR)
    # Over a tree of one edge switch: two links. Both messages begin 2 us later.
    assert one(two_sends(), {"network.link_delay_s": 1e-6}, alpha_s=1e-5).makespan_s == pytest.approx(4.512e-3, **NEAR)


def ring(ranks=4):
    """An all-reduce of 100 MB."""
    tasks = Tasks(ranks, groups=(tuple(range(ranks)),))
    for rank in range(ranks):
        tasks.add(TaskKind.COLLECTIVE, rank, "sum", op=Op.ALL_REDUCE, group=0, match=0, bytes=100e6)
    return tasks.graph()


def test_a_ring_takes_two_rounds_of_its_parts():
    assert one(ring()).makespan_s == pytest.approx(1.5 * 100e6 / NIC, **NEAR)
    inside = one(ring(), {"gpu.gpus_per_server": 8}, servers=1)
    assert inside.makespan_s == pytest.approx(1.5 * 100e6 / 900e9, **NEAR)
    assert {row["kind"] for row in link_use_rows(inside)} == {"nvswitch up", "nvswitch down"}


def pairs_then_others():
    """Ranks 0 and 1, 2 and 3 exchange 50 MB each way, then 0 and 2, 1 and 3; 1 ms of computation around each."""
    groups = ((0, 1), (2, 3), (0, 2), (1, 3))
    tasks = Tasks(4, groups)
    before = [tasks.add(TaskKind.COMPUTE, rank, seconds=1e-3) for rank in range(4)]
    for group, members in enumerate(groups):
        for rank in members:
            exchange = {"op": Op.ALL_TO_ALL, "group": group, "match": group, "bytes": 100e6, "after": before[rank]}
            sent = tasks.add(TaskKind.COLLECTIVE, rank, f"exchange {group}", **exchange)
            before[rank] = tasks.add(TaskKind.COMPUTE, rank, after=sent, seconds=1e-3)
    return tasks.graph()


def as_messages(graph):
    """The same all-to-alls as messages, and a barrier of the group behind them."""
    tasks, here = Tasks(graph.ranks, graph.groups), {}
    for task in range(graph.tasks):
        rank, waits = int(graph.rank[task]), [here[int(one)] for one, then in graph.after if then == task]
        if graph.kind[task] == TaskKind.COMPUTE:
            here[task] = tasks.add(TaskKind.COMPUTE, rank, after=waits, seconds=graph.seconds[task])
            continue
        group = int(graph.group[task])
        (peer,) = {*graph.groups[group]} - {rank}
        of_pair = {(rank, peer): 10 * rank + peer, (peer, rank): 10 * peer + rank}
        sent = tasks.add(TaskKind.SEND, rank, after=waits, peer=peer, bytes=50e6, match=of_pair[rank, peer])
        got = tasks.add(TaskKind.RECV, rank, peer=peer, match=of_pair[peer, rank])
        barrier = {"op": Op.BARRIER, "group": group, "match": 100 + group}
        here[task] = tasks.add(TaskKind.COLLECTIVE, rank, after=[sent, got], **barrier)
    return tasks.graph()


OPTICAL = {"network.fabric": "mfabric", "network.nics": 2, "network.mfabric.optical_degree": 1}


@pytest.mark.parametrize(
    ("first", "delay_s", "end_s", "switch_s"),
    [
        ("block", 0.0, 5e-3, 0),
        ("block", 3e-3, 11e-3, 6e-3),  # both wait for the switch
        ("ahead", 3e-3, 9e-3, 6e-3),  # from 0 to 3, and from 4, where the first exchange is through, to 7
        ("ahead", 0.5e-3, 5e-3, 0),  # behind computation
    ],
)
def test_circuits_turn_between_all_to_alls(first, delay_s, end_s, switch_s):
    optical, turning = OPTICAL | {"circuits.delay_s": delay_s}, {"circuits_for": "all-to-all", "first": first}
    assert one(as_messages(pairs_then_others()), optical, **turning).makespan_s == pytest.approx(end_s, **NEAR)
    done = one(pairs_then_others(), optical, **turning)
    assert done.makespan_s == pytest.approx(end_s, **NEAR)
    circuits = [row for row in link_use_rows(done) if row["kind"] == "circuit"]
    assert [row["bytes"] for row in circuits] == [50e6] * 8
    held = {row["what"]: row["holds_s"] for row in gain_rows(done, gains(done))}
    assert sum(held.values()) == pytest.approx(end_s, **NEAR)
    assert held.get("reconfiguration", 0) == pytest.approx(switch_s, abs=1e-12)
    assert ("reconfiguration" in [row["held_by"] for row in path_rows(done)]) == (switch_s > 0)


@pytest.mark.parametrize("seed", range(6))
def test_the_reconfigurations_when_the_closed_form_of_an_iteration_says(seed):
    # All-to-alls of 1 s, one after the other, on the circuits that an iteration finds; the switch takes 10 s.
    tokens = 1e6 * np.random.default_rng(seed).lognormal(0, 2, (2, 1, 8, 8))
    closed = exchanges_between(WORKLOAD, Region(4, 8.0, 6, 1.0), tokens, greedy)
    circuits, turns = np.asarray(closed.count).reshape(-1, 4, 4), np.asarray(closed.switch).ravel()
    count = len(circuits)
    chain = np.stack([np.arange(count - 1), np.arange(1, count)], axis=1)
    flows = flows_of(np.zeros(count, int), np.full(count, -1), np.ones(count), after=chain)
    phases = Phases(np.arange(count), np.ones((count, 4, 4)))
    turned = with_reconfigurations(flows, phases, circuits, np.ones(count, bool), 10.0, ahead=False)
    routed = Routed(turned, Routes(np.full((turned.flows, 1), -1), np.zeros((turned.flows, 1))))
    finish = np.asarray(routed.completion(routed.problem(np.ones(1), float)).finish)
    np.testing.assert_allclose(np.diff(finish[:count], prepend=0), 1 + 10 * turns)
    assert 0 < turns.sum() < count


def test_circuits_of_the_whole_run_serve_some_and_packet_switches_the_others():
    done = one(pairs_then_others(), OPTICAL)
    assert done.makespan_s == pytest.approx(5e-3, **NEAR)
    assert [row["bytes"] for row in link_use_rows(done) if row["kind"] == "circuit"] == [50e6] * 4


def test_turns_are_taken_in_an_order_in_which_everything_can_run():
    # Flows 0 and 1 are of exchange 0, 2 and 3 of exchange 1, flow 4 is of none and takes long; 4 before 0, 1 before 2.
    of, seconds = np.array([0, 0, 1, 1, -1]), np.array([1, 1, 1, 1, 9.0])
    assert exchange_order(of, waiting([[4, 0], [1, 2]]), seconds).tolist() == [0, 1]
    assert exchange_order(of, waiting([[4, 0]]), seconds).tolist() == [1, 0]  # the earlier first
    assert exchange_order(of, waiting([[4, 0]], start=[0, 0, 0, 10, 0]), seconds).tolist() == [0, 1]
    assert exchange_order(of, waiting([[4, 0]], lag=[0, 0, 0, 10, 0]), seconds).tolist() == [0, 1]
    check_refused("some wait for parts of each other", exchange_order, of, waiting([[0, 2], [3, 1]]), seconds)


def waiting(after, start=(0,) * 5, lag=(0,) * 5):
    """Five flows, of which these wait for these."""
    start, lag, nobody = np.array(start, float), np.array(lag, float), np.full(5, -1)
    return flows_of(nobody, nobody, np.zeros(5), start=start, lag=lag, after=np.array(after))


def all_to_all(ranks, size):
    tasks = Tasks(ranks, groups=(tuple(range(ranks)),))
    for rank in range(ranks):
        tasks.add(TaskKind.COLLECTIVE, rank, "all", op=Op.ALL_TO_ALL, group=0, match=0, bytes=size)
    return tasks.graph()


def test_circuits_of_an_all_to_all_stay_inside_regions():
    # 4 servers of 2 ranks in regions of 2: of 100 MB that a rank sends each other one, 400 MB a server cross regions.
    changes = OPTICAL | {"gpu.gpus_per_server": 2, "circuits.delay_s": 0.0}
    changes |= {"network.nics": 3, "network.mfabric.optical_degree": 2}
    for which in ("run", "all-to-all"):
        done = one(all_to_all(8, 800e6), changes, region_servers=2, circuits_for=which)
        joined = {(row["from"], row["to"]) for row in link_use_rows(done) if row["kind"] == "circuit"}
        assert joined == {(f"optics {a}", f"optics {b}") for a, b in ((0, 1), (1, 0), (2, 3), (3, 2))}
        assert done.makespan_s == pytest.approx(2 * 2 * 2 * 100e6 / NIC, **NEAR)


@pytest.mark.parametrize(("gpus", "nics"), [(8, (6, 2)), (4, (3, 1)), (2, (1, 1))])
def test_a_server_of_mfabric_has_as_many_nics_as_on_a_tree(gpus, nics):
    cluster = one(
        all_to_all(2 * gpus, 1e6), {"network.fabric": "mfabric", "gpu.gpus_per_server": gpus}
    ).prepared.cluster
    assert (cluster.regions.sum(axis=-1).max(), cluster.nics) == nics


def test_pooled_nics_serve_any_gpu():
    # One rank of two sends 100 MB to another server: by its own NIC, or by both; pooled on mfabric's two, too.
    tasks = Tasks(4)
    tasks.add(TaskKind.SEND, 0, bytes=100e6, peer=2, match=0)
    tasks.add(TaskKind.RECV, 2, peer=0, match=0)
    changes = {"gpu.gpus_per_server": 2, "network.rail-optimized.pxn": False}
    fabrics = {"network.fabric": ["fat-tree", "rail-optimized", "rail-only"]}
    for nic_use, took_s in (("own", [2e-3] * 3), ("pooled", [1e-3, 1e-3, 2e-3])):
        found = replay(tasks.graph(), cases(case(changes | {"network.nic_use": nic_use}), fabrics))
        assert [done.makespan_s for done in found] == pytest.approx(took_s, **NEAR)


def test_many_capacities_at_once():
    prepared = one(two_sends()).prepared
    problem = prepared.problem(every_link=True)
    factors = np.array([0.5, 1.0, 4.0])

    def end(factor):
        return prepared.completion(eqx.tree_at(lambda p: p.capacity, problem, problem.capacity * factor)).finish.max()

    np.testing.assert_allclose(jax.vmap(end)(factors), 3e-3 + 1.5e-3 / factors, rtol=1e-9)


def test_a_user_s_graph(tmp_path):
    # A message of 75 MB in all at 1 GB/s, over two links of 1 ms.
    file = tmp_path / "star.json"
    hosts = [f"h{rank}" for rank in range(3)]
    nodes = [{"id": name, "kind": "host"} for name in hosts] + [{"id": "switch"}]
    edges = [{"source": name, "target": "switch", "capacity_gbps": 8, "latency_s": 1e-3} for name in hosts]
    file.write_text(json.dumps({"directed": False, "nodes": nodes, "edges": edges}))
    (done,) = replay(two_sends(), config=Replay(graph=str(file)))
    assert done.makespan_s == pytest.approx(1e-3 + 2e-3 + 75e-3 + 2e-3, **NEAR)
    (weighted,) = replay(two_sends(), Case().with_({"network.paths": "weighted"}), Replay(graph=str(file)))
    assert weighted.makespan_s == done.makespan_s
    assert replay_row(done).items() >= {"fabric": "graph", "nic_gbps": None, "gpus": None}.items()
    check_refused("servers must hold 4 GPUs", list, replay(ring(), config=Replay(graph=str(file))))
    edges[1]["capacity_gbps"] = 0
    file.write_text(json.dumps({"directed": False, "nodes": nodes, "edges": edges}))
    check_refused("no path", list, replay(two_sends(), config=Replay(graph=str(file))))


def test_ranks_are_where_they_are_asked_for(tmp_path):
    def gpus(seed=0, **settings):
        return one(ring(), {"gpu.gpus_per_server": 2, "run.seed": seed}, **settings).prepared.gpu.tolist()

    assert gpus() == [0, 1, 2, 3]
    assert gpus(first_gpu=3) == [3, 4, 5, 6]
    assert gpus(ranks_on="round-robin", servers=3) == [0, 2, 4, 1]
    assert sorted(gpus(ranks_on="random", seed=3)) == [0, 1, 2, 3]
    file = tmp_path / "gpus.json"
    file.write_text('{"gpus": [3, 1, 0, 2]}')
    assert gpus(ranks_on=str(file)) == [3, 1, 0, 2]
    file.write_text('{"gpus": [3, 1, 1, 2]}')
    check_refused("must be 4 different GPUs", gpus, ranks_on=str(file))


def test_spans_tell_everything_once_and_the_path():
    found = spans(one(two_sends()))
    assert [(one["rank"], one["track"], one["name"]) for one in found] == [
        (0, "compute", "first"),
        (0, "send", "long to 1"),
        (1, "receive", "long from 0"),
        (0, "send", "short to 2"),
        (2, "receive", "short from 0"),
        (1, "compute", "last"),
        *((-1, "critical path", name) for name in ("first", "long", "last")),
    ]


def test_every_fabric_replays_a_ring():
    from mfabric_jax.fabric import get
    from tests.routing.clusters import CLUSTERS

    names = tuple(name for name in CLUSTERS if not get(name).phases)
    rows = [
        replay_row(done)
        for done in replay(ring(16), cases(Case(), {"network.fabric": names, "network.nic_gbps": [400, 800]}))
    ]
    assert [(row["fabric"], row["nic_gbps"]) for row in rows] == [(name, gbps) for name in names for gbps in (400, 800)]
    assert all(row["makespan_s"] > 0 and row["compute_s"] == 0 for row in rows)
    slower, faster = rows[0], rows[1]  # of the fat-tree: 2 x 15 steps, each 6 us behind propagation
    assert slower["makespan_s"] == pytest.approx(2 * 15 * (100e6 / 16 / NIC) + 30 * 2e-6, rel=1e-3)
    assert faster["makespan_s"] < slower["makespan_s"]


def test_more_bandwidth_saves_what_the_rows_say():
    graph, told = two_sends(), []
    (done,) = replay(graph, case(), progress=told.append)
    (nics,) = (row for row in gain_rows(done, gains(done)) if row["what"] == "nic up")
    assert nics["saved_per_percent_s"] == pytest.approx(1.5e-5, **NEAR)
    assert nics["saved_per_100_gbps_s"] == pytest.approx(1.5e-3 / 4, **NEAR)
    assert one(graph, {"network.nic_gbps": 404}).makespan_s == pytest.approx(4.5e-3 - 1.5e-5, rel=1e-4)
    assert told == ["fat-tree at 400 Gbps: paths", "fat-tree at 400 Gbps: flows: 5"]


def two_ranks(**collective):
    """Both compute 1 s, then sum 100 GB."""
    tasks = Tasks(2, groups=((0, 1),))
    for rank in range(2):
        before = tasks.add(TaskKind.COMPUTE, rank, seconds=1.0)
        said = {"op": Op.ALL_REDUCE, "group": 0, "match": 0, "bytes": 100e9, "after": before}
        tasks.add(TaskKind.COLLECTIVE, rank, "sum", **said | collective)
    return tasks.graph()


def send_behind_a_lag():
    """Rank 0 waits 5 s, then sends what takes 1 s."""
    tasks = Tasks(2)
    tasks.add(TaskKind.SEND, 0, "late", bytes=NIC, peer=1, match=0, lag=5.0)
    tasks.add(TaskKind.RECV, 1, "there", peer=0, match=0)
    return tasks.graph()


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_latency_is_communication_however_many_chunks(chunks):
    done = one(two_ranks(), alpha_s=0.1, chunks=chunks)
    parts = time_spent(done)
    np.testing.assert_allclose(parts.compute_s, 1, rtol=1e-9)
    np.testing.assert_allclose(parts.exposed_comm_s, done.makespan_s - 1, rtol=1e-9)
    np.testing.assert_allclose(parts.idle_s, 0, atol=1e-9)
    held = {row["what"]: row["holds_s"] for row in gain_rows(done, gains(done))}
    assert held["latency"] == pytest.approx(0.2 if chunks == 1 else 0.1, **NEAR)
    assert "lag" not in held


def test_a_lag_of_a_task_is_no_communication():
    done = one(send_behind_a_lag(), alpha_s=0.25)
    parts = time_spent(done)
    np.testing.assert_allclose(parts.exposed_comm_s, 1.25, rtol=1e-9)
    np.testing.assert_allclose(parts.idle_s, 5, rtol=1e-9)
    held = {row["what"]: row["holds_s"] for row in gain_rows(done, gains(done))}
    assert held == pytest.approx({"nic down": 1, "latency": 0.25, "lag": 5}, **NEAR)


@pytest.mark.parametrize("chunks", [1, 3])
def test_what_is_drawn_covers_what_the_table_says(chunks):
    done = one(two_ranks(lag=0.5), alpha_s=0.1, chunks=chunks)
    drawn = [row for row in spans(done) if row["rank"] >= 0]
    begin, end, rank = (np.array([row[name] for row in drawn]) for name in ("begin_s", "end_s", "rank"))
    parts = time_spent(done)
    np.testing.assert_allclose(union_s(begin, end, rank, 2), parts.compute_s + parts.exposed_comm_s, rtol=1e-12)
    np.testing.assert_allclose(parts.idle_s, 0.5, rtol=1e-9)
    waits = {row["latency_s"] for row in drawn if row["track"] != "compute"}
    assert max(waits) == pytest.approx(0.1, **NEAR)


def test_one_per_cent_more_is_run_again():
    """Both directions of a link at once: either alone would leave the other to hold the message."""
    done = one(send_behind_a_lag(), alpha_s=0.25)
    rows = savings_rows(done, gain_rows(done, gains(done)))
    saved = {row["what"]: row["saved_at_1_percent_s"] for row in rows}
    assert saved == pytest.approx({"nic down": 1 - 1 / 1.01, "latency": 0.0025, "lag": 0.05}, rel=1e-9)


def test_both_directions_of_a_link_hold_together():
    """Rank 0 sends to 1 and 2, which send to each other: NICs up and down are full at once, and who holds is a tie."""
    tasks = Tasks(3)
    for match, (rank, peer) in enumerate([(0, 1), (0, 2), (1, 2), (2, 1), (1, 0)]):
        tasks.add(TaskKind.SEND, rank, bytes=NIC, peer=peer, match=match)
        tasks.add(TaskKind.RECV, peer, peer=rank, match=match)
    done = one(tasks.graph())
    rows = gain_rows(done, gains(done))
    assert sum(row["holds_s"] for row in rows) == pytest.approx(done.makespan_s, **NEAR)
    assert len({row["what"].split()[0] for row in rows}) == len(rows)
    assert not at_a_tie(done, rows)


FILES = (
    "chakra_et/micro_all_reduce_8npus_1MB/all_reduce",
    "chakra_et/stg_moe_dp2tp2pp2ep2_16npus/workload",
    "simai_txt/aicb_G13B-M1-C02_GPT13B_megatron_tp8_pp1_mbs1_sp_A100.txt",
    "flexflow_fbuf/100vgg_16.fbuf.xz",
    "htsim_cm/incast.cm",
    "goal/schedgen_allreduce_ring_16r_16MiB.goal",
)
FABRICS = ("fat-tree", "rail-optimized", "mfabric")


def longest_way(flows, rate):
    """When the last flow would end if each had its whole narrowest link for itself."""
    end = np.zeros(flows.flows)
    alone = flows.lag + np.where(flows.transfers, flows.bytes / rate, flows.seconds)
    before = [[] for _ in range(flows.flows)]
    for first, then in flows.after.tolist():
        before[then].append(first)
    for flow in run_order(flows.after, flows.flows):
        end[flow] = max([flows.start[flow], *(end[one] for one in before[flow])]) + alone[flow]
    return end.max()


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_no_replay_is_earlier_than_it_can_be(shared_data, file):
    graph = read_tasks(shared_data / "task_graphs" / file)
    for done in replay(graph, cases(Case(), {"network.fabric": FABRICS}), Replay(absent="assume")):
        prepared = done.prepared
        hops, share = prepared.routed.routes
        there, capacity = hops >= 0, prepared.network.capacity
        rate = np.where(there, capacity[hops] / np.where(there, share, 1), np.inf).min(axis=1)
        moves = prepared.flows.transfers[:, None] & there
        carried = np.bincount(hops[moves], (share * prepared.flows.bytes[:, None])[moves], minlength=len(capacity))
        bound = max(longest_way(prepared.flows, rate), np.max(carried / capacity, initial=0))
        assert done.makespan_s >= bound * (1 - 1e-9)
        assert done.makespan_s <= path_of(done).finish[-1] * (1 + 1e-12)
        held = sum(row["holds_s"] for row in gain_rows(done, gains(done)))
        assert held == pytest.approx(done.makespan_s, rel=1e-9)
        parts = time_spent(done)
        np.testing.assert_allclose(sum(parts), done.makespan_s, rtol=1e-9)
        assert all((seconds >= -1e-12).all() for seconds in parts)
