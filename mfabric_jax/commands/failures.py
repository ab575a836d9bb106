"""`mfabric failures`: what failures cost."""

import dataclasses
import pathlib
import sys

import tyro

from mfabric_jax.commands import shared
from mfabric_jax.commands.setup import SetUp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SetUp):
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


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax(options.dtype, options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study
    from mfabric_jax.report import figures
    from mfabric_jax.study.config import OF_JOB, Compare

    same = ("policy", "rule", "routing", "optical_degree", "electrical_nics", "delay_s", "eps_waits", "gpu", *OF_JOB)
    given = {field: getattr(options, field) for field in (*same, "efficiency", "iterations", "seed", "dtype")}
    given |= {"models": shared.listed_words(options.models), "nic_gbps": (options.nic_gbps,)}
    setting = Compare(fabrics=("mfabric",), **given)
    where = {field: getattr(options, field) for field in ("stage", "server", "at", "radix")}
    config = study.Failures(setting, kinds=shared.listed_words(options.kinds), **where)
    shared.check_outputs(options.out, options.figures)
    rows = []
    try:
        with tqdm(total=len(setting.models) * len(config.kinds), desc="failures", file=sys.stderr, disable=None) as bar:
            for row in study.failures(config, progress=bar.set_postfix_str):
                rows.append(row)
                bar.update()
    finally:
        if options.out is not None and rows:
            report.write_rows(rows, options.out, study.effective_failures(config))
    shown = [report.Column("model"), report.Column("failure")]
    shown += [report.Column("healthy_s", "healthy [s]"), report.Column("failed_s", "failed [s]")]
    shown += [report.Column("slow_down", "slow-down", percent=True), report.Column("published", percent=True)]
    if config.at:
        shown.append(report.Column("run_slow_down", "of the run", percent=True))
    print(report.plain(rows, shown))
    print("published: arXiv 2501.03905, 400 Gbps and 1,024 GPUs; docs/assumptions.md says what is modelled.")
    if options.figures is not None:
        print(figures.failures(rows, pathlib.Path(options.figures) / "failures.png"), file=sys.stderr)
    return 0
