"""A small good file for every reader, and what reads it: a command line, or a function whose result is compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests import fuzz_mutations
from tests.workload import configs

Read = str | Callable[[Path], Any]


class Reader(NamedTuple):
    """What reads a file.

    - `file`: mutated; `write` makes it and those beside it in a folder.
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
    from mfabric_jax.apps.sweep import read_sweep

    return read_sweep(path).identity()


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


# -------------------------------------------------------------------------------------------------- files beside a case
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
nvls_over_ring = 0.8
source = "our tender"
"""
beside(
    "GPU",
    "gpu.toml",
    "toml",
    GPU,
    "compare case.toml --gpu gpu.toml --out rows.csv",
    free=("source", "name", "tender", "our", "mine"),
    also=("a server has",),
)
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
source = "ours"
"""
SMALLER = "--set traffic.drawn=1 --set run.draws=1 --set job.batch.micro_batches=1 --fabric fat-tree"
SIZED = f"--gpus 64 --ep 16 --tp 1 --pp 2 --dp 2 {SMALLER}".replace("micro_batches=1", "micro_batches=4")
reader("model", "m.toml", "toml", MODEL, f"compare --model m.toml {SMALLER} --out rows.csv", free=("source", "ours"))
MIXED = """
[[attention]]
blocks = 2
heads = 8
query_rank = 0
kv_rank = 64
nope_dim = 32
rope_dim = 16
value_dim = 32
[[attention]]
blocks = 2
kind = "linear"
heads = 8
head_dim = 64
"""
LATENT = MODEL.replace("attention = { heads = 8, kv_heads = 4, head_dim = 64 }\n", "") + MIXED
reader(
    "model of mixed attention",
    "m.toml",
    "toml",
    LATENT,
    f"compare --model m.toml {SMALLER} --out rows.csv",
    free=("source", "ours"),
)
for kind in ("Qwen3-235B-A22B", "DeepSeek-V3", "MiniMax-Text-01", "Llama-4-Maverick", "gpt-oss-120b", "GLM-4.5"):
    found = next((one for name, one in configs.RELEASED.items() if kind.lower() in name.lower()), None)
    if found is not None:
        config = json.dumps(found.config)
        read = f"traffic --model config.json {SIZED}"
        reader(
            f"config.json of {kind}", "config.json", "json", config, read, free=("architectures",), also=("mutated",)
        )
PRICES = """gbps = [100, 400]
transceiver = [100, 500]
nic = [800, 1500]
switch_port = [300, 1000]
ocs_port = 300
fibre_per_metre = 0.5
metres_per_link = 100
sharp_port = 40
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
reconfigurations_per_s = 10
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
beside("placement of SGLang", "p.json", "json", MAP, SMALL.format("placement.file=p.json"))
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


# ----------------------------------------------------------------------------------------------------- rows and folders
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


# ------------------------------------------------------------------------------------------------------------- policies
def policy_of(folder: Path) -> None:
    from mfabric_jax.policies.index_rule import Index
    from mfabric_jax.policies.learned import save

    save(folder / "one.policy", Index(), {"seed": 1, "mfabric_jax": "0.2"})


def policy_in(path: Path) -> Any:
    import jax

    from mfabric_jax.policies.learned import load

    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(load(path)) if hasattr(leaf, "dtype")]


reader("policy", "one.policy", "binary", policy_of, policy_in)


# ---------------------------------------------------------------------------------------------------------- packet runs
PACKETS = {
    **{"name": "incast2", "topology": "4 hosts, non-blocking", "transport": "ndp", "routing": "spraying"},
    **{"link_bps": 1e11, "hop_latency_s": 1e-6, "payload_per_packet": 4096, "header_per_packet": 64},
    "collective_s": 2.75e-3,
    "flows": [{"src": src, "dst": 0, "bytes": 2**24, "start": 0.0, "fct_s": 2.75e-3} for src in (1, 2)],
}
reader("packet run", "runs/incast.json", "json", PACKETS, "validate packet --runs runs --out rows.csv", free=("name",))


# ----------------------------------------------------------------------------------------------------------------- jobs
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
phases = [{ compute_s = 0.1, gigabytes = 0.3, links = ["trunk"] }, { gigabytes = 0.3, links = [["trunk"]] }]
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
