"""Rows as pyarrow tables; `rows` loads this module for .parquet files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import types

from mfabric_jax.checks import InputError
from mfabric_jax.support import parquet
from mfabric_jax.support.parquet import save_table as save_table


def read(path: Path, data: bytes) -> Any:
    """Return the table in the bytes of a parquet file."""
    return parquet.read_parquet(path, pyarrow.BufferReader(data))


def _utf8(text: str) -> str:
    """Escape bytes that are not text, as a CSV file does."""
    return text.encode("utf-8", "backslashreplace").decode()


def table_of(columns: Mapping[str, list[Any]]) -> Any:
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pyarrow.array([_utf8(value) if isinstance(value, str) else value for value in values])
        except pyarrow.ArrowException as error:
            raise InputError(f"column {name!r} mixes kinds of values ({error}); .csv can hold it.") from error
    return pyarrow.table(arrays)


def check_kinds(schema: Any) -> None:
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    for field in schema:
        if not any(is_kind(field.type) for is_kind in (*plain, types.is_null)):
            raise ValueError(f"column {field.name!r:.80} is of {field.type}, not of numbers, text, true or false")


def texts_in(table: Any) -> list[str]:
    """Return the names of the columns that hold text."""
    return [name for name in table.column_names if types.is_string(table.schema.field(name).type)]
