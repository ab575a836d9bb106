"""Settings of the network: the names of fabrics, a fabric's links and transport, and its circuits."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from mfabric_jax import units
from mfabric_jax.case import policies
from mfabric_jax.case.schema import (
    Alternative,
    Amount,
    Count,
    Least0,
    Natural,
    NicUse,
    SettingsGroup,
    Share,
    doc,
)

# The name of every fabric, and the module of `fabric/` that defines it: a new fabric needs a module and a line here.
# These names are outside `fabric/` so that settings and help load without JAX.
MODULES = {
    "fat-tree": "fat_tree",
    "oversub-fat-tree": "fat_tree",
    "rail-optimized": "rails",
    "rail-only": "rails",
    "multi-plane": "multi_plane",
    "topoopt": "topoopt",
    "mfabric": "mfabric",
    "nvl72": "scale_up",
    "mfabric-cpo": "scale_up",
    "scale-up": "domains",
    "cloudmatrix384": "cloudmatrix",
    "acos": "acos",
    "photonic-rails": "photonic_rails",
    "torus": "torus",
    "twisted-torus": "twisted_torus",
    "full-mesh": "full_mesh",
    "railx": "railx",
    **dict.fromkeys(("dragonfly", "dragonfly-valiant"), "dragonfly"),
    **dict.fromkeys(("dragonfly-plus", "dragonfly-plus-valiant"), "dragonfly_plus"),
}
NAMES = tuple(MODULES)
TOPOLOGIES = ("ring", "rings", "torus", "expander")  # the graphs of fabric acos
GRAPH = "graph"  # the fabric read from the file network.graph; a list of fabrics may hold the file's name instead
GRAPHS = (
    ".json",
    ".xml",
    ".topo",
    ".yml",
    ".yaml",
    ".txt",
)  # suffixes of graph files; a file without one may be a graph too
SERVERS = re.compile(r"(?<=\.xml)(\*\d+)?(@[\w.-]+)?$")  # after a dump of NCCL: how many servers, of which domain

if TYPE_CHECKING:
    FabricName = RoutingName = str
else:
    FabricName, RoutingName = Literal[*NAMES, GRAPH], Literal[*policies.ROUTINGS]


def is_graph(word: str) -> bool:
    """Whether a word names a graph's file rather than a fabric. `a.xml*18@rack` means 18 servers of one domain."""
    return word not in NAMES and (SERVERS.sub("", word.lower()).endswith(GRAPHS) or Path(word).is_file())


class RailOptimized(SettingsGroup, frozen=True):
    """NICs of equal rank in their servers share edge switches (a rail); a spine joins the rails."""

    pxn: Annotated[bool, doc("Data first crosses the NVSwitch to its destination's rail, as in NCCL.")] = True


class MultiPlane(SettingsGroup, frozen=True):
    """Every NIC is split over several trees of at most two tiers."""

    planes: Annotated[Count, doc("Planes over which every NIC is split, each with an equal part of its bandwidth.")] = 8
    flows: Annotated[
        Literal["spray", "own"],
        doc("Flows are spread over all planes (spray), or each pair of ranks uses a single plane (own)."),
    ] = "spray"


class ScaleUp(SettingsGroup, frozen=True):
    """Scale-up domains of any size, and a NIC for each GPU."""

    gpus: Annotated[Count, doc("GPUs of a domain; GPUs left over by whole groups of the job are idle.")] = 72
    ports: Annotated[Count, doc("NVLink ports of a GPU, one to each switch of its domain.")] = 18
    port_gigabytes_per_s: Annotated[Amount, doc("Bandwidth of an NVLink port, per direction [GB/s].")] = 50.0


class TopoOpt(SettingsGroup, frozen=True):
    """Optical circuits only, chosen before training."""

    wiring: Annotated[
        Literal["demand", "rings", "totient-perms"],
        doc(
            "demand: one ring, then matchings by demand; rings: rings only; totient-perms: rings and matchings, which"
            " divide the NICs by the bytes of gradients and all-to-alls."
        ),
    ] = "totient-perms"


class MFabric(SettingsGroup, frozen=True):
    """Regional optical switches that reconfigure during training, and a tree of packet switches."""

    optical_degree: Annotated[
        Natural | None,
        doc("NICs of a server on the optical switch; the others are on the tree (auto: 6 of 8, 3 of 4).", traced=True),
    ] = None


