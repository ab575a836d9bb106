"""One cluster has the same seconds, dollars and parts in every command, by name and as a graph of `make-graph`.

A row of `TABLE` is a named fabric and the kind of graph that draws it. `python -m tests.apps.together.test_one_cluster`
prints the table.
"""

import dataclasses
import pathlib
import sys
import tempfile

import jax
import numpy as np
import pytest

from mfabric_jax.apps.failures import failures
from mfabric_jax.apps.serving import deployment
from mfabric_jax.case import Case
from mfabric_jax.evaluate import simulate
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.fabric.cost import PARTS as NAMES
from mfabric_jax.fabric.cost import Prices
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from mfabric_jax.fabric.registry import site_table

JOB = {"model.name": "llama-moe", "job.parallel.tp": 1, "job.parallel.pp": 2, "job.parallel.ep": 16}
QUICK = {"run.iterations": 1, "run.draws": 1, "job.batch.micro_batches": 2, "run.dtype": "float64"}
ALONE = {"gpu.gpus_per_server": 1, "network.link_delay_s": 0.0}  # GPUs are the servers, a link is a NIC
THREE = {"oversubscription": 3}
UNDELAYED = {"link_delay_s": 0.0}  # by name a path has the links of the longest there may be
TABLE = {
    "fat-tree of two tiers": ("leaf-spine", {"fabric": "fat-tree", "tiers": 2}, {"gpus": 64}),
    "a part of a leaf": ("leaf-spine", {"fabric": "fat-tree"}, {"gpus": 64, "radix": 24}),
    "oversub-fat-tree": ("leaf-spine", {"fabric": "oversub-fat-tree"}, {"gpus": 64} | THREE),
    "servers across leaves": ("leaf-spine", {"fabric": "oversub-fat-tree"}, {"gpus": 64, "radix": 16} | THREE),
    "7:1": ("leaf-spine", {"fabric": "fat-tree", "oversubscription": 7}, {"gpus": 128, "oversubscription": 7}),
    "three tiers": ("fat-tree", {"fabric": "fat-tree", "tiers": 3}, {"gpus": 64, "radix": 8}),
    "three tiers, 3:1": ("fat-tree", {"fabric": "oversub-fat-tree", "tiers": 3}, {"gpus": 192, "radix": 16} | THREE),
    "a part of a pod, 3:1": (
        "fat-tree",
        {"fabric": "oversub-fat-tree", "tiers": 3},
        {"gpus": 128, "radix": 16} | THREE,
    ),
    "a part of a pod": ("fat-tree", {"fabric": "fat-tree", "tiers": 3}, {"gpus": 64, "radix": 12}),
    "multi-plane": (
        "planes",
        {"fabric": "multi-plane", "multi-plane.planes": 4},
        {"gpus": 64, "radix": 8, "planes": 4, "split": True},
    ),
    "multi-plane, 3:1": (
        "planes",
        {"fabric": "multi-plane", "multi-plane.planes": 4, "oversubscription": 3},
        {"gpus": 64, "radix": 8, "planes": 4, "split": True} | THREE,
    ),
    "multi-plane, pooled": (
        "planes",
        {"fabric": "multi-plane", "multi-plane.planes": 4, "nic_use": "pooled"},
        {"gpus": 64, "radix": 8, "planes": 4, "split": True, "pooled": True},
    ),
    "fat-tree, pooled": ("leaf-spine", {"fabric": "fat-tree", "nic_use": "pooled"}, {"gpus": 128, "pooled": True}),
    "dragonfly": ("dragonfly", {"fabric": "dragonfly"} | UNDELAYED, {"gpus": 128, "pooled": True}),
    "full-mesh": ("full-mesh", {"fabric": "full-mesh", "nics": 10, "full-mesh.shape": "4x8"}, {"shape": (4, 8)}),
    "twisted-torus": (
        "twisted-torus",
        {"fabric": "twisted-torus", "twisted-torus.shape": "2x4x4"},
        {"shape": (2, 4, 4)},
    ),
    "torus": ("torus", {"fabric": "torus", "torus.paths": "shortest", "torus.shape": "4x4x4"}, {"shape": (4, 4, 4)}),
}
DAILY = ("oversub-fat-tree", "dragonfly", "full-mesh")
PARTS = {f"{name}s" for name in NAMES}
RINGS = ("torus", "twisted-torus")  # whose graphs close rings without optical switches


