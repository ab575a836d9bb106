"""`mfabric compare`: fabrics compared for training."""

import dataclasses
import sys

import tyro

from mfabric_jax.commands import shared
from mfabric_jax.commands.setup import SetUp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SetUp):
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


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax(options.dtype, options.device)
    from mfabric_jax import report
    from mfabric_jax.fabric import no_price
    from mfabric_jax.study.config import Compare

    given = shared.as_given(options)
    out, figures = given.pop("out"), given.pop("figures")
    del given["device"], given["preset"]
    for field in ("models", "fabrics", "nic_use"):
        given[field] = shared.listed_words(given[field])
    given["nic_gbps"] = shared.listed_numbers("nic_gbps", given["nic_gbps"])
    given["records"] = shared.record_range(given["records"])
    config = Compare(**given)
    shared.check_outputs(out, figures)
    rows, stopped = _run(config, out)
    print(report.comparison(rows) if rows else "no rows")
    for name in config.fabrics:
        if why := no_price(name, config.price_list()):
            print(why)
    for said in dict.fromkeys(row["traffic"] for row in rows if config.trace is not None):
        print(f"traffic: {said}")
    if stopped:
        print("compare: interrupted; rows of the other models and fabrics are missing.", file=sys.stderr)
        return 130
    if figures is not None:
        _draw(config, rows, figures)
    return 0


def _run(config, out: str | None) -> tuple[list[dict], bool]:
    """The rows, saved even when interrupted; and whether that happened."""
    from tqdm import tqdm

    from mfabric_jax import report, study

    rows: list[dict] = []
    total = sum(len(config.variants(model)) for model in config.models)
    stopped = False
    with tqdm(total=total, desc="compare", unit="fabric", file=sys.stderr, disable=None) as bar:

        def progress(job):
            bar.set_postfix_str(f"{job.workload.model} on {job.fabric.name}")
            bar.update()

        try:
            for row in study.compare(config, progress=progress):
                rows.append(row)
        except KeyboardInterrupt:
            stopped = True
        finally:
            if out is not None and rows:
                report.write_rows(rows, out, study.effective(config) | {"complete": not stopped})
                tqdm.write(f"{len(rows)} rows in {out}", file=sys.stderr)
    return rows, stopped


def _draw(config, rows: list[dict], folder: str) -> None:
    from mfabric_jax import report, study

    regions, timelines = study.examples(config)
    for path in report.save_all(rows, folder, regions, timelines):
        print(path, file=sys.stderr)
