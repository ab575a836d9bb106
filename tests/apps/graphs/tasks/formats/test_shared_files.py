"""All files that were collected: read with the numbers of their summary, or refused where they must be."""

import json
import re
from collections import Counter

import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks, read_with_remarks, write_tasks
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind
from mfabric_jax.checks import InputError
from tests.apps.graphs.tasks.formats import contents

REFUSED = {
    "chakra_et/et_generator/one_comm_recv_node.0.et": "is a message, which needs a set",
    "chakra_et/et_generator/one_comm_send_node.0.et": "is a message, which needs a set",
    "chakra_et/stg_moe_dp2tp2pp2ep2_16npus/workload.json": "a list of communicators",
    "goal/schedgen_resnet152_16r.goal": "640 of 640 receives have no send",
    "htsim_cm/gen_butterfly_16n_g8_1MB.cm": "must have 32 rows of triggers, the number it declares, got 31",
    "simai_txt/aicb_Workload_spec_v1.1.csv": "must be a file of tasks",
    "simai_txt/aicb_physical_L7B-M1-C04_tp2_pp1.csv": "AICB's log of a run",
}
CUSTOM = "chakra_et/custom_ring_allreduce_8npus_1MB/custom_allreduce.0.et"
STG = "chakra_et/stg_moe_dp2tp2pp2ep2_16npus/workload.0.et"
EXECUTION = "chakra_et/mlcommons_feeder_test/pytorch_et_1.0.2-chakra.0.0.4.json.xz"
REAL = "chakra_et/mlcommons_feeder_test/chakra.0.et.xz"


@pytest.fixture(scope="module")
def folder(shared_data):
    found = shared_data / "task_graphs"
    if not found.is_dir():
        pytest.skip(f"no task graphs at {found}")
    return found


@pytest.fixture(scope="module")
def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def reading(folder):
    """Reads each file once; one of a Chakra set stands for the set."""
    kept = {}

    def read(name):
        whole = re.sub(r"\.(\d+)\.et$", ".0.et", name)
        if whole not in kept:
            kept[whole] = read_with_remarks(folder / whole)
        return kept[whole]

    return read


def own_part(graph, rank, chains=True):
    """Tasks, bytes by kind and longest chain of one rank by itself, as a file of a set has them."""
    mine = np.flatnonzero(graph.rank == rank)
    place = {task: order for order, task in enumerate(mine.tolist())}
    level = [1] * len(mine)
    before = {order: [] for order in range(len(mine))}
    for first, then in graph.after.tolist():
        if first in place and then in place:
            before[place[then]].append(place[first])
    left = list(before) if chains else []
    while left:  # until every task is behind all that it waits for
        changed = [order for order in left if level[order] < 1 + max((level[one] for one in before[order]), default=0)]
        for order in changed:
            level[order] = 1 + max(level[one] for one in before[order])
        left = changed and [*before]
    moved = Counter()
    sent = dict(zip(graph.match.tolist(), graph.bytes.tolist(), strict=True)) | {
        int(graph.match[task]): float(graph.bytes[task]) for task in np.flatnonzero(graph.of(TaskKind.SEND))
    }
    for task in mine:
        kind, op = graph.kind[task], graph.op[task]
        if kind == TaskKind.COLLECTIVE:
            shared = len(graph.groups[graph.group[task]]) if op == Op.ALL_GATHER else 1
            moved[Op(op).name] += graph.bytes[task] / shared
        elif kind in (TaskKind.SEND, TaskKind.RECV):
            moved[f"COMM_{TaskKind(kind).name}"] += sent[int(graph.match[task])]
    return len(mine), {name: size for name, size in moved.items() if size}, max(level)


def test_every_file_is_read_or_refused(folder, summary, reading):
    files = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.parent != folder and path.is_file()
    }
    assert files == set(summary)
    for name in sorted(files - set(REFUSED)):
        assert reading(name).graph.tasks, name
    for name, said in REFUSED.items():
        with pytest.raises(InputError, match=said):
            reading(name)


def test_chakra_files_are_as_their_summary_says(summary, reading):
    for name, said in summary.items():
        found = re.fullmatch(r"(chakra_et/.*)\.(\d+)\.et(\.xz)?", name)
        if not found or name in REFUSED:
            continue
        graph = reading(name).graph
        nodes, moved, depth = own_part(graph, int(found[2]) if graph.ranks > 1 else 0, name != REAL)
        assert nodes == said["nodes"], name
        assert moved == {key: size for key, size in said["coll_bytes"].items() if size}, name
        if name != REAL:
            assert depth == said["depth_nodes"], name


def test_a_real_execution_trace_holds_ten_small_all_gathers(reading):
    graph, name, remarks = reading(EXECUTION)
    assert (graph.ranks, graph.tasks, name) == (2, 2 * 10, "PyTorch execution trace")
    assert (graph.op == Op.ALL_GATHER).all()
    assert (graph.bytes == 2 * 4).all()  # a float of each of 2 ranks
    assert remarks[1:] == (
        "243 nodes without communication not read: these traces have no times.",
        "an execution trace has no times: ranks compute nothing.",
    )


