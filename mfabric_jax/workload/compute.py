"""Compute time of one block (FLOPs over achieved FLOP/s), and a closed-form estimate of an iteration's time."""

import math
from typing import Any, NamedTuple

from mfabric_jax import checks, units
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.memory import step_bytes
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.volume import (
    PASSES,
    context_bytes,
    context_rounds,
    pp_bytes,
    replica_bytes,
    replica_ring,
    tp_bytes_per_gpu,
)

BACKWARD_OVER_FORWARD = 2.0  # two products (gradients of inputs and of weights) per forward product
WEIGHTS_OVER_FORWARD = 1.0  # weight gradients; attention scores have none and need both products for inputs


class BackwardTimes(NamedTuple):
    attention: float
    inner: float


def backward_times(recompute: str) -> BackwardTimes:
    attention, inner = (recompute in again for again in (("attention", "block"), ("block",)))
    return BackwardTimes(BACKWARD_OVER_FORWARD + attention, BACKWARD_OVER_FORWARD + inner)


class BlockFlops(NamedTuple):
    """Forward FLOPs of one micro-batch of one EP rank, whole TP group; `expert` (routed experts) is part of `moe`."""

    attention: float
    moe: float
    dense: float
    expert: float


class BlockSeconds(NamedTuple):
    """Forward seconds of one micro-batch on every GPU of an EP rank; backward takes `BACKWARD_OVER_FORWARD` times as
    long. Blocks take `attention_s` plus `moe_s` (`expert_s` of it in routed experts) or `dense_s`."""

    attention_s: Any
    moe_s: Any
    dense_s: Any
    expert_s: Any = 0.0


def block_flops(workload: Workload) -> BlockFlops:
    """FLOPs of each part of a block under balanced load: two per parameter and token, plus causal attention scores. The
    MoE part counts the gate, top-k routed experts and shared experts. `dense` is 0 for a model without dense blocks."""
    model, tokens = workload.architecture, workload.tokens
    scores = model.attention.score_flops(workload.sequence)
    routed = model.gate_params + model.top_k * model.expert_params + model.shared_params
    return BlockFlops(
        attention=tokens * (2 * model.attention_params + scores),
        moe=tokens * 2 * routed,
        dense=tokens * 2 * model.dense_params,
        expert=tokens * 2 * model.top_k * model.expert_params,
    )


def iteration_flops(workload: Workload) -> float:
    """Model FLOPs of one iteration of the cluster, as MFU counts them: three times the forward FLOPs of every block and
    token and of a counted output head, without recomputation, uneven load and padding."""
    model, block = workload.architecture, block_flops(workload)
    moe = workload.moe_layers
    forward = model.blocks * block.attention + moe * block.moe + (model.blocks - moe) * block.dense
    if workload.head_counted:
        forward += block.attention * head_over_attention(workload)
    passes = workload.micro_batches * workload.ep * workload.dp
    return (1 + BACKWARD_OVER_FORWARD) * forward * passes


def scores_over_attention(workload: Workload) -> float:
    """Scores and weighted values as a fraction of attention's FLOPs."""
    scores = workload.architecture.attention.score_flops(workload.sequence)
    return workload.tokens * scores / block_flops(workload).attention


def head_over_attention(workload: Workload) -> float:
    """Forward FLOPs of the output head over those of one block's attention."""
    return workload.tokens * 2 * workload.architecture.head_params / block_flops(workload).attention


def block_seconds(workload: Workload, gpu: Gpu, efficiency: Any = 0.5, precision: str = "bf16") -> BlockSeconds:
    """Forward seconds of the parts of a block; the TP group shares the work evenly.

    `efficiency` is achieved over peak FLOP/s, a number or a traced scalar; calibration against published iteration
    times needs values above 1. `precision` ("bf16" or "fp8") selects the peak.
    """
    checks.positive("efficiency", efficiency)
    rate = workload.tp * gpu.peak(precision) * efficiency
    return BlockSeconds(*(float(flops) / rate for flops in block_flops(workload)))


# ------------------------------------------------------------------------------------- an iteration, about


class Speeds(NamedTuple):
    """Assumed rates: achieved over peak FLOP/s, Gbit/s of a NIC, whether gradients overlap the last backward pass."""

    efficiency: float = 0.5
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
    nvlink: float
    server: float


def iteration_seconds(workload: Workload, server: Gpu, speeds: Speeds = USUAL) -> IterationSeconds:
    """Estimated seconds of one iteration by part, for comparing set-ups of a model. Experts are evenly loaded, links
    are not shared, and switches add no delay. The busiest stage's compute, TP all-reduces over NVLink and all-to-alls
    count (traffic between and inside servers at once), then the bubble, gradients and the optimizer step."""
    nics = workload.gpus_per_server if server.nics is None else server.nics
    rates = _Rates(server.nvlink, nics * float(units.gbps(speeds.nic_gbps)))
    block = block_seconds(workload, server, speeds.efficiency, speeds.precision)
    compute, elsewhere = _computed(workload, block)
    reduced, exchanged = _tensor_parallel(workload, rates, block), _exchanged(workload, rates)
    if workload.overlap_passes:
        exchanged = max(exchanged - compute, 0.0)
    passes = compute + reduced + exchanged
    waits = workload.order.bubble(workload.shape) / workload.micro_batches
    waited = waits * (elsewhere + reduced + exchanged + _sent(workload, rates))
    beside, behind = _gradients(workload, rates, passes, overlap=speeds.overlap_gradients)
    if workload.optimizer_step != "left-out" and server.memory_Bps is not None:
        behind += max(step_bytes(workload, stage) for stage in {0, workload.pp - 1}) / server.memory_Bps
    each = IterationSeconds(compute, reduced, exchanged, waited, beside)
    whole = IterationSeconds(*(workload.micro_batches * part for part in each))
    return whole._replace(gradients=whole.gradients + behind)


