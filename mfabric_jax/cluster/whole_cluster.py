"""One iteration of training on a whole cluster at once: expert, data and pipeline parallel flows share the fabric."""

import dataclasses
import resource
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import fabric, policies, traffic, units
from mfabric_jax.checks import InputError, one_of, positive, whole
from mfabric_jax.fabric import Cluster, Network, Region, read_graph
from mfabric_jax.fabric.design import ClusterShape, PortSettings
from mfabric_jax.fabric.electrical import NicUse
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.routing import cluster_routes, links_of, transfer
from mfabric_jax.routing.carried import under
from mfabric_jax.routing.cluster import PATHS
from mfabric_jax.routing.routes import Routes
from mfabric_jax.routing.shortest import ROUTINGS as GRAPH_ROUTINGS
from mfabric_jax.routing.shortest import shortest_routes
from mfabric_jax.routing.transfers import Transfers, link_bytes
from mfabric_jax.simulation._provenance import provenance
from mfabric_jax.simulation.scenario import check_dtype
from mfabric_jax.study.fields import check_choices
from mfabric_jax.study.settings import ModelName, PolicySettings, RunSettings, SetUp
from mfabric_jax.traffic import Flows, region_bytes, training_flows
from mfabric_jax.workload import Workload
from mfabric_jax.workload.catalog import check_models

REPLICAS = 64  # whose traffic is drawn

