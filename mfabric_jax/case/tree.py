"""One case: what is simulated, as a tree of plain settings.

`Case` (in `case.paths`) has eleven groups, each a class of plain values; `group.part.leaf` is the longest path. A leaf
has one default. What excludes each other is one *choice* of several alternatives (subclasses of `Alternative`), written
by name (`circuits.turn = "pays"`) or by a table named like the alternative (`[circuits.predict] sigma = 0.3`), which
chooses it; an alternative with nothing but a `value` is written as one key (`compute.efficiency = 0.4`). `None` is left
open: `resolve` says what it stands for. Nothing here computes: no NumPy, no JAX.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from mfabric_jax import units
from mfabric_jax.case import policies
from mfabric_jax.case.fabrics import GRAPH, NAMES, TOPOLOGIES

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(gt=0)]
Least0 = Annotated[float, msgspec.Meta(ge=0)]
Precision = Literal["bf16", "fp8"]
Sums = Literal["bf16", "fp32"]
NicUse = Literal["own", "pooled"]
if TYPE_CHECKING:
    FabricName = RoutingName = str
else:
    FabricName, RoutingName = Literal[*NAMES, GRAPH], Literal[*policies.ROUTINGS]


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one theme."""


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several that exclude each other; its tag is its name."""

    @property
    def name(self) -> str:
        """What it is called in a file."""
        return self.__struct_config__.tag  # type: ignore[return-value]


def doc(text: str, *, traced: bool = False, file: bool = False) -> msgspec.Meta:
    """What a setting is. `traced`: other values of it run in the same compiled program; `file`: it may name a file."""
    marks = {"traced": True} if traced else {"file": True} if file else None
    return msgspec.Meta(description=text, extra_json_schema=marks)


# ------------------------------------------------------------------------------------------------------ model and GPU
class Model(Group, frozen=True):
    """The model, and whose set-up fills what `job` leaves open. What is open here is as the model has it."""

    name: Annotated[
        str, doc("A model by name, a .toml or .json file of your own, or a released model's config.json.", file=True)
    ] = "mixtral-8x7b"
    recipe: Annotated[
        Literal["makers", "paper", "none"],
        doc("Whose set-up fills open degrees: its makers', that of arXiv 2501.03905, or none: what is found to fit."),
    ] = "makers"
    blocks: Annotated[Count | None, doc("Transformer blocks.")] = None
    hidden: Annotated[Count | None, doc("Width of a token.")] = None
    experts: Annotated[Count | None, doc("Routed experts of a block.")] = None
    top_k: Annotated[Count | None, doc("Experts that a token goes to.")] = None
    expert_hidden: Annotated[Count | None, doc("Inner width of an expert.")] = None
    shared_hidden: Annotated[Natural | None, doc("Inner width of the shared experts, all together.")] = None
    dense_blocks: Annotated[
        Natural | tuple[int, ...] | None, doc("Blocks without experts: how many first ones, or which, from 0.")
    ] = None
    dense_hidden: Annotated[Natural | None, doc("Inner width of the FFN of a dense block.")] = None
    vocab: Annotated[Natural | None, doc("Entries of the embedding.")] = None
    tied: Annotated[bool | None, doc("Whether embedding and output head are one.")] = None
    expert_groups: Annotated[Count | None, doc("Groups of neighbouring experts that the gate chooses from first.")] = (
        None
    )
    top_groups: Annotated[Count | None, doc("Groups that a token may go to.")] = None
    next_tokens: Annotated[Natural | None, doc("Further tokens that are predicted (MTP).")] = None


class GpuSettings(Group, frozen=True):
    """The GPU and its server. What is open is as its data sheet has it."""

    name: Annotated[
        str,
        doc(
            "A100-80GB-SXM, H100-SXM, H800-SXM, H20-SXM, H200-SXM, B200-HGX, B300-HGX, GB200-NVL72, GB300-NVL72,"
            " MI300X, MI355X, or a .toml or .json file of your own.",
            file=True,
        ),
    ] = "H100-SXM"
    bf16_tflops: Annotated[Amount | None, doc("Peak of dense bf16 [TFLOP/s].")] = None
    fp8_tflops: Annotated[Amount | None, doc("Peak of dense FP8 [TFLOP/s].")] = None
    memory_gigabytes: Annotated[Amount | None, doc("Memory [GB].")] = None
    memory_gigabytes_per_s: Annotated[Amount | None, doc("Memory bandwidth [GB/s].")] = None
    nvlink_gigabytes_per_s: Annotated[
        Amount | None, doc("What the NVSwitch of a server gives a GPU, per direction [GB/s].", traced=True)
    ] = None
    gpus_per_server: Annotated[Count | None, doc("GPUs of a server.")] = None
    scale_up_gpus: Annotated[Count | None, doc("GPUs of an NVLink domain (nvl72, mfabric-cpo).")] = None
    nvswitches: Annotated[Count | None, doc("NVSwitches of a server or domain, for failures.")] = None
    watts: Annotated[Amount | None, doc("Power of a GPU [W].")] = None
    usd: Annotated[Amount | None, doc("Price of a GPU [$].")] = None


# ----------------------------------------------------------------------------------------------------------------- job
class Parallel(Group, frozen=True):
    """How the job is spread over GPUs: gpus = dp x etp x ep x pp, where etp is tp if it is left open."""

    tp: Annotated[Count | None, doc("Tensor-parallel degree.")] = None
    etp: Annotated[
        Count | None,
        doc("Tensor-parallel degree inside experts; the other GPUs of tp hold other experts (folding; open: tp)."),
    ] = None
    pp: Annotated[Count | None, doc("Pipeline stages.")] = None
    ep: Annotated[Count | None, doc("Expert-parallel degree.")] = None
    gpus: Annotated[Count | None, doc("GPUs of the job (open: 1,024 where dp is open, too).")] = None
    dp: Annotated[Count | None, doc("Data-parallel degree, of expert-parallel groups.")] = None
    cp: Annotated[Count, doc("EP ranks in a row that share sequences (context parallel).")] = 1
    tp_reduces: Annotated[
        Literal["attention", "all"],
        doc("Whose outputs TP ranks all-reduce: attention's, or experts' and dense FFNs', too."),
    ] = "attention"
    sequence: Annotated[bool, doc("Between products, TP ranks share the tokens, too (sequence parallelism).")] = True


class Batch(Group, frozen=True):
    """Sequences of an iteration. The first four say one thing in four ways; any of them that agree may be stated."""

    global_batch: Annotated[
        Count | None, doc("Sequences of an iteration (open: 4,096 where the next three are, too).")
    ] = None
    micro_batches: Annotated[Count | None, doc("Micro-batches of an EP rank in an iteration.")] = None
    per_stage: Annotated[
        Count | None, doc("Micro-batches over the pipeline's stages, or the least of the schedule.")
    ] = None
    bubble: Annotated[Share | None, doc("Choose micro_batches so that the pipeline's bubble is at most this part.")] = (
        None
    )
    micro_batch: Annotated[
        Count | None, doc("Sequences of an EP rank in a micro-batch (open: its file's, else 1).")
    ] = None
    sequence: Annotated[Count | None, doc("Tokens of a sequence (open: the model file's, else 4,096).")] = None


class PrecisionSettings(Group, frozen=True):
    """Number formats: of computation, and bytes per element of what is sent."""

    compute: Annotated[Precision | None, doc("Whose peak counts: bf16 or fp8 (open: the recipe's, else bf16).")] = None
    dispatch: Annotated[
        Precision | Amount | None,
        doc("Tokens on the way to experts, and their gradients: bf16, fp8, or bytes per element."),
    ] = None
    combine: Annotated[Precision | Amount | None, doc("Answers of experts, and their gradients.")] = None
    gradients: Annotated[Precision | Amount | None, doc("Gradients of weights, as they are reduced.")] = None
    accumulated: Annotated[
        Sums | None, doc("Gradients of weights in memory, summed over micro-batches (open: the recipe's, else fp32).")
    ] = None
    moments: Annotated[Sums | None, doc("The optimizer's two moments in memory (open: the recipe's, else fp32).")] = (
        None
    )
    weights: Annotated[Precision | None, doc("Weights in memory, and as replicas gather them (open: bf16).")] = None
    kept: Annotated[
        Precision | None, doc("Inputs of products that wait for the backward pass (open: the recipe's, else bf16).")
    ] = None


class OneFOneB(Alternative, frozen=True, tag="1f1b"):
    """A forward and a backward pass alternate (PipeDream-flush)."""


class Interleaved(Alternative, frozen=True, tag="interleaved"):
    """1F1B over several chunks of blocks on a stage."""

    chunks: Annotated[Count | None, doc("Chunks of blocks on a stage (open: the recipe's, else 2).")] = None


class GPipe(Alternative, frozen=True, tag="gpipe"):
    """All forward passes, then all backward passes."""


class ZeroBubbleH1(Alternative, frozen=True, tag="zb-h1"):
    """Gradients of weights fill the bubble (ZB-H1)."""


class ZeroBubbleV(Alternative, frozen=True, tag="zb-v"):
    """Two chunks in a V, gradients of weights fill the bubble."""


class DualPipe(Alternative, frozen=True, tag="dualpipe"):
    """Micro-batches from both ends of the pipeline (DeepSeek-V3)."""


class NoOverlap(Alternative, frozen=True, tag="none"):
    """Dispatch, experts and combine one after the other."""


class Parts(Alternative, frozen=True, tag="parts"):
    """A micro-batch in parts, whose dispatch, experts and combine overlap."""

    value: Annotated[Count, doc("Parts of a micro-batch.")] = 2


class Passes(Alternative, frozen=True, tag="passes"):
    """All-to-alls of a pass beside another's computation."""

    comm_cores: Annotated[
        Annotated[float, msgspec.Meta(ge=0, lt=1)] | None,
        doc("Part of a GPU's cores that communicates then (DeepSeek-V3: 0.152; open: the dispatcher's)."),
    ] = None
    delayed: Annotated[bool, doc("Gradients of weights come after what the next all-to-all waits for.")] = True


