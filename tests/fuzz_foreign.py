"""A small good file for every reader of files of other tools: graphs, tasks, recordings, measurements and requests."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mfabric_jax.support.yaml_text import parse_yaml
from tests import fuzz_mutations
from tests.apps.graphs.tasks.formats import (
    pytorch_samples,
    test_chakra,
    test_flexflow,
    test_htsim,
    test_param,
    test_simai,
)
from tests.apps.recordings.measurements import samples
from tests.fabric import test_graph_files as graphs
from tests.fuzz_inputs import TASKS, case_and, reader
from tests.traffic.jobs import LAER_HEAD, Tensor, laer_rows, line, write_lines, write_torch


# --------------------------------------------------------------------------------------------------------------- graphs
def graph_in(path: Path) -> Any:
    from mfabric_jax.fabric import read_graph

    network = read_graph(path)
    names = [network.node_name(node) for node in range(network.size)]
    return [
        names,
        network.nodes,
        network.links,
        *(each.tolist() for each in (network.tail, network.head, network.capacity, network.delay_s)),
    ]


for name, form in (("simai.txt", ""), ("ns3.txt", ""), ("leaf.topo", ""), ("tree.topo", ""), ("astra.yml", "")):
    reader(
        f"graph {name}",
        name,
        form or "text",
        graphs.SAMPLES[name].replace("# a leaf-spine of 32 hosts\n", "").replace("  # innermost first", ""),
        graph_in,
        free=("bps", "Gbps"),
    )
ANY_XML = ("name", "sm", "device", "vendor", "subsystem_device", "subsystem_vendor", "class", "guid", "affinity")
reader("graph of NCCL", "nccl.xml", "xml", graphs.NCCL, graph_in, free=ANY_XML)
XGMI = [f'<xgmi target="0000:0{other}:00.0" count="2" tclass="0x120000"/>' for other in (3, 2)]
GPUS = [graphs.gpu_in(f"0{n}:00.0", n - 2, XGMI[n - 2], 'gcn="gfx942" arch="38911"') for n in (2, 3)]
reader(
    "graph of RCCL",
    "rccl.xml",
    "xml",
    graphs.dump(*GPUS, graphs.nic_in("05:00.0", 0), version=2),
    graph_in,
    free=ANY_XML,
)
INFRAGRAPH = parse_yaml(graphs.INFRAGRAPH)
OF_INFRAGRAPH = ("name", "description", "host", "leaf", "server", "pair")
reader("graph of infragraph", "infra.json", "json", INFRAGRAPH, graph_in, free=OF_INFRAGRAPH)
reader("graph of infragraph in YAML", "infra.yaml", "text", graphs.INFRAGRAPH, graph_in, free=OF_INFRAGRAPH)
NODES = [{"id": f"gpu {n}", "kind": "gpu"} for n in range(16)] + [{"id": "switch 0", "kind": "switch"}]
LINKS = [{"source": f"gpu {n}", "target": "switch 0", "capacity_gbps": 400, "latency_s": 1e-6} for n in range(16)]
OWN = {"directed": False, "multigraph": False, "graph": {"name": "mine"}, "nodes": NODES, "edges": LINKS}
reader("graph of networkx", "own.json", "json", OWN, graph_in, free=("name", "switch", "mine"))
ON_GRAPH = "cluster --graph own.json --model llama-moe --tp 1 --pp 1 --ep 16 --dp 1 --gpus 16 --links links.csv"


def tasks_on_graph(folder: Path) -> None:
    (folder / "job.json").write_text(json.dumps(TASKS))
    (folder / "own.json").write_text(json.dumps(OWN))
    (folder / "ranks.json").write_text(json.dumps({"gpus": [3, 1, 0, 2]}))


RUN = "replay job.json --graph own.json --out rows.csv"
reader("graph that is run on", "own.json", "json", tasks_on_graph, RUN, free=("name", "switch", "mine"))
reader("GPU of every rank", "ranks.json", "json", tasks_on_graph, f"{RUN} --ranks-on ranks.json")


# ---------------------------------------------------------------------------------------------------------------- tasks
def tasks_in(path: Path) -> Any:
    from mfabric_jax.apps.graphs.tasks import read_with_remarks

    graph, kind, remarks = read_with_remarks(path)
    columns = {name: getattr(graph, name) for name in graph.__dataclass_fields__}
    columns = {name: each.tolist() if isinstance(each, np.ndarray) else each for name, each in columns.items()}
    return [kind, remarks, columns]


def write_tasks_as(file: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from mfabric_jax.apps.graphs.tasks import read_tasks, write_tasks

        (folder / "from.json").write_text(json.dumps(TASKS))
        write_tasks(read_tasks(folder / "from.json"), folder / file)
        (folder / "from.json").unlink()

    return write


reader(
    "tasks.json",
    "job.json",
    "json",
    TASKS,
    "replay job.json --fabric fat-tree --out rows.csv --per-rank ranks.csv",
    free=("name",),
)
reader(
    "tasks.parquet",
    "job.parquet",
    "binary",
    write_tasks_as("job.parquet"),
    tasks_in,
    through=fuzz_mutations.of_table,
    free=("name",),
)
reader("Chakra", "job.0.et", "binary", write_tasks_as("job.et"), tasks_in)


def chakra_set(folder: Path) -> None:
    rows = [
        test_chakra.node(2, 7, comm_type=6, comm_size=8, pg_name="4"),
        test_chakra.node(3, 4, [2], micros=5, num_ops=3),
    ]
    test_chakra.put(folder, rows, rows, prefix="job")
    (folder / "job.json").write_text(json.dumps({"4": [0, 1], "7": [1]}))


def chakra_of(path: Path) -> Any:
    return tasks_in(path.parent / "job.0.et")


reader("Chakra's nodes", "job.1.et", "binary", chakra_set, chakra_of, also=("job.",))
reader("Chakra's communicators", "job.json", "json", chakra_set, chakra_of, free=("7",))
FEEDER = {
    "workload_graph": [
        {"Id": 4, "NodeType": 4, "Name": "a", "runtime": 7, "data_deps": [], "is_cpu_op": True},
        {"Id": 6, "NodeType": 7, "data_deps": [4], "comm_type": 0, "comm_size": 16, "is_cpu_op": False},
        {"Id": 7, "NodeType": 4, "Name": "b", "data_deps": [6], "num_ops": 1000, "tensor_size": 8, "runtime": 3},
    ]
}
reader(
    "Chakra's jsonizer",
    "b.json",
    "text",
    test_chakra.as_jsonized(*test_chakra.newest()),
    tasks_in,
    free=("process_group", "init", "schema", "pid", "rf_id", "fw_parent", "stream", "version", "chakra"),
)
reader("Chakra's feeder", "trace.0.json", "json", FEEDER, tasks_in, free=("Name",))
reader("SimAI workload", "a.txt", "text", test_simai.HEAD + test_simai.ROWS, tasks_in, free=("first", "second"))
reader(
    "SimAI workload with lists",
    "a.txt",
    "text",
    test_simai.HEAD + test_simai.LISTS + test_simai.ROWS,
    tasks_in,
    free=("first", "second"),
)
PARAM = [
    {"comms": "init", "pg_id": 1, "global_ranks": [0, 1], "world_size": 2},
    test_param.comm("all_reduce", 64, req=1, pg_id=1, world_size=2, startTime_ns=1000, markers=["first"]),
    test_param.comm("alltoallv", 6, 4, "half", in_split=[2, 4], out_split=[2, 2], startTime_ns=9000, latency_us=2.5),
    {"comms": "wait", "req": 1, "pg_id": 1, "startTime_ns": 12000},
    test_param.comm("send", 8, src_rank=0, dst_rank=1, use_batch=False),
    test_param.comm("broadcast", 16, dtype="long", root=1),
    {"compute": "gemm", "mm0_dim0": 8, "mm0_dim1": 16, "mm1_dim0": 16, "mm1_dim1": 32, "dtype": "float", "count": 2},
]
OTHER_END = {"in_msg_size": 4, "out_msg_size": 6, "in_split": [2, 2], "out_split": [4, 2]}
PARAM_PEER = [*PARAM[:2], PARAM[2] | OTHER_END, PARAM[3], PARAM[4] | {"comms": "recv"}, *PARAM[5:]]


def param_of(path: Path) -> Any:
    from mfabric_jax.apps.graphs.tasks import read_with_remarks

    graph, kind, remarks = read_with_remarks(path.parent, tflops=100.0, memory_gigabytes_per_s=1000.0)
    columns = (graph.rank, graph.op, graph.bytes, graph.seconds, graph.peer, graph.match, graph.after)
    return [kind, remarks, graph.groups, graph.name, *(each.tolist() for each in columns)]


reader(
    "PARAM's comms trace",
    "trace/1.json",
    "json",
    lambda folder: test_param.put(folder / "trace", PARAM, PARAM_PEER),
    param_of,
    free=("markers", "first", "start"),
)
reader(
    "PARAM's only trace", "a.json", "json", [*PARAM, PARAM[4] | {"comms": "recv"}], tasks_in, free=("markers", "first")
)


def traces_of(path: Path) -> Any:
    return tasks_in(path.parent)


def pytorch_traces(trace_of: Callable[[int], dict[str, Any]]) -> Callable[[Path], None]:
    return lambda folder: test_param.put(folder / "trace", trace_of(0), trace_of(1)) and None


CALLS = [pytorch_samples.calls_in_turn(rank, [0.0, 20.5, 40.0, 60.0, 80.0, 100.0, 120.0]) for rank in range(2)]
CALLS = [[*calls, pytorch_samples.Recorded("wait", seq=6, ts=140.0)] for calls in CALLS]
OF_OPERATORS = ("pid", "time", "start_ts", "finish_ts", "ctrl_deps", "tid", "shapes", "strides", "type", "pg_desc")
reader(
    "PyTorch's execution trace",
    "trace/1.json",
    "json",
    pytorch_traces(lambda rank: pytorch_samples.execution_trace(CALLS[rank])),
    traces_of,
    free=(*OF_OPERATORS, "default_pg", "aten", "group_count"),
)
reader(
    "PyTorch's first execution traces",
    "trace/1.json",
    "json",
    pytorch_traces(lambda rank: pytorch_samples.execution_trace(CALLS[rank], schema="1.0.3-chakra.0.0.4")),
    traces_of,
    free=(*OF_OPERATORS, "default_pg", "aten", "group_count"),
)
OF_EVENTS = ("pid", "cat", "schemaVersion", "record_shapes", "traceName", "Ev Idx", "backend", "pg_count", "pg_desc")
reader(
    "Kineto's trace",
    "trace/1.json",
    "json",
    pytorch_traces(lambda rank: pytorch_samples.kineto_trace(rank, CALLS[rank])),
    traces_of,
    free=(*OF_EVENTS, "Process Group Description", "default_pg", "kernel", "gemm", "process_name", "python", "cpu_op"),
)
reader("htsim matrix", "a.cm", "text", test_htsim.MATRIX, tasks_in)
reader("packed htsim matrix", "a.cm.gz", "binary", gzip.compress(test_htsim.MATRIX.encode(), mtime=0), tasks_in)
GOAL = """num_ranks 2
rank 0 {
c: calc 1500 cpu 1
s: send 1048576b to 1 tag 1
s requires c
}
rank 1 {
l1: recv 1048576b from 0 tag 1
l2: calc 700
l3: calc 800
l2 requires l1
l3 irequires l2
}
"""
reader("GOAL", "a.goal", "text", GOAL, tasks_in)
BUILT = [test_flexflow.topoopt(1, 0, 70, 1.0, follows=[2]), test_flexflow.topoopt(2, 5, 80, 9.0, 1000)]
BUILT += [test_flexflow.topoopt(3, 6, size=64, follows=[1, 3])]


def topoopt_file(folder: Path) -> None:
    test_flexflow.graph_of(folder / "a.fbuf", BUILT, [(70, 0, 2, 5), test_flexflow.LINK], gpus=2)


def mixnet_file(folder: Path) -> None:
    every, info = range(4), "forward GROUP_BY"
    made = [
        test_flexflow.mixnet(1, 0, [2], device=90),
        test_flexflow.mixnet(2, 13, [3], every, every, size=1001, info=info),
    ]
    made += [test_flexflow.mixnet(3, 4)]
    test_flexflow.graph_of(folder / "a.fbuf", made, test_flexflow.GPUS, degrees=(1, 2, 1, 2))
    (folder / "w.txt").write_text("[[8192, 24576], [32768, 0]]")


def weighed(path: Path) -> Any:
    from mfabric_jax.apps.graphs.tasks import read_with_remarks

    graph, _, remarks = read_with_remarks(path.parent / "a.fbuf", weights=path.parent / "w.txt")
    return [remarks, graph.bytes.tolist(), graph.rank.tolist(), graph.peer.tolist()]


reader("FlexFlow of TopoOpt", "a.fbuf", "binary", topoopt_file, tasks_in)
reader("FlexFlow of MixNet", "a.fbuf", "binary", mixnet_file, weighed)
reader("MixNet's weights", "w.txt", "json", mixnet_file, weighed)


# ----------------------------------------------------------------------------------------------------------- recordings
COUNTS = np.random.default_rng(0).integers(1, 99, (3, 2, 2, 4, 8))
LOADS = COUNTS[:, :, 0, 0]


def recording_in(path: Path, **options: Any) -> Any:
    from mfabric_jax.traffic import open_trace

    def told(one: Any) -> list:
        facts = [one.format, one.words, one.experts, str(one.sources), str(one.targets), one.origin]
        return [*facts, np.asarray(one.number).tolist(), np.asarray(one.count).tolist(), one.tokens().count.tolist()]

    return [told(one) for one in open_trace(path, **options)]


INFO = "traces info {} --out rows.csv"


def npz(**arrays: Any) -> Callable[[Path], None]:
    return lambda folder: np.savez(folder / "run.npz", **arrays)


def recorded(name: str, file: str, form: str, content: Any, **more: Any) -> None:
    read = more.pop("read", INFO.format(file))
    reader(f"recording {name}", file, form, content, read, **more)


AXES = ["iteration", "layer", "micro-batch", "source", "expert"]
recorded("tokens.npz", "run.npz", "binary", npz(tokens=COUNTS, axes=AXES), through=fuzz_mutations.of_npz)


def converted(folder: Path) -> None:
    from mfabric_jax import traffic

    traffic.save_tokens(traffic.Tokens(COUNTS.astype(float), "drawn"), folder / "run.npz")


recorded("of traces convert", "run.npz", "binary", converted, through=fuzz_mutations.of_npz)
recorded(
    "of Megatron's counts",
    "run.npz",
    "binary",
    npz(num_global_tokens_per_expert=COUNTS[:, :, 0].reshape(3, 2, 2, 2, 8)),
    through=fuzz_mutations.of_npz,
)
PHYSICAL = {"expert_load_window": LOADS, "physical_to_logical_map": np.array([[0, 1, 2, 3, 4, 5, 0, 1]] * 2)}
recorded("of vLLM", "run.npz", "binary", npz(**PHYSICAL), through=fuzz_mutations.of_npz)
recorded(
    "run.npy", "run.npy", "binary", lambda folder: np.save(folder / "run.npy", COUNTS), through=fuzz_mutations.of_npy
)
recorded("run.json", "run.json", "json", {"axes": AXES, "counts": COUNTS[:2].tolist()})
recorded("EPLB weights", "run.json", "json", {"weight": LOADS[0].tolist()})
PASSES = [{"forward_pass_id": n, "rank": 0, "global_physical_count": Tensor(LOADS[n])} for n in range(3)]
DUMP = {"records": PASSES, "last_physical_to_logical_map": Tensor(PHYSICAL["physical_to_logical_map"])}
recorded("of SGLang's passes", "run.pt", "binary", lambda folder: write_torch(folder / "run.pt", DUMP))
STAT = {"rank": 0, "logical_count": Tensor(LOADS), "average_utilization_rate_over_window": 0.5}
recorded("of SGLang", "run.pt", "binary", lambda folder: write_torch(folder / "run.pt", STAT))
LONG = "\n".join(
    ["iteration,layer,micro_batch,source,expert,tokens"]
    + [",".join(map(str, (*place, COUNTS[place]))) for place in np.ndindex(2, 2, 1, 2, 4)]
)
recorded("run.csv", "run.csv", "csv", LONG + "\n")
recorded("packed run.csv.gz", "run.csv.gz", "binary", gzip.compress(LONG.encode(), mtime=0))


def long_parquet(folder: Path) -> None:
    import io

    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(io.BytesIO(LONG.encode())), folder / "run.parquet")


recorded("run.parquet", "run.parquet", "binary", long_parquet, through=fuzz_mutations.of_table)
LOADED_LONG = "layer,expert,tokens\n" + "".join(
    f"{layer},{e},{7 * e + layer + 1}\n" for layer in (0, 1) for e in range(16)
)
LINES = [line(step, layer, rank, [[rank, 2], [1, 3], [0, 1]]) for step in (0, 5) for layer in (0, 1) for rank in (0, 1)]
ROUTED = "traces info run.jsonl --tp 1 --ep 2 --dp 1 --pp 1 --experts 4 --out rows.csv"
recorded(
    "of a router trace", "run.jsonl", "jsonl", lambda folder: write_lines(folder / "run.jsonl", *LINES), read=ROUTED
)


def router_folder(folder: Path) -> None:
    (folder / "trace").mkdir(exist_ok=True)
    for rank in (0, 1):
        write_lines(folder / "trace" / f"rank{rank}.jsonl", *[one for one in LINES if one["rank"] == rank])


recorded("of a router's folder", "trace/rank1.jsonl", "jsonl", router_folder, read=ROUTED.replace("run.jsonl", "trace"))
recorded("weight matrix", "w.txt", "json", [[100, 200, 50], [150, 150, 50], [0, 350, 0]])


def gate_folder(folder: Path) -> None:
    (folder / "gate").mkdir(exist_ok=True)
    np.save(folder / "gate" / "counts_layer_expert_iter_rank_mb.npy", COUNTS.transpose(1, 4, 0, 3, 2))
    (folder / "gate" / "iterations.txt").write_text("0\n100\n200\n")


GATE = "traces info gate --records 0-200 --out rows.csv"
recorded(
    "SmartMoE",
    "gate/counts_layer_expert_iter_rank_mb.npy",
    "binary",
    gate_folder,
    read=GATE,
    through=fuzz_mutations.of_npy,
)
recorded("SmartMoE's iterations", "gate/iterations.txt", "text", gate_folder, read=GATE)
OLMOE = {"olmoe_topk": COUNTS[:, 0, 0], "mistral_topk": COUNTS[:, 1, 0], "domains": np.array(["a", "b", "c"])}


def olmoe_file(folder: Path) -> None:
    np.savez(folder / "expert_counts.npz", **OLMOE)


recorded(
    "OLMoE",
    "expert_counts.npz",
    "binary",
    olmoe_file,
    read=lambda path: recording_in(path.parent),
    through=fuzz_mutations.of_npz,
)
recorded(
    "LAER-MoE",
    "token_analysis.csv",
    "csv",
    LAER_HEAD + "\n".join(laer_rows()) + "\n",
    read=lambda path: recording_in(path.parent),
)
reader(
    "trace of a case",
    "run.csv",
    "csv",
    case_and("run.csv", LOADED_LONG),
    "compare case.toml --trace run.csv --out rows.csv",
)
LOADED = {"logical_count": [[812, 40, 388, 91], [120, 630, 75, 505]]}
reader("loads to be placed", "loads.json", "json", LOADED, "traces place loads.json out.json --ranks 2 --slots 6")


# --------------------------------------------------------------------------------------------------------- measurements
FIT = "calibrate nccl {} --nic-gbps 400 --out fit.json"
TIMES = [*samples.nccl_times(20e-6, 40e9, 0.5, 0.02, 1)][::4]
LABELS = (
    "RDMA_Write_Bidirectional_BW_Test",
    "RDMA_Write_Latency_Test",
    "RDMA_Write",
    "RDMA",
    "Write",
    "Latency",
    "Test",
    "MPI",
)  # by which programs are told apart
MEASURED = {
    "nccl-tests": ("n.log", "text", samples.nccl_text(TIMES, 16, 8), ""),
    "nccl-tests as JSON": ("n.json", "json", samples.nccl_json(TIMES, 16, 8), ""),
    "nccl-tests by iteration": ("n.log", "text", samples.PER_ITERATION, " --ranks 16"),
    "older nccl-tests": ("n.log", "text", samples.OLDER, " --ranks 16"),
    "OSU": ("n.log", "text", samples.OSU, " --ranks 16"),
    "perftest": ("n.log", "text", samples.WRITE_BW, ""),
    "perftest as JSON": ("n.json", "json", samples.WRITE_BW_JSON, ""),
    "latency of perftest": ("n.log", "text", samples.WRITE_LAT, ""),
    "DeepEP, low latency": ("n.log", "text", samples.LOW_LATENCY, " --ranks 16"),
    "DeepEP": ("n.log", "text", samples.NORMAL, " --ranks 16"),
}


def reports_in(ranks: int | None) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        from mfabric_jax.apps.recordings.measurements.formats import read_times

        return [repr(one) for one in read_times(path, ranks)]

    return read


for name, (file, form, text, more) in MEASURED.items():
    reader(name, file, form, text, reports_in(16 if more else None), free=LABELS)
reader("fit of nccl-tests", "n.log", "text", MEASURED["nccl-tests"][2], FIT.format("n.log") + " --tier across")
reader(
    "fit of OSU", "n.log", "text", samples.OSU, FIT.format("n.log") + " --ranks 16 --gpus-per-server 8 --tier across"
)


# ------------------------------------------------------------------------------------------------------------- requests
def log(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


AZURE = log(
    ["TIMESTAMP,ContextTokens,GeneratedTokens"] + [f"2023-11-16 18:15:{n}.68,{300 + n},{40 + n}" for n in range(10, 40)]
)
BURST = log(["Timestamp,Request tokens,Response tokens,Model"] + [f"{n / 2},{300 + n},{40 + n},gpt" for n in range(30)])
MOONCAKE = log(
    [
        json.dumps({"timestamp": 500 * n, "input_length": 1100 + n, "output_length": 40, "hash_ids": [0, n, n + 99]})
        for n in range(30)
    ]
)
CHATS = [
    {"chat_id": n, "parent_chat_id": -1, "timestamp": n / 2, "input_length": 40, "output_length": 9} for n in range(30)
]
BAILIAN = log([json.dumps(chat | {"type": "text", "turn": 1, "hash_ids": [0, 1, n]}) for n, chat in enumerate(CHATS)])


def arrivals_in(path: Path) -> Any:
    from mfabric_jax.apps.serving.arrivals import read_arrivals

    found = read_arrivals(path, 10_000)
    return [found.left_out, *(each.tolist() for each in (found.arrival_s, found.prompt, found.fresh, found.answer))]


for name, form, text in (
    ("Azure", "csv", AZURE),
    ("BurstGPT", "csv", BURST),
    ("Mooncake", "jsonl", MOONCAKE),
    ("Qwen-Bailian", "jsonl", BAILIAN),
):
    beyond = ("type", "Model", "chat_id", "parent_chat_id", "turn", fuzz_mutations.UNKNOWN)
    reader(f"requests of {name}", "log.txt", form, text, arrivals_in, free=beyond)


def turns_in(path: Path) -> Any:
    from mfabric_jax.apps.serving.arrivals import read_arrivals

    found = read_arrivals(path, 10_000, turns="after")
    assert found.turns is not None
    columns = (found.arrival_s, found.prompt, found.fresh, found.answer, *found.turns)
    return [found.left_out, *(each.tolist() for each in columns)]


TURNS_OF_BURST = log(
    ["Timestamp,Session ID,Elapsed time,Request tokens,Response tokens"]
    + [f"{n / 2},{n % 7},0.2{n},{300 + n},{40 + n}" for n in range(30)]
)
TURNS_OF_MOONCAKE = log(
    [
        json.dumps({"timestamp": 500 * n, "input_length": 600 * (n // 5 + 1), "output_length": 40, "hash_ids": blocks})
        for n in range(30)
        for blocks in [[100 * (n % 5) + block for block in range(-(-600 * (n // 5 + 1) // 512))]]
    ]
)
TURNS_OF_BAILIAN = log([json.dumps(chat | {"parent_chat_id": n - 7}) for n, chat in enumerate(CHATS)])
for name, form, text in (
    ("BurstGPT", "csv", TURNS_OF_BURST),
    ("Mooncake", "jsonl", TURNS_OF_MOONCAKE),
    ("Qwen-Bailian", "jsonl", TURNS_OF_BAILIAN),
):
    reader(f"turns of {name}", "log.txt", form, text, turns_in, free=("turn", "type", fuzz_mutations.UNKNOWN))
