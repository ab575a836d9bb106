"""What the algorithm of a collective is worth among GPUs of servers with many NICs: milliseconds on a fat-tree.

python benchmarks/collectives.py [--servers 8] [--nic-gbps 400] [--alpha-s 2e-6]
"""

import argparse
import pathlib
import sys

import jax
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from mfabric_jax.apps.graphs.tasks import Op, TaskKind, Tasks
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.registry import cluster
from mfabric_jax.flows.completion import completion_times
from mfabric_jax.flows.problem import FlowProblem
from mfabric_jax.routing.cluster import cluster_routes, links_of

SIZES = (1e9, 1e5)  # bytes
ALGORITHMS = {
    Op.ALL_REDUCE: (
        *("ring", "rings", "halving-doubling", "double-tree*16"),
        *("hierarchical", "hierarchical*4", "direct"),
    ),
    Op.ALL_TO_ALL: ("direct", "pairwise", "hierarchical"),
}


def seconds(fabric: Cluster, op: Op, algorithm: str, size: float, alpha_s: float) -> float:
    """Of one collective among all GPUs."""
    gpus = fabric.servers * fabric.gpus_per_server
    tasks = Tasks(gpus, groups=(tuple(range(gpus)),))
    for rank in range(gpus):
        tasks.add(TaskKind.COLLECTIVE, rank, op=op, group=0, bytes=size, match=0)
    word = f"{op.name.lower().replace('_', '-')}={algorithm}"
    flows = lower_tasks(tasks.graph(), algorithms=word, alpha_s=alpha_s, server=fabric.gpus_per_server)
    sent = flows.transfers
    routes = cluster_routes(fabric, flows.src[sent], flows.dst[sent])
    hops, share = np.full((flows.flows, routes.hops.shape[1]), -1), np.ones((flows.flows, routes.hops.shape[1]))
    hops[sent], share[sent] = routes.hops, np.where(routes.hops >= 0, routes.share, 1)
    problem = FlowProblem(links_of(fabric).capacity, hops, share)
    return float(completion_times(problem, flows.bytes, flows.start, flows.after, flows.lag).finish.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--nic-gbps", type=float, default=400.0)
    parser.add_argument("--alpha-s", type=float, default=2e-6)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    fabric = cluster("fat-tree", options.servers, options.nic_gbps)
    for op, algorithms in ALGORITHMS.items():
        print(f"\n| {op.name.lower()} | " + " | ".join(algorithms) + " |\n|" + "---|" * (len(algorithms) + 1))
        for size in SIZES:
            times = (1e3 * seconds(fabric, op, algorithm, size, options.alpha_s) for algorithm in algorithms)
            print(f"| {size:.0e} B | " + " | ".join(f"{time:.3g}" for time in times) + " |")


if __name__ == "__main__":
    main()