class PerExpert(Alternative, frozen=True, tag="per-expert"):
    """A token travels once for every expert."""


class PerServer(Alternative, frozen=True, tag="per-server"):
    """A token travels once to every server of its experts, whose NVSwitch carries it on (as DeepEP does)."""

    node_limit: Annotated[
        Literal["model"] | Count | None,
        doc("Servers that a token may reach at most; model: as its groups of experts say."),
    ] = None


class Job(Group, frozen=True):
    """How the model is trained."""

    training_tokens: Annotated[
        Amount | None,
        doc("Tokens of a whole training, whose days, dollars and energy are told then."),
    ] = None
    parallel: Parallel = Parallel()
    batch: Batch = Batch()
    precision: PrecisionSettings = PrecisionSettings()
    schedule: Annotated[
        OneFOneB | Interleaved | GPipe | ZeroBubbleH1 | ZeroBubbleV | DualPipe | None,
        doc("Order of passes (open: the recipe's, else 1f1b)."),
    ] = None
    overlap: Annotated[
        NoOverlap | Parts | Passes | None, doc("What runs beside all-to-alls (open: passes under dualpipe, else none).")
    ] = None
    sharding: Annotated[
        Literal["none", "optimizer", "gradients", "parameters"] | None,
        doc("What replicas share out: optimizer is ZeRO-1 (open: the recipe's, else this), gradients 2, parameters 3."),
    ] = None
    overlap_gradients: Annotated[
        bool | None, doc("Gradients are all-reduced beside the backward pass (open: where it can be).")
    ] = None
    recompute: Annotated[
        str,
        doc(
            "What the backward pass computes again: fit (the least level with which the job fits the memory), none,"
            " light, attention, block, or some of norm, mla-up, attention, activation, shared, mlp, router, moe, joined"
            " by +."
        ),
    ] = "fit"
    dispatch: Annotated[
        PerExpert | PerServer | None, doc("How tokens travel (open: the recipe's, else per-expert).")
    ] = None
    dispatcher: Annotated[
        Literal["ideal", "nccl", "deepep", "hybridep"] | None,
        doc(
            "What sends tokens, at what it achieves under compute.kernels (open: by dispatch: nccl, deepep per server)."
        ),
    ] = None
    mtp: Annotated[
        bool | None,
        doc("The model's blocks that predict further tokens are trained, too (open: the recipe's, else not)."),
    ] = None
    layout: Annotated[
        str | None,
        doc("Blocks of the pipeline's places: even, ends (embedding and head count as blocks), or like Et|(tt|)*30mL."),
    ] = None
    capacity_factor: Annotated[
        Annotated[float, msgspec.Meta(ge=1)], doc("What an expert takes at most, over the mean; the rest is dropped.")
    ] = float("inf")
    head: Annotated[bool, doc("Embedding and output head take time, where the vocabulary is known.")] = True
    optimizer_step: Annotated[bool, doc("The optimizer's step takes time, where the memory bandwidth is known.")] = True