def test_the_real_trace_is_mended_as_much_as_its_summary_says(summary, reading):
    said, found = summary[REAL], reading(REAL)
    assert (said["self_dep_nodes"], said["dangling_deps"], said["cycle_edges"]) == (383, 1277, 599)
    assert found.remarks[1:5] == (
        "383 waits of nodes for themselves are dropped.",
        "1,277 waits for missing nodes are dropped.",
        "599 waits in cycles are dropped.",
        "14 collectives without comm_type or comm_size take their recorded time.",
    )
    # The longest chain depends on which waits of a cycle are left out: the data's alone have one of 1966.
    assert contents.depth(found.graph) == 2035
    assert contents.depth(reading(REAL.replace(".et.xz", ".json.xz")).graph) == 1966
    np.testing.assert_allclose(found.graph.seconds.sum(), said["dur_us_total"] * 1e-6, rtol=0.3)


def test_goal_and_htsim_files_are_as_their_summary_says(summary, reading):
    for name, said in summary.items():
        if not name.startswith(("goal/", "htsim_cm/")) or name in REFUSED:
            continue
        graph = reading(name).graph
        assert (graph.tasks, contents.depth(graph)) == (said["nodes"], said["depth_nodes"]), name
        assert graph.bytes.sum() == said.get("send_bytes", said.get("bytes")), name
        assert graph.ranks == said.get("num_ranks", said.get("Nodes")), name
        np.testing.assert_allclose(graph.seconds.sum(), said.get("calc_units", 0) * 1e-9)


def test_the_butterfly_with_its_missing_row(folder, summary, tmp_path):
    name = "htsim_cm/gen_butterfly_16n_g8_1MB.cm"
    (tmp_path / "a.cm").write_text((folder / name).read_text() + "trigger id 32 oneshot\n")
    graph = read_tasks(tmp_path / "a.cm")
    assert (graph.tasks, contents.depth(graph)) == (summary[name]["nodes"], summary[name]["depth_nodes"])


def test_flexflow_files_are_as_their_summary_says(summary, reading):
    for name, said in summary.items():
        if not name.startswith("flexflow_fbuf/"):
            continue
        graph = reading(name).graph
        collective = graph.of(TaskKind.COLLECTIVE)
        _, first = np.unique(graph.match[collective], return_index=True)
        assert graph.tasks - collective.sum() == said["nodes"], name
        assert collective.sum() == said["allreduce_participants_total"], name
        assert graph.bytes[collective][first].sum() == said["bytes_by_type"]["ALLREDUCE"], name
        assert contents.bytes_by_kind(graph).get("SEND", 0) == said["bytes_by_type"].get("NOMINAL_COMM", 0), name
        assert contents.depth(graph) == said["depth_nodes"], name
        time = said["runtime_ms"]["FORWARD"] + said["runtime_ms"]["BACKWARD"]
        np.testing.assert_allclose(graph.seconds.sum(), time * 1e-3, atol=1e-6)


def test_simai_files_are_as_their_summary_says(summary, reading):
    words = {"ALLREDUCE": "ALL_REDUCE", "ALLGATHER": "ALL_GATHER", "REDUCESCATTER": "REDUCE_SCATTER"}
    words |= {"ALLTOALL": "ALL_TO_ALL", "BROADCAST": "BROADCAST"}
    for name, said in summary.items():
        if "rows" not in said:
            continue
        graph = reading(name).graph
        wanted = Counter()
        for word, size in said["coll_bytes"].items():
            wanted[words[word.split("_")[0]]] += size
        mine = graph.rank == 0
        got = {op.name: float(graph.bytes[mine & graph.of(TaskKind.COLLECTIVE, op)].sum()) for op in Op}
        assert {op: size for op, size in got.items() if size} == dict(wanted), name
        assert (mine & graph.of(TaskKind.COLLECTIVE)).sum() == sum(said["coll_count"].values()), name
        if said["policy"] != "MICRO":
            np.testing.assert_allclose(graph.seconds[mine].sum(), said["compute_ns"] * 1e-9)


def test_what_was_read_is_the_same_after_writing(folder, reading, tmp_path):
    for name in (
        "goal/schedgen_allreduce_ring_16r_16MiB.goal",
        "flexflow_fbuf/100vgg_16.fbuf.xz",
        "simai_txt/aicb_all_to_all.txt",
    ):
        graph = reading(name).graph
        for path in (tmp_path / "a.json", tmp_path / "a.parquet"):
            write_tasks(graph, path)
            assert read_tasks(path).equals(graph), (name, path)
    for number, name in enumerate((CUSTOM, STG, "goal/schedgen_allreduce_ring_16r_16MiB.goal")):
        graph = reading(name).graph
        write_tasks(graph, tmp_path / f"set{number}.et")
        assert read_tasks(tmp_path / f"set{number}").equals(graph), name
