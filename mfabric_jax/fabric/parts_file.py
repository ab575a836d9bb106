"""The table of parts (`parts.toml`) and a user's own in its form, whose names win."""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.text_files import read_mapping

Table = dict[str, Any]
TABLES = ("watts", "gpus", "servers", "ocs", "running", "source")
BY_NAME = ("gpus", "servers", "ocs")  # tables of tables
UNPUBLISHED = ("scale_up_per_gpu", "co_packaged_per_gpu")


@functools.cache
def packaged() -> Table:
    """What the package knows of parts."""
    return tomllib.loads((resources.files("mfabric_jax.fabric") / "parts.toml").read_text(encoding="utf-8"))


def prices_by_part() -> tuple[str, ...]:
    """Names that stand for themselves, in no table: dollars of a part of the network."""
    return (*(name for name, value in packaged().items() if not isinstance(value, dict)), *UNPUBLISHED)


def with_own(path: str | Path | None) -> tuple[Table, Table]:
    """The table with the entries of a `.toml` or `.json` file in place of those of the package, and the file alone.

    `InputError` for a name that no table has, and for a value where a table should be.
    """
    own = {} if path is None else read_mapping(path, "prices")
    for name, value in own.items():
        one_of("price", name, (*prices_by_part(), *TABLES))
        if name in TABLES:
            _table(name, value)
    for table in BY_NAME:
        for name, entry in own.get(table, {}).items():
            _table(f"{table}.{name}", entry)
    found = {name: _merged(packaged().get(name), own.get(name), name in BY_NAME) for name in {**packaged(), **own}}
    return found, own


def _table(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a table of values by name, got {value!r:.80}.")


def _merged(known: Any, own: Any, by_name: bool) -> Any:
    if not isinstance(known, dict):
        return known if own is None else own
    own = own or {}
    if by_name:
        return {name: {**known.get(name, {}), **own.get(name, {})} for name in {**known, **own}}
    return {**known, **own}