# ------------------------------------------------------------------------------------- computation, traffic, placement
class Efficiency(Alternative, frozen=True, tag="efficiency"):
    """A part of the GPU's peak."""

    value: Annotated[Amount, doc("Achieved over peak FLOP/s.", traced=True)] = 0.5


class Kernels(Alternative, frozen=True, tag="kernels"):
    """Every kind of computation and communication at what its kernels achieve."""

    table: Annotated[
        str | None, doc("A .toml or .json file of one's own figures (open: those of the package).", file=True)
    ] = None
    launch_us: Annotated[
        Least0 | None, doc("Before every kernel, in which a GPU runs nothing [us] (open: the table's).")
    ] = None


class Measured(Alternative, frozen=True, tag="measured"):
    """The rate with which the simulated iteration takes as long as one that was measured."""

    iteration_s: Annotated[Amount | None, doc("Seconds of the iteration that was measured.")] = None
    fabric: Annotated[str, doc("The fabric on which it was measured.")] = "fat-tree"
    nic_gbps: Annotated[Amount | None, doc("The bandwidth of its NICs (open: the case's).")] = None
    nic_use: Annotated[NicUse | None, doc("How its GPUs used NICs (open: as the case's do).")] = None


class Calibrated(Alternative, frozen=True, tag="calibrated"):
    """The rate that published fat-tree times imply, where there are any of the model on an A100; else half the peak."""

    value: Annotated[Literal["paper", "released", "today"], doc("Under which assumptions it was calibrated.")] = "paper"


