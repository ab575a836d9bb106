"""How long one block computes, FLOPs over what a GPU achieves, and about how long an iteration takes, in closed form.

The output head is a part of a block's attention in the same FLOPs over the same rate; an embedding looks words up.
"""

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

BACKWARD_OVER_FORWARD = 2.0  # gradients of inputs and of weights: two products for each one of the forward pass
WEIGHTS_OVER_FORWARD = 1.0  # of it, those of weights; what has none (attention scores) computes both for its inputs


class BackwardTimes(NamedTuple):
    """What a backward pass computes over the forward pass, what runs again included, by part of a block."""

    attention: float
    inner: float


def backward_times(recompute: str) -> BackwardTimes:
    """Those of `Workload.recompute`."""
    attention, inner = (recompute in again for again in (("attention", "block"), ("block",)))
    return BackwardTimes(BACKWARD_OVER_FORWARD + attention, BACKWARD_OVER_FORWARD + inner)


class BlockFlops(NamedTuple):
    """Forward FLOPs of one micro-batch of one EP rank, its whole TP group together; `expert`: of `moe`, what routed
    experts compute."""

    attention: float
    moe: float
    dense: float
    expert: float


class BlockSeconds(NamedTuple):
    """Forward seconds of one micro-batch on every GPU of an EP rank; backward takes `BACKWARD_OVER_FORWARD` times it.

    An MoE block takes `attention_s + moe_s`, a dense one `attention_s + dense_s`. `expert_s`: of `moe_s`, what routed
    experts take under balanced load.
    """

    attention_s: Any
    moe_s: Any
    dense_s: Any
    expert_s: Any = 0.0


def block_flops(workload: Workload) -> BlockFlops:
    """Two FLOPs per parameter and token, and causal attention scores. The MoE part counts the gate, top-k routed
    experts (`expert`) and the shared experts, under balanced load. `dense` is 0 for a model without dense blocks."""
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
    """Model FLOPs of one iteration of the whole cluster, those of MFU: three times the forward ones of every block and
    token (`block_flops`: active parameters and causal scores), and of the output head where its time is counted. What
    is computed again, uneven loads and padding do not count.
    """
    model, block = workload.architecture, block_flops(workload)
    moe = workload.moe_layers
    forward = model.blocks * block.attention + moe * block.moe + (model.blocks - moe) * block.dense
    if workload.head_counted:
        forward += block.attention * head_over_attention(workload)
    passes = workload.micro_batches * workload.ep * workload.dp
    return (1 + BACKWARD_OVER_FORWARD) * forward * passes


def scores_over_attention(workload: Workload) -> float:
    """Part of attention's computation that is scores and weighted values, not projections."""
    scores = workload.architecture.attention.score_flops(workload.sequence)
    return workload.tokens * scores / block_flops(workload).attention


def head_over_attention(workload: Workload) -> float:
    """Forward FLOPs of the output head, two per parameter and token, over those of a block's attention."""
    return workload.tokens * 2 * workload.architecture.head_params / block_flops(workload).attention


def block_seconds(workload: Workload, gpu: Gpu, efficiency: Any = 0.5, precision: str = "bf16") -> BlockSeconds:
    """Forward seconds of the parts of a block, the TP group sharing the work evenly.

    - `efficiency`: achieved over peak FLOP/s, a number or a traced scalar. Above 1 is allowed: calibration
      against published iteration times asks for it.
    - `precision`: of the peak, bf16 or fp8.
    """
    checks.positive("efficiency", efficiency)
    rate = workload.tp * gpu.peak(precision) * efficiency
    return BlockSeconds(*(float(flops) / rate for flops in block_flops(workload)))


# ------------------------------------------------------------------------------------- an iteration, about


class Speeds(NamedTuple):
    """What a set-up is estimated for.

    - `efficiency`: achieved over peak FLOP/s of `precision`.   - `nic_gbps`: of one NIC.
    - `overlap_gradients`: gradients are all-reduced beside the last backward pass.
    """

    efficiency: float = 0.5
    nic_gbps: float = 400.0
    precision: str = "bf16"
    overlap_gradients: bool = False


USUAL = Speeds()


class IterationSeconds(NamedTuple):
    """Where an iteration's seconds go on its busiest stage."""

    computation: float
    tensor_parallel: float
    all_to_alls: float
    bubble: float
    gradients: float

    @property
    def total(self) -> float:
        """All parts [s]."""
        return sum(self)


class _Rates(NamedTuple):
    """Bytes/s: of a GPU's NVLink, and of all NICs of a server."""

    nvlink: float
    server: float


def iteration_seconds(workload: Workload, server: Gpu, speeds: Speeds = USUAL) -> IterationSeconds:
    """An iteration of a workload on such servers: to compare set-ups of one model, not to replace a simulation.

    Experts are loaded evenly, links are never shared, no switch waits. Of the busiest stage: what its passes compute,
    its tensor-parallel all-reduces over NVLink and its all-to-alls, the part that leaves a server over its NICs and the
    rest over NVLink, beside each other; then the bubble of its schedule, and gradients and the optimizer's step.
    """
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
    """How often a micro-batch goes through a block, its all-to-alls with it."""
    return PASSES + (workload.recompute == "block")


def _computed(workload: Workload, part: BlockSeconds) -> tuple[float, float]:
    """Of one micro-batch, forward and backward: on the stage that computes longest, and on the others, the mean."""
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
    """Blocks that a micro-batch crosses on the stage that has most."""
    most = max(sum(held.moe) + (0 if moe_only else sum(held.dense)) for held in workload.holdings)
    return most / workload.order.copies


def _tensor_parallel(workload: Workload, rates: _Rates, part: BlockSeconds) -> float:
    """All-reduces of one micro-batch on a stage, and what attention's scores do not hide of keys and values going
    around context-parallel rings."""
    reduces = _rounds(workload) + (PASSES if workload.tp_reduces == "all" else 0)
    seconds = _blocks(workload) * reduces * tp_bytes_per_gpu(workload) / rates.nvlink
    if workload.cp == 1:
        return seconds
    inside = workload.tp * workload.cp <= workload.gpus_per_server
    ring_Bps = workload.tp * (rates.nvlink if inside else rates.server / workload.gpus_per_server)
    scores_s = scores_over_attention(workload) * part.attention_s
    waited_for = max(0.0, context_bytes(workload) / ring_Bps - scores_s)
    return seconds + _blocks(workload) * context_rounds(workload) * waited_for


def _exchanged(workload: Workload, rates: _Rates) -> float:
    """All-to-alls of one micro-batch on a stage: between servers and inside them, beside each other."""
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
    """Other servers that a token is sent to, if all experts are as likely."""
    experts, chosen = workload.architecture.experts, workload.architecture.top_k
    servers = workload.ep // workload.ranks_per_server
    missed = math.comb(experts - experts // servers, chosen) / math.comb(experts, chosen)
    limit = workload.node_limit
    if limit == "model":
        limit = servers * workload.architecture.top_groups // workload.architecture.expert_groups
    most = servers if limit is None else int(limit)
    return (servers - 1) / servers * min(servers * (1 - missed), max(1, most))


def _sent(workload: Workload, rates: _Rates) -> float:
    """Activations to the next stage and their gradients back, of one micro-batch."""
    return PASSES * pp_bytes(workload) * workload.gpus_per_server / (workload.tp * rates.server)


def _gradients(workload: Workload, rates: _Rates, passes: float, *, overlap: bool) -> tuple[float, float]:
    """Seconds for gradients, and for weights that are shared out: of every micro-batch, beyond what its passes hide,
    and at the end."""

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
