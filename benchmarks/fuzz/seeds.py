"""A valid file of every kind that a command reads, small; and the words that read it."""

import json
from pathlib import Path

import numpy as np

COMPARE = "compare --models llama-moe --fabrics fat-tree --nic-gbps 400"
FAILURES = "failures --models llama-moe --fabrics fat-tree --kinds nvswitch,server"
READERS = {  # file: the command lines that read it
    "prices.toml": (f"{COMPARE} --prices prices.toml", f"{COMPARE} --prices prices.toml --fabrics mfabric"),
    "prices.json": (f"{COMPARE} --prices prices.json",),
    "gpu.toml": (f"{COMPARE} --gpu gpu.toml",),
    "gpu.json": (f"{COMPARE} --gpu gpu.json",),
    "model.toml": (f"{COMPARE} --models model.toml", "traffic model.toml"),
    "model.json": (f"{COMPARE} --models model.json", "traffic model.json"),
    "config.json": (f"{COMPARE} --models config.json", "traffic config.json"),
    "knobs.json": (f"{COMPARE} --traffic knobs.json",),
    "space.toml": ("sweep space.toml --out sw",),
    "space.json": ("sweep space.json --out sw",),
    "designs.toml": ("sweep designs.toml --out sw2",),
    "rates.toml": (f"{FAILURES} --rates rates.toml",),
    "rates.json": (f"{FAILURES} --rates rates.json",),
    "graph.json": ("draw graph.json --out p.svg", "cluster --model llama-moe --graph graph.json"),
    "rows.csv": (
        "query rows.csv",
        "query rows.csv --by model --measures iteration_s:median",
        "report rows.csv --out p.html",
    ),
    "rows.config.json": ("query rows.csv", "report rows.csv --out p.html"),
    "rows.parquet": ("query rows.parquet", "query rows.parquet --sort iteration_s", "report rows.parquet --out p.html"),
    "swept/sweep.json": ("query swept", "sweep space.toml --out swept"),
    "swept/rows-00000.parquet": ("query swept", "report swept --out p.html"),
    "a.policy": (f"{COMPARE} --policy a.policy --fabrics mfabric", "evaluate --policies a.policy"),
    "runs/run.json": ("validate packet --runs runs",),
    "run.npz": ("traces info run.npz", f"{COMPARE} --trace run.npz"),
    "tokens.npy": ("traces info tokens.npy", "traces convert tokens.npy o.npz"),
    "logical.npz": ("traces info logical.npz", "traces convert logical.npz o.npz"),
    "router.jsonl": ("traces info router.jsonl", "traces convert router.jsonl o.npz"),
    "weight.txt": ("traces info weight.txt", "traces convert weight.txt o.npz"),
    "laer/token_analysis.csv": ("traces info laer", "traces convert laer o.npz"),
    "own.py": (f"{COMPARE} --policy own.py:mine --fabrics mfabric",),
}
SPACE = {
    "evaluate": "all-to-all",
    "rows_per_shard": 4,
    "draws": 2,
    "fixed": {"servers": 4, "policy": "uniform", "optical_degree": 2},
    "grid": {"sample": [0, 1], "nic_gbps": [100, 200.5]},
    "random": {"electrical_nics": {"low": 1, "high": 4, "whole": True}},
}
DESIGNS = {
    "impossible": "leave-out",
    "fixed": {"model": "llama-moe", "bubble": 0.15},
    "grid": {"ocs": ["polatis", "epiphotonics"], "nic_gbps": [100, 400]},
    "list": {"optical_degree": [2, 3], "electrical_nics": [6, 5]},
}
RATES = {"nvswitch": {"mtbf_hours": 50000}, "server": {"per_million_hours": 20, "repair_hours": 24}}
PRICES = {"gbps": [100, 800], "nic": [1.5, 2], "transceiver": [1, 2], "switch_port": [3, 4], "ocs_port": 520.5}
PRICES |= {"watts": {"ocs_port": 0.5}, "ocs": {"own": {"ports": 320, "usd": 1000}}, "gpus": {"H100-SXM": {"usd": 9}}}
GPU = {"name": "own", "bf16_tflops": 500.5, "nvlink_gigabytes_per_s": 450, "memory_gigabytes": 80, "nics": 8, "usd": 3}
MODEL = {
    **{"blocks": 48, "hidden": 5120, "experts": 64, "top_k": 6, "expert_hidden": 1536, "vocab": 32000},
    **{"tp": 1, "ep": 16, "pp": 4, "dp": 4, "dense_blocks": 1, "dense_hidden": 8192},
    "attention": {"heads": 40, "kv_heads": 8, "head_dim": 128},
}
RELEASED = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    **{"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
    "tie_word_embeddings": False,
}
KNOBS = {"skew": 1.2, "hot_experts": 2, "hot_share": 0.5, "rotation": 4, "sampled": True, "popularity": "log-normal"}
NODES = [{"id": name, "kind": "gpu"} for name in "abcdefgh"]
EDGES = [{"source": "s", "target": name, "capacity_gbps": 400.5, "latency_s": 1e-6} for name in "abcdefgh"]
GRAPH = {"directed": False, "multigraph": False, "nodes": [*NODES, {"id": "s"}], "edges": EDGES}
FLOW = {"src": 0, "dst": 1, "bytes": 1000, "start": 0.0, "fct_s": 0.01}
RUN = {
    "name": "by hand",
    "topology": "fat-tree, 8 hosts, non-blocking",
    "transport": "ndp",
    "routing": "per-packet spraying",
    **{"link_bps": 8e9, "payload_per_packet": 3, "header_per_packet": 1, "collective_s": 0.01},
    "flows": [FLOW, FLOW | {"dst": 2}],
}
ROWS = [
    {"model": f"m{n % 2}", "fabric": f, "nic_gbps": 400.0, "iteration_s": 1.5 + n, "network_cost_usd": 1e6, "gpus": 64}
    for n in range(3)
    for f in ("fat-tree", "mfabric")
]
POLICY = """from mfabric_jax import policies

def mine(demand, region, *, previous=None, key=None):
    return policies.uniform(demand, region)
"""


