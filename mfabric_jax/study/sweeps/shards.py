"""The folder of a sweep: its configuration, and parquet files of rows that are there whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mfabric_jax.atomic import replacing
from mfabric_jax.checks import InputError
from mfabric_jax.extras import extra

CONFIG = "sweep.json"
METADATA_KEY = b"mfabric"  # as in every file of rows


def path_of(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"rows-{number:05d}.parquet"


def claim(folder: Path, config: Mapping[str, Any]) -> None:
    """Make the folder that of this sweep. `InputError` if it is another's, or cannot be written."""
    path, text = folder / CONFIG, json.dumps(dict(config), indent=1)
    if path.exists():
        _check_same(path, json.loads(text))
        return
    if any(folder.glob("rows-*.parquet")):
        raise InputError(f"{str(folder)!r} holds rows without {CONFIG}, which says of what; give another folder.")
    with replacing(path) as (part,):
        part.write_text(text + "\n", encoding="utf-8")


def _check_same(path: Path, config: Mapping[str, Any]) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r} ({error}); give another folder.") from None
    for name in {**found, **config}:
        if found.get(name) != config.get(name):
            was, now = found.get(name), config.get(name)
            raise InputError(
                f"{str(path.parent)!r} holds another sweep: {name} was {was!r}, now {now!r}; give another folder."
            )


def write(path: Path, columns: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
    """One shard; `config` goes into its footer. Not-a-number is no value."""
    with extra("store", "writing .parquet"):
        import pyarrow
        from pyarrow import parquet
    arrays = {name: _array(pyarrow, values) for name, values in columns.items()}
    text = json.dumps(dict(config), default=str)
    table = pyarrow.table(arrays).replace_schema_metadata({METADATA_KEY: text.encode()})
    with replacing(path) as (part,):
        parquet.write_table(table, part)
    return path


def _array(pyarrow: Any, values: np.ndarray) -> Any:
    if values.dtype != object:
        return pyarrow.array(values, from_pandas=True)
    plain = [value if isinstance(value, str | int | float | bool | None) else str(value) for value in values.tolist()]
    return pyarrow.array(plain)  # of nothing but None: of the kind "null", which fits any other
