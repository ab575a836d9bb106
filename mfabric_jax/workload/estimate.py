"""How long an iteration takes, about, in closed form: to compare set-ups of one model, not to replace a simulation.

Experts are loaded evenly, links are never shared, no switch waits. Of the busiest stage: what its passes compute, its
tensor-parallel all-reduces over NVLink and its all-to-alls, the part that leaves a server over its NICs and the rest
over NVLink, beside each other; then the bubble of its schedule, and gradients and the optimizer's step at the end.
"""

import math
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.workload.compute import (
    BACKWARD_OVER_FORWARD,
    BlockSeconds,
    block_seconds,
    head_over_attention,
    scores_over_attention,
)
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
    """An iteration of a workload on such servers."""
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
    remote, own = 1 - workload.ranks_per_server / workload.ep, 1 / workload.ep
    senders = workload.gpus_per_server / workload.tp
    if workload.dispatch == "per-expert":
        leaving, inside = workload.selections * remote, workload.selections * (1 - remote - own)
    else:
        leaving, inside = workload.tokens * _reached(workload), workload.selections * (1 - own)
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