class Acos(SettingsGroup, frozen=True):
    """Small optical switches that select one of a few wired graphs."""

    topologies: Annotated[
        tuple[str, ...], doc(f"Graphs that are wired beforehand: any of {', '.join(TOPOLOGIES)}.")
    ] = TOPOLOGIES


class Torus(SettingsGroup, frozen=True):
    """A 3-D torus of direct links between servers."""

    shape: Annotated[
        str | None,
        doc(
            "Three sizes, such as 4x4x8, whose product is the number of servers (auto: an x-y plane holds a group or a"
            " stage)."
        ),
    ] = None
    paths: Annotated[
        Literal["dimension-order", "shortest"],
        doc(
            "dimension-order: one path in order x, y, z, with gradients around z; shortest: all shortest paths, with"
            " gradients over all links."
        ),
    ] = "dimension-order"


class TwistedTorus(SettingsGroup, frozen=True):
    """A torus of sizes n and 2n, whose rings of n are twisted along the rings of 2n."""

    shape: Annotated[
        str | None,
        doc("Sizes, such as 4x4x8, whose product is the number of servers (auto: n x n x 2n or n x 2n x 2n)."),
    ] = None


class FullMesh(SettingsGroup, frozen=True):
    """A link joins every two servers that differ in one dimension only. At auto, shape and paths are those with the
    fastest even all-to-all of an expert-parallel group."""

    shape: Annotated[
        str | None,
        doc("Sizes, such as 16x16, whose product is the number of servers (auto: the fastest of similar sizes)."),
    ] = None
    dimensions: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=8)] | None,
        doc("Dimensions, if shape is auto (auto: the fastest of 1 to 3 whose links are at least an eighth of a NIC)."),
    ] = None
    split: Annotated[
        str | None, doc("NICs of a server for each dimension, such as 6x2 (auto: equally many for each peer).")
    ] = None
    paths: Annotated[
        Literal["shortest", "dimension-order", "detour"] | None,
        doc(
            "shortest: all shortest paths; dimension-order: one path, first dimension first; detour: the same, with"
            " each step divided over the direct link and all other servers of its line (auto: the faster of shortest"
            " and detour)."
        ),
    ] = None


class RailX(SettingsGroup, frozen=True):
    """Nodes of m x m servers; rails join their rows and columns through optical switches."""

    side: Annotated[
        Count | None,
        doc("Servers along the side of a node, m (auto: the least m >= 2 whose nodes hold a group, else 2 or 1)."),
    ] = None
    shape: Annotated[
        str | None,
        doc("Nodes in a row and in a column, such as 8x8, that together hold all servers (auto: nearly square)."),
    ] = None


class Goodput(Alternative, frozen=True, tag="goodput"):
    """Payload takes a fixed fraction of the NIC's bandwidth."""

    value: Annotated[Share, doc("Payload over the bandwidth of a NIC.", traced=True)] = 1.0


class TransportSettings(Alternative, frozen=True, tag="transport"):
    """Headers, receiver pacing and acknowledgements of a transport take bandwidth."""

    value: Annotated[str, doc("The transport: ndp, dctcp, or a .toml or .json file of constants.", file=True)] = "ndp"


class Spray(Alternative, frozen=True, tag="spray"):
    """Packets are spread over all shortest paths."""


class Ecmp(Alternative, frozen=True, tag="ecmp"):
    """Each flow takes one random shortest path."""

    busy: Annotated[
        Literal["group", "cluster"],
        doc("The all-to-alls that run at the same time: those of one group, or of all groups."),
    ] = "group"
    circuits: Annotated[
        Literal["single", "pooled"],
        doc("A flow uses one of its pair's circuits (single), or all of them as one queue (pooled)."),
    ] = "single"


class LeastLoaded(Alternative, frozen=True, tag="least-loaded"):
    """Each flow takes the least loaded of its shortest paths (cluster, replay and jobs only)."""


class Weighted(Alternative, frozen=True, tag="weighted"):
    """Packets are spread in proportion to the capacity of paths (graphs of your own only)."""


class OnGraph(SettingsGroup, frozen=True):
    """How a graph of your own is used."""

    relay: Annotated[
        Literal["auto", "yes", "no"],
        doc("Whether GPUs forward for others; auto: only if some GPUs cannot be reached otherwise."),
    ] = "auto"
    ranks: Annotated[
        str | None, doc("A .json file with the GPU of every rank, {gpus: [0, 1, ...]} (auto: in order).", file=True)
    ] = None


