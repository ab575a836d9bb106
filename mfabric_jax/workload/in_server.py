"""Bandwidth that messages of a job achieve inside a server, by their size, as NCCL was measured.

Small messages are slow: an all-gather of 64 MB among eight H100 achieves 63 % of a GPU's NVLink, one of 16 MB 49 %.
"""

from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import BandwidthShares, states
from mfabric_jax.workload.measured_kernels import MeasuredKernels, collective_s, is_measured, measured_kernels
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.volume import pp_bytes


def by_size(
    shares: BandwidthShares, job: Workload, gpu: Gpu, dispatcher: str, how: str = "usual", path: str | None = None
) -> BandwidthShares:
    """Return the shares of a job's messages: TP collectives, and all-to-alls of NCCL, inside a server.

    Those of GPUs without measurements and in a user's table stay as they are.
    """
    if dispatcher == "ideal" or not is_measured(gpu) or states(path, gpu):
        return shares
    kernels = measured_kernels(gpu, how=how, path=path)
    if job.attention_tp > 1:
        shares = shares._replace(tp_nvlink=_ring_share(kernels, job))
    if dispatcher == "nccl" and job.ep > 1:
        shares = shares._replace(nvlink=_all_to_all_share(kernels, job))
    return shares


def _ring_share(kernels: MeasuredKernels, job: Workload) -> float:
    gpus, size = job.attention_tp, job.folded * pp_bytes(job)
    parts = ("all_gather", "reduce_scatter") if job.sequence_parallel else ("all_reduce",)
    seconds = sum(float(collective_s(kernels, what, gpus, size)) for what in parts)
    return 2 * (gpus - 1) / gpus * size / (seconds * kernels.gpu.nvlink)


def _all_to_all_share(kernels: MeasuredKernels, job: Workload) -> float:
    """The share of balanced all-to-alls, mean of dispatch and combine, among the EP ranks of a server."""
    ranks = min(job.ep, job.ranks_per_server)
    rows = job.selections * ranks / job.ep
    width = job.architecture.routed_width
    sizes = [rows * width * each / job.tp for each in (job.dispatch_bytes, job.combine_bytes)]
    seconds = sum(float(collective_s(kernels, "all_to_all", ranks, size)) for size in sizes)
    return (ranks - 1) / ranks * sum(sizes) / (seconds * kernels.gpu.nvlink) if ranks > 1 else 1.0
