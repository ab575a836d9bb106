"""A graph as a fabric: as fast and dear as the named fabric that it draws, closed forms, and what does not fit it."""

import numpy as np
import pytest

from mfabric_jax.case import Case
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate import simulate, solve_cluster
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graph_fabric import describe_graph
from mfabric_jax.fabric.graph_file import load_graph
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from mfabric_jax.routing.graphs import add_rates, paths_on_links
from tests.command_line import mistake
from tests.mistakes import refused

JOB = {"model.name": "llama-moe", "job.parallel.tp": 1, "job.parallel.pp": 1, "job.parallel.ep": 16}
QUICK = {"run.iterations": 1, "job.batch.micro_batches": 2}


def graphs(folder):
    """What makes a case on a graph that is made: kind, settings, and numbers of the graph."""

    def case(kind, settings=None, **numbers):
        file = folder / f"{kind}.json"
        file.write_text(graph_text(make_graph(kind, GraphNumbers(**numbers))))
        of_graph = {"network.fabric": "graph", "network.graph": str(file), "job.parallel.gpus": numbers["gpus"]}
        return Case().with_(JOB | QUICK | of_graph | (settings or {}))

    return case


@pytest.fixture
def on_graph(tmp_path):
    return graphs(tmp_path)


def sentences(case):
    resolved = resolve(case)
    return describe_graph(resolved.case.network, resolved.server.nvlink)


def group_of(case):
    resolved = resolve(case)
    group = resolved.fabric.group(resolved.site, case.network.nic_gbps)
    return group, resolved.job


def test_a_leaf_spine_is_the_fat_tree_of_its_nics(on_graph):
    case = on_graph("leaf-spine", gpus=64, radix=16)
    (own,) = simulate(case).rows()
    (named,) = simulate(case.with_({"network.fabric": "fat-tree", "network.radix": 16})).rows()
    assert own["fabric"] == "graph"
    for column in ("iteration_s", "ep_comm_s", "dp_comm_s", "network_cost_usd", "network_kw"):
        assert own[column] == pytest.approx(named[column], rel=1e-6), column


def test_full_mesh_takes_n_over_size_units(on_graph):
    # 16 ranks in a 4x4 mesh, one byte a pair: every link carries 16 / 4 bytes.
    group, job = group_of(on_graph("full-mesh", {"gpu.gpus_per_server": 1}, gpus=16, shape=(4, 4)))
    assert (group.nics, load_graph(group.graph_file).longest) == (6, 2)
    (seconds,) = paths_on_links(group, job, "spray").times_now(group, np.ones((1, 16, 16)))
    assert seconds == pytest.approx(4 / group.nic_Bps)
    drawn = paths_on_links(group, job, "ecmp", seed=1)
    assert {share for part in drawn.parts for share in part.share.ravel()} == {1.0}


def test_rings_and_sends_get_what_the_busiest_link_leaves(on_graph):
    # Leaves of 12 ports down and 4 up hold 3 servers of 4 GPUs. Around a ring of 3 or 6 servers at most 4 GPUs leave a
    # leaf; from stage to stage 12 GPUs share its 4 links.
    numbers = {"gpus": 24, "radix": 16, "oversubscription": 3, "gpus_per_server": 4}
    settings = {"gpu.gpus_per_server": 4, "job.parallel.pp": 2, "job.parallel.ep": 4, "job.parallel.dp": 3}
    group, job = group_of(on_graph("leaf-spine", settings, **numbers))
    found = add_rates(group, job, "spray")
    assert (found.ring_nics, found.stage_nics) == (pytest.approx(4), pytest.approx(4 / 3))


def test_what_does_not_fit_a_graph(on_graph):
    case = on_graph("leaf-spine", gpus=16)
    assert "network.nic_gbps must be 400, the bandwidth of the NICs of" in refused(
        resolve, case.with_({"network.nic_gbps": 200})
    )
    assert "job.parallel.gpus must be the 16 GPUs of" in refused(resolve, case.with_({"job.parallel.gpus": 32}))
    with pytest.raises(Misfit, match="gpus_per_server must be 8, the GPUs at each nvswitch of"):
        resolve(case.with_({"gpu.gpus_per_server": 4}))
    with pytest.raises(Misfit, match="gpus_per_server must be 1, the GPUs of a server, as there is no nvswitch in"):
        resolve(on_graph("torus", gpus=16, shape=(4, 4)))
    assert "needs network.graph, the file of the graph" in refused(resolve, Case().with_({"network.fabric": "graph"}))