class Rails(SettingsGroup, frozen=True):
    """NICs of a server that differ: each is on a rail with the NICs of equal rank."""

    speeds: Annotated[
        tuple[Share, ...],
        doc(
            "Bandwidth of each NIC of a server over nic_gbps, in order; the fastest has 1, so 1+1+0.5+0.5 is two NICs"
            " of nic_gbps and two of half of it (empty: all have nic_gbps)."
        ),
    ] = ()


class InNetwork(SettingsGroup, frozen=True):
    """What switches compute."""

    sharp: Annotated[
        bool,
        doc(
            "Switches of the tree add up gradients (SHARP): an all-reduce between servers sends every byte once. Needs"
            " a fabric with a switch tree; no other traffic changes."
        ),
    ] = False


class Network(SettingsGroup, frozen=True):
    """The fabric, its NICs and its switches."""

    fabric: Annotated[
        FabricName,
        doc("The fabric between servers; settings of a single fabric are in the table of its name.", flag="--fabric"),
    ] = "mfabric"
    graph: Annotated[
        str | None, doc("The file of the graph if fabric is graph (docs/formats.md#graphs).", file=True)
    ] = None
    nic_gbps: Annotated[
        Amount, doc("Bandwidth of a NIC [Gbps]; prices are known from 100 to 800.", traced=True, flag="--nic-gbps")
    ] = 400.0
    nic_use: Annotated[
        NicUse, doc("own: each GPU uses its own NIC; pooled: the GPUs of a server share its NICs.", flag="--nic-use")
    ] = "own"
    nics: Annotated[
        Count | None, doc("NICs of a server (auto: those of the GPU's server, else one per GPU; 6 on tori).")
    ] = None
    tiers: Annotated[
        Literal["fewest", 1, 2, 3],
        doc("Tiers of switch trees; fewest: 1 if one switch holds all NICs of a tree, 2 if two tiers do, else 3."),
    ] = "fewest"
    radix: Annotated[Count, doc("Ports of a switch.")] = 64
    oversubscription: Annotated[
        Amount | None,
        doc(
            "Bandwidth down over bandwidth up in switch trees; oversubscribed above 1 (auto: 3 on oversub-fat-tree,"
            " else 1)."
        ),
    ] = None
    oversubscribed_at: Annotated[
        Literal["edge", "aggregation"], doc("The tier of switch trees that is oversubscribed.")
    ] = "edge"
    leaf_servers: Annotated[
        Literal["most", 1],
        doc("Servers below an edge switch of a tree: most (all ports used), or 1 (a switch per server, no rails)."),
    ] = "most"
    link_delay_s: Annotated[
        Least0, doc("Propagation delay of a link [s]; delays in the file of a graph replace it.", traced=True)
    ] = units.us(1.0)
    alpha_s: Annotated[Least0, doc("Latency added to every all-to-all, ring step and send [s].", traced=True)] = 0.0
    payload: Annotated[Goodput | TransportSettings, doc("The part of the bandwidth that carries payload.")] = Goodput()
    paths: Annotated[Spray | Ecmp | LeastLoaded | Weighted, doc("How flows use paths of equal length.")] = Spray()
    prices: Annotated[str | None, doc("A .toml or .json file with your own prices and watts.", file=True)] = None
    gpu_tbps: Annotated[Amount, doc("Total bandwidth of a GPU on nvl72 and mfabric-cpo, per direction [Tbps].")] = 8.0
    rail_optimized: RailOptimized = msgspec.field(name="rail-optimized", default=RailOptimized())
    multi_plane: MultiPlane = msgspec.field(name="multi-plane", default=MultiPlane())
    scale_up: ScaleUp = msgspec.field(name="scale-up", default=ScaleUp())
    topoopt: TopoOpt = TopoOpt()
    torus: Torus = Torus()
    twisted_torus: TwistedTorus = msgspec.field(name="twisted-torus", default=TwistedTorus())
    full_mesh: FullMesh = msgspec.field(name="full-mesh", default=FullMesh())
    railx: RailX = RailX()
    on_graph: OnGraph = msgspec.field(name="on-graph", default=OnGraph())
    rails: Rails = Rails()
    in_network: InNetwork = msgspec.field(name="in-network", default=InNetwork())
    mfabric: MFabric = MFabric()
    acos: Acos = Acos()


# ------------------------------------------------------------------------------------------------------------ circuits
class OnDemand(Alternative, frozen=True, tag="on-demand"):
    """The switch reconfigures for an all-to-all once its demand is known."""


class Always(Alternative, frozen=True, tag="always"):
    """The switch reconfigures in every block and pass, even if no circuit changes."""


