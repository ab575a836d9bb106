"""Parquet files as pyarrow tables; loaded by `extras.load_extra`, since pyarrow is an extra."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute, parquet, types

from mfabric_jax.support.unpacking import VALUE, bytes_of, check_size


def save_table(table: Any, path: Path) -> None:
    """Write a pyarrow table; pyarrow itself takes only UTF-8 paths."""
    with path.open("wb") as file:
        parquet.write_table(table, file)


def table_of(columns: Mapping[str, np.ndarray], metadata: Mapping[bytes, str]) -> Any:
    """Return a pyarrow table of columns; NaN becomes null, and values that are not Python scalars become text."""
    arrays = {name: _array(values) for name, values in columns.items()}
    return pyarrow.table(arrays).replace_schema_metadata(dict(metadata))


def _array(values: np.ndarray) -> Any:
    if len(values) and values.strides == (0,):  # one value for all rows
        return pyarrow.repeat(_array(np.array(values[:1]))[0], len(values))
    if values.dtype != object:
        return pyarrow.array(values, from_pandas=True)
    plain = str | int | float | bool | None  # a column of only None has the type "null"
    return pyarrow.array([value if isinstance(value, plain) else str(value) for value in values.tolist()])


def read_parquet(path: str | Path, source: Any) -> Any:
    """Return the table in a parquet file, read from `source`, of at most `unpacking.most_bytes`.

    Texts are read as dictionaries first, so that repeated texts are counted before they are expanded.
    """
    packed = bytes_of(path)
    about = parquet.ParquetFile(source).metadata
    columns, needed = [about.schema.column(number) for number in range(about.num_columns)], 0
    for group in map(about.row_group, range(about.num_row_groups)):
        for number, column in enumerate(columns):
            chunk, wide = group.column(number), max(VALUE, column.length or 0)
            needed += max(wide * chunk.num_values, chunk.total_uncompressed_size)
    check_size(path, needed, packed)
    texts = [field.path for field in columns if field.physical_type == "BYTE_ARRAY" and not field.max_repetition_level]
    file = parquet.ParquetFile(source, read_dictionary=texts)
    table = file.read(use_threads=False)  # threads at the end of the process abort it: apache/arrow#34314
    check_size(path, table.nbytes + sum(map(_text_bytes, table.columns)), packed)
    plain = [field.with_type(field.type.value_type) if _is_dictionary(field.type) else field for field in table.schema]
    return table.cast(pyarrow.schema(plain, table.schema.metadata))


def _is_dictionary(kind: Any) -> bool:
    return types.is_dictionary(kind)


def _text_bytes(column: Any) -> int:
    """Return the bytes of a column's texts after expansion."""
    length, sum_of = (getattr(compute, name) for name in ("binary_length", "sum"))  # defined at import
    parts = column.chunks if _is_dictionary(column.type) else ()
    return sum(sum_of(length(part.dictionary).take(part.indices)).as_py() or 0 for part in parts)
