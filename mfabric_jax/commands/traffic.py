"""`mfabric traffic MODEL`: bytes of every parallelism."""

import dataclasses
from typing import Annotated

import tyro

from mfabric_jax import units
from mfabric_jax.commands import shared
from mfabric_jax.study.settings import SetUp
from mfabric_jax.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SetUp):
    """Bytes of tensor, expert, pipeline and data parallelism in one iteration, beside measured shares."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3, or a .toml
    or .json file (docs/models.md)"""


def _size(job: Workload) -> str:
    """Parameters of the model, in words."""
    model = job.architecture
    sizes = model.params(), model.params(active=True), model.params(active=True, embedding=False, head=False)
    whole, active, inner = (float(units.to_gigabytes(size)) for size in sizes)
    words = "" if model.vocab else " (vocab is not known: without embeddings)"
    return f"{whole:.5g} B parameters, {active:.4g} B of them active, {inner:.4g} B without embedding and head{words}"


def run(options: Options) -> int:
    """Returns the exit status."""
    from mfabric_jax import report, workload
    from mfabric_jax.traffic.dispatch import PER_SERVER, even_copies
    from mfabric_jax.workload.memory import usable_bytes
    from mfabric_jax.workload.regions import region_remark
    from mfabric_jax.workload.volume import MEASURED_SOURCE

    model = options.model
    job = options.workload(model)
    print(
        f"{job.model}: {job.gpus} GPUs = DP {job.dp} x TP {job.tp} x PP {job.pp} x EP {job.ep}, "
        f"{job.micro_batches} micro-batches of {job.micro_batch} x {job.sequence} tokens per EP rank and iteration, "
        f"a region (an EP group's servers) of {job.servers_per_region}"
    )
    if (remark := region_remark(job.servers_per_region)) is not None:
        print(remark)
    columns = ["parallelism", report.Column("gigabytes", "GB per iteration, all GPUs")]
    columns += [report.Column("share", percent=True), "measured"]
    table = workload.share_table(job)
    rows = [row | {"gigabytes": float(units.to_gigabytes(row["bytes_per_iteration"]))} for row in table]
    print(report.plain(rows, columns))
    if job.servers_per_region > 1:
        how = job.dispatch if job.node_limit is None else f"{job.dispatch}, node limit {job.node_limit}"
        how = f"dispatch {how}" if job.dispatch == PER_SERVER else "--dispatch per-server"
        part = f"{even_copies(job):.3f} of it if experts are even"
        print(f"Counted is every selection; between servers {how} sends {part}.")
    print(f"measured: {MEASURED_SOURCE}; docs/assumptions.md says why the shares differ.")
    print(_size(job))
    stage, held = workload.fullest_stage(job)
    parts = {name: float(units.to_gigabytes(size)) for name, size in (held._asdict() | {"all": held.total}).items()}
    print(f"\nmemory of a GPU of stage {stage}, the fullest [GB]\n{report.plain([parts])}")
    has = options.server.memory_bytes
    if has is not None and held.total <= usable_bytes(has):
        print(f"fits the {units.to_gigabytes(has):g} GB of {options.server.name}")
    for said in shared.memory_notes(options, (model,)):
        print(said)
    return 0
