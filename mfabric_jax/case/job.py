"""Settings of what is trained, and how: model, GPU, job, computation, traffic, placement, run and failures."""

from typing import Annotated, Literal

import msgspec

from mfabric_jax.case.schema import (
    Alternative,
    Amount,
    Count,
    Least0,
    Natural,
    NicUse,
    Precision,
    SettingsGroup,
    Share,
    Sums,
    doc,
)


class Model(SettingsGroup, frozen=True):
    """The model and its recipe. The recipe fills auto settings of `job`; auto settings here are the model's."""

    name: Annotated[
        str,
        doc(
            "mixtral-8x7b, mixtral-8x22b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-v3, deepseek-v3.2, deepseek-r1,"
            " gpt-oss-120b, kimi-k2, minimax-m2, qwen3-235b, a .toml or .json file of your own, or a released"
            " config.json.",
            file=True,
            flag="--model",
        ),
    ] = "mixtral-8x7b"
    recipe: Annotated[
        Literal["makers", "paper", "none"],
        doc(
            "The set-up that fills auto degrees: makers (of the model), paper (arXiv 2501.03905), or none (a search or"
            " a quick estimate finds degrees that fit)."
        ),
    ] = "makers"
    blocks: Annotated[Count | None, doc("Transformer blocks.")] = None
    hidden: Annotated[Count | None, doc("Hidden size: the width of a token's vector.")] = None
    experts: Annotated[Count | None, doc("Routed experts in a block.")] = None
    top_k: Annotated[Count | None, doc("Experts that each token goes to.")] = None
    expert_hidden: Annotated[Count | None, doc("Inner width of an expert.")] = None
    shared_hidden: Annotated[Natural | None, doc("Inner width of all shared experts together.")] = None
    dense_blocks: Annotated[
        Natural | tuple[int, ...] | None,
        doc("Blocks without experts: how many of the first blocks, or a list of block numbers from 0."),
    ] = None
    dense_hidden: Annotated[Natural | None, doc("Inner width of the FFN of a dense block.")] = None
    vocab: Annotated[Natural | None, doc("Vocabulary: rows of the embedding.")] = None
    tied: Annotated[bool | None, doc("Whether embedding and output head share weights.")] = None
    expert_groups: Annotated[Count | None, doc("Groups of neighbouring experts; the gate chooses groups first.")] = None
    top_groups: Annotated[Count | None, doc("Most groups of experts that one token may go to.")] = None
    next_tokens: Annotated[Natural | None, doc("Further tokens that the model predicts at each position (MTP).")] = None


class GpuSettings(SettingsGroup, frozen=True):
    """The GPU and its server. Auto settings come from its data sheet."""

    name: Annotated[
        str,
        doc(
            "A100-80GB-SXM, H100-SXM, H800-SXM, H20-SXM, H200-SXM, B200-HGX, B300-HGX, GB200-NVL72, GB300-NVL72,"
            " MI300X, MI355X, or a .toml or .json file of your own.",
            file=True,
            flag="--gpu",
        ),
    ] = "H100-SXM"
    bf16_tflops: Annotated[Amount | None, doc("Dense bf16 peak [TFLOP/s].")] = None
    fp8_tflops: Annotated[Amount | None, doc("Dense FP8 peak [TFLOP/s].")] = None
    memory_gigabytes: Annotated[Amount | None, doc("Memory [GB].")] = None
    memory_gigabytes_per_s: Annotated[Amount | None, doc("Memory bandwidth [GB/s].")] = None
    nvlink_gigabytes_per_s: Annotated[
        Amount | None, doc("Bandwidth of a GPU into its server's NVSwitch, per direction [GB/s].", traced=True)
    ] = None
    gpus_per_server: Annotated[Count | None, doc("GPUs in a server.")] = None
    scale_up_gpus: Annotated[Count | None, doc("GPUs in an NVLink domain (nvl72, mfabric-cpo).")] = None
    nvswitches: Annotated[Count | None, doc("NVSwitches in a server or domain; read by mfabric failures only.")] = None
    nvls: Annotated[
        bool,
        doc(
            "NVSwitches (H100 or later) reduce in all-reduces inside a server (NVLS), unless their times are measured:"
            " in those of gradients, and in those of TP if job.parallel.sequence is false."
        ),
    ] = False
    watts: Annotated[Amount | None, doc("Power of a GPU [W].")] = None
    usd: Annotated[Amount | None, doc("Price of a GPU [$].")] = None


