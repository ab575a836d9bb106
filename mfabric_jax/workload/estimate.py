"""A closed-form estimate of an iteration, for comparing set-ups of a model."""

import math
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.workload.block_kernels import kernel_seconds
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD, BlockSeconds, backward_of, block_seconds
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import IDEAL, USUAL_DISPATCHER, shares_of
from mfabric_jax.workload.measured_kernels import copied_Bps, measured_kernels
from mfabric_jax.workload.memory import step_bytes
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.volume import (
    PASSES,
    context_bytes,
    context_rounds,
    ffn_all_reduces,
    pp_bytes,
    replica_bytes,
    replica_ring,
    tp_bytes_per_gpu,
)


class Speeds(NamedTuple):
    """Assumed rates: `efficiency` (achieved over peak FLOP/s; None: measured kernels), NIC bandwidth, precision of
    products, and whether gradients overlap the last backward pass."""

    efficiency: float | None = None
    nic_gbps: float = 400.0
    precision: str = "bf16"
    overlap_gradients: bool = False


USUAL = Speeds()


class IterationSeconds(NamedTuple):
    """Seconds of an iteration on its busiest stage, by part."""

    computation: float
    tensor_parallel: float
    all_to_alls: float
    bubble: float
    gradients: float

    @property
    def total(self) -> float:
        return sum(self)


class _Rates(NamedTuple):
    """Bytes/s of a GPU's NVLink and of a server's NICs in rings and all-to-alls, and of NICs in sends. `counts_s`:
    seconds in which ranks exchange sizes before a dispatch."""

    nvlink: float
    server: float
    nvlink_all_to_all: float
    server_all_to_all: float
    sends: float
    counts_s: float


def iteration_seconds(workload: Workload, server: Gpu, speeds: Speeds = USUAL) -> IterationSeconds:
    """Return the estimated seconds of one iteration by part, for comparing set-ups of a model.

    Experts are evenly loaded, links are not shared, switches add no delay, hosts never limit, and messages achieve the
    same whatever their size. The estimate adds the busiest stage's compute, its TP all-reduces over NVLink and its
    all-to-alls (traffic between and inside servers in parallel), the bubble, gradients and the optimizer step.
    """
    nics = workload.gpus_per_server if server.nics is None else server.nics
    measured = speeds.efficiency is None
    shares = shares_of(workload.servers_per_region, USUAL_DISPATCHER[workload.dispatch]) if measured else IDEAL
    of_server = nics * float(units.gbps(speeds.nic_gbps))
    rings = server.nvlink * shares.ring_nvlink, of_server * shares.ring_nic
    sends = server.nvlink * shares.nvlink, of_server * shares.nic, of_server * shares.send
    rates = _Rates(*rings, *sends, shares.counts_s)
    if speeds.efficiency is None:
        block = kernel_seconds(workload, server, speeds.precision)
    else:
        block = block_seconds(workload, server, speeds.efficiency, speeds.precision)
    compute, elsewhere = _compute_s(workload, block)
    reduced, exchanged = _tensor_parallel(workload, rates, block), _exchange_s(workload, rates)
    if workload.overlap_passes:
        exchanged = max(exchanged - compute, 0.0)
    exchanged += _blocks(workload, moe_only=True) * rates.counts_s
    passes = compute + reduced + exchanged
    waits = workload.order.bubble(workload.shape) / workload.micro_batches
    sent = PASSES * pp_bytes(workload) * workload.gpus_per_server / (workload.tp * rates.sends)
    waited = waits * (elsewhere + reduced + exchanged + sent)
    beside, behind = _gradients(workload, rates, passes, overlap=speeds.overlap_gradients)
    memory_Bps = copied_Bps(measured_kernels(server)) if measured else server.memory_Bps or math.inf
    if workload.optimizer_step != "left-out" and server.memory_Bps is not None:
        behind += max(step_bytes(workload, stage) for stage in {0, workload.pp - 1}) / memory_Bps
    each = IterationSeconds(compute, reduced, exchanged, waited, beside)
    whole = IterationSeconds(*(workload.micro_batches * part for part in each))
    return whole._replace(gradients=whole.gradients + behind)


