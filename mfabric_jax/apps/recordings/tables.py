"""Reader of recordings in tables (.csv, .csv.gz, .parquet): a line per count, a column per axis."""

import csv
import io
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mfabric_jax.apps.recordings.arrays import MOST_EXPERTS, arrange_axes, kinds
from mfabric_jax.checks import InputError
from mfabric_jax.support import unpacking
from mfabric_jax.support.extras import PARQUET, load_extra
from mfabric_jax.traffic.recording import AXES, Recording

COUNT = "tokens"
SUFFIXES = (".csv", ".csv.gz", ".parquet")
MOST_CELLS = 2**30
_NAMES = {"micro_batch": "micro-batch", "microbatch": "micro-batch", "source_rank": "source", "count": COUNT}
_NAMES |= {"layer_id": "layer", "expert_id": "expert", "iter": "iteration", "step": "iteration"}


def load_table(path: pathlib.Path) -> Recording:
    """Read counts from columns `layer`, `expert`, `tokens` and, optionally, `iteration`, `micro_batch`, `source`.

    Aliases: layer_id, expert_id, count, iter, step, source_rank. Layers, micro-batches and sources are ordered by
    number; experts count from 0; a missing line means 0. Raise `InputError` for an unknown or repeated column, a
    fraction in another column than `tokens`, or two lines for the same place.
    """
    names, columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    names = [_NAMES.get(name.strip().lower(), name.strip().lower()) for name in names]
    if len(set(names)) < len(names) or not {"layer", "expert", COUNT} <= set(names) <= {*AXES, COUNT}:
        shown = " ".join(", ".join(names)[:200].split())
        raise InputError(f"trace {path} must have the columns {', '.join((*AXES, COUNT))}, none twice, got {shown}.")
    table = {name: _numbers(path, name, column) for name, column in zip(names, columns, strict=True)}
    if not len(table[COUNT]):
        raise InputError(f"trace {path} must have at least one line below its header, got none.")
    axes = [name for name in AXES if name in table]
    places = [np.unique(table[name], return_inverse=True) for name in axes[:-1]]
    experts = table["expert"]
    shape = (*(len(values) for values, _ in places), int(experts.max()) + 1)
    if experts.max() >= MOST_EXPERTS or np.prod([float(size) for size in shape]) > MOST_CELLS:
        most = f"must have experts below {MOST_EXPERTS} and at most {MOST_CELLS} cells"
        raise InputError(f"trace {path} {most}, got {' x '.join(map(str, shape))} ({', '.join(axes)}).")
    unpacking.check_size(path, math.prod(shape) * table[COUNT].itemsize)
    flat_index = np.ravel_multi_index((*(index for _, index in places), experts), shape)
    order = np.argsort(flat_index, kind="stable")
    if (again := np.flatnonzero(np.diff(flat_index[order]) == 0)).size:
        line = int(order[again[0] + 1]) + 2
        raise InputError(f"line {line} of trace {path} repeats the {', '.join(axes)} of an earlier line.")
    count = np.zeros(shape, table[COUNT].dtype)
    count.ravel()[flat_index] = table[COUNT]
    number = places[axes.index("iteration")][0] if "iteration" in axes else np.zeros(1, int)
    return Recording(arrange_axes(path, count, axes), number, str(path), "table of expert loads", **kinds(axes))


def _numbers(path: pathlib.Path, name: str, column: Sequence[Any]) -> np.ndarray:
    allowed = "iuf" if name == COUNT else "iu"
    values = np.asarray(column)
    for kind in (np.int64, np.float64):
        if values.dtype.kind not in "iuf":
            try:
                values = np.array(column, dtype=str).astype(kind)
            except (ValueError, OverflowError):
                continue
    if values.dtype.kind not in allowed or (name != COUNT and values.size and values.min() < 0):
        wrong = next((text for text in map(str, column) if not text.strip().isdigit()), "one too large")
        what = "numbers" if name == COUNT else "whole numbers of at least 0"
        raise InputError(f"column {name} of trace {path} must hold {what}, got {wrong[:40]!r}.")
    return values


def csv_lines(path: pathlib.Path, strict: bool = False) -> list[list[str]]:
    try:
        text = unpacking.unpack(path, path.read_bytes()).decode("utf-8-sig")
        return list(csv.reader(io.StringIO(text, newline=""), strict=strict))
    except InputError:
        raise
    except Exception as error:  # any error of a table reader
        raise InputError(f"trace {path} must be a readable .csv[.gz] file, got {type(error).__name__}.") from error


def _csv(path: pathlib.Path) -> tuple[list[str], Sequence[Any]]:
    header, *lines = csv_lines(path, strict=True) or [[]]
    lines = [line for line in lines if line]
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise InputError(f"line {number} of trace {path} must have {len(header)} cells, got {len(line)}.")
    return header, [*zip(*lines, strict=True)] if lines else [np.zeros(0, int)] * len(header)


def _parquet(path: pathlib.Path) -> tuple[list[str], Sequence[Any]]:
    parquet = load_extra("store", "reading .parquet", PARQUET)
    try:
        table = parquet.read_parquet(path, path)
        return table.column_names, [column.to_numpy() for column in table.columns]
    except InputError:
        raise
    except Exception as error:  # any error of a table reader
        raise InputError(f"trace {path} must be a readable .parquet file, got {type(error).__name__}.") from error
