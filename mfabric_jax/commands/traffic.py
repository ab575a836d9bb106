"""`mfabric traffic MODEL`: bytes of every parallelism."""

import dataclasses

from mfabric_jax import units
from mfabric_jax.case import Cases
from mfabric_jax.commands import shared
from mfabric_jax.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Bytes of tensor, expert, pipeline and data parallelism in one iteration of a case, beside measured shares."""


def _size(job: Workload) -> str:
    """Parameters of the model, in words."""
    model = job.architecture
    sizes = model.params(), model.params(active=True), model.params(active=True, embedding=False, head=False)
    whole, active, inner = (float(units.to_gigabytes(size)) for size in sizes)
    words = "" if model.vocab else " (vocab is not known: without embeddings)"
    return f"{whole:.5g} B parameters, {active:.4g} B of them active, {inner:.4g} B without embedding and head{words}"


def run(cases: Cases, options: Options) -> None:
    from mfabric_jax import report, workload
    from mfabric_jax.resolving.resolve import worked_out
    from mfabric_jax.traffic.dispatch import PER_SERVER, even_copies
    from mfabric_jax.workload.parallel import region_remark
    from mfabric_jax.workload.volume import MEASURED_SOURCE

    resolved = worked_out(shared.one_case(cases, "traffic"))
    job = resolved.job
    ranks = "EP rank" if job.sequence_ranks == 1 else f"{job.sequence_ranks} EP ranks"
    print(
        f"{job.model}: {job.gpus} GPUs = {job.spread_words}, "
        f"{job.micro_batches} micro-batches of {job.micro_batch} x {job.sequence} tokens per {ranks} and iteration, "
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
        how = f"dispatch {how}" if job.dispatch == PER_SERVER else "job.dispatch per-server"
        part = f"{even_copies(job):.3f} of it if experts are even"
        print(f"Counted is every selection; between servers {how} sends {part}.")
    print(f"measured: {MEASURED_SOURCE}; docs/assumptions.md says why the shares differ.")
    print(_size(job))
    stage, held = workload.fullest_stage(job)
    parts = {name: float(units.to_gigabytes(size)) for name, size in (held._asdict() | {"all": held.total}).items()}
    print(f"\nmemory of a GPU of stage {stage}, the fullest [GB]\n{report.plain([parts])}")
    shared.print_lines(shared.case_notes(cases))
