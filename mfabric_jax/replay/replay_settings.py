"""What a replay of a graph of tasks may be told."""

import dataclasses
from typing import Literal

from mfabric_jax import fabric, policies
from mfabric_jax.checks import InputError, names, not_negative, one_of, positive, whole
from mfabric_jax.cluster.whole_cluster import OF_FABRIC, TreeForm, check_beside_graph
from mfabric_jax.fabric.cluster import LINK_DELAY_S
from mfabric_jax.fabric.design import DELAY_S
from mfabric_jax.replay.ranks import check_order
from mfabric_jax.routing.cluster import PATHS
from mfabric_jax.routing.shortest import ROUTINGS as GRAPH_ROUTINGS
from mfabric_jax.study.fields import check_choices
from mfabric_jax.study.settings import DType, RunSettings
from mfabric_jax.tasks.collectives.choice import choices_of

UNUSED_ON_GRAPH = {"fabrics", "servers", "region_servers", "circuits_for", "first", "delay_s", "link_delay_s"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay(RunSettings, TreeForm):
    """What a graph of tasks runs on, and how its ranks and circuits are placed there."""

    fabrics: tuple[str, ...] = ("mfabric",)
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo, torus"""
    nic_gbps: tuple[float, ...] = (400.0,)
    """Bandwidth of every NIC."""
    graph: str | None = None
    """Instead of fabrics: your own, networkx node-link JSON whose gpu (or host) nodes are the GPUs."""
    servers: int = 0
    """Servers or scale-up domains of the cluster (default: as many as the ranks need)."""
    gpus_per_server: int = 0
    """GPUs of a server (default: those of --gpu; 64 of a scale-up domain)."""
    region_servers: int = 0
    """Servers of one optical region (default: all)."""
    routing: str = "spray"
    """spray, ecmp, least-loaded (and weighted, on a graph); two ranks always use the same path."""
    ranks_on: str = "in-order"
    """Which GPUs ranks are on: in-order, round-robin (one server after the other), random, or a .json file with the GPU
    of every rank."""
    first_gpu: int = 0
    """The place of rank 0 in that order."""
    circuits_for: Literal["run", "all-to-all"] = "run"
    """Of optical regions whose circuits can change: run, chosen once, for all bytes of the graph; all-to-all, each has
    its own, and nothing else uses circuits."""
    first: Literal["block", "ahead"] = "block"
    """Of circuits for all-to-alls, when the switch turns: block, once an all-to-all could begin; ahead, as soon as the
    one before is through, as if its demand were known."""
    delay_s: float = DELAY_S
    """Reconfiguration delay of the optical switch."""
    algorithms: str = ""
    """Of collectives, such as all-reduce=ring*4,all-reduce:<65536=double-tree (4 chunks; below 65,536 bytes a tree)."""
    chunks: int = 1
    """Of collectives for which algorithms says none."""
    alpha_s: float = 0.0
    """Latency of every message, beside the propagation of its path."""
    absent: Literal["refuse", "assume"] = "refuse"
    """A collective or message of which some ranks are not in the file: refuse, or assume that they are there."""
    lanes: Literal["ordered", "free"] = "ordered"
    """What a rank runs one at a time (a stream): ordered beforehand, or free, all at once."""
    compute_scale: float = 1.0
    """Every computation takes so many times as long as the graph says."""
    link_delay_s: float = LINK_DELAY_S
    """Propagation of a link; a graph of your own has those of its links."""
    dtype: DType = "float64"
    """float32, float64."""

    def __post_init__(self):
        check_choices(self)
        names("fabrics", self.fabrics, fabric.NAMES)
        if self.graph is not None:
            check_beside_graph(self, ({*OF_FABRIC} - {"fabric"}) | UNUSED_ON_GRAPH)
        one_of("routing", self.routing, PATHS if self.graph is None else GRAPH_ROUTINGS)
        self._check_circuits()
        self.check_ports()
        check_order(self.ranks_on)
        if self.ranks_on.endswith(".json") and self.first_gpu:
            raise InputError(f"first_gpu is not used beside a file of ranks_on, got {self.first_gpu}; leave it out.")
        for field in ("servers", "gpus_per_server", "region_servers", "first_gpu", "seed"):
            whole(field, getattr(self, field), at_least=0)
        if not self.nic_gbps or len(set(self.nic_gbps)) < len(self.nic_gbps):
            raise InputError(f"nic_gbps must name at least one bandwidth and none twice, got {list(self.nic_gbps)}.")
        choices_of(self.algorithms, self.chunks)
        for gbps in self.nic_gbps:
            positive("nic_gbps", gbps)
        if self.oversubscription is not None:
            positive("oversubscription", self.oversubscription)
        not_negative("compute_scale", self.compute_scale)
        for field in ("link_delay_s", "delay_s", "alpha_s"):
            not_negative(field, getattr(self, field))

    def _check_circuits(self) -> None:
        """Policies, and whether mfabric has NICs for circuits."""
        usual = self.optical_degree is None and self.electrical_nics is None
        sharing = [name for name in self.fabrics if "optical_degree" in fabric.get(name).data]
        if self.graph is None and usual and sharing and self._usual_nics < 2:
            raise InputError(
                f"{sharing[0]} needs 2 NICs a server or more, of which it shares some to circuits, got "
                f"{self._usual_nics}; give optical_degree and electrical_nics, or leave it out of fabrics."
            )
        if self.policy == "static":
            raise InputError("policy 'static' is for several all-to-alls of a model; choose another, such as greedy.")
        policies.suited(self.policy, rule=self.rule)

    @property
    def _usual_nics(self) -> int:
        return self.nics or self.gpus_per_server or super()._usual_nics

    @property
    def places(self) -> list[tuple[str | None, float | None]]:
        """Every fabric with every bandwidth; on a user's graph (None, None)."""
        if self.graph is not None:
            return [(None, None)]
        return [(name, gbps) for name in self.fabrics for gbps in self.nic_gbps]