class BalancedExperts(Alternative, frozen=True, tag="balanced"):
    """Experts compute as if all had equally many tokens."""


class Received(Alternative, frozen=True, tag="received"):
    """Experts compute what the busiest rank received."""

    tile: Annotated[Count, doc("An expert's tokens are rounded up to whole tiles of so many.")] = 128
    combine: Annotated[
        Literal["barrier", "rank"],
        doc("Ranks send answers once the busiest is done (barrier), or each when it is (rank)."),
    ] = "barrier"


class Compute(Group, frozen=True):
    """How fast GPUs compute."""

    rate: Annotated[Kernels | Efficiency | Measured | Calibrated, doc("Where the rate of computation comes from.")] = (
        Kernels()
    )
    experts: Annotated[BalancedExperts | Received, doc("Tokens that experts compute.")] = Received()


class Shares(Alternative, frozen=True, tag="shares"):
    """Expert shares measured on trained models (OLMoE, Mixtral)."""

    drift: Annotated[Least0, doc("Standard deviation of the log change of an expert's popularity in an iteration.")] = (
        0.05
    )


class Generated(Alternative, frozen=True, tag="generated"):
    """Expert popularity rank^-skew."""

    skew: Annotated[Least0, doc("Skew; 0 is balanced.")] = 0.0
    drift: Annotated[Least0, doc("Standard deviation of the log change of an expert's popularity in an iteration.")] = (
        0.05
    )


class KnobsFrom(Alternative, frozen=True, tag="knobs"):
    """A workload by name, or a file of knobs."""

    value: Annotated[
        str,
        doc(
            "balanced, hot-experts, spread-hot-experts, hot-rank, rotating-hot-spot, burst, empty-experts,"
            " power-law-0.6, -0.8, -1.01, -1.2, log-normal, or a .json file from mfabric traces fit.",
            file=True,
        ),
    ] = "balanced"


class Trace(Alternative, frozen=True, tag="trace"):
    """Recorded routing."""

    path: Annotated[str | None, doc("A file or folder in any format that mfabric traces --help lists.", file=True)] = (
        None
    )
    records: Annotated[tuple[int, int] | None, doc("FIRST-LAST record (open, of a gate trace: 2011-5001).")] = None
    axes: Annotated[
        str | None, doc("Axes of an array, in order: iteration,layer,micro-batch,source,expert, or some.")
    ] = None


class Authors(Alternative, frozen=True, tag="authors"):
    """The 8 x 8 matrix in the code that mFabric's authors released, tiled over ranks."""


