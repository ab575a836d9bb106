"""Made-up rows of every model, fabric and bandwidth, whose parts add up; no claim about any real fabric."""

from typing import Any

import numpy as np

from tests.oracles.greedy import greedy

MODELS = {"mixtral-8x22b": 9.0, "mixtral-8x7b": 2.5, "llama-moe": 1.1, "qwen-moe": 1.6, "deepseek-r1": 31.0}
GPUS = {"mixtral-8x22b": 1024, "mixtral-8x7b": 128, "llama-moe": 64, "qwen-moe": 128, "deepseek-r1": 1024}
FABRICS = {  # (how much longer an all-to-all takes, dollars a GPU and Gbps, seconds of reconfiguration)
    "fat-tree": (1.0, 11.0, 0.0),
    "oversub-fat-tree": (2.6, 7.0, 0.0),
    "rail-optimized": (1.1, 10.0, 0.0),
    "mfabric": (1.2, 4.5, 0.02),
}
MORE = {
    "rail-only": (1.4, 8.0, 0.0),
    "topoopt": (2.1, 4.0, 0.0),
    "nvl72": (0.3, None, 0.0),
    "mfabric-cpo": (0.8, 3.8, 0.01),
}
BANDWIDTHS = (100, 200, 400, 800)


def row(model, fabric, gbps, nic_use="own", speed=1.0) -> dict[str, Any]:
    """One row; `speed` divides the communication."""
    scale = MODELS[model]
    slower, price, reconfig = (FABRICS | MORE)[fabric]
    ep = 0.35 * scale * slower * 100 / gbps / speed
    tp, dp = 0.05 * scale, 0.08 * scale * 100 / gbps
    part = {"compute_s": 0.7 * scale, "reconfig_s": reconfig * scale, "bubble_s": 0.1 * scale}
    iteration = part["compute_s"] + (tp + ep + dp) + part["reconfig_s"] + part["bubble_s"]
    cost = None if price is None else price * GPUS[model] * (gbps + 60)
    policy = "greedy" if fabric.startswith("mfabric") else "none"
    place = {"model": model, "fabric": fabric, "policy": policy, "routing": "unsplit", "nic_use": nic_use}
    place |= {"nic_gbps": gbps, "gpus": GPUS[model], "iteration_s": iteration}
    comm = {"exposed_comm_s": tp + ep + dp, "tp_comm_s": tp, "ep_comm_s": ep, "dp_comm_s": dp}
    worth = {"network_cost_usd": cost, "perf_per_dollar": None if cost is None else 1 / iteration / cost}
    return place | part | comm | worth | {"micro_batches": 8, "compute_source": "roofline"}


def rows(fabrics=tuple(FABRICS), models=tuple(MODELS), bandwidths=BANDWIDTHS):
    """A full comparison."""
    return [row(m, f, g) for m in models for f in fabrics for g in bandwidths]


def whole_clusters(rows, usd_per_gpu=50_000):
    """The same rows with what the whole cluster costs, at so many dollars a GPU beside the network, and 1 kW a GPU."""
    found = []
    for one in rows:
        net, seconds = one["network_cost_usd"], one["iteration_s"]
        cost = None if net is None else net + usd_per_gpu * one["gpus"]
        per = {"perf_per_cluster_dollar": None if cost is None else 1 / seconds / cost}
        per |= {
            "usd_per_million_tokens": None if cost is None else cost * seconds / 1e9,
            "cluster_kw": 1.0 * one["gpus"],
        }
        per |= {"joules_per_million_tokens": 5000 * seconds, "network_kw": one["gpus"] / 10}
        found.append(one | {"cluster_cost_usd": cost} | per)
    return found


def both_uses(**kwargs):
    """A full comparison in which mFabric occurs with its NICs apart and pooled."""
    every = rows(**kwargs)
    return every + [row(r["model"], "mfabric", r["nic_gbps"], "pooled", 1.3) for r in every if r["fabric"] == "mfabric"]


def segment(stage, track, kind, start, end, direction="forward", block=0, label=None):
    """One segment of a timeline; the first micro-batch."""
    who = {"stage": stage, "place": stage, "micro_batch": 0, "block": block, "direction": direction}
    return who | {"track": track, "kind": kind, "label": label or kind, "start_s": start, "end_s": end}


def segments():
    """Forward and backward of one block, with long and very short segments."""
    told = [  # track, label, kind, start, end in milliseconds
        ("compute", "forward attention", "attention", 0, 40),
        ("network", "forward TP", "tp", 36, 39.5),
        ("reconfiguration", "forward circuits", "reconfigure", 8, 33),
        ("network", "forward dispatch", "all-to-all", 41, 63),
        ("compute", "forward gate", "attention", 40, 41),
        ("compute", "forward experts", "experts", 63, 88),
        ("network", "forward combine", "all-to-all", 88, 109),
        ("compute", "forward norm", "attention", 109, 110.5),
        ("compute", "backward combine gradient", "attention", 112, 113),
        ("network", "backward combine", "all-to-all", 113, 134),
        ("compute", "backward experts", "experts", 134, 184),
        ("reconfiguration", "backward circuits", "reconfigure", 140, 165),
        ("network", "backward dispatch", "all-to-all", 184, 206),
        ("compute", "backward attention", "attention", 206, 288),
        ("network", "backward TP", "tp", 280, 284),
        ("network", "backward TP 2", "tp", 285, 288),
    ]
    names = ("track", "label", "kind", "start_s", "end_s")
    return [dict(zip(names, (*words, a / 1000, b / 1000), strict=True)) for *words, a, b in told]


def region(servers, degree=6, seed=0):
    """A skewed demand [S S] in bytes and a legal choice of circuits, largest demand first."""
    demand = np.random.default_rng(seed).lognormal(0, 1.0, (servers, servers)) * 2e8
    np.fill_diagonal(demand, 0)
    return demand, np.array(greedy(demand, degree))


# what ranks of a replay do
SPANS = [
    {"rank": 0, "track": "compute", "name": "first", "begin_s": 0.0, "end_s": 1e-3},
    {"rank": 0, "track": "send", "name": "a", "begin_s": 1e-3, "end_s": 3e-3, "args": {"bytes": 5.0}},
    {"rank": 0, "track": "send", "name": "b", "begin_s": 2e-3, "end_s": 4e-3},
    {"rank": 0, "track": "send", "name": "c", "begin_s": 3e-3, "end_s": 4e-3},
    {"rank": 3, "track": "receive", "name": "a", "begin_s": 1e-3, "end_s": 3e-3},
    {"rank": -1, "track": "critical path", "name": "a", "begin_s": 1e-3, "end_s": 3e-3, "args": {"rank": 0, "to": 3}},
]