def _rounds(workload: Workload) -> int:
    return PASSES + (workload.recompute == "block")


def _computed(workload: Workload, part: BlockSeconds) -> tuple[float, float]:
    """Seconds of one micro-batch, forward plus backward: on the slowest stage, and the mean of the other stages."""
    usual = 1 + BACKWARD_OVER_FORWARD
    attention = (usual + (workload.recompute != "none")) * part.attention_s
    moe, dense = ((usual + (workload.recompute == "block")) * each for each in (part.moe_s, part.dense_s))
    head = usual * head_over_attention(workload) * part.attention_s if workload.head_counted else 0.0
    stages = [
        sum(held.moe) * (attention + moe) + sum(held.dense) * (attention + dense) + held.ends * head
        for held in workload.holdings
    ]
    most, copies = max(stages), workload.order.copies
    others = (sum(stages) - most) / (workload.pp - 1) if workload.pp > 1 else 0.0
    return most / copies, others / copies


def _blocks(workload: Workload, moe_only: bool = False) -> float:
    """Number of blocks that a micro-batch passes on the fullest stage."""
    most = max(sum(held.moe) + (0 if moe_only else sum(held.dense)) for held in workload.holdings)
    return most / workload.order.copies


def _tensor_parallel(workload: Workload, rates: _Rates, part: BlockSeconds) -> float:
    """Seconds of one micro-batch's TP all-reduces, and of context-parallel transfers not hidden by scores."""
    reduces = _rounds(workload) + (PASSES if workload.tp_reduces == "all" else 0)
    seconds = _blocks(workload) * reduces * tp_bytes_per_gpu(workload) / rates.nvlink
    if workload.cp == 1:
        return seconds
    inside = workload.tp * workload.sequence_ranks <= workload.gpus_per_server
    ring_Bps = workload.tp * (rates.nvlink if inside else rates.server / workload.gpus_per_server)
    scores_s = scores_over_attention(workload) * part.attention_s
    waited_for = max(0.0, context_bytes(workload) / ring_Bps - scores_s)
    return seconds + _blocks(workload) * context_rounds(workload) * waited_for


def _exchanged(workload: Workload, rates: _Rates) -> float:
    both = workload.dispatch_bytes_per_selection + workload.combine_bytes_per_selection
    each = both * _blocks(workload, moe_only=True) * _rounds(workload)  # of one selection
    remote, itself = 1 - workload.ranks_per_server / workload.ep, 1 / workload.ep
    senders = workload.gpus_per_server / workload.tp
    if workload.dispatch == "per-expert":
        leaving, inside = workload.selections * remote, workload.selections * (1 - remote - itself)
    else:
        leaving, inside = workload.tokens * _reached(workload), workload.selections * (1 - itself)
    between_s = senders * leaving * each / rates.server
    return max(between_s, inside * each / (workload.tp * rates.nvlink))


def _reached(workload: Workload) -> float:
    """Expected number of other servers that a token is sent to, if all experts are equally likely."""
    experts, chosen = workload.architecture.experts, workload.architecture.top_k
    servers = workload.ep // workload.ranks_per_server
    missed = math.comb(experts - experts // servers, chosen) / math.comb(experts, chosen)
    limit = workload.node_limit
    if limit == "model":
        limit = servers * workload.architecture.top_groups // workload.architecture.expert_groups
    most = servers if limit is None else int(limit)
    return (servers - 1) / servers * min(servers * (1 - missed), max(1, most))


def _sent(workload: Workload, rates: _Rates) -> float:
    return PASSES * pp_bytes(workload) * workload.gpus_per_server / (workload.tp * rates.server)


def _gradients(workload: Workload, rates: _Rates, passes: float, *, overlap: bool) -> tuple[float, float]:
    """Seconds for gradients and sharded weights: per micro-batch beyond what its passes hide, and at the end."""

    def reduced(*, last: bool) -> float:
        sizes = [replica_bytes(workload, stage, last=last) for stage in {0, workload.pp - 1}]
        rings = [replica_ring(workload, size.dense, size.expert) for size in sizes]
        return max(ring.between / rates.server + ring.inside / rates.nvlink for ring in rings)

    behind = reduced(last=True)
    if workload.sharding in ("gradients", "parameters"):
        return max(0.0, (reduced(last=False) - behind) / workload.micro_batches - passes), behind
    if overlap:
        behind = max(0.0, behind - passes * BACKWARD_OVER_FORWARD / (1 + BACKWARD_OVER_FORWARD))
    return 0.0, behind
