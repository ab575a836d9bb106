"""Predicted and measured seconds of a single MoE layer (`layers.toml`): kernels and dispatch without a training step.

Kernels run short, so clocks are those of short runs; all ranks start together, so none waits for the last one.
"""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from math import comb
from typing import Any

from mfabric_jax import units
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload.block_kernels import CAST_BYTES, BlockKernels, PassSeconds
from mfabric_jax.workload.kernels import ONCE_A_SERVER, shares_of, training_rates
from mfabric_jax.workload.measured_kernels import by_size, measured_kernels, pointwise_s
from mfabric_jax.workload.mixers import GroupedQuery
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.parallel import Workload

GPU, GPUS, TOKENS = "H100-SXM", 8, 4096


def layer_rows() -> Iterator[dict[str, Any]]:
    """Yield a row per measured layer: predicted and measured seconds, forward, backward and together, and errors
    (predicted / measured - 1)."""
    text = (resources.files("mfabric_jax.apps.validation") / "layers.toml").read_text(encoding="utf-8")
    for model, facts in tomllib.loads(text).items():
        for dispatcher in ("nccl", "deepep", "hybridep"):
            for precision, measured in facts[dispatcher].items():
                own = layer_seconds(facts, dispatcher, precision)
                measured_s = [float(units.ms(each)) for each in measured]
                error = sum(own) / sum(measured_s) - 1
                row: dict[str, Any] = {"row": f"{model}, {dispatcher}, {precision}", "model": model}
                row |= {"predicted_s": sum(own), "measured_s": sum(measured_s), "error": error}
                for name, predicted, each in zip(("forward", "backward"), own, measured_s, strict=True):
                    row |= {f"{name}_s": predicted, f"measured_{name}_s": each, f"{name}_error": predicted / each - 1}
                yield row


def layer_seconds(facts: Mapping[str, Any], dispatcher: str, precision: str) -> tuple[float, float]:
    """Return the seconds of a layer's forward and backward pass. `facts`: of its model in `layers.toml`."""
    job, gpu = _workload(facts, dispatcher), get_gpu(GPU)
    kernels, rates = measured_kernels(gpu), training_rates(gpu)._replace(sustained=1.0)
    block = BlockKernels(job, kernels, rates, precision)
    work: PassSeconds = block.router() + block.experts()
    cast = job.experts_per_rank * job.architecture.expert_params * CAST_BYTES if precision == "fp8" else 0.0
    sent = 2 * _sent_s(facts, job, gpu, dispatcher)
    return work.forward + float(pointwise_s(kernels, 1, cast)) + sent, work.inputs + work.weights + sent


def _workload(facts: Mapping[str, Any], dispatcher: str) -> Workload:
    model = Architecture(
        name="layer",
        blocks=1,
        hidden=facts["hidden"],
        attention=GroupedQuery(8, 8, facts["hidden"] // 8),
        experts=facts["experts"],
        top_k=facts["top_k"],
        expert_hidden=facts["expert_hidden"],
        source="moe_perf",
    )
    job = Workload(
        "layer", model, dp=1, tp=1, pp=1, ep=GPUS, gpus=GPUS, micro_batch=1, micro_batches=1, sequence=TOKENS
    )
    return dataclasses.replace(job, dispatch="per-server") if dispatcher in ONCE_A_SERVER else job


def _sent_s(facts: Mapping[str, Any], job: Workload, gpu: Any, dispatcher: str) -> float:
    """Seconds of a dispatch or combine: bytes that leave a GPU, at the dispatcher's share of NVLink."""
    share = by_size(shares_of(1, dispatcher), job, gpu, dispatcher).nvlink
    copies = count_reached_gpus(facts) if dispatcher in ONCE_A_SERVER else facts["top_k"]
    leaving = TOKENS * copies * (GPUS - 1) / GPUS * job.dispatch_bytes_per_selection
    return leaving / (gpu.nvlink * share)


def count_reached_gpus(facts: Mapping[str, Any]) -> float:
    """Return the mean number of GPUs with an expert of a token; in `top_groups` groups, one a GPU, where stated."""
    groups = facts.get("top_groups", GPUS)
    each = facts["experts"] // GPUS
    some = groups * each
    missed = comb(some - each, facts["top_k"]) / comb(some, facts["top_k"])
    return groups * (1 - missed)
