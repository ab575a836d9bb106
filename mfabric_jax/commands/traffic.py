"""`mfabric traffic`: bytes of every kind of parallelism."""

import dataclasses

from mfabric_jax import units
from mfabric_jax.case import Case, Cases
from mfabric_jax.case.grid import UNREAD_BY_TIMES
from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.workload import Workload

READS = ("model.", "gpu.", "job.", "network.", "traffic.", "placement.", "compute.experts", "compute.received", "run.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Show the bytes of tensor, expert, pipeline and data parallelism in one iteration, with measured shares."""

    alltoallv: str | None = None
    """Write the bytes of one dispatch between EP ranks to this .txt file, for alltoallv_perf of nccl-tests. The
    dispatch is of the first iteration, or of run.sample."""
    rank_cost: str | None = None
    """Write seconds per byte between EP ranks on the fabric to this .json file, for network-aware placement."""
    block: int | None = None
    """For --alltoallv: the MoE block, from 0 (default: 0)."""
    micro_batch: int | None = None
    """For --alltoallv: the micro-batch, from 0 (default: 0)."""


def _size(job: Workload) -> str:
    """Return the model's parameters in words, then those of blocks that predict extra tokens."""
    model = dataclasses.replace(job.architecture, blocks=job.architecture.blocks - job.predicted)
    sizes = model.params(), model.params(active=True), model.params(active=True, embedding=False, head=False)
    whole, active, inner = (float(units.to_gigabytes(size)) for size in sizes)
    words = "" if model.vocab else " (vocab is unknown: without embeddings)"
    text = f"{whole:.5g} B parameters, {active:.4g} B of them active, {inner:.4g} B without embedding and head{words}"
    if not model.next_tokens:
        return text
    more, trained = float(units.to_gigabytes(model.prediction_params)), "" if job.predicted else "not "
    return f"{text}; blocks that predict further tokens (job.mtp) have {more:.4g} B more, {trained}trained here"


def run(cases: Cases, options: Options) -> None:
    from mfabric_jax import report, workload
    from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
    from mfabric_jax.evaluate.resolving.traffic import draw_loads
    from mfabric_jax.traffic.dispatch import PER_SERVER, even_copies
    from mfabric_jax.workload.parallel import region_remark
    from mfabric_jax.workload.volume import MEASURED_SOURCE

    case = shared.one_case(cases, "traffic")
    shared.check_flags(
        cases, "traffic", READS, unread=UNREAD_BY_TIMES | {"network.in-network.sharp": "; its bytes are those of rings"}
    )
    resolved = resolve_without_jax(case)
    job = resolved.job
    for name in ("block", "micro_batch"):
        if options.alltoallv is None and getattr(options, name) is not None:
            raise InputError(
                f"{name} applies only with --alltoallv, the file for one all-to-all; leave it out, or give the file."
            )
    lines = _write_files(case, options)
    ranks = "EP rank" if job.sequence_ranks == 1 else f"{job.sequence_ranks} EP ranks"
    print(
        f"{job.model}: {job.gpus} GPUs = {job.spread_words}, "
        f"{job.micro_batches} micro-batches of {job.micro_batch} x {job.sequence} tokens per {ranks} and iteration, "
        f"a region (an EP group's servers) of {job.servers_per_region}"
    )
    if (remark := region_remark(job.servers_per_region)) is not None:
        print(remark)
    columns = ["parallelism", report.TableColumn("gigabytes", "GB per iteration, all GPUs")]
    columns += [report.TableColumn("share", percent=True), "measured"]
    table = workload.share_table(job)
    rows = [row | {"gigabytes": float(units.to_gigabytes(row["bytes_per_iteration"]))} for row in table]
    print(report.plain(rows, columns))
    if job.servers_per_region > 1:
        how = job.dispatch if job.node_limit is None else f"{job.dispatch}, node limit {job.node_limit}"
        how = f"dispatch {how}" if job.dispatch == PER_SERVER else "job.dispatch per-server"
        part = f"{even_copies(job):.3f} of these bytes if experts are balanced"
        print(f"EP bytes count every selected expert; between servers, {how} sends {part}.")
    print(f'measured: {MEASURED_SOURCE}; the page "Assumptions and limits" explains why the shares differ.')
    print(_size(job))
    stage, held = workload.fullest_stage(job, draw_loads(resolved.case, job))
    parts = {name: float(units.to_gigabytes(size)) for name, size in (held._asdict() | {"all": held.total}).items()}
    print(f"\nmemory of a GPU of stage {stage}, the fullest [GB]\n{report.plain([parts])}")
    shared.print_lines(shared.case_notes(cases))
    shared.print_lines(lines)


def _write_files(case: Case, options: Options) -> list[str]:
    """Write the requested files, and return sentences about them."""
    writers = {_alltoallv: options.alltoallv, _rank_cost: options.rank_cost}
    files = {write: path for write, path in writers.items() if path is not None}
    if not files:
        return []
    _check(options)
    shared.start_jax(case.run.dtype, None)
    lines = [write(case, path, options) for write, path in files.items()]
    for path in files.values():
        shared.tell(path)
    return lines


def _check(options: Options) -> None:
    from mfabric_jax.support.atomic import check_file

    for name, suffix in (("alltoallv", ".txt"), ("rank_cost", ".json")):
        if (path := getattr(options, name)) is not None:
            check_file(name, path, (suffix,))


def _alltoallv(case: Case, path: str, options: Options) -> str:
    """Write one dispatch, and return how to measure it."""
    from mfabric_jax.evaluate import resolve
    from mfabric_jax.evaluate.resolving.traffic import traffic_of
    from mfabric_jax.traffic.alltoallv import ExchangeIndex, buffer_bytes, dispatch_matrix, write_alltoallv

    resolved = resolve(case)
    job = resolved.job
    which = ExchangeIndex(case.run.sample or 0, options.block or 0, options.micro_batch or 0)
    demand = dispatch_matrix(job, traffic_of(resolved.case, job, past=resolved.past)[0], which)
    write_alltoallv(demand, path)
    size = buffer_bytes(demand)
    several = "" if job.tp == 1 else f" (an EP rank is {job.tp} tensor-parallel GPUs, one of which takes part)"
    return (
        f"\n{path}: dispatch {job.dispatch} of iteration {which.iteration}, block {which.block}, micro-batch "
        f"{which.micro_batch}, bytes between {job.ep} EP ranks{several}. The diagonal is what a rank keeps; combine "
        f"is the transpose.\nNCCL_TESTS_ALLTOALLV_MATRIX_FILE={path} alltoallv_perf -b {size} -e {size} -a 3, {job.ep} "
        f"ranks, {min(job.ranks_per_server, job.ep)} of them in a server"
    )


def _rank_cost(case: Case, path: str, options: Options) -> str:
    """Write the cost of a byte between ranks, and return its range in words."""
    from mfabric_jax.apps.graphs.rank_cost import rank_cost, write_rank_cost

    cost = rank_cost(case)
    about = {"model": case.model.name, "fabric": case.network.fabric, "nic_gbps": case.network.nic_gbps}
    write_rank_cost(cost, path, about)
    apart = cost[cost > 0]
    rates = [f"{float(units.to_gigabytes(1 / end)):.4g}" for end in (apart.max(), apart.min())] if apart.size else []
    alone = f": a single message gets {' to '.join(dict.fromkeys(rates))} GB/s" if rates else ""
    return f"\n{path}: seconds per byte between {len(cost)} EP ranks on {case.network.fabric}{alone}"
