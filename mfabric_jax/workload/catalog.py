"""The named workloads: which model runs on how many GPUs with which parallelism.

As simulated in arXiv 2501.03905. Inferred where it is silent: the DP degrees of Mixtral 8x7B, LLaMA-MoE and
Qwen-MoE, the top-k of LLaMA-MoE, and one micro-batch per pipeline stage.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mfabric_jax import checks
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.workload import models
from mfabric_jax.workload.own import OF_MODEL, OF_SET_UP, is_model_file, read_model
from mfabric_jax.workload.parallel import DEGREES, PRECISION, Workload, in_bytes
from mfabric_jax.workload.set_ups import is_degree

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


def get(model: str | Workload, **overrides: Any) -> Workload:
    """A job as the paper simulates it, by the name of its model, or a `Workload`; with fields replaced.

    - `overrides`: fields of `Workload` or `Architecture`, or `precision`. `gpus` follows from the degrees unless it is
      given; `dp` from `gpus` and the other degrees.

    Files of models, and set-ups that are found: `resolve(Case().with_({"model.name": FILE})).job`. `InputError` for an
    unknown name or field, `Misfit` for values that do not fit together.
    """
    given = in_bytes(overrides)
    for field in given:
        checks.one_of("workload setting", field, sorted({*OF_SET_UP, *OF_MODEL, PRECISION}))
    facts: dict[str, Any]
    if isinstance(model, Workload):
        label = model.model
        facts = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.name != "model"}
    else:
        label = checks.one_of("model", model, NAMES)
        facts = {**_FACTS[label], "known_as": label}
    facts = facts | {field: value for field, value in given.items() if field in OF_SET_UP}
    try:
        if changed := {field: value for field, value in given.items() if field in OF_MODEL}:
            facts["architecture"] = dataclasses.replace(facts["architecture"], **changed)
        return Workload.of(label, **_spread(facts, given))
    except InputError as mistake:
        raise Misfit(f"{label}: {mistake}") from None


class Model(NamedTuple):
    """A model as it is named: `label` in rows, its dimensions, what its file says of `job` (by path below it), and the
    name under which figures for it are published; empty: none are."""

    label: str
    architecture: models.Architecture
    set_up: dict[str, Any]
    known_as: str = ""


OF_JOB = {  # fields of a model file that say how it is run, and where they stand in `job`
    **{name: f"parallel.{name}" for name in (*DEGREES, "gpus", "cp", "tp_reduces")},
    **{name: f"batch.{name}" for name in ("micro_batch", "micro_batches", "sequence")},
    **{
        "dispatch_bytes": "precision.dispatch",
        "combine_bytes": "precision.combine",
        "grad_bytes": "precision.gradients",
    },
    **{name: name for name in ("schedule", "recompute", "sharding", "dispatch")},
    "chunks": "interleaved.chunks",
    "node_limit": "per-server.node_limit",
    "precision": "precision",
}


def get_model(name: str, changed: Mapping[str, Any] | None = None) -> Model:
    """A model by its name, from a `.toml` or `.json` file, or the `config.json` of a released one.

    - `changed`: fields of its `Architecture`, replaced.

    `InputError` for an unknown name, a file that cannot be read, and dimensions that no model has.
    """
    if is_model_file(name):
        own = read_model(name)
        for field in own.set_up:
            if field not in OF_JOB:
                raise InputError(f"{name!r}: {field} is no longer read from a model file; say it under job.")
        set_up = {OF_JOB[field]: value for field, value in own.set_up.items()}
        found = Model(own.architecture.name, own.architecture, set_up)
    else:
        try:
            checks.one_of("model.name", name, NAMES)
        except InputError as mistake:
            raise InputError(f"{str(mistake).removesuffix('.')}, or a .toml or .json file.") from None
        found = Model(name, _FACTS[name]["architecture"], {}, name)
    if not changed:
        return found
    return found._replace(architecture=dataclasses.replace(found.architecture, **changed))


def _spread(facts: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`gpus` from the degrees, or `dp` from `gpus` and the others, where they are not given."""
    others = [facts[name] for name in DEGREES if name != "dp"]
    if not all(map(is_degree, (*others, facts["dp"], facts["gpus"]))):
        return facts  # refused later
    ranks = math.prod(others)
    if "gpus" in given and "dp" not in given:
        if facts["gpus"] % ranks:
            raise InputError(f"gpus must be a multiple of tp x ep x pp = {ranks}, got {facts['gpus']}.")
        return facts | {"dp": facts["gpus"] // ranks}
    if "gpus" not in given and set(given) & set(DEGREES):
        return facts | {"gpus": facts["dp"] * ranks}
    return facts
