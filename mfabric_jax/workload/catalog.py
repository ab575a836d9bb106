"""The named workloads: which model runs on how many GPUs with which parallelism.

As simulated in arXiv 2501.03905. Inferred where it is silent: the DP degrees of Mixtral 8x7B, LLaMA-MoE and
Qwen-MoE, the top-k of LLaMA-MoE, and one micro-batch per pipeline stage.
"""

import dataclasses
from typing import Any

from mfabric_jax import checks
from mfabric_jax.workload import models
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.parallel import Workload

_FACTS: dict[str, dict[str, Any]] = {
    "mixtral-8x22b": {"architecture": models.MIXTRAL_8X22B, "dp": 2, "tp": 8, "pp": 8, "ep": 8, "gpus": 1024},
    "mixtral-8x7b": {"architecture": models.MIXTRAL_8X7B, "dp": 8, "tp": 4, "pp": 4, "ep": 8, "gpus": 1024},
    "llama-moe": {"architecture": models.LLAMA_MOE, "dp": 16, "tp": 1, "pp": 4, "ep": 16, "gpus": 1024},
    "qwen-moe": {"architecture": models.QWEN_MOE, "dp": 8, "tp": 1, "pp": 4, "ep": 32, "gpus": 1024},
    "qwen-moe-ep16": {"architecture": models.QWEN_MOE, "dp": 16, "tp": 1, "pp": 4, "ep": 16, "gpus": 1024},
    "deepseek-r1": {"architecture": models.DEEPSEEK_V3, "dp": 1, "tp": 1, "pp": 16, "ep": 64, "gpus": 1024},
    # The paper's "micro-batch 240", read as 240 micro-batches of one sequence.
    "deepseek-v3": {
        "architecture": models.DEEPSEEK_V3,
        **{"dp": 1, "tp": 1, "pp": 16, "ep": 128, "gpus": 2048, "micro_batch": 1, "micro_batches": 240},
    },
}
NAMES = tuple(_FACTS)

_OF_WORKLOAD = {field.name for field in dataclasses.fields(Workload)} - {"model"}
_OF_ARCHITECTURE = {field.name for field in dataclasses.fields(Architecture)} - {"name", "source"}


def get(name: str, **overrides: Any) -> Workload:
    """The workload of that name, with any field of `Workload` or `Architecture` replaced (`ep=16`, `blocks=7`).

    A degree that is replaced does not change `gpus`: name both. Raises `InputError` for an unknown name or
    field, and for values that do not fit together.
    """
    checks.one_of("model", name, NAMES)
    for field in overrides:
        checks.one_of("workload setting", field, sorted(_OF_WORKLOAD | _OF_ARCHITECTURE))
    facts = _FACTS[name] | {field: value for field, value in overrides.items() if field in _OF_WORKLOAD}
    changed = {field: value for field, value in overrides.items() if field in _OF_ARCHITECTURE}
    if changed:
        facts["architecture"] = dataclasses.replace(facts["architecture"], **changed)
    return Workload(model=name, **facts)