class Traffic(Group, frozen=True):
    """Where tokens go."""

    source: Annotated[Shares | Generated | KnobsFrom | Trace | Authors, doc("Where routing comes from.")] = Shares()
    drawn: Annotated[Count, doc("Different micro-batches of an iteration; more are read cyclically.")] = 4
    alike: Annotated[
        Literal["nothing", "micro-batches", "everything"],
        doc("What has the same traffic: micro-batches, blocks, too, or none."),
    ] = "nothing"


class Contiguous(Alternative, frozen=True, tag="contiguous"):
    """Neighbouring experts share a rank."""


class _Placed(Alternative, frozen=True):
    redundant_experts: Annotated[Natural, doc("Slots of a group for copies of experts, a multiple of its ranks.")] = 0
    loads: Annotated[
        Natural,
        doc("Experts are placed on the loads of so many iterations before; 0: on those that follow, as if known."),
    ] = 1
    every: Annotated[Natural, doc("They are placed again every so many iterations; 0: once, before the run.")] = 0


class LongestProcessingTime(_Placed, frozen=True, tag="longest-processing-time"):
    """The heaviest expert goes to the least loaded rank."""


class Hierarchical(_Placed, frozen=True, tag="hierarchical"):
    """Groups to servers, then experts to ranks (DeepSeek's EPLB)."""

    groups: Annotated[
        Count | None, doc("Groups of neighbouring experts that stay on one server (open: each expert).")
    ] = None


class WithCircuits(_Placed, frozen=True, tag="with-circuits"):
    """Hierarchical, then swaps that spare the ports between servers."""

    groups: Annotated[
        Count | None, doc("Groups of neighbouring experts that stay on one server (open: each expert).")
    ] = None


class GivenPlacement(Alternative, frozen=True, tag="given"):
    """Experts lie where a file says, all run long."""

    value: Annotated[
        str | None, doc("A .json file of SGLang, vLLM, EPLB or vLLM-Ascend, or from mfabric traces place.", file=True)
    ] = None


class PlacementSettings(Group, frozen=True):
    """Where experts live."""

    rule: Annotated[
        Contiguous | LongestProcessingTime | Hierarchical | WithCircuits | GivenPlacement,
        doc("Which ranks hold which experts."),
    ] = Contiguous()


# ------------------------------------------------------------------------------------------------------------- network
class RailOptimized(Group, frozen=True):
    """NICs of equal rank share edge switches, rails share a spine."""

    pxn: Annotated[bool, doc("Data crosses the NVSwitch to the rail of its destination first, as NCCL does.")] = True


class MultiPlane(Group, frozen=True):
    """Every NIC split over several trees of at most two tiers."""

    planes: Annotated[Count, doc("Planes of every NIC, each with its part of the bandwidth.")] = 8
    flows: Annotated[
        Literal["spray", "own"], doc("Flows are spread over all planes, or each pair of ranks has one of its own.")
    ] = "spray"


class ScaleUp(Group, frozen=True):
    """Scale-up domains of any size, beside a NIC for each GPU."""

    gpus: Annotated[Count, doc("GPUs of a domain; those that the job's groups do not fill are idle.")] = 72
    ports: Annotated[Count, doc("NVLink ports of a GPU, one at each switch of a domain.")] = 18
    port_gigabytes_per_s: Annotated[Amount, doc("Bandwidth of such a port, per direction [GB/s].")] = 50.0


class TopoOpt(Group, frozen=True):
    """Circuits alone, chosen before training."""

    wiring: Annotated[
        Literal["demand", "rings", "totient-perms"],
        doc("One ring and matchings by demand; rings alone; rings and matchings by bytes."),
    ] = "totient-perms"


class MFabric(Group, frozen=True):
    """A regional optical switch that turns during training, and a switch tree."""

    optical_degree: Annotated[
        Natural | None,
        doc("NICs of a server on the optical switch; the others are on the tree (open: 6 of 8, 3 of 4).", traced=True),
    ] = None


class Acos(Group, frozen=True):
    """Small optical switches that choose one of a few graphs."""

    topologies: Annotated[
        tuple[str, ...], doc(f"Graphs that are wired beforehand, some of {', '.join(TOPOLOGIES)}.")
    ] = TOPOLOGIES


class Torus(Group, frozen=True):
    """A 3-D torus of direct links between servers."""

    shape: Annotated[
        str | None, doc("Three sizes, such as 4x4x8, of as many servers (open: a group, or a stage, is an x-y plane).")
    ] = None
    ways: Annotated[
        Literal["dimension-order", "shortest"],
        doc("One path, x, y, then z, and gradients around z; or all shortest paths, gradients over all links."),
    ] = "dimension-order"