# ----------------------------------------------------------------------------------------------------------------- job
class Parallel(SettingsGroup, frozen=True):
    """The degrees of the job: gpus = dp x etp x ep x pp, where auto etp is tp."""

    tp: Annotated[Count | None, doc("Tensor-parallel degree.", flag="--tp")] = None
    etp: Annotated[
        Count | None,
        doc(
            "Tensor-parallel degree of experts; below tp, a TP group holds different experts (folding; auto: tp).",
            flag="--etp",
        ),
    ] = None
    pp: Annotated[Count | None, doc("Pipeline stages.", flag="--pp")] = None
    ep: Annotated[Count | None, doc("Expert-parallel degree.", flag="--ep")] = None
    gpus: Annotated[Count | None, doc("GPUs of the job (auto: 1,024 if dp is auto too).", flag="--gpus")] = None
    dp: Annotated[Count | None, doc("Data-parallel degree: replicas of an expert-parallel group.", flag="--dp")] = None
    cp: Annotated[
        Count | None, doc("Neighbouring EP ranks that share a sequence (context parallelism; auto: 1, or searched).")
    ] = None
    tp_reduces: Annotated[
        Literal["attention", "all", "copies"] | None,
        doc(
            "Outputs that TP ranks all-reduce. attention: of attention; all: of experts and dense FFNs too; copies: as"
            " all, but of experts once per copy of a token, as in Megatron-LM's all-to-all dispatcher (auto: the"
            " recipe's, else all)."
        ),
    ] = None
    sequence: Annotated[
        bool, doc("TP ranks also divide the tokens outside matrix products (sequence parallelism).")
    ] = True


class Batch(SettingsGroup, frozen=True):
    """Sequences of an iteration. The first four settings are four ways to state the same batch; they must agree."""

    global_batch: Annotated[
        Count | None,
        doc("Sequences of an iteration (auto: about 4,096 if the next three are auto too).", flag="--global-batch"),
    ] = None
    micro_batches: Annotated[
        Count | None, doc("Micro-batches of an EP rank per iteration.", flag="--micro-batches")
    ] = None
    per_stage: Annotated[
        Count | None, doc("Micro-batches over pipeline stages, or over the schedule's minimum if that is larger.")
    ] = None
    bubble: Annotated[
        Share | None, doc("Choose micro_batches so that the pipeline bubble is at most this fraction.")
    ] = None
    micro_batch: Annotated[
        Count | None, doc("Sequences of an EP rank in a micro-batch (auto: the model file's, else 1).")
    ] = None
    sequence: Annotated[
        Count | None, doc("Tokens of a sequence (auto: the model file's, else 4,096).", flag="--sequence")
    ] = None


class PrecisionSettings(SettingsGroup, frozen=True):
    """Number formats of computation, messages and memory."""

    compute: Annotated[
        Precision | None,
        doc("Format of computation, which selects the GPU's peak: bf16 or fp8 (auto: the recipe's, else bf16)."),
    ] = None
    dispatch: Annotated[
        Precision | Amount | None,
        doc("Tokens sent to experts, and their gradients: bf16, fp8, or bytes per element."),
    ] = None
    combine: Annotated[
        Precision | Amount | None,
        doc("Results sent back from experts, and their gradients: bf16, fp8, or bytes per element."),
    ] = None
    gradients: Annotated[
        Precision | Amount | None, doc("Weight gradients as sent between replicas: bf16, fp8, or bytes per element.")
    ] = None
    accumulated: Annotated[
        Sums | None, doc("Weight gradients in memory, summed over micro-batches (auto: the recipe's, else fp32).")
    ] = None
    moments: Annotated[Sums | None, doc("The optimizer's two moments in memory (auto: the recipe's, else fp32).")] = (
        None
    )
    weights: Annotated[Precision | None, doc("Weights, in memory and when replicas gather them (auto: bf16).")] = None
    kept: Annotated[
        Precision | None, doc("Inputs of matrix products, kept for the backward pass (auto: the recipe's, else bf16).")
    ] = None


