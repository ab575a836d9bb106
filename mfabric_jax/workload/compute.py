"""How long one block computes: floating-point operations over what a GPU achieves.

The output head is a part of a block's attention in the same FLOPs over the same rate; an embedding looks words up.
"""

from typing import Any, NamedTuple

from mfabric_jax import checks
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.parallel import Workload

BACKWARD_OVER_FORWARD = 2.0  # gradients of inputs and of weights: two products for each one of the forward pass
WEIGHTS_OVER_FORWARD = 1.0  # of it, those of weights; what has none (attention scores) computes both for its inputs


class BackwardTimes(NamedTuple):
    """What a backward pass computes over the forward pass, what runs again included: of attention, and of experts or
    the dense part."""

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
    experts take under balanced load; they take as many times longer as `expert_load` says.
    """

    attention_s: Any
    moe_s: Any
    dense_s: Any
    expert_s: Any = 0.0


def block_flops(workload: Workload) -> BlockFlops:
    """Forward floating-point operations of the parts of a block.

    Two per parameter and token, and causal attention scores (`attention`). The MoE part counts the
    gate, top-k routed experts (`expert`) and the shared experts, under balanced load: an EP rank computes as many
    selections as its own gate makes. `dense` is 0 for a model without dense blocks.
    """
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
    model, one = workload.architecture, block_flops(workload)
    moe = workload.moe_layers
    forward = model.blocks * one.attention + moe * one.moe + (model.blocks - moe) * one.dense
    if workload.head_counted:
        forward += one.attention * head_over_attention(workload)
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
