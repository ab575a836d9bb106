"""`mfabric traffic MODEL`: bytes of every parallelism."""

import dataclasses
from typing import Annotated

import tyro

from mfabric_jax import units
from mfabric_jax.study.settings import SetUp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SetUp):
    """Bytes of tensor, expert, pipeline and data parallelism in one iteration, beside measured shares."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3, or a .toml
    or .json file (docs/models.md)"""


def run(options: Options) -> int:
    """Returns the exit status."""
    from mfabric_jax import report, workload
    from mfabric_jax.workload.volume import MEASURED_SOURCE

    model = options.model
    job = options.workload(model)
    print(
        f"{model}: {job.gpus} GPUs = DP {job.dp} x TP {job.tp} x PP {job.pp} x EP {job.ep}, "
        f"{job.micro_batches} micro-batches of {job.micro_batch} x {job.sequence} tokens per EP rank and iteration"
    )
    columns = ["parallelism", report.Column("gigabytes", "GB per iteration, all GPUs")]
    columns += [report.Column("share", percent=True), "measured"]
    table = workload.share_table(job)
    rows = [row | {"gigabytes": float(units.to_gigabytes(row["bytes_per_iteration"]))} for row in table]
    print(report.plain(rows, columns))
    print(f"measured: {MEASURED_SOURCE}; docs/assumptions.md says why the shares differ.")
    return 0