def _compute_s(workload: Workload, part: BlockSeconds) -> tuple[float, float]:
    """Compute seconds of one micro-batch, forward plus backward: on the slowest stage, and the mean over the other
    stages."""
    again, back = recomputed_of(workload.recompute), backward_of(part)
    both = lambda forward, back, twice: forward + back.inputs + back.weights + (back.again if twice else 0)  # noqa: E731
    attention = both(part.attention_s, back.attention, again.attention)
    moe, dense = both(part.moe_s, back.moe, again.inner), both(part.dense_s, back.dense, again.inner)
    stages = [
        sum(held.moe) * (attention + moe)
        + sum(held.dense) * (attention + dense)
        + held.ends * (part.head_s + back.head)
        for held in workload.holdings
    ]
    most, copies = max(stages), workload.order.copies
    others = (sum(stages) - most) / (workload.pp - 1) if workload.pp > 1 else 0.0
    return most / copies, others / copies


def _blocks(workload: Workload, moe_only: bool = False) -> float:
    """Number of blocks that a micro-batch passes on the stage with the most blocks."""
    most = max(sum(held.moe) + (0 if moe_only else sum(held.dense)) for held in workload.holdings)
    return most / workload.order.copies


def _tensor_parallel(workload: Workload, rates: _Rates, part: BlockSeconds) -> float:
    """Seconds of one micro-batch's TP all-reduces, and of context-parallel transfers not hidden by scores."""
    reduces = _blocks(workload) * (PASSES + recomputed_of(workload.recompute).whole)
    dense = _blocks(workload) - _blocks(workload, moe_only=True)
    for blocks, moe in ((dense, False), (_blocks(workload, moe_only=True), True)):
        reduces += PASSES * blocks * ffn_all_reduces(workload, moe=moe)
    seconds = reduces * tp_bytes_per_gpu(workload) / rates.nvlink
    if workload.cp == 1:
        return seconds
    inside = workload.tp * workload.sequence_ranks <= workload.gpus_per_server
    ring_Bps = workload.tp * (rates.nvlink if inside else rates.server / workload.gpus_per_server)
    waited_for = max(0.0, context_bytes(workload) / ring_Bps - part.scores_s)
    return seconds + _blocks(workload) * context_rounds(workload) * waited_for


def _exchange_s(workload: Workload, rates: _Rates) -> float:
    both = workload.dispatch_bytes_per_selection + workload.combine_bytes_per_selection
    rounds = PASSES + recomputed_of(workload.recompute).exchanges
    each = both * _blocks(workload, moe_only=True) * rounds  # of one selection
    remote, itself = 1 - workload.ranks_per_server / workload.ep, 1 / workload.ep
    senders = workload.gpus_per_server / workload.tp
    if workload.dispatch == "per-expert":
        leaving, inside = workload.selections * remote, workload.selections * (1 - remote - itself)
    else:
        leaving, inside = workload.tokens * _servers_reached(workload), workload.selections * (1 - itself)
    between_s = senders * leaving * each / rates.server_all_to_all
    return max(between_s, inside * each / (workload.tp * rates.nvlink_all_to_all))


def _servers_reached(workload: Workload) -> float:
    """Expected number of other servers to which a token is sent, if all experts are equally likely."""
    experts, chosen = workload.architecture.experts, workload.architecture.top_k
    servers = workload.ep // workload.ranks_per_server
    missed = math.comb(experts - experts // servers, chosen) / math.comb(experts, chosen)
    limit = workload.node_limit
    if limit == "model":
        limit = servers * workload.architecture.top_groups // workload.architecture.expert_groups
    most = servers if limit is None else int(limit)
    return (servers - 1) / servers * min(servers * (1 - missed), max(1, most))


def _gradients(workload: Workload, rates: _Rates, passes: float, *, overlap: bool) -> tuple[float, float]:
    """Seconds of gradients and sharded weights: the part that the passes of one micro-batch leave exposed, and the part
    at the end of the iteration."""

    def reduction_s(*, last: bool) -> float:
        sizes = [replica_bytes(workload, stage, last=last) for stage in {0, workload.pp - 1}]
        rings = [replica_ring(workload, size.dense, size.expert) for size in sizes]
        return max(ring.between / rates.server + ring.inside / rates.nvlink for ring in rings)

    behind = reduction_s(last=True)
    if workload.sharding in ("gradients", "parameters"):
        return max(0.0, (reduction_s(last=False) - behind) / workload.micro_batches - passes), behind
    if overlap:
        behind = max(0.0, behind - passes * BACKWARD_OVER_FORWARD / (1 + BACKWARD_OVER_FORWARD))
    return 0.0, behind
