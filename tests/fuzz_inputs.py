"""A small good file for every reader, and what reads it: a command line, or a function whose result is compared."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests import fuzz_mutations
from tests.fabric import test_graph_files as graphs
from tests.measurements import samples
from tests.tasks.formats import test_chakra, test_flexflow, test_htsim, test_simai
from tests.traffic.jobs import LAER_HEAD, Tensor, laer_rows, line, write_lines, write_torch
from tests.workload import configs

Read = str | Callable[[Path], Any]


class Reader(NamedTuple):
    """What reads a file.

    - `file`: the one that is mutated; `write` makes it and those beside it in a folder.
    - `read`: words of a command in that folder, or a function of the file whose result is compared.
    - `free`: names of what may be anything without changing a number, such as notes.
    - `through`: a mutation by the library of the format. `also`: what a sentence may name instead of the file.
    """

    file: str
    form: str
    write: Callable[[Path], Any]
    read: Read
    free: tuple[str, ...] = ()
    through: Callable[..., Any] | None = None
    also: tuple[str, ...] = ()


READERS: dict[str, Reader] = {}


def reader(name: str, file: str, form: str, content: Any, read: Read, **more: Any) -> None:
    """Add a reader; `content`: text, bytes, lines of JSON, or a function that writes files to a folder."""

    def write(folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(folder)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))

    READERS[name] = Reader(file, form, write, read, **more)


# ---------------------------------------------------------------------------------------------------------------- cases
CASE = """model = "llama-moe"
[job]
parallel = { gpus = 64, tp = 1, pp = 2, ep = 16, dp = 2 }
batch.micro_batches = 2
batch.sequence = 2048
overlap_gradients = true
[network]
fabric = "fat-tree"
nic_gbps = 400
link_delay_s = 1e-6
[compute]
efficiency = 0.4
[traffic]
drawn = 1
[run]
iterations = 1
draws = 1
"""
OF_CASE = "compare {} --out rows.csv"
SMALL = "compare case.toml --out rows.csv --set {}"


def case_and(file: str, content: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "case.toml").write_text(CASE)
        (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def beside(name: str, file: str, form: str, content: Any, words: str, **more: Any) -> None:
    content = json.dumps(content) if isinstance(content, dict | list) else content
    reader(name, file, form, case_and(file, content), words, **more)


reader("case.toml", "case.toml", "toml", CASE, OF_CASE.format("case.toml"))
AS_JSON = {
    "model": "llama-moe",
    "preset": "paper",
    "job": {"parallel": {"gpus": 64, "tp": 1, "pp": 2, "ep": 16, "dp": 2}, "batch": {"micro_batches": 1}},
    "network": {"fabric": "mfabric", "nic_gbps": 400, "mfabric": {"optical_degree": 4}},
    "circuits": {"policy": "greedy", "routing": "unsplit"},
    "run": {"iterations": 1, "draws": 1},
    "traffic": {"drawn": 1},
}
reader("case.json", "case.json", "json", AS_JSON, OF_CASE.format("case.json"))
VARIANTS = """model = "llama-moe"
job.parallel.gpus = 64
[network]
fabric = ["fat-tree", "mfabric"]
nic_gbps = [100, "400 Gbps"]
[[variants]]
name = "plain"
circuits = { policy = "greedy", routing = "unsplit" }
[[variants]]
name = "relayed"
circuits = { policy = "greedy", routing = "relay" }
[random]
circuits.delay_s = { low = "1 ms", high = "0.1 s", scale = "log" }
network.goodput = { of = [0.9, 0.8] }
[sweep]
draws = 2
draw_seed = 3
rows_per_file = 8
"""


def designs(path: Path) -> Any:
    from mfabric_jax.sweep import read_sweep

    return read_sweep(path).described()


def case_space(path: Path) -> Any:
    from mfabric_jax.case.layers import load

    return [str(case) for case in load(path)]


reader("case with variants", "space.toml", "toml", VARIANTS, "show space.toml --changed")
ALL_TO_ALLS = """evaluate = "all-to-all"
[fixed]
servers = 8
optical_degree = 4
[grid]
policy = ["greedy", "greedy-next"]
demand = ["zipf", "sparse"]
[list]
sample = [0, 1]
[random]
nic_gbps = { low = 100, high = 400 }
"""
reader("sweep of all-to-alls", "sweep.toml", "toml", ALL_TO_ALLS, designs)
REPLAYS = """evaluate = "replay"
draws = 2
rows_per_shard = 8
dtype = "float64"
[fixed]
workload = "job.json"
alpha_s = 1e-6
[grid]
"network.fabric" = ["fat-tree", "mfabric"]
"network.nic_gbps" = [100, 400]
[random]
compute_scale = { low = 1, high = 2 }
"""
TASKS = {
    **{"format": "mfabric tasks", "version": 1, "ranks": 4, "groups": [[0, 1, 2, 3]]},
    "tasks": [
        {"kind": "compute", "rank": 0, "seconds": 1e-3, "name": "a"},
        {"kind": "send", "rank": 0, "bytes": 1e6, "peer": 3, "match": 0, "after": [0], "lag": 1e-6},
        {"kind": "recv", "rank": 3, "peer": 0, "match": 0, "start": 1e-4},
        *(
            {"kind": "collective", "op": "all_reduce", "rank": rank, "group": 0, "match": 1, "bytes": 1e6, "lane": 1}
            for rank in range(4)
        ),
        {"kind": "compute", "rank": 3, "seconds": 2e-3, "after": [2, 6]},
    ],
}


def with_tasks(file: str, content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "job.json").write_text(json.dumps(TASKS).replace(', "start": 0.0001', ""))
        (folder / file).write_text(content)

    return write


reader("sweep of replays", "sweep.toml", "toml", with_tasks("sweep.toml", REPLAYS), designs)
SERVED = """model = "deepseek-v3"
gpu = "H200-SXM"
network = { fabric = "fat-tree", nic_gbps = 400 }
[serving]
ep = 16
batch = 32
context = 2048
prefill = { ep = 16 }
"""
reader("case of serving", "serve.toml", "toml", SERVED, "serve serve.toml --out rows.csv")


# ------------------------------------------------------------------------------------------------- files beside a case
GPU = """like = "H100-SXM"
name = "mine"
bf16_tflops = 800
fp8_tflops = 1600
memory_gigabytes = 96
memory_gigabytes_per_s = 4000
nvlink_gigabytes_per_s = 300
gpus_per_server = 4
nics = 4
watts = 650
usd = 25000
nvswitches = 4
source = "our tender"
"""
beside("GPU", "gpu.toml", "toml", GPU, "compare case.toml --gpu gpu.toml --out rows.csv", free=("source", "name"))
MODEL = """blocks = 4
hidden = 512
attention = { heads = 8, kv_heads = 4, head_dim = 64 }
experts = 32
top_k = 4
expert_hidden = 256
dense_blocks = [1]
dense_hidden = 1024
shared_hidden = 128
vocab = 32000
sequence = 2048
tp = 1
ep = 16
pp = 2
dp = 2
tied = true
source = "made up"
"""
SMALLER = "--set traffic.drawn=1 --set run.draws=1 --set job.batch.micro_batches=1 --fabric fat-tree"
SIZED = f"--gpus 64 --ep 16 --tp 1 --pp 2 --dp 2 {SMALLER}".replace("micro_batches=1", "micro_batches=4")
reader("model", "m.toml", "toml", MODEL, f"compare --model m.toml {SMALLER} --out rows.csv", free=("source",))
LATENT = MODEL.replace(
    "attention = { heads = 8, kv_heads = 4, head_dim = 64 }",
    "[[attention]]\nblocks = 2\nheads = 8\nquery_rank = 0\nkv_rank = 64\nnope_dim = 32\nrope_dim = 16\nvalue_dim = 32\n"
    '[[attention]]\nblocks = 2\nkind = "linear"\nheads = 8\nhead_dim = 64\n',
)
LATENT = "".join(sorted(LATENT.split("[[attention]]")[:1])) + "[[attention]]".join(
    ["", *LATENT.split("[[attention]]")[1:]]
)
HEAD, *KINDS = LATENT.split("[[attention]]\n")
LAST, _, REST = KINDS[-1].partition("head_dim = 64\n")
LATENT = f"{HEAD}{REST}[[attention]]\n{KINDS[0]}[[attention]]\n{LAST}head_dim = 64\n"
reader(
    "model of mixed attention",
    "m.toml",
    "toml",
    LATENT,
    f"compare --model m.toml {SMALLER} --out rows.csv",
    free=("source",),
)
for kind in ("Qwen3-235B-A22B", "DeepSeek-V3", "MiniMax-Text-01", "Llama-4-Maverick", "gpt-oss-120b", "GLM-4.5"):
    found = next((one for name, one in configs.RELEASED.items() if kind.lower() in name.lower()), None)
    if found is not None:
        config = json.dumps(found.config)
        read = f"traffic --model config.json {SIZED}"
        reader(f"config.json of {kind}", "config.json", "json", config, read, free=("architectures",))
PRICES = """gbps = [100, 400]
transceiver = [100, 500]
nic = [800, 1500]
switch_port = [300, 1000]
ocs_port = 300
fibre_per_metre = 0.5
metres_per_link = 100
[gpus.H100-SXM]
usd = 22000
[watts]
ocs_port = 2
[servers.hgx]
usd = 30000
[running]
usd_per_kwh = 0.12
[ocs.mine]
technology = "2D MEMS"
ports = 256
delay_s = [0.002, 0.005]
usd = 40000
usd_per_port = 50
watts = 60
watts_per_port = 0.2
turns_per_s = 10
[switch.400]
usd = 28000
ports = 64
nic_gbps = 400
optics_usd = 1100
source = "quote"
"""
PRICED = "compare case.toml --fabric fat-tree,mfabric --ocs mine --set network.prices=p.toml --out rows.csv"
beside("prices", "p.toml", "toml", PRICES, PRICED, free=("source", "technology"))
TRANSPORT = """payload_bytes = 4096
header_bytes = 82
pacing = 1.0
ack_bytes = 64
startup_s = 2e-6
regain = 0.5
store_and_forward = true
measured_bytes = [1e3, 1e9]
"""
beside("transport", "t.toml", "toml", TRANSPORT, SMALL.format("network.transport=t.toml"))
RATES = """[electrical-nic]
mtbf_hours = 200000
[gpu]
per_million_hours = 20
repair_hours = 12
[server]
mtbf_hours = 50000
"""
KINDS_OF = (
    "failures case.toml --set failures.kinds=electrical-nic+gpu+server --set failures.rates=r.toml --out rows.csv"
)
beside("rates of failures", "r.toml", "toml", RATES, KINDS_OF, free=("electrical-nics", "links", "gpus", "servers"))
KERNELS = """[other]
products = { bf16 = [0.6, 0.7, 0.8], fp8 = [0.6, 0.67, 0.72] }
grouped = { bf16 = [0.6, 0.7, 0.8], fp8 = [0.6, 0.68, 0.72] }
weights = { bf16 = [0.6, 0.7, 0.8], fp8 = [0.29, 0.34, 0.45] }
memory = { stream = [0.75, 0.85, 0.92] }
[other.attention.forward]
128 = { 2048 = [0.4, 0.5, 0.6], 8192 = [0.5, 0.6, 0.7] }
[other.attention.backward]
128 = { 2048 = [0.3, 0.4, 0.5], 8192 = [0.4, 0.5, 0.6] }
"""
beside(
    "kernels",
    "k.toml",
    "toml",
    KERNELS,
    "compare case.toml --set compute.rate=kernels --set compute.kernels.table=k.toml --out rows.csv",
)
KNOBS = {"schema_version": 1, "skew": 0.4, "row_noise": 0.2, "drift": 0.1, "hot_share": 0.1, "hot_experts": 2}
beside("knobs", "k.json", "json", KNOBS, SMALL.format("traffic.knobs=k.json"))
SLOTS = [[*range(16)], [*range(15, -1, -1)]]
MAP = {"physical_to_logical_map": [[*range(16)]]}
beside("placement of SGLang", "p.json", "json", MAP, SMALL.format("placement.given=p.json"))
EPLB = {
    "phy2log": SLOTS,
    "log2phy": [[[e] for e in range(16)], [[15 - e] for e in range(16)]],
    "logcnt": [[1] * 16] * 2,
}
reader("placement of EPLB", "p.json", "json", EPLB, "traces place p.json out.json --ranks 2")
ASCEND = {
    "moe_layer_count": 1,
    "layer_list": [
        {
            "layer_id": 0,
            "device_count": 2,
            "device_list": [{"device_id": d, "device_expert": [2 * d, 2 * d + 1]} for d in (0, 1)],
        }
    ],
}
reader("placement of vLLM-Ascend", "p.json", "json", ASCEND, "traces place p.json out.json --ranks 2 --form map")


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
NODES = [{"id": f"gpu {n}", "kind": "gpu"} for n in range(16)] + [{"id": "switch 0", "kind": "switch"}]
LINKS = [{"source": f"gpu {n}", "target": "switch 0", "capacity_gbps": 400, "latency_s": 1e-6} for n in range(16)]
OWN = {"directed": False, "multigraph": False, "graph": {"name": "mine"}, "nodes": NODES, "edges": LINKS}
reader("graph of networkx", "own.json", "json", OWN, graph_in, free=("name", "switch"))
ON_GRAPH = "cluster --graph own.json --model llama-moe --tp 1 --pp 1 --ep 16 --dp 1 --gpus 16 --links links.csv"


def tasks_on_graph(folder: Path) -> None:
    (folder / "job.json").write_text(json.dumps(TASKS))
    (folder / "own.json").write_text(json.dumps(OWN))
    (folder / "ranks.json").write_text(json.dumps({"gpus": [3, 1, 0, 2]}))


RUN = "replay job.json --graph own.json --out rows.csv"
reader("graph that is run on", "own.json", "json", tasks_on_graph, RUN, free=("name", "switch"))
reader("GPU of every rank", "ranks.json", "json", tasks_on_graph, f"{RUN} --ranks-on ranks.json")


# ---------------------------------------------------------------------------------------------------------------- tasks
def tasks_in(path: Path) -> Any:
    from mfabric_jax.tasks import read_with_remarks

    graph, kind, remarks = read_with_remarks(path)
    columns = {name: getattr(graph, name) for name in graph.__dataclass_fields__}
    columns = {name: each.tolist() if isinstance(each, np.ndarray) else each for name, each in columns.items()}
    return [kind, remarks, columns]


def write_tasks_as(file: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from mfabric_jax.tasks import read_tasks, write_tasks

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
    from mfabric_jax.tasks import read_with_remarks

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
        from mfabric_jax.measurements.formats import read_times

        return [repr(one) for one in read_times(path, ranks)]

    return read


for name, (file, form, text, more) in MEASURED.items():
    reader(name, file, form, text, reports_in(16 if more else None))
reader("fit of nccl-tests", "n.log", "text", MEASURED["nccl-tests"][2], FIT.format("n.log") + " --tier across")
reader(
    "fit of OSU", "n.log", "text", samples.OSU, FIT.format("n.log") + " --ranks 16 --gpus-per-server 8 --tier across"
)


# -------------------------------------------------------------------------------------------------------------- requests
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
    from mfabric_jax.serving.arrivals import read_arrivals

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


# ------------------------------------------------------------------------------------------------------ rows and folders
def rows_of_compare(folder: Path) -> None:
    from mfabric_jax.cli import main

    (folder / "case.toml").write_text(CASE)
    main(
        ["compare", str(folder / "case.toml"), "--fabric", "fat-tree,rail-optimized", "--out", str(folder / "rows.csv")]
    )
    main(["compare", str(folder / "case.toml"), "--fabric", "fat-tree", "--out", str(folder / "rows.parquet")])


def rows_in(path: Path) -> Any:
    from mfabric_jax.report import read_rows

    return read_rows(path)


QUERY = "query {} --by fabric --measures iteration_s:mean --out out.csv"
reader("rows.csv", "rows.csv", "csv", rows_of_compare, QUERY.format("rows.csv"))
reader("rows.csv of a page", "rows.csv", "csv", rows_of_compare, "report rows.csv --out page.html")
reader("rows.config.json", "rows.config.json", "json", rows_of_compare, "report rows.csv --out page.html")
reader("rows run again", "rows.config.json", "json", rows_of_compare, "rerun rows.csv")
reader(
    "rows.parquet",
    "rows.parquet",
    "binary",
    rows_of_compare,
    QUERY.format("rows.parquet"),
    through=fuzz_mutations.of_table,
)


def swept(folder: Path) -> None:
    from mfabric_jax.cli import main

    (folder / "space.toml").write_text(CASE.replace("nic_gbps = 400", "nic_gbps = [100, 400]"))
    main(["sweep", str(folder / "space.toml"), "--out", str(folder / "swept")])


reader("sweep.json", "swept/sweep.json", "json", swept, QUERY.format("swept"))
reader(
    "part of a sweep",
    "swept/rows-00000.parquet",
    "binary",
    swept,
    QUERY.format("swept"),
    through=fuzz_mutations.of_table,
)
reader("sweep that goes on", "swept/sweep.json", "json", swept, "sweep space.toml --out swept")


def journal(folder: Path) -> None:
    import os

    from mfabric_jax.report import rows

    (folder / "case.toml").write_text(CASE)
    from mfabric_jax.cli import main

    unlink, kept = os.unlink, {}

    def keep(path: Any, *more: Any, **named: Any) -> None:
        if str(path).endswith(".journal"):
            kept["journal"] = Path(path).read_bytes()
        unlink(path, *more, **named)

    Path.unlink, before = lambda self, missing_ok=False: keep(self) if self.exists() else None, Path.unlink
    try:
        main(
            [
                "compare",
                str(folder / "case.toml"),
                "--fabric",
                "fat-tree,rail-optimized",
                "--out",
                str(folder / "rows.csv"),
            ]
        )
    finally:
        Path.unlink = before
    assert "journal" in kept, rows
    (folder / "rows.csv.journal").write_bytes(kept["journal"])
    (folder / "rows.csv").unlink()


reader("journal of rows", "rows.csv.journal", "jsonl", journal, QUERY.format("rows.csv"))


# -------------------------------------------------------------------------------------------------------------- policies
def policy_of(folder: Path) -> None:
    from mfabric_jax.policies.index_rule import Index
    from mfabric_jax.policies.learned import save

    save(folder / "one.policy", Index(), {"seed": 1, "mfabric_jax": "0.2"})


def policy_in(path: Path) -> Any:
    import jax

    from mfabric_jax.policies.learned import load

    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(load(path)) if hasattr(leaf, "dtype")]


reader("policy", "one.policy", "binary", policy_of, policy_in)


# ----------------------------------------------------------------------------------------------------------- packet runs
PACKETS = {
    **{"name": "incast2", "topology": "4 hosts, non-blocking", "transport": "ndp", "routing": "spraying"},
    **{"link_bps": 1e11, "hop_latency_s": 1e-6, "payload_per_packet": 4096, "header_per_packet": 64},
    "collective_s": 2.75e-3,
    "flows": [{"src": src, "dst": 0, "bytes": 2**24, "start": 0.0, "fct_s": 2.75e-3} for src in (1, 2)],
}
reader("packet run", "runs/incast.json", "json", PACKETS, "validate packet --runs runs --out rows.csv", free=("name",))


# ------------------------------------------------------------------------------------------------------------------ jobs
SHARED = """iterations = 5
[links]
trunk = 50
[[jobs]]
name = "a"
compute_s = 0.141
gigabytes = 0.7125
links = ["trunk"]
[[jobs]]
name = "b"
iterations = 4
arrival_s = 0.02
phases = [{ compute_s = 0.1, gigabytes = 0.3, links = ["trunk"] }, { compute_s = 0.05, gigabytes = 0.3, links = [["trunk"]] }]
"""
JOBS = "jobs jobs.toml --ways fair,cassini --out rows.csv"
reader("jobs on links", "jobs.toml", "toml", SHARED, JOBS, free=("name",))
ON_FABRIC = """iterations = 3
[fabric]
servers = 8
rack = 4
[fabric.case]
network.nic_gbps = 100
network.oversubscription = 2
[[jobs]]
name = "a"
compute_s = 0.1
gigabytes = 1
servers = [0, 4, 5]
traffic = "ring"
[[jobs]]
name = "b"
graph = "job.json"
servers = [1, 2]
"""
reader("jobs on a fabric", "jobs.toml", "toml", with_tasks("jobs.toml", ON_FABRIC), JOBS, free=("name",))