def test_files_of_graphs_stand_among_fabrics(on_graph, capsys, monkeypatch, tmp_path):
    on_graph("leaf-spine", gpus=16)
    monkeypatch.chdir(tmp_path)
    words = "compare --model llama-moe --gpus 16 --tp 1 --pp 1 --ep 16 --fabrics fat-tree,leaf-spine.json"
    for more, sentence in [
        ("--nic-gbps 400,200", "network.nic_gbps must be 400"),
        (
            "--set network.graph=x.json",
            "network.graph is leaf-spine.json (network.fabric); leave out the flag or --set.",
        ),
        ("--gpu A100-80GB-SXM --nic-gbps 100", "network.nic_gbps must be 400"),
    ]:
        assert sentence in mistake(capsys, *words.split(), *more.split())


def test_groups_in_one_server_send_nothing_over_the_graph(on_graph):
    group, job = group_of(on_graph("leaf-spine", {"job.parallel.ep": 8}, gpus=16))
    assert paths_on_links(group, job, "spray").times_now(group, np.ones((2, 8, 8))).tolist() == [0, 0]


def test_rows_and_clusters_ask_whether_gpus_forward(on_graph):
    case = on_graph("torus", {"gpu.gpus_per_server": 1}, gpus=16, shape=(4, 4))
    graph = case.network.graph
    (row,) = simulate(case).rows()
    assert row["iteration_s"] > 0
    assert sentences(case) == [
        f"{graph}: 4 NICs of 400 Gbps per server, ranks in the order of its GPUs.",
        f"{graph}: GPUs forward for others: gpu 2 has no other path to gpu 0.",
    ]
    no = case.with_({"network.on-graph.relay": "no"})
    assert "no path leads from gpu" in refused(lambda one: simulate(one).rows(), no)
    assert "no path leads from gpu" in refused(solve_cluster, no)
    assert "no path leads from gpu" in refused(solve_cluster, no.with_({"network.fabric": "fat-tree"}), graph=graph)


def test_which_nvlinks_count_is_said(on_graph):
    case = on_graph("leaf-spine", gpus=16, nvlink_gbps=800.0)
    told = sentences(case)
    assert "GPUs do not forward for others" in told[1]
    assert "inside a server a GPU has 450 GB/s (gpu.nvlink_gigabytes_per_s); only bytes" in told[2]
    assert told[2].endswith("cross the NVLinks of the file, 100 GB/s per GPU.")
    assert len(sentences(on_graph("leaf-spine", gpus=16, nvlink_gbps=3600.0))) == 2


def test_ranks_are_on_the_gpus_of_a_file(on_graph, tmp_path):
    # Leaves of 3 GPUs with one link up. In order, ranks 2 and 3 alone are apart; then all pairs of the first 6 ranks.
    settings = {"gpu.gpus_per_server": 1, "job.parallel.ep": 2, "job.parallel.dp": 4}
    case = on_graph("leaf-spine", settings, gpus=8, radix=4, oversubscription=3, gpus_per_server=1)
    file = tmp_path / "ranks.json"
    file.write_text('{"gpus": [0, 3, 1, 4, 2, 5, 6, 7]}')
    placed = case.with_({"network.on-graph.ranks": str(file)})
    for one, times in ((case, 1), (placed, 3)):
        group, job = group_of(one)
        assert paths_on_links(group, job, "spray").times_now(group, np.ones((1, 2, 2)))[0] * group.nic_Bps == (
            pytest.approx(times)
        )
    solved = solve_cluster(placed)
    (flow,) = np.flatnonzero((solved.flows.src == 0) & (solved.flows.dst == 1))[:1]
    ends = solved.network.tail[solved.routes.hops[flow].max()], solved.network.head[solved.routes.hops[flow]]
    assert 3 in ends[1]
    file.write_text('{"gpus": [0, 3, 1, 4, 2, 5, 6, 6]}')
    assert "must be 8 different GPUs, one per rank, got 8" in refused(resolve, placed)


def test_nics_may_be_split_over_links(on_graph):
    case = on_graph("planes", gpus=16, planes=4, split=True)
    assert group_of(case)[0].nics == 8  # of 400 Gbps
    assert group_of(case.with_({"network.nic_gbps": 100}))[0].nics == 32
    assert (
        "must be 100 (or a multiple, with several of a GPU's 4 links as one NIC), the bandwidth of the NICs of"
        in refused(resolve, case.with_({"network.nic_gbps": 300}))
    )