class OneFOneB(Alternative, frozen=True, tag="1f1b"):
    """A forward and a backward pass alternate (PipeDream-flush)."""


class Interleaved(Alternative, frozen=True, tag="interleaved"):
    """1F1B with several chunks of blocks on each stage."""

    chunks: Annotated[Count | None, doc("Chunks of blocks on a stage (auto: the recipe's, else 2).")] = None


class GPipe(Alternative, frozen=True, tag="gpipe"):
    """All forward passes, then all backward passes."""


class ZeroBubbleH1(Alternative, frozen=True, tag="zb-h1"):
    """Weight gradients fill the bubble (ZB-H1)."""


class ZeroBubbleV(Alternative, frozen=True, tag="zb-v"):
    """Two chunks per stage, in a V; weight gradients fill the bubble."""


class DualPipe(Alternative, frozen=True, tag="dualpipe"):
    """Micro-batches enter at both ends of the pipeline (DeepSeek-V3)."""


class NoOverlap(Alternative, frozen=True, tag="none"):
    """Dispatch, experts and combine run one after the other."""


class Parts(Alternative, frozen=True, tag="parts"):
    """A micro-batch is split into parts, whose dispatch, experts and combine overlap."""

    value: Annotated[Count, doc("Parts of a micro-batch.")] = 2


class Passes(Alternative, frozen=True, tag="passes"):
    """The all-to-alls of one pass overlap with the computation of another."""

    comm_cores: Annotated[
        Annotated[float, msgspec.Meta(ge=0, lt=1)] | None,
        doc("Fraction of a GPU's SMs that communicate meanwhile (DeepSeek-V3: 0.152; auto: the dispatcher's)."),
    ] = None
    delayed: Annotated[bool, doc("Compute weight gradients after the results for which the next all-to-all waits.")] = (
        True
    )


class PerExpert(Alternative, frozen=True, tag="per-expert"):
    """Each token is sent once to every one of its experts."""


class PerServer(Alternative, frozen=True, tag="per-server"):
    """Each token is sent once to every server with one of its experts; the NVSwitch forwards it (as in DeepEP)."""

    node_limit: Annotated[
        Literal["model"] | Count | None,
        doc("Most servers that one token may reach; model: the number that the model's groups of experts allow."),
    ] = None


