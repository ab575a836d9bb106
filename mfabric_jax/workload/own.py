"""A model of one's own, from a `.toml` or `.json` file: fields of an architecture and of a set-up, or the `config.json`
of a released model."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax import checks
from mfabric_jax.checks import InputError
from mfabric_jax.text_files import PARSERS, read_mapping
from mfabric_jax.workload import released
from mfabric_jax.workload.attention import GroupedQuery, Latent, Linear, Mixed
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.parallel import PRECISION, Workload

CONFIG = "config.json"
SNAPSHOT = re.compile("[0-9a-f]{40}")  # a folder of a download, called by its commit
KINDS = {"grouped-query": GroupedQuery, "latent": Latent, "linear": Linear}
OF_ARCHITECTURE = {field.name: field for field in dataclasses.fields(Architecture)}
OF_SET_UP = [field.name for field in dataclasses.fields(Workload)]
OF_SET_UP = [name for name in OF_SET_UP if name not in ("model", "architecture", "known_as")]
OF_MODEL = [name for name in OF_ARCHITECTURE if name not in ("name", "source")]


class OwnModel(NamedTuple):
    """What a file says: the model, and fields of its set-up as far as they are given."""

    architecture: Architecture
    set_up: dict[str, Any]


def is_model_file(text: str) -> bool:
    """Whether a text names a file of a model, or a folder with one, and not one of the catalogue."""
    return Path(text).suffix.lower() in PARSERS or (Path(text) / CONFIG).is_file()


def read_model(path: str | Path) -> OwnModel:
    """The model of a file, or of the `config.json` in a folder.

    `InputError` for a file that cannot be read, an unknown field, one that is missing or wrong.
    """
    path = Path(path)
    path = path / CONFIG if path.is_dir() else path
    try:
        seen = path.stat()
    except OSError:
        return _read(str(path), 0, 0)  # says why not
    return _read(str(path), seen.st_mtime_ns, seen.st_size)


@functools.lru_cache(maxsize=64)
def _read(path: str, changed_ns: int, size: int) -> OwnModel:
    """`read_model`, again only where the file has changed."""
    given, named = read_mapping(path, "facts of a model"), repr(path)
    name = given.get("name", _name(Path(path), given))
    if not isinstance(name, str) or not name.strip() or set(name) & set(":,\n"):
        raise InputError(f"name of {named} must be text without : and , in it, got {name!r:.80}.")
    try:
        if released.KEY in given:
            facts, set_up = released.released_facts(given, named), {}
            source = f"{given[released.KEY]} layout of {Path(path).name}"
        else:
            facts, set_up, source = _own(given)
        return OwnModel(Architecture(name=name, source=source, **facts), set_up)
    except InputError as mistake:
        raise mistake if named in str(mistake) else InputError(f"{named}: {mistake}") from None


def _name(path: Path, given: Mapping[str, Any]) -> str:
    """What a model is called after its file, or its folder where that is a `config.json`."""
    if path.name != CONFIG:
        return path.stem
    folder = path.resolve().parent
    if SNAPSHOT.fullmatch(folder.name):
        folder = Path(folder.parent.parent.name.split("--")[-1])
    return re.sub("[:,]", "-", folder.name or str(given.get("_name_or_path", "model")))


def _own(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Fields of the architecture, of the set-up, and the source."""
    for field in given:
        checks.one_of("field of a model", field, ("name", "source", *OF_MODEL, *OF_SET_UP, PRECISION))
    needed = [name for name in OF_MODEL if OF_ARCHITECTURE[name].default is dataclasses.MISSING]
    if missing := [name for name in needed if name not in given]:
        raise InputError(f"a model needs {', '.join(missing)}.")
    facts = {name: given[name] for name in OF_MODEL if name in given}
    facts["attention"] = _attention(given["attention"])
    if isinstance(which := facts.get("dense_blocks"), list):
        facts["dense_blocks"] = tuple(which)
    source = given.get("source", "a file of one's own")
    if not isinstance(source, str):
        raise InputError(f"source must be text, got {source!r:.80}.")
    set_up = {name: given[name] for name in (*OF_SET_UP, PRECISION) if name in given}
    for name, value in set_up.items():
        if not isinstance(value, str | float | int):
            raise InputError(f"{name} must be one number or word, got {value!r:.80}.")
    return facts, set_up, source


def _attention(given: Any) -> Any:
    """One kind of attention from a table, or several from a list of tables with `blocks`."""
    if isinstance(given, list):
        parts = [dict(_table(one)) for one in given]
        return Mixed(tuple((_kind(one), one["blocks"]) for one in parts if _has_blocks(one)))
    return _kind(_table(given), alone=True)


def _table(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        form = "{ heads = 32, kv_heads = 8, head_dim = 128 }"
        raise InputError(f"attention must be a table such as {form}, got {given!r:.80}.")
    return given


def _has_blocks(given: Mapping[str, Any]) -> bool:
    if "blocks" not in given:
        raise InputError("every table of attention must say of how many blocks it is (blocks).")
    return True


def _kind(given: Mapping[str, Any], alone: bool = False) -> Any:
    """`kind` may be left out: "latent" has a `kv_rank`, else it is "grouped-query"."""
    name = given.get("kind", "latent" if "kv_rank" in given else "grouped-query")
    kind = KINDS[checks.one_of("attention.kind", name, KINDS)]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {key: value for key, value in given.items() if key != "kind" and (alone or key != "blocks")}
    for key in values:
        checks.one_of(f"field of {name} attention", key, ("kind", *fields))
    needed = [key for key, field in fields.items() if field.default is dataclasses.MISSING]
    if missing := [key for key in needed if key not in values]:
        raise InputError(f"{name} attention needs {', '.join(missing)}.")
    return kind(**values)
