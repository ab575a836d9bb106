"""The named workloads: which model runs on how many GPUs with which parallelism.

As simulated in arXiv 2501.03905. Inferred where it is silent: the DP degrees of Mixtral 8x7B, LLaMA-MoE and
Qwen-MoE, the top-k of LLaMA-MoE, and one micro-batch per pipeline stage.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax import checks
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.workload import models
from mfabric_jax.workload.gpus import DEFAULT_GPU, GPUS, Gpu
from mfabric_jax.workload.own import CONFIG, OF_MODEL, OF_SET_UP, is_model_file, read_model
from mfabric_jax.workload.parallel import DEGREES, PRECISION, Workload, in_bytes
from mfabric_jax.workload.set_ups import completed, finished, is_degree

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

OF_ONE = re.compile(r"(?P<model>.+?)(?P<given>(:[\w-]+=[^:]*)+)")  # NAME:field=value:field=value


class _Asked(NamedTuple):
    """A model as it is asked for: its `label` in rows, fields of its `Workload`, what is given for it alone, and
    whether it is one's own, so that its set-up may be open."""

    label: str
    facts: dict[str, Any]
    given: dict[str, Any]
    own: bool


def get(model: str | Path | Workload, *, server: Gpu = GPUS[DEFAULT_GPU], **overrides: Any) -> Workload:
    """A model on its GPUs, with any field of `Workload` or `Architecture`, or `precision`, replaced.

    - `model`: a name of the catalogue; a `.toml` or `.json` file of your own, or the `config.json` of a released model,
      or its folder (docs/models.md); a `Workload`; each with fields of its own, as in "qwen-moe:ep=16:dp=16".

    - `server`: the GPU and its server, for degrees that are found.

    `gpus` follows from the degrees unless it is given; `dp` from `gpus` and the other degrees. A file that leaves
    degrees open gets the quickest that fit, by estimate, and enough micro-batches for a bubble of at most 15 %. Raises
    `InputError` for an unknown name or field, and for values that do not fit together.
    """
    asked = _asked(model)
    given = in_bytes(overrides | asked.given)
    for field in given:
        checks.one_of("workload setting", field, sorted({*OF_SET_UP, *OF_MODEL, PRECISION}))
    facts = asked.facts | {field: value for field, value in given.items() if field in OF_SET_UP}
    try:
        if changed := {field: _tuple(value) for field, value in given.items() if field in OF_MODEL}:
            facts["architecture"] = dataclasses.replace(facts["architecture"], **changed)
        facts = _spread(facts, given)
        if asked.own:
            facts = _own_set_up(facts, server)
        return Workload.of(asked.label, **facts)
    except InputError as mistake:
        raise Misfit(f"{asked.label}: {mistake}") from None


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


def check_models(field: str, given: Sequence[str | Path | Workload]) -> None:
    """`InputError` for models that are none, for no model, and for two that have one name in rows."""
    if not checks.listed(field, given):
        raise InputError(f"{field} must name at least one; allowed: {', '.join(NAMES)}, a .toml or .json file.")
    labels = [_asked(model, field).label for model in given]
    if len(set(labels)) < len(labels):
        raise InputError(f"{field} must not repeat a name, got {', '.join(labels)}.")


def model_file(model: str | Workload) -> Path | None:
    """The file of a model of one's own; None for one of the catalogue, and for a `Workload`."""
    if isinstance(model, Workload):
        return None
    found = OF_ONE.fullmatch(model)
    text = found["model"] if found else model
    if not is_model_file(text):
        return None
    return Path(text) / CONFIG if Path(text).is_dir() else Path(text)


def _asked(model: str | Path | Workload, field: str = "model") -> _Asked:
    if isinstance(model, Workload):
        facts = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.name != "model"}
        return _Asked(model.model, facts, {}, False)
    text, given, behind = str(model), {}, ""
    if found := OF_ONE.fullmatch(text):
        text, behind = found["model"], found["given"]
        given = {
            name.replace("-", "_"): _value(value)
            for name, _, value in (one.partition("=") for one in behind[1:].split(":"))
        }
    if is_model_file(text):
        own = read_model(text)
        facts = in_bytes(own.set_up) | {"architecture": own.architecture}
        return _Asked(own.architecture.name + behind, facts, given, True)
    try:
        checks.one_of(field, text, NAMES)
    except InputError as mistake:
        raise InputError(f"{str(mistake).removesuffix('.')}, or a .toml or .json file.") from None
    return _Asked(text + behind, _FACTS[text] | {"known_as": text}, given, False)


def _value(text: str) -> Any:
    """A number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _spread(facts: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`gpus` from the degrees, or `dp` from `gpus` and the others, where they are not given and all else is known."""
    others = [facts.get(name, 0) for name in DEGREES if name != "dp"]
    numbers = [*others, facts.get("dp", 1), facts.get("gpus", 1)]
    if not all(map(is_degree, numbers)):
        return facts  # open, or refused later
    ranks = math.prod(others)
    if "gpus" in facts and "dp" not in given and ("gpus" in given or "dp" not in facts):
        if facts["gpus"] % ranks:
            raise InputError(f"gpus must be a multiple of tp x ep x pp = {ranks}, got {facts['gpus']}.")
        return facts | {"dp": facts["gpus"] // ranks}
    if "dp" in facts and "gpus" not in given and (set(given) & set(DEGREES) or "gpus" not in facts):
        return facts | {"gpus": facts["dp"] * ranks}
    return facts


def _own_set_up(facts: dict[str, Any], server: Gpu) -> dict[str, Any]:
    """With the degrees and micro-batches that a file leaves open; they do not depend on the fabric."""
    if any(name not in facts for name in (*DEGREES, "gpus")):
        of_server = {name: facts[name] for name in ("gpus_per_server",) if name in facts}
        open_still = {name: value for name, value in facts.items() if name not in of_server}
        facts = completed(open_still, server) | of_server
    return finished(facts)