class Reuse(Alternative, frozen=True, tag="reuse"):
    """The first all-to-all of a block uses the circuits of the previous all-to-all."""


class Predict(Alternative, frozen=True, tag="predict"):
    """The switch reconfigures before the first all-to-all of a block, for a predicted demand."""

    predictor: Annotated[
        Literal["transition", "previous-layer", "previous-iteration", "moving-average", "uniform", "random"],
        doc("The predictor of demand (transition: the Copilot of arXiv 2501.03905)."),
    ] = "moving-average"
    scenarios: Annotated[Count, doc("Demands sampled for each forecast, if the policy uses several.")] = 8
    sigma: Annotated[
        Least0 | None, doc("Standard deviation of the log forecast error (auto: the predictor's error so far).")
    ] = None
    both: Annotated[bool, doc("Keep the circuits of the first all-to-all for the second.")] = False


class Pays(Alternative, frozen=True, tag="pays"):
    """The switch reconfigures where this is predicted to save time."""

    horizon: Annotated[
        Amount | None,
        doc(
            "Blocks over which a reconfiguration must save more time than it takes (1: its own block; auto: from how"
            " fast circuits age)."
        ),
    ] = None


class Bound(Alternative, frozen=True, tag="bound"):
    """No circuits: every all-to-all takes its degree bound, which no circuits beat. A reference for other rows."""


class SpanOf(Alternative, frozen=True, tag="span"):
    """Circuits stay for more than one all-to-all."""

    length: Annotated[Literal["block", "stage", "iteration", "run"], doc("How long circuits stay.")] = "iteration"
    chosen_on: Annotated[
        Literal["past", "actual"],
        doc(
            "Demand that circuits are chosen for: past: of the previous span; actual: of the span itself, known ahead."
        ),
    ] = "past"


class CircuitSettings(SettingsGroup, frozen=True):
    """How circuits are chosen and used."""

    policy: Annotated[
        Any | None,
        doc(
            f"{', '.join(policies.NAMES)}; a .policy file; FILE.py:FUNCTION, whose code is run. Each may have"
            f" settings: {policies.FORM} (auto: greedy; uniform for serving).",
            file=True,
            flag="--policy",
        ),
    ] = None
    routing: Annotated[
        RoutingName | None,
        doc(
            "unsplit: pairs with circuits use only these, other pairs the tree; best-path: circuits or tree, the"
            " faster; split: both at once; relay: also through third servers (auto: unsplit; split for serving).",
            flag="--routing",
        ),
    ] = None
    schedule: Annotated[
        str,
        doc(
            f"Scheduler of circuits that change during an all-to-all: none; {', '.join(policies.SCHEDULERS)};"
            " FILE.py:FUNCTION, whose code is run. A scheduler replaces the policy.",
            file=True,
        ),
    ] = policies.NO_SCHEDULE
    switches: Annotated[Count, doc("Parallel switches of a schedule, each with an equal part of a server's ports.")] = 1
    all_stop: Annotated[bool, doc("All circuits of a schedule's switch stop while it reconfigures.")] = True
    directed: Annotated[bool, doc("In a schedule, the two fibres of a NIC may lead to different servers.")] = True
    reconfigure: Annotated[
        OnDemand | Always | Reuse | Predict | Pays | SpanOf | Bound, doc("When the switch reconfigures.")
    ] = OnDemand()
    partial: Annotated[bool, doc("Unchanged circuits keep carrying data during a reconfiguration.")] = False
    decision_s: Annotated[
        Literal["measured"] | Least0, doc("Time of a policy's decision [s]; measured: timed on this machine.")
    ] = 0.0
    ocs: Annotated[
        str | None,
        doc(
            "The optical switch, for its ports, price, power and delay: telescent, polatis, calient, palomar, rotornet,"
            " lightmatter, epiphotonics.",
            flag="--ocs",
        ),
    ] = None
    delay_s: Annotated[
        Least0 | None, doc("Time to reconfigure [s] (auto: the longest time of ocs, else 0.025).", traced=True)
    ] = None
    each_s: Annotated[Least0, doc("Extra time for each new circuit [s].", traced=True)] = 0.0
    reactivation_s: Annotated[
        Least0, doc("Time until NICs work again after a reconfiguration [s] (measured: 5.67).", traced=True)
    ] = 0.0
    packets_wait: Annotated[bool, doc("Traffic on packet switches also waits during a reconfiguration.")] = False
    cold_start: Annotated[bool, doc("Every iteration begins with uniform circuits.")] = False
