"""The options of every command, as typed structs that tyro turns into flags and help."""

import dataclasses
from typing import Annotated, Any

import tyro


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetUp:
    """Overrides of a model's own set-up."""

    dp: int | None = None
    """Data-parallel degree; the degrees have to multiply to gpus."""
    tp: int | None = None
    """Tensor-parallel degree."""
    pp: int | None = None
    """Pipeline stages."""
    ep: int | None = None
    """Expert-parallel degree."""
    gpus: int | None = None
    """GPUs of the cluster."""
    micro_batch: int | None = None
    """Sequences per EP rank and micro-batch."""
    micro_batches: int | None = None
    """Micro-batches per iteration (default: the pipeline stages)."""
    sequence: int | None = None
    """Tokens of a sequence."""
    schedule: str | None = None
    """Order of passes: 1f1b (default), interleaved, gpipe."""
    chunks: int | None = None
    """Chunks of blocks on a stage, under interleaved."""
    recompute: str | None = None
    """What the backward pass computes again: none (default), attention, block."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(SetUp):
    """Compare fabrics for MoE training: one row per model, fabric and bandwidth.

    Lists are separated by commas. Defaults: five models, four fabrics, 100 to 800 Gbps, routing shares measured on
    trained models, compute time calibrated to published fat-tree times (deepseek-r1: an A100 at half its peak).
    """

    preset: str = "paper"
    """paper (its text) or released (its authors' code): defaults of --rule, --flows, --eps-waits and --matrices."""
    models: str = "mixtral-8x22b,mixtral-8x7b,llama-moe,qwen-moe,deepseek-r1"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""
    fabrics: str = "fat-tree,oversub-fat-tree,rail-optimized,mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo"""
    nic_gbps: str = "100,200,400,800"
    """Bandwidth of every NIC; prices are known from 100 to 800."""
    nic_use: str = "own"
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything; own,pooled shows both (mFabric pools)."""
    nics: int | None = None
    """NICs of a server on everything but mfabric, nvl72 and mfabric-cpo (default: one for each GPU)."""
    pxn: tyro.conf.FlagCreatePairsOff[bool] = False
    """On rail-optimized, data crosses the NVSwitch to the rail of its destination first (rail-only always does)."""
    tiers: int = 3
    """Tiers of the switch trees that are paid for: 3 (the paper's), or 2 where the cluster is small enough."""
    prices: str | None = None
    """A .toml or .json file of your own prices per part."""
    policy: str = "greedy"
    """How mFabric chooses circuits: greedy, uniform, random, static, previous, topoopt, matching, threshold,
    local-search, relaxed, joint, index, learned, exact; a .policy file of mfabric train; or FILE.py:FUNCTION."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    routing: str = "unsplit"
    """How mFabric uses them: unsplit, best-path, split, relay."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    ocs: str | None = None
    """An optical switch from the table, whose ports bound the region: telescent, polatis, calient, palomar, rotornet,
    lightmatter, epiphotonics."""
    delay_s: float | None = None
    """Reconfiguration delay of the optical switch (default: 0.025, or the slowest of --ocs)."""
    gpu_tbps: float = 8.0
    """nvl72 and mfabric-cpo: bandwidth of a GPU in all, per direction."""
    goodput: float = 1.0
    """Part of the NIC bandwidth that is payload (headers take the rest)."""
    link_delay_s: float = 0.0
    """Propagation of a link."""
    first: str = "block"
    """Circuits of the first all-to-all of a forward block: block, reuse, random, predict, pays (see the docs)."""
    predictor: str | None = None
    """Of demand, for --first predict: transition, previous-layer, previous-iteration, moving-average, uniform."""
    eps_waits: tyro.conf.FlagCreatePairsOff[bool] = False
    """Traffic on packet switches waits for a reconfiguration too, not only that on circuits."""
    reactivation_s: float = 0.0
    """NICs come back so much after the optical switch has turned (measured on a testbed: 5.67)."""
    flows: str = "spray"
    """spray, or single: each flow takes one random shortest path."""
    matrices: str = "each"
    """each block and micro-batch has its own traffic; block: micro-batches and iterations alike; one: all alike."""
    overlap_parts: int = 1
    """Parts in which dispatch, experts and combine overlap (1: one after the other)."""
    dp_overlap: tyro.conf.FlagCreatePairsOff[bool] = False
    """Gradients are all-reduced beside the backward pass."""
    trace: str | None = None
    """Recorded routing: a file or folder in any format that mfabric traces --help lists."""
    records: str | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    traffic: str = "measured"
    """measured: expert shares of trained models; generated: popularity rank^-skew; balanced, hot-experts,
    spread-hot-experts, hot-rank, rotating-hot-spot, burst, empty-experts, power-law-0.6, -0.8, -1.01, -1.2, log-normal;
    or a .json file of knobs, from `mfabric traces fit`."""
    skew: float = 0.0
    """Skew of generated traffic; 0 is balanced."""
    drift: float = 0.05
    """How much expert popularity moves from iteration to iteration (standard deviation of its logarithm)."""
    drawn: int = 4
    """Different micro-batches of an iteration; more are read cyclically."""
    iterations: int = 1
    """Iterations to simulate and average; of a trace the first so many records."""
    compute: str | None = None
    """calibrated (to published fat-tree times, where there are any) or achieved (--gpu at --efficiency); default:
    calibrated unless gpu or efficiency is given."""
    gpu: str = "A100-80GB-SXM"
    """A100-80GB-SXM, H100-SXM, H800-SXM, H200-SXM, B200-HGX, GB200-NVL72."""
    efficiency: float = 0.5
    """Achieved over peak FLOP/s."""
    nvswitch_gigabytes_per_s: float = 900.0
    """NVSwitch rate of a GPU, per direction."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Pictures to a folder."""
    seed: int = 0
    dtype: str = "float32"
    """float32, float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Fit the computation time of models to published fat-tree times (arXiv 2501.03905): one rate each.

    Three ratios a model are published; skew comes from the traffic. Every other fabric is then predicted. `compare`
    uses what ships with the package, found under the defaults here.
    """

    models: str = "mixtral-8x22b,mixtral-8x7b,llama-moe,qwen-moe"
    """Those with published times: mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe"""
    preset: str = "paper"
    """paper (its text) or released (its authors' code): defaults of --flows and --matrices."""
    flows: str = "spray"
    """spray, or single: each flow takes one random shortest path."""
    matrices: str = "each"
    """each block and micro-batch has its own traffic; block: micro-batches and iterations alike; one: all alike."""
    nic_use: str = "own"
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything."""
    traffic: str = "measured"
    """measured: expert shares of trained models; generated: popularity rank^-skew."""
    skew: float = 0.0
    """Skew of generated traffic; 0 is balanced."""
    trace: str | None = None
    """Recorded routing instead."""
    iterations: int = 1
    """Iterations to average."""
    out: str | None = None
    """The calibration, with its residuals and its configuration, to a .json file."""
    seed: int = 0
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficOptions(SetUp):
    """Bytes of tensor, expert, pipeline and data parallelism in one iteration, beside measured shares."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracesOptions:
    """What recorded routing holds: shape, skew, shares of pairs, drift and locality, over iterations and layers.

    Formats: .npy or .npz of tokens [iteration, layer, micro_batch, source_rank, expert],
    num_global_tokens_per_expert [tp, ep, expert], logical_count [iteration, layer, expert] or weight [layer, expert]
    (.pt too, with torch); .jsonl of a Megatron router trace, or a folder of them; .txt of an mFabric weight matrix;
    a folder of the SmartMoE gate trace, of OLMoE expert counts or of a LAER-MoE token analysis.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="info|convert|fit")]
    """info: statistics; convert: the same counts as .npz of tokens; fit: knobs of generated traffic that is alike."""
    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """The recording; PATH/NAME where there are several."""
    to: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.npz")] = None
    """Where convert writes."""
    records: str | None = None
    """FIRST-LAST record (default: all; for a SmartMoE gate trace 2011-5001)."""
    iterations: int | None = None
    """fit: iterations to generate for the comparison (default: as many as were recorded)."""
    ranks: int | None = None
    """EP ranks, where they are not recorded or neighbours shall count as one."""
    ranks_per_server: int | None = None
    """Ranks of a server (default: 8, where that makes several servers)."""
    out: str | None = None
    """info: a row per iteration and layer to a .csv or .parquet file; fit: the knobs to a .json file."""
    figures: str | None = None
    """info: pictures of loads and pairs to a folder."""


@dataclasses.dataclass(frozen=True)
class ValidateOptions:
    """Predict recorded packet-level runs at flow level and say how far off the prediction is.

    Prediction: exact max-min fluid completion, headers taken off the line rate; latency and queues are not in it.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="packet")]
    """packet: runs of a packet-level simulator."""
    runs: str
    """Folder of runs, one .json file each."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Pictures to a folder."""
    dtype: str = "float64"
    """float32, float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailuresOptions(SetUp):
    """What a failure costs mFabric: iteration time with something broken, beside the published figures.

    One failure hits one region; circuits are chosen again without what failed. Lists are separated by commas.
    """

    models: str = "mixtral-8x22b,deepseek-r1"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""
    kinds: str = "electrical-nic,electrical-nics,optical-nic,link,gpu,server"
    """What fails: electrical-nic (one of a server), electrical-nics (all), optical-nic (or its switch port), link
    (between switches), gpu, server."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    stage: int | None = None
    """The pipeline stage that is hit (default: the busiest)."""
    server: int = 0
    """The server of its region that is hit."""
    at: int = 0
    """First iteration that suffers; before it the run is healthy."""
    iterations: int = 1
    """Iterations of the run."""
    policy: str = "greedy"
    """How mFabric chooses circuits: greedy, uniform, random, static, previous, topoopt, matching, threshold,
    local-search, relaxed, joint, index, learned, exact; a .policy file of mfabric train; or FILE.py:FUNCTION."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    routing: str = "unsplit"
    """How mFabric uses them: unsplit, best-path, split, relay."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    delay_s: float | None = None
    """Reconfiguration delay of the optical switch (default: 0.025)."""
    eps_waits: tyro.conf.FlagCreatePairsOff[bool] = False
    """Traffic on packet switches waits for a reconfiguration too."""
    radix: int = 64
    """Ports of every electrical switch."""
    gpu: str = "A100-80GB-SXM"
    """A100-80GB-SXM, H100-SXM, H800-SXM, H200-SXM, B200-HGX, GB200-NVL72."""
    efficiency: float = 0.5
    """Achieved over peak FLOP/s."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Picture to a folder."""
    seed: int = 0
    dtype: str = "float32"
    """float32, float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterOptions(SetUp):
    """All expert, data and pipeline parallel bytes of one iteration on a whole cluster at once.

    Every link and every flow can be written to a file: bytes, utilisation, what holds each flow back.
    """

    model: str = "mixtral-8x7b"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""
    fabric: str = "mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo"""
    graph: str | None = None
    """Instead of a fabric: your own, networkx node-link JSON whose gpu (or host) nodes are the GPUs."""
    servers: int = 0
    """Servers of the cluster (default: the model's own); data parallelism grows with them."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    routing: str = "spray"
    """spray, ecmp, least-loaded (and weighted, on a graph)."""
    policy: str = "greedy"
    """How circuits are chosen: greedy, uniform, topoopt, matching, threshold, local-search, relaxed, joint, index,
    learned, exact; a .policy file of mfabric train; or FILE.py:FUNCTION."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric of mfabric."""
    radix: int = 64
    """Ports of every electrical switch."""
    tiers: int = 3
    """Tiers of the switch tree: 2 or 3."""
    oversubscription: float | None = None
    """Of the tree (default: 3 on oversub-fat-tree, else 1)."""
    at: str = "edge"
    """Where it is oversubscribed: edge, aggregation."""
    pxn: tyro.conf.FlagCreatePairsOff[bool] = False
    """On rails, data crosses the NVSwitch to the rail of its destination first."""
    goodput: float = 1.0
    """Part of the line rate that is payload."""
    resolution: float = 0.01
    """Rates are solved again at most every this part of the lower bound on the time; 0 is exact."""
    out: str | None = None
    """A row per kind of traffic to a .csv or .parquet file."""
    links: str | None = None
    """A row per link to a .csv or .parquet file."""
    flows: str | None = None
    """A row per flow to a .csv or .parquet file."""
    picture: str | None = None
    """The fabric with its links coloured by utilisation, to a .png, .pdf or .svg file."""
    seed: int = 0
    dtype: str = "float32"
    """float32, float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimelineOptions(SetUp):
    """One iteration of a model on a fabric: what every stage does when, and what it spends the iteration on."""

    preset: str = "paper"
    """paper (its text) or released (its authors' code): defaults of --rule, --flows, --eps-waits and --matrices."""
    model: str = "mixtral-8x7b"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""
    fabric: str = "mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo"""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC; prices are known from 100 to 800."""
    nic_use: str = "own"
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything."""
    policy: str = "greedy"
    """How mFabric chooses circuits: greedy, uniform, random, static, previous, topoopt, matching, threshold,
    local-search, relaxed, joint, index, learned, exact; a .policy file of mfabric train; or FILE.py:FUNCTION."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    routing: str = "unsplit"
    """How mFabric uses them: unsplit, best-path, split, relay."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    delay_s: float | None = None
    """Reconfiguration delay of the optical switch (default: 0.025)."""
    first: str = "block"
    """Circuits of the first all-to-all of a forward block: block, reuse, random, predict, pays (see the docs)."""
    predictor: str | None = None
    """Of demand, for --first predict: transition, previous-layer, previous-iteration, moving-average, uniform."""
    eps_waits: tyro.conf.FlagCreatePairsOff[bool] = False
    """Traffic on packet switches waits for a reconfiguration too, not only that on circuits."""
    reactivation_s: float = 0.0
    """NICs come back so much after the optical switch has turned (measured on a testbed: 5.67)."""
    flows: str = "spray"
    """spray, or single: each flow takes one random shortest path."""
    matrices: str = "each"
    """each block and micro-batch has its own traffic; block: micro-batches and iterations alike; one: all alike."""
    overlap_parts: int = 1
    """Parts in which dispatch, experts and combine overlap (1: one after the other)."""
    dp_overlap: tyro.conf.FlagCreatePairsOff[bool] = False
    """Gradients are all-reduced beside the backward pass."""
    trace: str | None = None
    """Recorded routing: a file or folder in any format that mfabric traces --help lists."""
    records: str | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    iterations: int = 1
    """Iterations to draw; the last is shown."""
    compute: str | None = None
    """calibrated or achieved (--gpu at --efficiency); default: calibrated unless gpu or efficiency is given."""
    gpu: str = "A100-80GB-SXM"
    """A100-80GB-SXM, H100-SXM, H800-SXM, H200-SXM, B200-HGX, GB200-NVL72."""
    efficiency: float = 0.5
    """Achieved over peak FLOP/s."""
    out: str | None = None
    """Every segment to a .json file for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    picture: str | None = None
    """The iteration as a .png, .pdf or .svg file."""
    seed: int = 0
    dtype: str = "float32"
    """float32, float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """Draw a fabric: its tiers, or a region with its circuits."""

    fabric: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FABRIC")]
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo, or the path of a
    graph in networkx node-link JSON"""
    out: str
    """A .png, .pdf or .svg file."""
    servers: int | None = None
    """Servers (or scale-up domains) of the cluster (default: those of the model)."""
    model: str = "mixtral-8x22b"
    """Whose traffic the circuits are chosen for."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    policy: str = "greedy"
    """How circuits are chosen: greedy, uniform, topoopt, matching, threshold, local-search, relaxed, joint, index,
    learned, exact; a .policy file of mfabric train; or FILE.py:FUNCTION."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric of mfabric."""
    radix: int = 64
    """Ports of every electrical switch."""
    tiers: int = 3
    """Tiers of the switch tree: 2 or 3."""
    oversubscription: float | None = None
    """Of the tree (default: 3 on oversub-fat-tree, else 1)."""
    at: str = "edge"
    """Where it is oversubscribed: edge, aggregation."""
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoliciesOptions:
    """Score policies: time over the degree bound and over proved optima, decisions per second in a batch.

    Lists are separated by commas.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="bench")]
    """bench: a row for each policy, workload, number of servers, routing and forecast error."""
    policies: str | None = None
    """Names, or files that mfabric train wrote (default: all but previous and exact)."""
    workloads: str | None = None
    """zipf, hot, sparse, block, dense, lognormal, skewed (default: these), recorded (needs --trace)."""
    servers: str = "8,16"
    """Servers of the region."""
    routings: str = "unsplit,split,relay"
    """unsplit, best-path, split, relay."""
    sigmas: str = "0"
    """Standard deviations of the logarithms of forecasts."""
    instances: int = 60
    """Demands of a workload."""
    optimum_s: float = 0.0
    """Seconds of exact search for each demand, unsplit and split (0: none)."""
    trace: str | None = None
    """Recorded routing (16 ranks)."""
    records: str | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    relay_efficiency: float = 1.0
    """Of forwarding, at most 1."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Picture to a folder."""
    seed: int = 0
    dtype: str = "float32"
    """float32 or float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Train a policy on generated demand, the measured tables and, if given, a recorded trace.

    A run that was interrupted goes on from its last checkpoint when the same command is given again. The folder gets
    trained.policy (for --policies of mfabric evaluate and policies.learned.load), metrics.jsonl and curves.png.
    """

    out: str
    """Folder of the run."""
    kind: str = "network"
    """network (corrects the index rule that ships), or index: a rule of five numbers."""
    routing: str = "relay"
    """Under which times are judged: unsplit, split, relay."""
    steps: int = 4000
    """Batches."""
    batch: int = 16
    """Demands of a batch."""
    sizes: str = "8,16"
    """Servers of the regions, taken in turn."""
    learning_rate: float = 0.002
    """Of Adam, falling to a hundredth."""
    imitation: float = 0.0
    """Weight of the distance of a network's circuits to the teacher's."""
    teacher: str = "local-search"
    """greedy, threshold, local-search (which takes most of the time); it knows the true demand."""
    noise: float = 0.6
    """Largest standard deviation of the logarithms of forecasts."""
    varied: float = 0.3
    """Part of the regions with other NICs than 6 + 2."""
    pooled: float = 0.4
    """Part of the demands from knobs, tables and the trace; the rest is drawn."""
    width: int = 18
    """Of the vectors of the network."""
    depth: int = 2
    """Layers before circuits are chosen, and before shares are."""
    trace: str | None = None
    """Recorded routing to learn from too (16 ranks)."""
    records: str | None = None
    """FIRST-LAST record of the trace."""
    share_steps: int = 24
    """Gradient steps towards the shares by which circuits are judged."""
    log_every: int = 50
    """Steps of a line of metrics."""
    checkpoint_every: int = 250
    """Steps between checkpoints."""
    seed: int = 0
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Mean time over the degree bound of policies that see forecasts, on demand of other seeds and recorded iterations.

    Lists are separated by commas. Intervals are 95 % by bootstrap.
    """

    policies: str = "learned,index,greedy,greedy-next,threshold,local-search,uniform,static"
    """Names, or files that mfabric train wrote; static: greedy-next, once, from the mean of other demand."""
    routings: str = "unsplit,split,relay,relay-planned"
    """relay: shares know the true demand; relay-planned: shares from the forecast, a network's by itself."""
    sizes: str = "8,16"
    """Servers of the region."""
    sigmas: str = "0,0.1,0.3,0.6,1"
    """Standard deviations of the logarithms of forecasts; what has a past is predicted too."""
    samples: int = 70
    """All-to-alls of each workload."""
    share_steps: int = 100
    """Gradient steps towards relay shares."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    relay_efficiency: float = 1.0
    """Of forwarding, at most 1."""
    trace: str | None = None
    """Recorded routing to judge by too (16 ranks)."""
    records: str | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Picture to a folder."""
    seed: int = 0
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Every configuration of a design space: rows to parquet files of a folder as they are ready.

    The file says what to evaluate ("iteration" or "all-to-all") and its settings: [fixed], [grid] (every combination),
    [list] (side by side), [random] (drawn). The same command goes on where it was stopped.
    """

    config: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
    """A .toml or .json file."""
    out: str
    """Folder of the rows."""
    shard: str = "1/1"
    """i/n: only every n-th file, from the i-th (for job arrays)."""
    engine: str = "local"
    """local, or ray: several processes, whose work is done again where one is lost."""
    workers: int | None = None
    """ray: processes (default: one for each GPU, or core)."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """Filter, group and sort the rows of sweeps and other commands; find their Pareto front.

    Lists are separated by commas. Order: where, pareto, by, sort, columns, limit.
    """

    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Folders of sweeps, .parquet or .csv files."""
    where: str | None = None
    """Conditions such as "fabric = mfabric|fat-tree, nic_gbps >= 400"."""
    pareto: str | None = None
    """Columns to have small (column:max: large), such as network_cost_usd,iteration_s; with --by in every group."""
    by: str | None = None
    """Columns of groups."""
    measures: str | None = None
    """column:measure of every group; mean, min, max, median, std, sum (default: the mean time)."""
    sort: str | None = None
    """Column to sort by; column:down for the largest first."""
    columns: str | None = None
    """Columns to keep."""
    limit: int | None = None
    """Rows at most."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """One HTML page of rows: summary, charts, a table to sort and filter, the configuration. It fetches nothing."""

    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS")]
    """A .csv or .parquet file that --out of another command wrote, or the folder of a sweep."""
    out: str
    """A .html file."""
    pictures: str | None = None
    """Folder whose .png and .svg files go into the page, such as --figures of compare."""
    title: str | None = None
    """Heading of the page."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Draw figures of the paper again, and put every published number beside what comes out.

    Each is an experiment in a process of its own. The folder gets its rows with their configuration, its picture and
    its tables, and verdicts.csv of all that it holds. What it has already, of the same configuration and code, is kept.
    """

    figures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[FIGURE ...]")] = ()
    """all, or names that --list lists."""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """Fewer cases and smaller ones: minutes instead of hours."""
    out: str = "results"
    """Folder for rows, pictures and tables."""
    trace: str | None = None
    """Recorded routing, for the experiments that read one (default: generated traffic)."""
    jobs: int | None = None
    """Experiments at once (default: 2)."""
    again: tyro.conf.FlagCreatePairsOff[bool] = False
    """Compute also what the folder has already."""
    list: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only say which figures there are."""


COMMANDS: dict[str, Any] = {
    "compare": CompareOptions,
    "calibrate": CalibrateOptions,
    "failures": FailuresOptions,
    "cluster": ClusterOptions,
    "timeline": TimelineOptions,
    "draw": DrawOptions,
    "traffic": TrafficOptions,
    "traces": TracesOptions,
    "validate": ValidateOptions,
    "policies": PoliciesOptions,
    "train": TrainOptions,
    "evaluate": EvaluateOptions,
    "report": ReportOptions,
    "reproduce": ReproduceOptions,
    "sweep": SweepOptions,
    "query": QueryOptions,
}