class Job(SettingsGroup, frozen=True):
    """How the model is trained."""

    search: Annotated[
        Literal["each", "one", "recipe"] | None,
        doc(
            "What fills open degrees, schedule, batches of a pass, overlap, dispatch and recomputation: each (the"
            " quickest set-up found for this fabric), one (the quickest found for a non-blocking fat-tree, whatever the"
            " fabric), or recipe (the makers', else a quick estimate) (auto: each; recipe for models with"
            " search = recipe in their recipe, and where tp, ep and pp are stated).",
            flag="--search",
        ),
    ] = None
    frameworks: Annotated[
        Literal["megatron-core", "any"],
        doc(
            "What a search of set-ups may choose: what Megatron Core runs, or any set-up that can be simulated"
            " (zero-bubble and DualPipe schedules too)."
        ),
    ] = "megatron-core"
    training_tokens: Annotated[
        Amount | None,
        doc("Tokens of the whole training; if stated, rows have its days, dollars and energy.", flag="--tokens"),
    ] = None
    parallel: Parallel = Parallel()
    batch: Batch = Batch()
    precision: PrecisionSettings = PrecisionSettings()
    schedule: Annotated[
        OneFOneB | Interleaved | GPipe | ZeroBubbleH1 | ZeroBubbleV | DualPipe | None,
        doc("Pipeline schedule: the order of passes (auto: the recipe's, else 1f1b)."),
    ] = None
    overlap: Annotated[
        NoOverlap | Parts | Passes | None,
        doc("What overlaps with all-to-alls (auto: passes under dualpipe, else none)."),
    ] = None
    sharding: Annotated[
        Literal["none", "optimizer", "gradients", "parameters"] | None,
        doc(
            "What replicas shard: none, optimizer (ZeRO-1), gradients (ZeRO-2) or parameters (ZeRO-3) (auto: the"
            " recipe's, else optimizer)."
        ),
    ] = None
    overlap_gradients: Annotated[
        bool | None, doc("All-reduces of gradients overlap with the backward pass (auto: where possible).")
    ] = None
    recompute: Annotated[
        str,
        doc(
            "What the backward pass recomputes: fit (the least with which the job fits in memory), none,"
            " light, attention, block, or some of norm, mla-up, attention, activation, shared, mlp, router, moe, joined"
            " by +."
        ),
    ] = "fit"
    dispatch: Annotated[
        PerExpert | PerServer | None, doc("How tokens are sent to experts (auto: the recipe's, else per-expert).")
    ] = None
    dispatcher: Annotated[
        Literal["ideal", "nccl", "deepep", "hybridep"] | None,
        doc(
            "The library that sends tokens, at its measured speed under compute.kernels (auto: nccl; deepep if dispatch"
            " is per-server)."
        ),
    ] = None
    mtp: Annotated[
        bool | None,
        doc("Also train the blocks that predict extra tokens (auto: the recipe's, else not)."),
    ] = None
    layout: Annotated[
        str | None,
        doc(
            "Blocks on each stage: even, ends (embedding and head count as blocks), or a Megatron layout such as"
            " Et|(tt|)*30mL."
        ),
    ] = None
    capacity_factor: Annotated[
        Annotated[float, msgspec.Meta(ge=1)],
        doc("Most tokens that an expert takes, over the mean; the others are dropped."),
    ] = float("inf")
    head: Annotated[bool, doc("Count the time of embedding and output head, if the vocabulary is known.")] = True
    optimizer_step: Annotated[
        bool, doc("Count the time of the optimizer's step, if the memory bandwidth is known.")
    ] = True


# ------------------------------------------------------------------------------------- computation, traffic, placement
class Efficiency(Alternative, frozen=True, tag="efficiency"):
    """A fraction of the GPU's peak."""

    value: Annotated[Amount, doc("Achieved FLOP/s over peak FLOP/s.", traced=True, flag="--efficiency")] = 0.5


class Kernels(Alternative, frozen=True, tag="kernels"):
    """Every kind of computation and communication runs at the measured speed of its kernels."""

    table: Annotated[
        str | None,
        doc(
            "A .toml or .json file with your own measurements, in the form of mfabric_jax/workload/kernels.toml (auto:"
            " those of the package).",
            file=True,
        ),
    ] = None


class Measured(Alternative, frozen=True, tag="measured"):
    """The rate that makes the simulated iteration as long as a measured one."""

    iteration_s: Annotated[Amount | None, doc("Seconds of the measured iteration.")] = None
    fabric: Annotated[str, doc("The fabric on which it was measured.")] = "fat-tree"
    nic_gbps: Annotated[Amount | None, doc("The bandwidth of its NICs (auto: the case's).")] = None
    nic_use: Annotated[NicUse | None, doc("How its GPUs used their NICs (auto: as in the case).")] = None


class Calibrated(Alternative, frozen=True, tag="calibrated"):
    """The rate implied by published fat-tree times of the model on an A100; without such times, half the peak."""

    value: Annotated[Literal["paper", "released", "today"], doc("The assumptions of the calibration.")] = "paper"


class BalancedExperts(Alternative, frozen=True, tag="balanced"):
    """Experts compute as if all had the same number of tokens."""


class Received(Alternative, frozen=True, tag="received"):
    """Experts compute the tokens that the busiest rank received."""

    tile: Annotated[Count, doc("Tokens of a tile; an expert's tokens are rounded up to whole tiles.")] = 128
    combine: Annotated[
        Literal["barrier", "rank"],
        doc("Ranks send results when the busiest rank has finished (barrier), or each when it has finished (rank)."),
    ] = "barrier"