class TwistedTorus(Group, frozen=True):
    """A torus of sizes n and 2n whose rings of n close with a shift along those of 2n."""

    shape: Annotated[str | None, doc("Sizes, such as 4x4x8, of as many servers (open: n x n x 2n or n x 2n x 2n).")] = (
        None
    )


class FullMesh(Group, frozen=True):
    """Servers that differ in one dimension alone are joined. What is open of shape and ways is what carries an even
    all-to-all of an expert-parallel group fastest."""

    shape: Annotated[
        str | None,
        doc("Sizes of the dimensions, such as 16x16, of as many servers (open: near each other, the fastest)."),
    ] = None
    dimensions: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=8)] | None,
        doc("Of a shape that is open (open: 1, 2 or 3 whose links are at least an eighth of a NIC, the fastest)."),
    ] = None
    split: Annotated[
        str | None, doc("NICs of a server for each dimension, such as 6x2 (open: as many for each peer).")
    ] = None
    ways: Annotated[
        Literal["shortest", "dimension-order", "detour"] | None,
        doc(
            "All shortest paths; one, first dimension first; each of its steps over all third servers of a line, too"
            " (open: shortest or detour, the faster)."
        ),
    ] = None


class RailX(Group, frozen=True):
    """Nodes of m x m servers, whose rows and columns rails join through optical switches."""

    side: Annotated[
        Count | None,
        doc("Servers along a side of a node, m (open: the least from 2 on whose nodes hold a group, else 2 or 1)."),
    ] = None
    shape: Annotated[
        str | None, doc("Nodes in a row and in a column, such as 8x8, of as many servers (open: near a square).")
    ] = None


class Goodput(Alternative, frozen=True, tag="goodput"):
    """A part of the NIC's bandwidth."""

    value: Annotated[Share, doc("Payload over the bandwidth of a NIC.", traced=True)] = 1.0


class TransportSettings(Alternative, frozen=True, tag="transport"):
    """What headers, a receiver's pace and acknowledgements take."""

    value: Annotated[str, doc("ndp, dctcp, or a .toml or .json file of constants.", file=True)] = "ndp"


class Spray(Alternative, frozen=True, tag="spray"):
    """Packets spread over all shortest paths."""


class Ecmp(Alternative, frozen=True, tag="ecmp"):
    """Each flow takes one random shortest path."""

    busy: Annotated[Literal["group", "cluster"], doc("Whose all-to-alls run at once: one group's, or all groups'.")] = (
        "group"
    )
    circuits: Annotated[
        Literal["single", "pooled"], doc("A flow takes one of its pair's circuits, or those of a pair are one queue.")
    ] = "single"


class LeastLoaded(Alternative, frozen=True, tag="least-loaded"):
    """Each flow takes the shortest path whose links carry least so far; on whole clusters, in replays and of jobs."""


class Weighted(Alternative, frozen=True, tag="weighted"):
    """Packets spread by the capacity of paths; on a graph of your own."""


class OnGraph(Group, frozen=True):
    """A graph of your own."""

    relay: Annotated[
        Literal["auto", "yes", "no"],
        doc("Whether GPUs forward for others; auto: only where some could not be reached otherwise."),
    ] = "auto"
    ranks: Annotated[
        str | None, doc("A .json file of the GPU of every rank, {gpus: [0, 1, ...]} (open: in their order).", file=True)
    ] = None


