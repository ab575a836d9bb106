"""SimAI's text workloads: what waits for what, who is in which group, and lines that are wrong."""

import numpy as np

from mfabric_jax.apps.graphs.tasks.formats.registry import read_with_remarks
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind
from tests.apps.graphs.tasks.formats.contents import bytes_by_kind

HEAD = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 2 vpp: 1 ga: 1 all_gpus: 16"
LISTS = " checkpoints: 1 0 checkpoint_initiates: 1 1 pp_comm 64"
ROWS = """
2
first -1 10 ALLGATHER 8 20 REDUCESCATTER 16 30 ALLREDUCE 32 1
second -1 40 ALLTOALL_EP 64 50 NONE 0 0 ALLGATHER_DP_EP 128 2
"""


def read(tmp_path, text, **given):
    path = tmp_path / "a.txt"
    path.write_text(text)
    return read_with_remarks(path, **given)


def test_the_layers_of_one_rank(tmp_path):
    graph, kind, remarks = read(tmp_path, HEAD + ROWS)
    assert (kind, graph.ranks) == ("SimAI workload", 8)
    assert remarks == ("only one of 2 pipeline stages, without the 0 bytes between stages (pp_comm).",)
    mine = graph.rank == 0
    assert [name.replace(" gradient", "") for name, own in zip(graph.name, mine, strict=True) if own] == [
        *("first forward", "first forward", "second forward", "second forward", "second input"),
        *("second weight", "second weight update", "first input", "first input"),
        *("first weight", "first weight", "first weight update", "end"),
    ]
    np.testing.assert_allclose(graph.seconds[mine], np.array([10, 0, 40, 0, 50, 0, 0, 20, 0, 30, 0, 0, 0]) * 1e-9)
    # the update lies behind each collective: 1 ns of the first row's, 2 ns of the second's
    np.testing.assert_allclose(graph.lag[mine], np.array([0, 0, 1, 0, 2, 0, 2, 0, 0, 1, 0, 1, 0]) * 1e-9)
    after = graph.after[graph.after[:, 1] < mine.sum()].tolist()
    chain = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (4, 7), (5, 6), (6, 12), (7, 8), (8, 9), (9, 10), (9, 12)]
    chain += [(10, 11), (11, 12)]
    assert sorted(map(tuple, after)) == chain
    assert graph.lane[mine].tolist() == [0, -1, 0, -1, 0, 1, -1, 0, -1, 0, 1, -1, -1]


def test_the_update_of_one_collective_is_no_wait_of_another(tmp_path):
    last = "a -1 0 NONE 0 0 ALLREDUCE 8 0 ALLREDUCE 16 5\nb -1 0 NONE 0 0 NONE 0 0 ALLREDUCE 16 7\n"
    graph = read(tmp_path, "HYBRID_TRANSFORMER all_gpus: 2 model_parallel_NPU_group: 2\n2\n" + last).graph
    (end, *_) = np.flatnonzero(np.array(graph.name) == "end")
    waited = graph.after[graph.after[:, 1] == end, 0]
    assert (graph.lag[end], sorted(graph.name[task] for task in waited)) == (
        0,
        ["a input gradient update", "a weight gradient update", "b weight gradient update"],
    )
    np.testing.assert_allclose(sorted(graph.lag[waited]), np.array([5, 5, 7]) * 1e-9)


def test_groups_are_as_simai_lays_them(tmp_path):
    graph = read(tmp_path, HEAD + ROWS).graph
    of = {
        name: graph.groups[graph.group[task]]
        for task, name in enumerate(graph.name)
        if graph.rank[task] == 5 and graph.group[task] >= 0
    }
    assert of == {
        "first forward": (4, 5),
        "first input gradient": (4, 5),
        "second forward": (5, 7),
        "second weight gradient": (1, 5),
        "first weight gradient": (1, 3, 5, 7),
    }
    collective = graph.of(TaskKind.COLLECTIVE)
    for match in set(graph.match[collective]):
        (group,) = {graph.groups[number] for number in graph.group[graph.match == match]}
        assert sorted(graph.rank[graph.match == match]) == sorted(group)
    assert bytes_by_kind(graph) == {"ALL_GATHER": 8 * 136, "REDUCE_SCATTER": 128, "ALL_REDUCE": 256, "ALL_TO_ALL": 512}


def test_a_layer_that_initiates_a_checkpoint_runs_forward_again(tmp_path):
    graph, _, remarks = read(tmp_path, HEAD + LISTS + ROWS)
    names = [name for name, rank in zip(graph.name, graph.rank, strict=True) if rank == 0]
    assert names[4:7] == ["first forward", "first forward", "second input gradient"]
    assert remarks == ("only one of 2 pipeline stages, without the 64 bytes between stages (pp_comm).",)


def test_fewer_ranks_cut_data_parallel_groups(tmp_path):
    graph, _, remarks = read(tmp_path, HEAD + ROWS, ranks=4)
    assert graph.ranks == 4
    assert remarks[0] == "4 of the 8 ranks of a stage: data-parallel groups are cut from 4 to 2 ranks (ranks)."


def test_other_policies(tmp_path):
    graph, _, remarks = read(tmp_path, "MICRO" + ROWS, ranks=4)
    assert [Op(op).name for op in graph.op[:2]] == ["ALL_REDUCE", "ALL_GATHER"]
    assert (graph.after[:2].tolist(), graph.groups[graph.group[0]]) == ([[0, 1], [1, 2]], (0, 1, 2, 3))
    assert remarks == ("all_gpus is missing: 4 ranks are assumed (ranks).",)
    graph = read(tmp_path, "DATA" + ROWS, ranks=2).graph
    assert bytes_by_kind(graph) == {"ALL_REDUCE": 64, "ALL_GATHER": 256}
    np.testing.assert_allclose(graph.seconds[graph.rank == 0].sum(), 130e-9)
