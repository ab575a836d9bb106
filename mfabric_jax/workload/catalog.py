"""The named workloads of arXiv 2501.03905: model, number of GPUs and degrees of parallelism.

The paper does not state the DP degrees of Mixtral 8x7B, LLaMA-MoE and Qwen-MoE, the top-k of LLaMA-MoE, and
micro-batches (one per pipeline stage here); these values are inferred. It is read as all-reducing attention alone.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax import checks
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.support.text_files import PARSERS
from mfabric_jax.workload import models
from mfabric_jax.workload.models import CONFIG, OF_MODEL
from mfabric_jax.workload.parallel import DEGREES, Workload

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
_own = LazyModule("mfabric_jax.workload.own")


def get(model: str, **overrides: Any) -> Workload:
    """Return the workload that the paper simulates for a model name.

    - `overrides`: replace fields of `Workload` or `Architecture`.

    `gpus` follows from the degrees unless it is stated, and `dp` follows from `gpus` and the other degrees. Use
    `resolve(Case().with_({"model.name": FILE})).job` for a model from a file. Raise `InputError` for an unknown name or
    field, and `Misfit` for values that do not fit together.
    """
    facts = {**_FACTS[checks.one_of("model", model, NAMES)], "known_as": model, "tp_reduces": "attention"}
    of_job = [field.name for field in dataclasses.fields(Workload) if field.name not in ("model", "architecture")]
    for field in overrides:
        checks.one_of("workload setting", field, sorted({*of_job, *OF_MODEL}))
    facts |= {field: value for field, value in overrides.items() if field in of_job}
    try:
        if changed := {field: value for field, value in overrides.items() if field in OF_MODEL}:
            facts["architecture"] = dataclasses.replace(facts["architecture"], **changed)
        return Workload.of(model, **_spread(facts, overrides))
    except InputError as mistake:
        raise Misfit(f"{model}: {mistake}") from None


def _spread(facts: dict[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    for name in (*DEGREES, "gpus"):
        checks.whole(name, facts[name])
    ranks = math.prod(facts[name] for name in DEGREES if name != "dp")
    if "gpus" not in stated:
        return facts | {"gpus": facts["dp"] * ranks}
    if "dp" in stated:
        return facts
    if facts["gpus"] % ranks:
        raise InputError(f"gpus must be a multiple of tp x ep x pp = {ranks}, got {facts['gpus']}.")
    return facts | {"dp": facts["gpus"] // ranks}


class NamedModel(NamedTuple):
    """A named model: label in rows, dimensions, `job` settings from its file, and the name under which figures for it
    are published ("" for none)."""

    label: str
    architecture: models.Architecture
    set_up: dict[str, Any]
    known_as: str = ""


@functools.cache
def public_files() -> dict[str, str]:
    """Return the files of published models that the paper does not simulate, by name."""
    folder = resources.files("mfabric_jax.workload") / "public"
    files = sorted(str(file) for file in folder.iterdir() if file.name.endswith(".toml"))
    return {Path(file).stem: file for file in files}


def get_model(name: str, changed: Mapping[str, Any] | None = None) -> NamedModel:
    """Return a model by catalogue name or name of a published model, from a `.toml` or `.json` file, or from a released
    `config.json`.

    - `changed`: replaces `Architecture` fields.

    Raise `InputError` for an unknown name, an unreadable file or impossible dimensions.
    """
    if Path(name).suffix.lower() in PARSERS or (Path(name) / CONFIG).is_file():
        architecture, set_up = _own.read_model(name)
        model = NamedModel(architecture.name, architecture, set_up)
    elif name in public_files():
        model = NamedModel(name, _own.read_model(public_files()[name])[0], {})
    else:
        allowed = [*NAMES, *public_files(), "FILE.toml", "FILE.json", f"a folder with a released {CONFIG}"]
        facts = _FACTS[checks.one_of("model.name", name, allowed)]
        model = NamedModel(name, facts["architecture"], {}, name)
    return model._replace(architecture=dataclasses.replace(model.architecture, **changed)) if changed else model
