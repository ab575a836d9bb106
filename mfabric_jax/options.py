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


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(SetUp):
    """Compare fabrics for MoE training: one row per model, fabric and bandwidth.

    Lists are separated by commas. Defaults: five models, four fabrics, 100 to 800 Gbps, routing shares measured on
    trained models, compute time from model facts on an A100 at half its peak (not calibrated).
    """

    models: str = "mixtral-8x22b,mixtral-8x7b,llama-moe,qwen-moe,deepseek-r1"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""
    fabrics: str = "fat-tree,oversub-fat-tree,rail-optimized,mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo"""
    nic_gbps: str = "100,200,400,800"
    """Bandwidth of every NIC; prices are known from 100 to 800."""
    nic_use: str = "own"
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything; own,pooled shows both (mFabric pools)."""
    pxn: tyro.conf.FlagCreatePairsOff[bool] = False
    """On rail-optimized, data crosses the NVSwitch to the rail of its destination first (rail-only always does)."""
    tiers: int = 3
    """Tiers of the switch trees that are paid for: 3 (the paper's), or 2 where the cluster is small enough."""
    prices: str | None = None
    """A .toml or .json file of your own prices per part."""
    policy: str = "greedy"
    """How mFabric chooses circuits: greedy, uniform, previous."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    routing: str = "unsplit"
    """How mFabric uses them: unsplit, best-path, split."""
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
    eps_waits: tyro.conf.FlagCreatePairsOff[bool] = False
    """Traffic on packet switches waits for a reconfiguration too, not only that on circuits."""
    trace: str | None = None
    """Recorded routing: .npy or .npz of tokens, or a folder in the layout of the SmartMoE gate trace."""
    records: str | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    traffic: str = "measured"
    """measured: expert shares of trained models; generated: popularity rank^-skew."""
    skew: float = 0.0
    """Skew of generated traffic; 0 is balanced."""
    drift: float = 0.05
    """How much expert popularity moves from iteration to iteration (standard deviation of its logarithm)."""
    iterations: int = 1
    """Iterations to simulate and average."""
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
class TrafficOptions(SetUp):
    """Bytes of tensor, expert, pipeline and data parallelism in one iteration, beside measured shares."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""


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


COMMANDS: dict[str, Any] = {"compare": CompareOptions, "traffic": TrafficOptions, "validate": ValidateOptions}