class Code(SettingsGroup, frozen=True):
    """The training program, as far as it slows a GPU down."""

    host_us: Annotated[
        Least0,
        doc(
            "Time in which the host launches a kernel [us]; 0: the host never limits. Measured: 25 for loops of"
            " products in PyTorch (tgale96/grouped_gemm, PR 37), 33 with casts (Transformer Engine, PR 3134)."
        ),
    ] = 0.0
    graphs: Annotated[
        Literal["none", "router", "step"],
        doc("What CUDA graphs hold: none, router (attention, router and preprocessing), or the whole step."),
    ] = "none"
    experts: Annotated[
        Literal["loop", "one"], doc("Products of a GPU's experts: a loop of launches, or one launch for all.")
    ] = "loop"
    loop_us: Annotated[
        Least0,
        doc(
            "Extra time of each product if compute.code.experts is loop [us]. Measured: 5.5 with Transformer Engine"
            " 2.2, 1.5 with 2.7 (its PR 2045)."
        ),
    ] = 0.0
    weights_rate: Annotated[
        Share,
        doc(
            "Speed of FP8 products for weight gradients relative to other FP8 products: 0.5 if blocks are summed in"
            " float32 (DeepSeek-V3's training on H800: 600 TFLOP/s for experts)."
        ),
    ] = 1.0
    unfused: Annotated[
        str,
        doc("What the program does not fuse: none, or some of bias, clamp, router, permutation, joined by +."),
    ] = "none"
    step_ms: Annotated[
        Least0,
        doc("Exposed host time of a step [ms]: reading back norms, logging, barriers of timers."),
    ] = 0.0


class Compute(SettingsGroup, frozen=True):
    """The speed of computation."""

    rate: Annotated[Kernels | Efficiency | Measured | Calibrated, doc("Source of the computation rate.")] = Kernels()
    experts: Annotated[BalancedExperts | Received, doc("The tokens that experts compute.")] = Received()
    calibration: Annotated[
        Literal["none", "measured"],
        doc(
            "Correct the times of kernels: none, or measured (by factors for computation and communication, fitted to"
            " measured training steps; errors: docs/accuracy.md)."
        ),
    ] = "none"
    code: Code = Code()


# ------------------------------------------------------------------------------------------------- traffic, placement
class Shares(Alternative, frozen=True, tag="shares"):
    """Expert shares measured on trained models (OLMoE, Mixtral)."""

    drift: Annotated[Least0, doc("Standard deviation of the change of an expert's log popularity per iteration.")] = (
        0.05
    )


class Generated(Alternative, frozen=True, tag="generated"):
    """The r-th most popular expert has popularity r^-skew."""

    skew: Annotated[Least0, doc("Skew of popularity; 0 is balanced.")] = 0.0
    drift: Annotated[Least0, doc("Standard deviation of the change of an expert's log popularity per iteration.")] = (
        0.05
    )


class KnobsFrom(Alternative, frozen=True, tag="knobs"):
    """A named workload, or a file of the generator's knobs."""

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

    path: Annotated[
        str | None, doc("A file or folder in any format that mfabric traces --help lists.", file=True, flag="--trace")
    ] = None
    records: Annotated[
        tuple[int, int] | None, doc("Range of records, FIRST-LAST (auto: all; of a SmartMoE gate trace 2011-5001).")
    ] = None
    axes: Annotated[
        str | None, doc("Axes of an array, in order: iteration,layer,micro-batch,source,expert, or some of them.")
    ] = None


class Authors(Alternative, frozen=True, tag="authors"):
    """The 8 x 8 matrix of the code released by mFabric's authors, tiled over ranks."""


class Traffic(SettingsGroup, frozen=True):
    """Which experts the tokens go to."""

    source: Annotated[
        Shares | Generated | KnobsFrom | Trace | Authors, doc("Where the tokens' choices of experts come from.")
    ] = Shares()
    drawn: Annotated[Count, doc("Different micro-batches in an iteration; further ones repeat them in turn.")] = 4
    alike: Annotated[
        Literal["nothing", "micro-batches", "everything"],
        doc(
            "What has equal traffic: nothing; all micro-batches and iterations (micro-batches); also all blocks"
            " (everything)."
        ),
    ] = "nothing"


class Contiguous(Alternative, frozen=True, tag="contiguous"):
    """Neighbouring experts share a rank."""


