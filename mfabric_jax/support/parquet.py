"""Tables of pyarrow in .parquet files; loaded by `extras.needed`, since pyarrow is an extra."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute, parquet, types

from mfabric_jax.support.unpacking import VALUE, bytes_of, check_size


def save_table(table: Any, path: Path) -> None:
    """Write a table of pyarrow, which by itself takes no path that is not text in UTF-8."""
    with path.open("wb") as file:
        parquet.write_table(table, file)


def table_of(columns: Mapping[str, np.ndarray], metadata: Mapping[bytes, str]) -> Any:
    """NaN becomes null, and what is no scalar of Python its text."""
    arrays = {name: _array(values) for name, values in columns.items()}
    return pyarrow.table(arrays).replace_schema_metadata(dict(metadata))


def _array(values: np.ndarray) -> Any:
    if len(values) and values.strides == (0,):  # one value for all rows
        return pyarrow.repeat(_array(np.array(values[:1]))[0], len(values))
    if values.dtype != object:
        return pyarrow.array(values, from_pandas=True)
    plain = str | int | float | bool | None  # of nothing but None: of the kind "null", which fits any other
    return pyarrow.array([value if isinstance(value, plain) else str(value) for value in values.tolist()])


def read_parquet(path: str | Path, source: Any) -> Any:
    """The table in a parquet file, read from `source`, within `unpacking.most_bytes`.

    Long texts that repeat are read as a dictionary first, whose values are counted before they are laid out.
    """
    packed = bytes_of(path)
    about = parquet.ParquetFile(source).metadata
    columns, needed = [about.schema.column(number) for number in range(about.num_columns)], 0
    for group in map(about.row_group, range(about.num_row_groups)):
        for number, column in enumerate(columns):
            chunk, wide = group.column(number), max(VALUE, column.length or 0)
            needed += max(wide * chunk.num_values, chunk.total_uncompressed_size)
    check_size(path, needed, packed)
    texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY" and not one.max_repetition_level]
    file = parquet.ParquetFile(source, read_dictionary=texts)
    table = file.read(use_threads=False)  # threads that end with the process abort it: apache/arrow#34314
    check_size(path, table.nbytes + sum(map(_laid_out, table.columns)), packed)
    plain = [one.with_type(one.type.value_type) if _is_dictionary(one.type) else one for one in table.schema]
    return table.cast(pyarrow.schema(plain, table.schema.metadata))


def _is_dictionary(kind: Any) -> bool:
    return types.is_dictionary(kind)


def _laid_out(column: Any) -> int:
    """Bytes of a column's texts, each as often as it stands there."""
    length, sum_of = (getattr(compute, name) for name in ("binary_length", "sum"))  # made when it is imported
    parts = column.chunks if _is_dictionary(column.type) else ()
    return sum(sum_of(length(part.dictionary).take(part.indices)).as_py() or 0 for part in parts)
