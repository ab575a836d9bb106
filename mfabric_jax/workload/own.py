"""Models from a user's `.toml` or `.json` file, or from a released `config.json`."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mfabric_jax import checks
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import read_mapping
from mfabric_jax.workload.mixers import Attention, GatedDelta, GroupedQuery, Latent, Linear, Mamba1, Mamba2, Mixed
from mfabric_jax.workload.models import CONFIG, OF_MODEL, Architecture
from mfabric_jax.workload.released import KEY, released_facts

SNAPSHOT = re.compile("[0-9a-f]{40}")  # name of a downloaded folder: its commit
NONE = "none"  # the kind of blocks without a mixer
KINDS: dict[str, Any] = {
    **{"grouped-query": GroupedQuery, "latent": Latent, "linear": Linear, "gated-delta": GatedDelta},
    **{"state-space": Mamba2, "mamba-1": Mamba1},
    NONE: lambda: None,
}
OF_JOB = {  # fields of a model file that are settings of `job`, with their paths there
    **{name: f"parallel.{name}" for name in ("tp", "etp", "ep", "dp", "pp", "gpus", "cp", "tp_reduces")},
    **{name: f"batch.{name}" for name in ("micro_batch", "micro_batches", "sequence")},
    **{
        "dispatch_bytes": "precision.dispatch",
        "combine_bytes": "precision.combine",
        "grad_bytes": "precision.gradients",
    },
    **{name: name for name in ("schedule", "recompute", "sharding", "dispatch", "precision")},
    "chunks": "interleaved.chunks",
    "node_limit": "per-server.node_limit",
}


def read_model(path: str | Path) -> tuple[Architecture, dict[str, Any]]:
    """Return the model in a file or in a folder's `config.json`, and the file's `job` settings by path.

    Raise `InputError` for an unreadable file, and for an unknown, missing or wrong field.
    """
    path = Path(path)
    path = path / CONFIG if path.is_dir() else path
    values, named = read_mapping(path, "facts of a model"), repr(str(path))
    name = values.get("name", _name(path, values))
    if not isinstance(name, str) or not name.strip() or set(name) & set(":,\n"):
        raise InputError(f"name of {named} must be text without : and , in it, got {name!r:.80}.")
    try:
        if KEY in values:
            return Architecture(
                name=name, source=f"{values[KEY]} layout of {path.name}", **released_facts(values, named)
            ), {}
        return Architecture(name=name, **_own(values)), _job(values)
    except InputError as mistake:
        raise mistake if named in str(mistake) else InputError(f"{named}: {mistake}") from None


def _name(path: Path, values: Mapping[str, Any]) -> str:
    if path.name != CONFIG:
        return path.stem
    folder = path.resolve().parent
    if SNAPSHOT.fullmatch(folder.name):
        folder = Path(folder.parent.parent.name.split("--")[-1])
    return re.sub("[:,]", "-", folder.name or str(values.get("_name_or_path", "model")))


# -------------------------------------------------------------------------------------------------------- a user's file


def _own(values: Mapping[str, Any]) -> dict[str, Any]:
    for field in values:
        checks.one_of("field of a model", field, ("name", "source", *OF_MODEL, *OF_JOB))
    _check_needed("a model", OF_MODEL, values)
    facts = {"source": "a user's file"} | {name: values[name] for name in ("source", *OF_MODEL) if name in values}
    if not isinstance(facts["source"], str):
        raise InputError(f"source must be text, got {facts['source']!r:.80}.")
    facts["attention"] = _attention(values["attention"])
    for name in ("dense_blocks", "bare_blocks"):
        if isinstance(which := facts.get(name), list):
            facts[name] = tuple(which)
    return facts


def _job(values: Mapping[str, Any]) -> dict[str, Any]:
    for name in OF_JOB:
        if not isinstance(values.get(name, 0), str | float | int):
            raise InputError(f"{name} must be one number or word, got {values[name]!r:.80}.")
    return {path: values[name] for name, path in OF_JOB.items() if name in values}


def _check_needed(what: str, fields: Mapping[str, dataclasses.Field], values: Mapping[str, Any]) -> None:
    needed = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    if missing := [name for name in needed if name not in values]:
        raise InputError(f"{what} needs {', '.join(missing)}.")


def _attention(value: Any) -> Attention:
    if not isinstance(value, list):
        return _kind(value)
    parts = []
    for table in value:
        if not isinstance(table, Mapping) or "blocks" not in table:
            raise InputError("every table of attention must state its number of blocks (blocks).")
        parts.append((_kind({key: part for key, part in table.items() if key != "blocks"}), table["blocks"]))
    return Mixed(tuple(parts))


def _kind(table: Any) -> Any:
    """The attention of a table. A missing `kind` is "latent" if there is a `kv_rank`, else "grouped-query"."""
    if not isinstance(table, Mapping):
        form = "{ heads = 32, kv_heads = 8, head_dim = 128 }"
        raise InputError(f"attention must be a table such as {form}, got {table!r:.80}.")
    name = table.get("kind", "latent" if "kv_rank" in table else "grouped-query")
    kind = KINDS[checks.one_of("attention.kind", name, KINDS)]
    fields = {field.name: field for field in dataclasses.fields(kind)} if name != NONE else {}
    for key in table:
        checks.one_of(f"field of {name} attention", key, ("kind", *fields))
    _check_needed(f"{name} attention", fields, table)
    return kind(**{key: value for key, value in table.items() if key != "kind"})