class _Placed(Alternative, frozen=True):
    redundant_experts: Annotated[
        Natural, doc("Extra slots per group for copies of experts, a multiple of its ranks.")
    ] = 0
    loads: Annotated[
        Natural,
        doc("Past iterations whose loads decide the placement; 0: the loads to come decide, as if known."),
    ] = 1
    every: Annotated[Natural, doc("Iterations between placements; 0: experts are placed once, before the run.")] = 0


class LongestProcessingTime(_Placed, frozen=True, tag="longest-processing-time"):
    """The heaviest expert goes to the least loaded rank."""


class Hierarchical(_Placed, frozen=True, tag="hierarchical"):
    """Groups of experts are placed on servers, then experts on ranks (DeepSeek's EPLB)."""

    groups: Annotated[
        Count | None, doc("Groups of neighbouring experts that stay on one server (auto: one per expert).")
    ] = None


class WithCircuits(_Placed, frozen=True, tag="with-circuits"):
    """As hierarchical, then swaps of experts that reduce the load of ports between servers."""

    groups: Annotated[
        Count | None, doc("Groups of neighbouring experts that stay on one server (auto: one per expert).")
    ] = None


class FilePlacement(Alternative, frozen=True, tag="file"):
    """A file says where experts are; they stay there for the whole run."""

    value: Annotated[
        str | None,
        doc("A placement: a .json file of SGLang, vLLM, EPLB, vLLM-Ascend or mfabric traces place.", file=True),
    ] = None


class PlacementSettings(SettingsGroup, frozen=True):
    """Which ranks hold which experts."""

    rule: Annotated[
        Contiguous | LongestProcessingTime | Hierarchical | WithCircuits | FilePlacement,
        doc("How experts are placed on ranks."),
    ] = Contiguous()


# ------------------------------------------------------------------------------------------------------ run, failures
class RunSettings(SettingsGroup, frozen=True):
    """Random draws, iterations and arithmetic."""

    seed: Annotated[Natural, doc("Seed of all random draws.", flag="--seed")] = 0
    dtype: Annotated[Literal["float32", "float64"], doc("Arithmetic of the simulator.")] = "float32"
    iterations: Annotated[Count, doc("Iterations to simulate and average.")] = 1
    draws: Annotated[
        Count,
        doc(
            "Draws of traffic, with consecutive seeds; their spread is part of the error of a ratio of two designs.",
            flag="--draws",
        ),
    ] = 2
    replicas: Annotated[
        Literal["all"] | Count,
        doc("Data-parallel replicas to simulate, each with its own traffic; the slowest decides."),
    ] = 1
    sample: Annotated[
        Natural | None, doc("Report a single iteration, by number (auto: the mean of all).", traced=True)
    ] = None


class FailureSettings(SettingsGroup, frozen=True):
    """What fails, where and when. Read by `mfabric failures` and, with failures.rates, `mfabric buy`."""

    kinds: Annotated[
        tuple[str, ...] | None,
        doc(
            "Kinds of failures: electrical-nic, electrical-nics, optical-nic, nic-link, optical-link, link, spine-link,"
            " gpu, server, optical-switch, controller, nvswitch, plane, plane-link, switch, spine (auto: those of the"
            " fabric)."
        ),
    ] = None
    stage: Annotated[
        Literal["busiest"] | Natural | None,
        doc("The pipeline stage that fails: its number, or busiest (auto: the stage where a failure costs most)."),
    ] = None
    gpu_remedy: Annotated[
        Literal["cheaper", "spare-gpu", "spare-server"],
        doc(
            "What replaces a broken GPU: a GPU of a spare server (spare-gpu), a spare server for its whole server"
            " (spare-server), or whichever slows the iteration less (cheaper)."
        ),
    ] = "cheaper"
    server: Annotated[Natural, doc("The server that fails, by its number in the region.")] = 0
    iteration: Annotated[Natural, doc("First iteration with the failure.")] = 0
    rates: Annotated[str | None, doc("A .toml or .json file of failure rates.", file=True)] = None
    checkpoint_interval_s: Annotated[Least0, doc("Time between checkpoints [s].")] = 3600.0
    restart_s: Annotated[Least0, doc("Time until a stopped job runs again [s].")] = 600.0