OF_FABRIC = (
    "fabric",
    "nic_gbps",
    "policy",
    "rule",
    "radix",
    "oversubscription",
    "at",
    "nic_use",
    "optical_degree",
    "electrical_nics",
    "tiers",
    "pxn",
    "nics",
    "gpu",
    "gpu_tbps",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeForm(PolicySettings, PortSettings):
    """The servers and the switches of a whole cluster."""

    radix: int = 64
    """Ports of every electrical switch."""
    oversubscription: float | None = None
    """Of the tree (default: 3 on oversub-fat-tree, else 1)."""
    at: Literal["edge", "aggregation"] = "edge"
    """Where it is oversubscribed: edge, aggregation."""
    nic_use: NicUse = "own"
    """Where all NICs are on switches, one for each GPU: own, a GPU uses its own; pooled, any GPU uses all of its
    server's, as on mfabric and wherever a server has more or fewer NICs than GPUs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterForm(TreeForm):
    """What a whole cluster is made of."""

    servers: int = 0
    """Servers or scale-up domains of the cluster (default: the model's own); data parallelism grows with them."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeCluster(RunSettings, ClusterForm, SetUp):
    """A job on a whole cluster. Optical regions choose circuits for the traffic of the iteration as a whole."""

    model: ModelName = "mixtral-8x7b"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3, or a .toml
    or .json file (docs/models.md); with degrees of its own, as in qwen-moe:ep=16:dp=16"""
    fabric: str = "mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo, torus"""
    graph: str | None = None
    """Instead of a fabric: your own, networkx node-link JSON whose gpu (or host) nodes are the GPUs."""
    routing: str = "spray"
    """spray, ecmp, least-loaded (and weighted, on a graph)."""

    def __post_init__(self):
        check_models("model", (self.model,))
        if self.graph is not None:
            check_beside_graph(self, OF_FABRIC)
        fabric.get(self.fabric)
        one_of("routing", self.routing, PATHS if self.graph is None else GRAPH_ROUTINGS)
        if self.redundant_experts:
            copies = self.redundant_experts
            raise InputError(f"redundant_experts must be 0 on a whole cluster, which places no experts, got {copies}.")
        if self.policy == "static":
            raise InputError("policy 'static' is for several all-to-alls; a whole cluster has one: choose greedy.")
        check_choices(self)
        self.check_ports()
        policies.suited(self.policy, rule=self.rule)
        whole("servers", self.servers, at_least=0)
        whole("seed", self.seed, at_least=0)
        positive("nic_gbps", self.nic_gbps)
        if self.oversubscription is not None:
            positive("oversubscription", self.oversubscription)
        self.job()

    def job(self) -> Workload:
        """The model on this many servers."""
        per_server = self.server.gpus_per_server
        if self.graph is None:
            per_server = fabric.get(self.fabric).gpus_of(self.server)
        own = self.workload(self.model, per_server)
        if not self.servers:
            return own
        gpus, replica = self.servers * per_server, own.gpus // own.dp
        if gpus % replica or self.dp is not None:
            raise InputError(
                f"servers must hold whole replicas of {own.model} ({replica} GPUs each) and decides dp, got "
                f"{self.servers} servers of {per_server} GPUs" + (f" and dp {self.dp}." if self.dp is not None else ".")
            )
        return self.workload(self.model, per_server, gpus=gpus, dp=gpus // replica)


def check_beside_graph(settings: Any, fields: Iterable[str]) -> None:
    """`InputError` for a setting of our own fabrics beside a graph."""
    for field in fields:
        if getattr(settings, field) != getattr(type(settings), field):
            raise InputError(f"{field} is not used on a graph, which says all of its fabric; leave it out.")


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
    check_dtype(config.dtype)
    began = time.perf_counter()
    job = config.job()
    tokens = _tokens(config, job)
    flows = training_flows(job, tokens)
    built = None if config.graph is not None else build_cluster(config, job, tokens)
    network, routes = _over_graph(config, job, flows) if built is None else _over_cluster(config, built, flows)
    network, waits_s = under(config.carried_by, network, routes, flows.size)
    ready = time.perf_counter()
    done = transfer(network, routes, flows.size, flows.start, dtype=config.dtype)
    done = done._replace(finish=done.finish + np.where(flows.size > 0, waits_s, 0))
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

    def choose(degree: int, policy: str | None = None) -> np.ndarray:
        return region_circuits(config, job, tokens, degree, policy)

    return formed_cluster(config, fabric.get(config.fabric), job, config.nic_gbps, choose)


def formed_cluster(
    settings: TreeForm,
    on: fabric.Fabric,
    shape: ClusterShape,
    nic_gbps: float,
    choose: Callable[..., np.ndarray],
    **rest: Any,
) -> Cluster:
    """A fabric over the servers of a shape; `choose(degree, policy)` gives the circuits of its regions [G S S].

    - `rest`: further fields of `Cluster`.
    """
    form = dataclasses.replace(
        on.form(settings, shape),
        **{"radix": settings.radix, "tiers": settings.tiers, "pxn": settings.pxn},
        **{"oversubscription": settings.oversubscription, "at": settings.at, "nic_use": settings.nic_use},
        gpus_per_server=shape.gpus_per_server,
    )
    form = dataclasses.replace(form, regions=on.circuits(shape, form, nic_gbps, choose))
    inside = units.to_gigabytes(on.nvlink_Bps(settings.gpu_tbps, nic_gbps, settings.own_nvlink_Bps))
    rest = {"goodput": settings.goodput, "nvswitch_gigabytes_per_s": inside} | rest
    return on.cluster(shape.servers, nic_gbps, form, rest)


def example_cluster(config: WholeCluster) -> Cluster:
    """The fabric of a configuration with circuits for its traffic, and nothing solved."""
    job = config.job()
    return build_cluster(config, job, _tokens(config, job))


def _tokens(config: WholeCluster, job: Workload) -> np.ndarray:
    """Traffic of the first replicas, the others repeat them."""
    return traffic.measured(job, iterations=min(job.dp, REPLICAS), drift=0.0, seed=config.seed).count


def region_circuits(config: WholeCluster, job: Workload, tokens, degree: int, policy: str | None = None) -> np.ndarray:
    """Circuits of every region [G S S] for the bytes of the iteration between its servers."""
    size, per_server = job.servers_per_region, job.ranks_per_server
    demand = region_bytes(job, tokens)
    shape = (*demand.shape[:2], size, per_server, size, per_server)
    between = demand.reshape(shape).sum(axis=(3, 5)).reshape(-1, size, size)
    groups = job.servers // size
    if len(between) != groups:  # several expert-parallel groups on one server
        return np.zeros((groups, size, size), np.int64)
    return chosen_circuits(config, between, degree, config.nic_gbps, config.dtype, policy)


def chosen_circuits(
    settings: PolicySettings, demand: np.ndarray, degree: int, nic_gbps: float, dtype: str, policy: str | None = None
) -> np.ndarray:
    """Circuits [G S S] for the bytes [G S S] between the servers of every region; `policy`: None: of the settings."""
    servers = demand.shape[-1]
    region = Region(servers, nic_gbps, degree, 1)
    name = policy or settings.policy
    rule = policies.tried(name, (servers,), degree, rule=settings.rule)
    choose = jax.jit(jax.vmap(lambda one: rule(one, region).circuits.count))
    count = np.asarray(choose(jnp.asarray(demand, dtype)))
    policies.check_legal(policies.name_of(name), count, degree)
    return count.astype(np.int64)


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
