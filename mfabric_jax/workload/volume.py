"""Bytes that each kind of parallelism moves in one iteration.

Collectives are rings. TP all-reduces belong to attention alone, one forward and one backward a block; in the MoE
part each TP rank carries its slice of the sequence and of every expert, so neither EP bytes nor expert gradients
grow with TP. This reading of arXiv 2501.03905 gives TP : EP = 63 : 37 for Mixtral 8x7B before PP and DP.
"""

from typing import Any, NamedTuple

from mfabric_jax.workload.parallel import Workload

ACTIVATION_BYTES = 2  # bf16: TP all-reduces and PP transfers
PASSES = 2  # forward and backward


class GradientBytes(NamedTuple):
    """Gradients of one pipeline stage [B], all TP slices together.

    - `dense`: attention, gates, shared experts and dense FFNs, the same on all DP x EP ranks.
    - `expert`: the routed experts of one EP rank, the same on its DP replicas.
    """

    dense: float
    expert: float


class MeasuredShare(NamedTuple):
    """A published share of all bytes sent in an iteration, as bounds (fractions) and as text for a table."""

    low: float
    high: float
    text: str


MEASURED_SOURCE = "arXiv 2501.03905, traffic measured in a production cluster (Mixtral 8x7B on 128 H800 with DP 1)"
_MOSTLY_EP = {"EP": MeasuredShare(0.8, 1.0, "> 80 %")}
MEASURED_SHARES: dict[str, dict[str, MeasuredShare]] = {
    "mixtral-8x7b": {
        "TP": MeasuredShare(0.6, 0.6, "60 %"),
        "EP": MeasuredShare(0.3, 0.3, "30 %"),
        "PP+DP": MeasuredShare(0.0, 0.1, "PP+DP < 6-10 %"),
    },
    "llama-moe": _MOSTLY_EP,
    "qwen-moe": _MOSTLY_EP,
    "qwen-moe-ep16": _MOSTLY_EP,
}


def ring_bytes(size: Any, members: int) -> Any:
    """Bytes that each member of a ring all-reduce of `size` bytes (a number or an array) sends."""
    return 2 * size * (members - 1) / members


def tp_bytes_per_gpu(workload: Workload) -> float:
    """Bytes that one GPU sends in the all-reduce of one block's forward pass of one micro-batch."""
    return ring_bytes(pp_bytes(workload), workload.tp)


def pp_bytes(workload: Workload) -> float:
    """Bytes that one EP rank (its TP group together) sends to the next stage, per micro-batch and direction."""
    return workload.tokens * workload.architecture.hidden * ACTIVATION_BYTES


class StageParams(NamedTuple):
    """Parameters of one pipeline stage, as `GradientBytes` has them."""

    dense: float
    expert: float


def stage_params(workload: Workload, stage: int) -> StageParams:
    """Parameters of one pipeline stage, all TP slices together, without embedding and output head.

    `InputError` for a stage that does not exist.
    """
    model = workload.architecture
    moe_blocks = len(workload.stage_layers(stage))
    blocks = workload.stage_blocks[stage]
    dense = blocks * model.attention_params + moe_blocks * (model.gate_params + model.shared_params)
    dense += (blocks - moe_blocks) * model.dense_params
    return StageParams(dense, moe_blocks * workload.experts_per_rank * model.expert_params)


def gradient_bytes(workload: Workload, stage: int) -> GradientBytes:
    """Gradient bytes of one pipeline stage; `InputError` for a stage that does not exist."""
    params = stage_params(workload, stage)
    return GradientBytes(params.dense * workload.grad_bytes, params.expert * workload.grad_bytes)


def iteration_bytes(workload: Workload) -> dict[str, float]:
    """Bytes that all GPUs together send in one iteration, by parallelism: "TP", "EP", "PP", "DP".

    - EP: four all-to-alls per MoE block and micro-batch (six where a block is computed again), balanced, without what
      a rank sends to itself.
    - PP: activations forward and their gradients backward over each of the pp x chunks - 1 boundaries.
    - DP: one ring all-reduce of dense gradients over DP x EP ranks and of expert gradients over DP.
    """
    model, replicas = workload.architecture, workload.dp * workload.ep
    rounds = PASSES + (workload.recompute == "block")  # how often a micro-batch goes through a block
    element = workload.dispatch_bytes_per_selection + workload.combine_bytes_per_selection
    leaving = workload.selections * (workload.ep - 1) / workload.ep
    gradients = [gradient_bytes(workload, stage) for stage in range(workload.pp)]
    each = {  # of one EP rank, its TP group together
        "TP": workload.micro_batches * rounds * model.blocks * workload.tp * tp_bytes_per_gpu(workload),
        "EP": workload.micro_batches * rounds * workload.moe_layers * leaving * element,
        "PP": workload.micro_batches * PASSES * (workload.pp * workload.chunks - 1) * pp_bytes(workload),
        "DP": sum(ring_bytes(part.dense, replicas) + ring_bytes(part.expert, workload.dp) for part in gradients),
    }
    return {parallelism: replicas * size for parallelism, size in each.items()}


def share_table(workload: Workload) -> list[dict[str, Any]]:
    """Rows `parallelism, bytes_per_iteration, share, measured`; `measured` is text, None where nothing is published."""
    volume = iteration_bytes(workload)
    total = sum(volume.values())
    published = MEASURED_SHARES.get(workload.known_as, {})
    published = published | {kind: published["PP+DP"] for kind in ("PP", "DP") if "PP+DP" in published}
    return [
        {
            "parallelism": parallelism,
            "bytes_per_iteration": size,
            "share": size / total if total else 0.0,
            "measured": share.text if (share := published.get(parallelism)) else None,
        }
        for parallelism, size in volume.items()
    ]