class Network(Group, frozen=True):
    """Fabric, NICs, switches."""

    fabric: Annotated[
        FabricName,
        doc("The fabric between servers; what only one fabric has stands in a table of its name."),
    ] = "mfabric"
    graph: Annotated[str | None, doc("graph: the file of a graph (docs/formats.md#graphs).", file=True)] = None
    nic_gbps: Annotated[
        Amount, doc("Bandwidth of every NIC [Gbps]; prices are known from 100 to 800.", traced=True)
    ] = 400.0
    nic_use: Annotated[NicUse, doc("own: each GPU uses its own NIC; pooled: a server's NICs carry anything.")] = "own"
    nics: Annotated[Count | None, doc("NICs of a server (open: the GPU's, else one a GPU; 6 on tori).")] = None
    tiers: Annotated[
        Literal["fewest", 1, 2, 3],
        doc(
            "Tiers of switch trees; fewest: 1 where all NICs of a tree fit on one switch, 2 where two tiers hold them."
        ),
    ] = "fewest"
    radix: Annotated[Count, doc("Ports of a switch.")] = 64
    oversubscription: Annotated[
        Amount | None,
        doc("Of switch trees, down over up (open: 3 on oversub-fat-tree, else 1)."),
    ] = None
    oversubscribed_at: Annotated[
        Literal["edge", "aggregation"], doc("Which switches of that tree are oversubscribed.")
    ] = "edge"
    leaf_servers: Annotated[
        Literal["most", 1],
        doc("Servers below an edge switch of that tree: most fills its ports; 1: a switch for each, without rails."),
    ] = "most"
    link_delay_s: Annotated[
        Least0, doc("Propagation of a link [s]; delays that the file of a graph gives take its place.", traced=True)
    ] = units.us(1.0)
    alpha_s: Annotated[
        Least0, doc("Of every all-to-all, step of a ring and send beside its bytes and its links [s].", traced=True)
    ] = 0.0
    payload: Annotated[Goodput | TransportSettings, doc("What of the bandwidth is payload.")] = Goodput()
    paths: Annotated[Spray | Ecmp | LeastLoaded | Weighted, doc("How flows use equal paths.")] = Spray()
    prices: Annotated[str | None, doc("A .toml or .json file of your own prices and watts.", file=True)] = None
    gpu_tbps: Annotated[Amount, doc("nvl72 and mfabric-cpo: bandwidth of a GPU in all, per direction [Tbps].")] = 8.0
    rail_optimized: RailOptimized = msgspec.field(name="rail-optimized", default=RailOptimized())
    multi_plane: MultiPlane = msgspec.field(name="multi-plane", default=MultiPlane())
    scale_up: ScaleUp = msgspec.field(name="scale-up", default=ScaleUp())
    topoopt: TopoOpt = TopoOpt()
    torus: Torus = Torus()
    twisted_torus: TwistedTorus = msgspec.field(name="twisted-torus", default=TwistedTorus())
    full_mesh: FullMesh = msgspec.field(name="full-mesh", default=FullMesh())
    railx: RailX = RailX()
    on_graph: OnGraph = msgspec.field(name="on-graph", default=OnGraph())
    mfabric: MFabric = MFabric()
    acos: Acos = Acos()


# ------------------------------------------------------------------------------------------------------------ circuits
class OnDemand(Alternative, frozen=True, tag="on-demand"):
    """The switch turns for an all-to-all when its demand is known."""


class Always(Alternative, frozen=True, tag="always"):
    """It turns in every block and pass, circuits new or not."""


class Reuse(Alternative, frozen=True, tag="reuse"):
    """The first all-to-all of a block uses the circuits of the one before."""


class Predict(Alternative, frozen=True, tag="predict"):
    """It turns ahead of the first all-to-all of a block, for demand that is predicted."""

    predictor: Annotated[
        Literal["transition", "previous-layer", "previous-iteration", "moving-average", "uniform", "random"],
        doc("What predicts (transition: as Copilot of arXiv 2501.03905)."),
    ] = "moving-average"
    scenarios: Annotated[Count, doc("Demands sampled for each forecast, where the policy takes many.")] = 8
    sigma: Annotated[
        Least0 | None, doc("Standard deviation of the log forecast error (open: the predictor's so far).")
    ] = None
    both: Annotated[bool, doc("The circuits of the first all-to-all serve the second, too.")] = False


class Pays(Alternative, frozen=True, tag="pays"):
    """It turns where that is foreseen to pay."""


class Bound(Alternative, frozen=True, tag="bound"):
    """No circuits: every all-to-all takes its degree bound, which none beat. A row to compare others with."""


class SpanOf(Alternative, frozen=True, tag="span"):
    """Circuits stay for a longer span."""

    length: Annotated[Literal["block", "stage", "iteration", "run"], doc("For how long.")] = "iteration"
    chosen_on: Annotated[Literal["past", "actual"], doc("Chosen on the span before, or on what they will carry.")] = (
        "past"
    )