def make_seeds(folder: Path) -> None:
    """The files, in a folder that is empty."""
    from mfabric_jax.parts import SweepFolder
    from mfabric_jax.policies import _learned
    from mfabric_jax.policies._index import Index
    from mfabric_jax.report import write_rows

    for name in ("swept", "runs", "laer", "folder", "folder.csv"):
        (folder / name).mkdir()
    plain = {"prices": PRICES, "gpu": GPU, "model": MODEL, "space": SPACE, "designs": DESIGNS, "rates": RATES}
    for name, value in plain.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
        (folder / f"{name}.toml").write_text(toml(value))
    plain = {"config": RELEASED, "knobs": KNOBS, "graph": GRAPH, "runs/run": RUN}
    for name, value in plain.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    for name in ("rows.csv", "rows.parquet"):
        write_rows(ROWS, folder / name, {"command": "compare", "seed": 0})
    place = SweepFolder(folder / "swept", {"evaluate": "all-to-all", "parts": 1, "version": "0", "list": {}})
    place.claim()
    columns = {"configuration": np.arange(4), "nic_gbps": np.full(4, 100.0), "seconds": np.arange(4) + 0.5}
    place.write(0, columns, {"command": "sweep", "part": 0})
    _learned.save(folder / "a.policy", Index(), {})
    _make_traces(folder)
    for name, text in (("own.py", POLICY), ("broken.py", "def mine(:"), ("notes.md", "words")):
        (folder / name).write_text(text)


def _make_traces(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(folder / "run.npz", tokens=rng.integers(1, 99, (3, 2, 1, 4, 8)))
    np.save(folder / "tokens.npy", rng.random((2, 2, 1, 4, 8)))
    np.savez(folder / "logical.npz", logical_count=rng.integers(1, 99, (3, 2, 8)))
    line = {"stage": "pre_dispatch", "block": "decoder", "rank": 0, "num_tokens": 2, "topk": 1}
    lines = [line | {"step": s, "layer": n, "top_indices": [[n], [3]]} for s in range(3) for n in range(2)]
    (folder / "router.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "weight.txt").write_text(json.dumps((np.full((4, 4), 8)).tolist()))
    head, cells = "rank,method,model_name,layer,iter,token_num", np.ndindex(8, 2, 2)
    rows = [f"{rank},FSDP,m-e8k2,{layer},{step},{100 + rank}" for rank, layer, step in cells]
    (folder / "laer" / "token_analysis.csv").write_text("\n".join([head, *rows]) + "\n")


def toml(value: dict) -> str:
    """A mapping of numbers, texts, lists and tables of these as TOML; JSON writes these alike."""
    plain = [f"{key} = {_inline(one)}" for key, one in value.items() if not isinstance(one, dict)]
    tables = [f"[{key}]\n{toml_lines(one)}" for key, one in value.items() if isinstance(one, dict)]
    return "\n".join([*plain, *tables]) + "\n"


def toml_lines(table: dict) -> str:
    """The lines of a table."""
    return "\n".join(f"{key} = {_inline(one)}" for key, one in table.items())


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
