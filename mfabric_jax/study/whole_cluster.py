"""One iteration of training on a whole cluster at once: expert, data and pipeline parallel flows share the fabric."""

import dataclasses
import resource
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import fabric, policies, traffic, workload
from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Cluster, Network, Region, cluster, endpoints, read_graph
from mfabric_jax.routing import (
    GRAPH_ROUTINGS,
    PATHS,
    Routes,
    Transfers,
    cluster_routes,
    link_bytes,
    links_of,
    shortest_routes,
    transfer,
)
from mfabric_jax.study.config import DTYPES, OF_JOB, SERVER_GPUS
from mfabric_jax.study.provenance import provenance
from mfabric_jax.traffic import Flows, region_bytes, training_flows
from mfabric_jax.workload import Workload

REPLICAS = 64  # whose traffic is drawn

OF_FABRIC = (
    "fabric",
    "nic_gbps",
    "policy",
    "rule",
    "optical_degree",
    "electrical_nics",
    "radix",
    "tiers",
    "oversubscription",
    "at",
    "pxn",
)


@dataclasses.dataclass(frozen=True)
class WholeCluster:
    """A job on a cluster.

    - `servers`: 0 keeps the model's own number; another one changes its data-parallel degree.
    - `fabric`: one of `fabric.CLUSTERS`; `routing`: how its switches spread flows (spray, ecmp, least-loaded).
    - `graph`: a file with the user's own fabric in its place, whose endpoints are the GPUs (routing also: weighted);
      `OF_FABRIC` are not used then.
    - `radix`, `tiers`, `oversubscription`, `at`: of the switch tree; `pxn`, `goodput`: as in `fabric.Cluster`.
    - `policy`, `rule`: how optical regions choose circuits for the traffic of the iteration as a whole.
    - `resolution`: rates are solved again at most every that part of the lower bound on the time; 0 is exact.
    """

    model: str = "mixtral-8x7b"
    fabric: str = "mfabric"
    graph: str | None = None
    servers: int = 0
    nic_gbps: float = 400.0
    routing: str = "spray"
    policy: str = "greedy"
    rule: str = "printed"
    optical_degree: int = 6
    electrical_nics: int = 2
    radix: int = 64
    tiers: int = 3
    oversubscription: float | None = None
    at: str = "edge"
    pxn: bool = False
    goodput: float = 1.0
    resolution: float = 0.01
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    gpus: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    sequence: int | None = None
    schedule: str | None = None
    chunks: int | None = None
    recompute: str | None = None
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self):
        one_of("model", self.model, workload.NAMES)
        self._check_graph()
        one_of("fabric", self.fabric, fabric.CLUSTERS)
        one_of("routing", self.routing, PATHS if self.graph is None else GRAPH_ROUTINGS)
        one_of("rule", self.rule, policies.RULES)
        if self.policy == "static":
            raise InputError("policy 'static' is for several all-to-alls; a whole cluster has one: choose greedy.")
        policies.suited(self.policy, rule=self.rule)
        one_of("dtype", self.dtype, DTYPES)
        for field in ("servers", "optical_degree", "electrical_nics"):
            whole(field, getattr(self, field), at_least=0)
        whole("seed", self.seed, at_least=0)
        positive("nic_gbps", self.nic_gbps)
        not_negative("resolution", self.resolution)
        self.job()

    def _check_graph(self) -> None:
        """`InputError` for a setting of our own fabrics beside a graph."""
        for field in OF_FABRIC if self.graph is not None else ():
            if getattr(self, field) != getattr(type(self), field):
                raise InputError(f"{field} is not used on a graph, which says all of its fabric; leave it out.")

    def job(self) -> Workload:
        """The model on this many servers."""
        per_server = fabric.DOMAIN_GPUS if self.fabric in fabric.SCALE_UP and self.graph is None else SERVER_GPUS
        given = {field: getattr(self, field) for field in OF_JOB if getattr(self, field) is not None}
        own = workload.get(self.model, gpus_per_server=per_server, **given)
        if not self.servers:
            return own
        gpus, replica = self.servers * per_server, own.gpus // own.dp
        if gpus % replica or "dp" in given:
            raise InputError(
                f"servers must hold whole replicas of {self.model} ({replica} GPUs each) and decides dp, got "
                f"{self.servers} servers of {per_server} GPUs" + (f" and dp {self.dp}." if "dp" in given else ".")
            )
        return workload.get(self.model, gpus_per_server=per_server, **given | {"gpus": gpus, "dp": gpus // replica})


class Solved(NamedTuple):
    """What came out, and what it took; no `cluster` on a user's graph."""

    job: Workload
    cluster: Cluster | None
    network: Network
    flows: Flows
    routes: Routes
    transfers: Transfers
    build_s: float
    solve_s: float


def solve_cluster(config: WholeCluster) -> Solved:
    """Build the flows and the fabric, and solve them; times include compilation."""
    if config.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")
    began = time.perf_counter()
    job = config.job()
    tokens = _tokens(config, job)
    flows = training_flows(job, tokens)
    built = None if config.graph is not None else build_cluster(config, job, tokens)
    network, routes = _over_graph(config, job, flows) if built is None else _over_cluster(config, built, flows)
    ready = time.perf_counter()
    resolution = config.resolution * lower_bound(network, routes, flows) if config.resolution else None
    done = transfer(network, routes, flows.size, flows.start, dtype=config.dtype, resolution=resolution)
    return Solved(job, built, network, flows, routes, done, ready - began, time.perf_counter() - ready)


def _over_cluster(config: WholeCluster, built: Cluster, flows: Flows) -> tuple[Network, Routes]:
    routes = cluster_routes(built, flows.src, flows.dst, routing=config.routing, seed=config.seed, size=flows.size)
    return links_of(built, config.routing), routes


def _over_graph(config: WholeCluster, job: Workload, flows: Flows) -> tuple[Network, Routes]:
    """A user's network, its endpoints in order the GPUs of the job."""
    network = read_graph(str(config.graph))
    gpu = endpoints(network)
    if len(gpu) != job.gpus:
        kinds = ", ".join(f"{count} of kind {kind}" for kind, count in network.nodes)
        raise InputError(
            f"graph {config.graph!r} has {len(gpu)} endpoints (gpu or host nodes; there are {kinds}), but {job.model} "
            f"runs on {job.gpus} GPUs; change dp, tp, pp, ep and gpus to fit."
        )
    network = dataclasses.replace(network, capacity=network.capacity * config.goodput)
    src, dst = gpu[flows.src], gpu[flows.dst]
    return network, shortest_routes(network, src, dst, routing=config.routing, seed=config.seed, size=flows.size)


def lower_bound(network: Network, routes: Routes, flows: Flows) -> float:
    """Bytes of the busiest link over its capacity [s]: no sharing ends earlier."""
    carried = link_bytes(network, routes, flows.size)
    return float(np.max(np.divide(carried, network.capacity, out=np.zeros_like(carried), where=carried > 0), initial=0))


def build_cluster(config: WholeCluster, job: Workload, tokens: np.ndarray) -> Cluster:
    """The fabric, with circuits chosen for the expert traffic of the iteration where it has optics."""
    settings: dict[str, Any] = {"goodput": config.goodput, "radix": config.radix, "tiers": config.tiers}
    settings |= {"electrical_nics": config.electrical_nics, "pxn": config.pxn}
    settings |= {"oversubscription": config.oversubscription, "at": config.at}
    if config.fabric == "topoopt":
        settings["regions"] = topoopt_circuits(config, job, tokens)
    elif config.fabric in ("mfabric", "mfabric-cpo"):
        degree = config.optical_degree
        if config.fabric == "mfabric-cpo":
            degree = fabric.CPO_CIRCUITS_PER_GPU * job.gpus_per_server
        settings["regions"] = region_circuits(config, job, tokens, degree)
    return cluster(config.fabric, job.servers, config.nic_gbps, **settings)


def example_cluster(config: WholeCluster) -> Cluster:
    """The fabric of a configuration with circuits for its traffic, and nothing solved."""
    job = config.job()
    return build_cluster(config, job, _tokens(config, job))


def _tokens(config: WholeCluster, job: Workload) -> np.ndarray:
    """Traffic of the first replicas, the others repeat them."""
    return traffic.measured(job, iterations=min(job.dp, REPLICAS), drift=0.0, seed=config.seed).count


def region_circuits(config: WholeCluster, job: Workload, tokens, degree, policy=None) -> np.ndarray:
    """Circuits of every region [G S S] for the bytes of the iteration between its servers."""
    size, per_server = job.servers_per_region, job.ranks_per_server
    demand = region_bytes(job, tokens)
    shape = (*demand.shape[:2], size, per_server, size, per_server)
    between = demand.reshape(shape).sum(axis=(3, 5)).reshape(-1, size, size)
    groups = job.servers // size
    if len(between) != groups:  # several expert-parallel groups on one server
        return np.zeros((groups, size, size), np.int64)
    region = Region(size, config.nic_gbps, degree, 1)
    policy = policy or policies.tried(config.policy, (size,), degree, rule=config.rule)
    choose = jax.jit(jax.vmap(lambda one: policy(one, region).circuits.count))
    count = np.asarray(choose(jnp.asarray(between, config.dtype)))
    policies.check_legal(policies.name_of(config.policy), count, degree)
    return count.astype(np.int64)


def topoopt_circuits(config: WholeCluster, job: Workload, tokens) -> np.ndarray:
    """Circuits of the whole cluster [1 S S]: a ring over the servers of every stage, one circuit from each server to
    its peers in the neighbouring stages, matchings inside regions with the other NICs."""
    stage = job.servers // job.pp
    nics = job.gpus_per_server
    between = region_circuits(config, job, tokens, nics - min(2, job.pp - 1), policies.topoopt)
    count = np.zeros((job.servers, job.servers), np.int64)
    size = job.servers_per_region
    for group, circuits in enumerate(between):
        count[group * size : (group + 1) * size, group * size : (group + 1) * size] = circuits
    server = np.arange(job.servers)
    follow = server // stage * stage + (server + 1) % stage  # the ring; inside regions the chain is there
    closing = (follow != server) & ((follow // size != server // size) | (follow != server + 1))
    ahead = server[: job.servers - stage]
    for a, b in ((server[closing], follow[closing]), (ahead, ahead + stage)):
        np.add.at(count, (a, b), 1)
        np.add.at(count, (b, a), 1)
    return count[None]


def cluster_rows(solved: Solved) -> list[dict[str, Any]]:
    """A row for every kind of traffic and one for all of it."""
    flows, done = solved.flows, solved.transfers
    facts = {
        "model": solved.job.model,
        "fabric": "graph" if solved.cluster is None else solved.cluster.name,
        "servers": solved.job.servers,
        "gpus": solved.job.gpus,
        "nic_gbps": None if solved.cluster is None else solved.cluster.nic_gbps,
        "links": len(solved.network.tail),
    }
    took = {"build_s": solved.build_s, "solve_s": solved.solve_s, "peak_mb": peak_megabytes()}
    masks = {"all": np.ones(len(flows.src), bool)} | {label: flows.of(label) for label in flows.labels}
    rows = []
    for kind, mask in masks.items():
        if mask.any():
            ends = {"flows": int(mask.sum()), "bytes": float(flows.size[mask].sum())}
            rows.append(facts | {"traffic": kind} | ends | {"end_s": float(done.finish[mask].max())} | took)
    return rows


def peak_megabytes() -> float:
    """The most memory this process has held [MB]."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def link_rows(solved: Solved) -> list[dict[str, Any]]:
    """A row for every link: its ends, kind, capacity, bytes carried and utilisation until the last flow ends."""
    network, done = solved.network, solved.transfers
    kinds = [kind for kind, count in network.links for _ in range(count)]
    return [
        {
            "link": link,
            "kind": kinds[link],
            "from": network.node_name(int(network.tail[link])),
            "to": network.node_name(int(network.head[link])),
            "capacity_bytes_per_s": float(network.capacity[link]),
            "bytes": float(done.link_bytes[link]),
            "utilisation": float(done.utilisation[link]),
        }
        for link in range(len(kinds))
    ]


def flow_rows(solved: Solved) -> list[dict[str, Any]]:
    """A row for every flow: its ends, bytes, start and end, first rate, and the link that holds it back then."""
    network, flows, done = solved.network, solved.flows, solved.transfers
    return [
        {
            "flow": flow,
            "traffic": flows.labels[flows.kind[flow]],
            "src": int(flows.src[flow]),
            "dst": int(flows.dst[flow]),
            "bytes": float(flows.size[flow]),
            "start_s": float(flows.start[flow]),
            "finish_s": float(done.finish[flow]),
            "rate_bytes_per_s": float(done.rate[flow]),
            "bottleneck": network.link_name(int(done.bottleneck[flow])) if done.bottleneck[flow] >= 0 else None,
        }
        for flow in range(len(flows.src))
    ]


def effective_cluster(config: WholeCluster) -> dict[str, Any]:
    """The configuration with every value resolved, and where the result comes from."""
    return dataclasses.asdict(config) | {"workload": dataclasses.asdict(config.job())} | provenance(config.dtype)