class CircuitSettings(Group, frozen=True):
    """How circuits are chosen and used."""

    policy: Annotated[
        Any | None,
        doc(
            f"{', '.join(policies.NAMES)}; a .policy file; FILE.py:FUNCTION, whose code is run; each also with"
            f" settings: {policies.FORM} (open: greedy; uniform where models are served).",
            file=True,
        ),
    ] = None
    routing: Annotated[
        RoutingName | None,
        doc(
            "unsplit: a pair with circuits uses these alone, others the tree; best-path: circuits or tree, the sooner;"
            " split: both at once; relay: third servers, too (open: unsplit; split where models are served)."
        ),
    ] = None
    schedule: Annotated[
        str,
        doc(
            f"Circuits that turn while an all-to-all runs: none; {', '.join(policies.SCHEDULERS)}; FILE.py:FUNCTION,"
            " whose code is run. No policy is asked then.",
            file=True,
        ),
    ] = policies.NO_SCHEDULE
    switches: Annotated[Count, doc("Parallel switches of a schedule; each has as many ports of a server.")] = 1
    all_stop: Annotated[bool, doc("No circuit of a schedule's switch carries while it turns.")] = True
    directed: Annotated[bool, doc("The fibres of a NIC may lead to two servers, in a schedule.")] = True
    turn: Annotated[OnDemand | Always | Reuse | Predict | Pays | SpanOf | Bound, doc("When the switch turns.")] = (
        OnDemand()
    )
    partial: Annotated[bool, doc("Circuits that stay carry while others turn.")] = False
    decision_s: Annotated[
        Literal["measured"] | Least0, doc("Time that the policy takes, or measured on this machine [s].")
    ] = 0.0
    ocs: Annotated[
        str | None,
        doc(
            "telescent, polatis, calient, palomar, rotornet, lightmatter, epiphotonics: its ports, price, power, delay."
        ),
    ] = None
    delay_s: Annotated[Least0 | None, doc("Time to turn [s] (open: the slowest of ocs, else 0.025).", traced=True)] = (
        None
    )
    each_s: Annotated[Least0, doc("Further time for every circuit set up anew [s].", traced=True)] = 0.0
    reactivation_s: Annotated[Least0, doc("NICs come back so much later [s] (measured: 5.67).", traced=True)] = 0.0
    packets_wait: Annotated[bool, doc("Traffic on packet switches waits for a turn, too.")] = False
    cold_start: Annotated[bool, doc("Circuits are uniform when an iteration begins.")] = False


class RunSettings(Group, frozen=True):
    """What is drawn, and in which arithmetic."""

    seed: Annotated[Natural, doc("Of everything that is drawn.")] = 0
    dtype: Annotated[Literal["float32", "float64"], doc("Arithmetic of the simulator.")] = "float32"
    iterations: Annotated[Count, doc("Iterations to simulate and average.")] = 1
    draws: Annotated[
        Count, doc("Draws of the traffic, by seeds in a row, over which the band of an iteration's time spreads.")
    ] = 2
    replicas: Annotated[
        Literal["all"] | Count, doc("Data-parallel replicas with traffic of their own, which wait for the slowest.")
    ] = 1
    sample: Annotated[Natural | None, doc("One of the iterations alone (open: their mean).", traced=True)] = None


class FailureSettings(Group, frozen=True):
    """What fails, where and when; of `mfabric failures`."""

    kinds: Annotated[
        tuple[str, ...] | None,
        doc(
            "electrical-nic, electrical-nics, optical-nic, nic-link, optical-link, link, spine-link, gpu, server,"
            " optical-switch, controller, nvswitch, plane, plane-link, switch, spine (open: those that the fabric has)."
        ),
    ] = None
    stage: Annotated[
        Literal["busiest"] | Natural | None,
        doc("The pipeline stage that is hit: by number, or busiest (open: the one where it costs most)."),
    ] = None
    gpu_remedy: Annotated[
        Literal["cheaper", "spare-gpu", "spare-server"],
        doc(
            "A broken GPU: a GPU of a spare server takes its work (spare-gpu), or a spare server takes over its whole"
            " server; cheaper: what slows the iteration less."
        ),
    ] = "cheaper"
    server: Annotated[Natural, doc("The server of its region that is hit.")] = 0
    iteration: Annotated[Natural, doc("First iteration that suffers.")] = 0
    rates: Annotated[str | None, doc("How often what fails: a .toml or .json file.", file=True)] = None
    checkpoint_interval_s: Annotated[Least0, doc("Between checkpoints [s].")] = 3600.0
    restart_s: Annotated[Least0, doc("Until a stopped job runs again [s].")] = 600.0
