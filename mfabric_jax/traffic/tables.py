"""Recordings as tables, .csv[.gz] or .parquet: a line for every count, a column for every axis."""

import csv
import gzip
import io
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.extras import extra
from mfabric_jax.traffic.array_files import AXES, arranged, kinds
from mfabric_jax.traffic.recording import Recording

COUNT = "tokens"
NEEDED = ("layer", "expert", COUNT)
SUFFIXES = (".csv", ".csv.gz", ".parquet")
_NAMES = {"micro_batch": "micro-batch", "microbatch": "micro-batch", "source_rank": "source", "count": COUNT}
_NAMES |= {"layer_id": "layer", "expert_id": "expert", "iter": "iteration", "step": "iteration"}
_MOST_EXPERTS, _MOST_CELLS = 2**16, 2**30


def is_table(path: pathlib.Path) -> bool:
    """Whether a file is a table by its extension."""
    return path.name.lower().endswith(SUFFIXES)


def load_table(path: pathlib.Path) -> Recording:
    """Counts from columns `layer`, `expert`, `tokens` and, if they were recorded, `iteration`, `micro_batch`, `source`.

    Also called: layer_id, expert_id, count, iter, step, source_rank. Layers, micro-batches and sources count in the
    order of their numbers, experts from 0; what has no line is 0. `InputError` for another column, one there twice,
    what is no whole number in any but `tokens`, and for a place that has two lines.
    """
    names, columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    names = [_NAMES.get(name.strip().lower(), name.strip().lower()) for name in names]
    allowed = (*AXES, COUNT)
    if len(set(names)) < len(names) or not set(NEEDED) <= set(names) <= set(allowed):
        shown = " ".join(", ".join(names)[:200].split())
        raise InputError(f"trace {path} must have the columns {', '.join(allowed)}, none twice, got {shown}.")
    table = {name: _numbers(path, name, column) for name, column in zip(names, columns, strict=True)}
    if not len(table[COUNT]):
        raise InputError(f"trace {path} must have at least one line below its header, got none.")
    return _dense(path, table)


def _dense(path: pathlib.Path, table: dict[str, np.ndarray]) -> Recording:
    axes = [name for name in AXES if name in table]
    found = [np.unique(table[name], return_inverse=True) for name in axes[:-1]]
    experts = table["expert"]
    if experts.max() >= _MOST_EXPERTS:
        raise InputError(f"expert of trace {path} must be below {_MOST_EXPERTS}, got {experts.max()}.")
    shape = (*(len(values) for values, _ in found), int(experts.max()) + 1)
    cells = np.prod([float(size) for size in shape])
    if cells > _MOST_CELLS:
        raise InputError(f"trace {path} must have at most {_MOST_CELLS} cells, got {' x '.join(map(str, shape))}.")
    place = np.ravel_multi_index((*(index for _, index in found), experts), shape)
    order = np.argsort(place, kind="stable")
    if (again := np.flatnonzero(np.diff(place[order]) == 0)).size:
        line = int(order[again[0] + 1]) + 2
        raise InputError(f"line {line} of trace {path} must be the only one for its {', '.join(axes)}, got another.")
    count = np.zeros(shape, table[COUNT].dtype)
    count.ravel()[place] = table[COUNT]
    number = found[axes.index("iteration")][0] if "iteration" in axes else np.zeros(1, int)
    known: dict[str, Any] = {**kinds(axes)}
    return Recording(arranged(path, count, axes), number, str(path), "table of expert loads", **known)


def _numbers(path: pathlib.Path, name: str, column: Sequence[Any]) -> np.ndarray:
    """Whole numbers from 0 on, for tokens also reals."""
    for kind in (np.int64, np.float64) if name == COUNT else (np.int64,):
        try:
            if isinstance(column, np.ndarray):
                values = column
                if column.dtype.kind not in ("iuf" if name == COUNT else "iu"):
                    raise ValueError(column.dtype)
            else:
                values = np.array(column, dtype=str).astype(kind)
        except (ValueError, OverflowError):
            continue
        if name == COUNT or not values.size or values.min() >= 0:
            return values
    what = "numbers" if name == COUNT else "whole numbers of at least 0"
    raise InputError(f"column {name} of trace {path} must hold {what}, got {_strange(column)}.")


def _strange(column: Sequence[Any]) -> str:
    """The first value that is no whole number."""
    for line, value in enumerate(column, start=2):
        if not str(value).strip().isdigit():
            return f"{str(value)[:40]!r} (line {line})"
    return "one too large"


def csv_lines(path: pathlib.Path, strict: bool = False) -> list[list[str]]:
    """The cells of every line of a .csv or .csv.gz file."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
        return list(csv.reader(io.StringIO(text, newline=""), strict=strict))
    except Exception as error:  # whatever the bytes make of a table
        raise InputError(f"trace {path} must be a readable .csv[.gz] file, got {type(error).__name__}.") from error


def _csv(path: pathlib.Path) -> tuple[list[str], Sequence[Sequence[Any]]]:
    header, *lines = csv_lines(path, strict=True) or [[]]
    lines = [line for line in lines if line]
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise InputError(f"line {number} of trace {path} must have {len(header)} cells, got {len(line)}.")
    return header, [*zip(*lines, strict=True)] if lines else [[]] * len(header)


def _parquet(path: pathlib.Path) -> tuple[list[str], Sequence[Sequence[Any]]]:
    with extra("store", "reading .parquet"):
        from pyarrow import parquet
    try:
        table = parquet.ParquetFile(path).read(use_threads=False)  # as the rows of a report are read
        return table.column_names, [column.to_numpy() for column in table.columns]
    except Exception as error:  # whatever the bytes make of a table
        raise InputError(f"trace {path} must be a readable .parquet file, got {type(error).__name__}.") from error
