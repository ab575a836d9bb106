"""FLOPs and compute time of one block and of one iteration."""

from typing import Any, NamedTuple

from mfabric_jax import checks
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.mixers import up_params
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.training_code import IssueSeconds

BACKWARD_OVER_FORWARD = 2.0  # two products (gradients of inputs and of weights) per forward product
WEIGHTS_OVER_FORWARD = 1.0  # weight gradients; attention scores have no weights and need both products for inputs
_INPUTS = BACKWARD_OVER_FORWARD - WEIGHTS_OVER_FORWARD


class BlockFlops(NamedTuple):
    """Forward FLOPs of a block for one micro-batch of one EP rank, that is, its whole TP group. `moe` includes
    `expert`, the routed experts."""

    attention: float
    moe: float
    dense: float
    expert: float


class BackwardParts(NamedTuple):
    """Backward seconds of one part of a block: gradients of inputs, gradients of weights, and recomputation before both
    (`again`)."""

    inputs: Any
    weights: Any
    again: Any


class Backward(NamedTuple):
    """Backward seconds of a block by part; `head`: of the output head, in total."""

    attention: BackwardParts
    moe: BackwardParts
    dense: BackwardParts
    expert: BackwardParts
    head: Any


class BlockSeconds(NamedTuple):
    """Forward seconds of one micro-batch on every GPU of an EP rank. A block takes `attention_s` plus `moe_s`
    (`expert_s` of it in routed experts) or `dense_s`.

    - `scores_s`: part of `attention_s` in attention scores; None: estimated from FLOPs.
    - `head_s`: output heads and MTP projections; None: estimated from FLOPs.
    - `backward`: seconds of backward passes; None: two products per forward product, for gradients of inputs and of
      weights.
    - `issued`: seconds in which the host issues the kernels of a block (`training_code`); None: it never limits.
    """

    attention_s: Any
    moe_s: Any
    dense_s: Any
    expert_s: Any = 0.0
    scores_s: Any = None
    head_s: Any = None
    backward: Backward | None = None
    issued: IssueSeconds | None = None


def usual_backward(forward: Any) -> Backward:
    """Return backward seconds under two products per forward product; attention scores need both for gradients of
    inputs.

    - `forward`: anything with `attention_s`, `moe_s`, `dense_s`, `expert_s`, `scores_s` and `head_s`.
    """
    products = lambda seconds: BackwardParts(_INPUTS * seconds, WEIGHTS_OVER_FORWARD * seconds, seconds)  # noqa: E731
    usual, scores = products(forward.attention_s), WEIGHTS_OVER_FORWARD * forward.scores_s
    attention = usual._replace(inputs=usual.inputs + scores, weights=usual.weights - scores)
    others = map(products, (forward.moe_s, forward.dense_s, forward.expert_s))
    return Backward(attention, *others, head=BACKWARD_OVER_FORWARD * forward.head_s)


def backward_of(seconds: Any) -> Backward:
    """Return the stated backward seconds, else the usual ones."""
    return usual_backward(seconds) if seconds.backward is None else seconds.backward


def block_flops(workload: Workload) -> BlockFlops:
    """Return the forward FLOPs of each part of a block under balanced load: two per parameter and token, plus causal
    attention scores.

    The MoE part counts the gate, top-k routed experts and shared experts. `dense` is 0 for a model without dense
    blocks.
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
    """Return the model FLOPs of one iteration of the cluster, as MFU counts them.

    They are three times the forward FLOPs of all blocks and, if it is counted, of the output head. Recomputation,
    uneven load and padding do not count.
    """
    model, block = workload.architecture, block_flops(workload)
    moe = workload.moe_layers
    forward = model.blocks * block.attention + moe * block.moe + (model.blocks - moe) * block.dense
    forward += block.attention * ends_over_attention(workload)
    passes = workload.micro_batches * workload.ep * workload.dp
    return (1 + BACKWARD_OVER_FORWARD) * forward * passes


def scores_over_attention(workload: Workload) -> float:
    """Return the fraction of attention's FLOPs that scores and weighted values take."""
    scores = workload.architecture.attention.score_flops(workload.sequence)
    return workload.tokens * scores / block_flops(workload).attention


def ends_over_attention(workload: Workload) -> float:
    """Return the ratio of forward FLOPs outside blocks to FLOPs of one block's attention.

    Output heads (if they are counted) and MTP projections lie outside blocks.
    """
    model, predicted = workload.architecture, workload.predicted
    params = workload.head_counted * (1 + predicted) * model.head_params + predicted * model.joining_params
    return workload.tokens * 2 * params / block_flops(workload).attention


def scale_seconds(seconds: BlockSeconds, factor: Any) -> BlockSeconds:
    """Return all seconds times `factor`; only `issued` may be None."""

    def times(part: Any) -> Any:
        if part is None:
            return None
        return type(part)(*map(times, part)) if isinstance(part, tuple) else factor * part

    return times(seconds)


def complete_seconds(workload: Workload, seconds: BlockSeconds) -> BlockSeconds:
    """Return the seconds with open (None) fields filled in, from FLOPs and `usual_backward`."""
    if seconds.scores_s is None:
        seconds = seconds._replace(scores_s=scores_over_attention(workload) * seconds.attention_s)
    if seconds.head_s is None:
        seconds = seconds._replace(head_s=ends_over_attention(workload) * seconds.attention_s)
    if seconds.backward is not None:
        return seconds
    back, again = usual_backward(seconds), again_by_flops(workload)
    parts = zip(("attention", "moe", "dense", "expert"), again, strict=True)
    scaled = {name: (part := getattr(back, name))._replace(again=share * part.again) for name, share in parts}
    return seconds._replace(backward=back._replace(**scaled))


def again_by_flops(workload: Workload) -> tuple[float, float, float, float]:
    """Return the ratio of recomputed to forward FLOPs for attention, MoE, dense FFNs and routed experts."""
    parts, block = recomputed_of(workload.recompute).parts, block_flops(workload)
    of_attention = float("attention" in parts)
    if "mla-up" in parts and not of_attention:
        model = workload.architecture
        of_attention = workload.tokens * 2 * up_params(model.attention, model.hidden) / block.attention
    routed = float("moe" in parts)
    shared = workload.tokens * 2 * workload.architecture.shared_params * ("shared" in parts)
    moe = 1.0 if {"moe", "shared"} <= parts else (routed * block.expert + shared) / block.moe
    return of_attention, moe, float("mlp" in parts), routed


def block_seconds(workload: Workload, gpu: Gpu, efficiency: Any = 0.5, precision: str = "bf16") -> BlockSeconds:
    """Return the seconds of the parts of a block; the TP group shares the work evenly.

    - `efficiency`: achieved over peak FLOP/s, a number or a traced scalar; calibration against published iteration
      times needs values above 1.
    - `precision`: "bf16" or "fp8", which selects the peak.
    """
    checks.positive("efficiency", efficiency)
    rate = workload.tp * gpu.peak(precision) * efficiency
    return complete_seconds(workload, BlockSeconds(*(float(flops) / rate for flops in block_flops(workload))))