def cases(name, folder):
    """The named fabric and its graph as cases, and GPUs."""
    kind, named, numbers = TABLE[name]
    gpus = numbers.get("gpus") or int(np.prod(numbers["shape"]))
    network = make_graph(kind, GraphNumbers(**numbers | {"gpus": gpus}))
    alone = ALONE if "shape" in numbers else {}
    if "shape" in numbers:
        alone = alone | {"job.parallel.pp": 1 if kind in RINGS else 2}
    named = {f"network.{path}": value for path, value in named.items()}
    named |= {f"network.{path}": numbers[path] for path in ("radix",) if path in numbers}
    case = Case().with_(JOB | QUICK | {"job.parallel.gpus": gpus} | alone).with_(named)
    file = pathlib.Path(folder) / "own.json"
    inside = [np.full(count, kind.split()[0] in ("nvswitch", "pool")) for kind, count in network.links]
    delay_s = np.where(np.concatenate(inside), 0.0, case.network.link_delay_s)  # servers by name have no delays
    file.write_text(graph_text(dataclasses.replace(network, delay_s=delay_s)))
    bare = Case().with_(JOB | QUICK | {"job.parallel.gpus": gpus} | alone)
    bare = bare.with_({"network.link_delay_s": case.network.link_delay_s})
    return case, bare.with_({"network.fabric": "graph", "network.graph": str(file)}), gpus


def answers(case, gpus):
    """What every command says of a cluster: seconds, dollars, and parts of the network."""
    (row,) = simulate(case).rows()
    found = {name: row[name] for name in ("iteration_s", "ep_comm_s", "dp_comm_s", "network_cost_usd")}
    if case.network.oversubscription is None:  # which failures refuse
        kind = "link" if case.gpu.gpus_per_server == 1 else "electrical-nic"
        found["failures' iteration_s"] = next(failures(case.with_({"failures.kinds": [kind]})))["healthy_s"]
    resolved = resolve(case)
    for part in site_table(resolved.fabric, resolved.site, 400.0, Prices()):
        name = f"{part['part']}s"
        found[name] = found.get(name, 0.0) + part["count"] * resolved.job.servers
    found["serve's dispatch"] = dispatch(case, gpus)
    return found


def dispatch(case, gpus):
    """Seconds of a dispatch in `serve`, of a group on all GPUs at links of 1 byte/s."""
    said = {"model.name": "deepseek-v3", "gpu.name": "H800-SXM", "serving.ep": gpus}
    return deployment(case.with_(said)).decode.crossing.between


def compared(name):
    with tempfile.TemporaryDirectory() as folder, jax.enable_x64(True):
        named, graph, gpus = cases(name, folder)
        return answers(named, gpus), answers(graph, gpus)


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DAILY else pytest.mark.slow) for name in TABLE]
)
def test_one_cluster_is_the_same_everywhere(name):
    named, graph = compared(name)
    for each in (named, graph):
        assert each.get("failures' iteration_s", each["iteration_s"]) == pytest.approx(each["iteration_s"], rel=1e-9)
    of_rings = TABLE[name][0] in RINGS
    for what, value in graph.items():
        if not (of_rings and (what.endswith("_usd") or what in PARTS)):
            assert named.get(what, value) == pytest.approx(value, rel=1e-9), what
    assert set(named) - set(graph) <= {"ocs_ports"}


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(TABLE)
    for name in chosen:
        named, graph = compared(name)
        print(f"{name} ({TABLE[name][0]})")
        for what in named:
            print(f"  {what:24} {named[what]:14.9g} {graph.get(what, float('nan')):14.9g}")
