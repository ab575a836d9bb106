"""How long one block computes: floating-point operations over what a GPU achieves.

Embedding and output head are left out.
"""

import dataclasses
from typing import Any, NamedTuple

from mfabric_jax import checks, units
from mfabric_jax.workload.parallel import Workload

BACKWARD_OVER_FORWARD = 2.0  # gradients of inputs and of weights: two products for each one of the forward pass


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Peak rates of a GPU: `bf16_flops` in dense FLOP/s, `nvlink` in bytes/s per direction."""

    name: str
    bf16_flops: float
    nvlink: float
    source: str


def _gpu(name: str, bf16_tflops: float, nvlink_gigabytes: float, source: str) -> Gpu:
    return Gpu(name, units.tflops(bf16_tflops), units.gigabytes_per_s(nvlink_gigabytes), source)


DEFAULT_GPU = "A100-80GB-SXM"
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu(DEFAULT_GPU, 312, 300, "NVIDIA A100 datasheet (600 GB/s NVLink, both directions)"),
        _gpu("H100-SXM", 989.4, 450, "NVIDIA H100 datasheet"),
        _gpu("H800-SXM", 989.4, 200, "H100 with 400 GB/s NVLink; deepseek-ai/DeepEP documents about 160 achieved"),
        _gpu("H200-SXM", 989.4, 450, "NVIDIA H200 datasheet"),
        _gpu("B200-HGX", 2250, 900, "NVIDIA B200 datasheet, HGX, 1000 W"),
        _gpu("GB200-NVL72", 2500, 900, "NVIDIA GB200 datasheet, 1200 W"),
    )
}


def get_gpu(name: str = DEFAULT_GPU) -> Gpu:
    """The GPU of that name; `InputError` for an unknown one."""
    return GPUS[checks.one_of("gpu", name, GPUS)]


class BlockFlops(NamedTuple):
    """Forward FLOPs of one micro-batch of one EP rank, its whole TP group together."""

    attention: float
    moe: float
    dense: float


class BlockSeconds(NamedTuple):
    """Forward seconds of one micro-batch on every GPU of an EP rank; backward takes `BACKWARD_OVER_FORWARD` times it.

    An MoE block takes `attention_s + moe_s`, a dense one `attention_s + dense_s`.
    """

    attention_s: Any
    moe_s: Any
    dense_s: Any


def block_flops(workload: Workload) -> BlockFlops:
    """Forward floating-point operations of the parts of a block.

    Two per parameter and token, and causal attention scores: half of the full square. The MoE part counts the
    gate, top-k routed experts and the shared experts, under balanced load: an EP rank computes as many
    selections as its own gate makes. `dense` is 0 for a model without dense blocks.
    """
    model, tokens = workload.architecture, workload.tokens
    scores = workload.sequence * model.attention.score_width
    routed = model.gate_params + model.top_k * model.expert_params + model.shared_params
    return BlockFlops(
        attention=tokens * (2 * model.attention_params + scores),
        moe=tokens * 2 * routed,
        dense=tokens * 2 * model.dense_params,
    )


def block_seconds(workload: Workload, gpu: Gpu, efficiency: Any = 0.5) -> BlockSeconds:
    """Forward seconds of the parts of a block, the TP group sharing the work evenly.

    - `efficiency`: achieved over peak FLOP/s, a number or a traced scalar. Above 1 is allowed: calibration
      against published iteration times asks for it.
    """
    checks.positive("efficiency", efficiency)
    rate = workload.tp * gpu.bf16_flops * efficiency
    return BlockSeconds(*(float(flops) / rate for flops in block_flops(workload)))
