"""Questions to rows on disk, a sweep's folder or files of rows: filter, group, Pareto front, sort."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.extras import extra
from mfabric_jax.report.fronts import unbeaten
from mfabric_jax.report.rows import METADATA_KEY, read_rows

OPERATORS = {"<=": "less_equal", ">=": "greater_equal", "!=": "not_equal", "<": "less", ">": "greater", "=": "equal"}
CONDITION = re.compile(r"\s*([\w.-]+)\s*(<=|>=|!=|<|>|==?)\s*([^<>=!\s].*?)\s*")
MEASURES = {"mean": "mean", "min": "min", "max": "max", "median": "list", "std": "stddev", "sum": "sum"}
SENSES = {"min": 1.0, "max": -1.0}
ORDERS = {"up": "ascending", "down": "descending"}
COUNT = "rows"
TABLES = 5  # files that a sentence names
USUAL = ("iteration_s", "seconds")  # the result of a row, if nothing else is asked for


class Asked(NamedTuple):
    """- `where`: conditions as typed.   - `by`: columns of groups; `measures`: "column:measure" of them.
    - `pareto`: columns to have small ("column:max": large), in every group.
    - `sort`: by column ("column:down": falling).
    - `columns`: to keep (none: all).   - `limit`: of rows, None for all."""

    where: Sequence[str] = ()
    by: Sequence[str] = ()
    measures: Sequence[str] = ()
    pareto: Sequence[str] = ()
    sort: str | None = None
    columns: Sequence[str] = ()
    limit: int | None = None


def query(paths: Sequence[str | Path], asked: Asked) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the answer, and the configuration of the first file. `InputError` for what is not there."""
    table, config = read_all(paths)
    if asked.measures and not asked.by:
        raise InputError(f"measures are of groups; name columns to group by, got {', '.join(asked.measures)} alone.")
    for condition in asked.where:
        table = table.filter(_mask(table, condition))
    if asked.pareto:
        table = table.take(_front(table, asked.pareto, asked.by))
    if asked.by and not (asked.pareto and not asked.measures):
        table = _grouped(table, asked.by, asked.measures)
    if asked.sort is not None:
        table = _sorted(table, asked.sort)
    if asked.columns:
        table = table.select([_column(table, name) for name in asked.columns])
    if asked.limit is not None:
        table = table.slice(0, asked.limit)
    return table.to_pylist(), config


def read_all(paths: Sequence[str | Path]) -> tuple[Any, dict[str, Any]]:
    """One table of all rows; columns that a file lacks are empty in its rows."""
    with extra("store", "a query"):
        import pyarrow
        from pyarrow import parquet
    tables, config = [], {}
    for path in _files(paths):
        if path.suffix == ".parquet":
            try:
                table = parquet.ParquetFile(path).read()
            except (OSError, pyarrow.ArrowException) as error:
                again = "give .parquet or .csv files of rows; one that a sweep wrote it makes again once it is deleted"
                raise InputError(f"cannot read {str(path)!r} ({error}); {again}.") from None
            found = json.loads((table.schema.metadata or {}).get(METADATA_KEY, b"{}"))
        else:
            rows, found = read_rows(path)
            table = pyarrow.Table.from_pylist(rows)
        tables.append(table.replace_schema_metadata(None))
        config = config or found
    try:
        return pyarrow.concat_tables(tables, promote_options="permissive"), config
    except pyarrow.ArrowException as error:
        raise InputError(f"the files hold columns of other kinds under the same name ({error}).") from None


def unfinished(paths: Sequence[str | Path]) -> list[str]:
    """A sentence for every folder whose sweep has not written all of its rows."""
    said = []
    for folder in (path for path in map(Path, paths) if (path / "sweep.json").is_file()):
        from pyarrow import parquet

        rows = sum(parquet.ParquetFile(path).metadata.num_rows for path in folder.glob("*.parquet"))
        wanted = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["configurations"]
        if rows < wanted:
            said.append(f"{folder} holds {rows:,} of {wanted:,} rows: its sweep is not over.")
    return said


def _files(paths: Sequence[str | Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        some = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not some:
            tables = sorted(file.name for file in path.glob("*.csv"))[:TABLES]
            rest = f"give one of its files, {', '.join(tables)}." if tables else "has its sweep written any yet?"
            raise InputError(f"{str(path)!r} holds no .parquet file of rows; {rest}")
        found += some
    return found


def _column(table: Any, name: str) -> str:
    return one_of("column", name, table.column_names)


def _mask(table: Any, condition: str):
    """Which rows fulfil `column OP value`, where value may be several: a|b."""
    import pyarrow
    from pyarrow import compute, types

    found = CONDITION.fullmatch(condition)
    if not found:
        raise InputError(f"a condition is COLUMN OP VALUE with =, !=, <, <=, > or >=, got {condition!r}.")
    name, sign, text = _column(table, found[1]), found[2].replace("==", "="), found[3]
    column = table[name]
    if types.is_integer(column.type):
        column = column.cast(pyarrow.float64(), safe=False)
    values = [_value(name, word.strip(), column.type) for word in text.split("|")]
    if len(values) > 1 and sign not in ("=", "!="):
        raise InputError(f"several values go with = and != only, got {condition!r}.")
    hits = [getattr(compute, OPERATORS[sign])(column, pyarrow.scalar(value)) for value in values]
    join = getattr(compute, "and_" if sign == "!=" else "or_")
    return functools.reduce(join, hits)


def _value(name: str, word: str, kind: Any) -> Any:
    from pyarrow import types

    if types.is_boolean(kind):
        return one_of(name, word.lower(), ("true", "false")) == "true"
    if types.is_integer(kind) or types.is_floating(kind):
        try:
            return float(word)
        except ValueError:
            raise InputError(f"column {name} holds numbers, got {word!r}.") from None
    return word


def _grouped(table: Any, by: Sequence[str], measures: Sequence[str]):
    """A row per group: how many rows, and the measures asked for."""
    names = [_column(table, name) for name in by]
    usual = [f"{name}:mean" for name in USUAL if name in table.column_names]
    asked = []
    for text in measures or usual:
        name, _, measure = text.partition(":")
        asked.append((_numbers(table, name), one_of("measure", measure or "mean", MEASURES)))
    found = table.group_by(names, use_threads=False).aggregate(
        [([], "count_all"), *((name, MEASURES[measure]) for name, measure in asked)]
    )
    for name, measure in asked:
        if measure == "median":
            column = f"{name}_{MEASURES[measure]}"
            values = [np.median(some) if some else None for some in _filled(found[column].to_pylist())]
            found = found.set_column(found.column_names.index(column), column, [values])
    renamed = {"count_all": COUNT} | {f"{name}_{MEASURES[m]}": f"{name}_{m}" for name, m in asked}
    return found.rename_columns([renamed.get(name, name) for name in found.column_names])


def _filled(lists: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[value for value in some if value is not None] for some in lists]


def _numbers(table: Any, name: str) -> str:
    from pyarrow import types

    kind = table[_column(table, name)].type
    if not (types.is_integer(kind) or types.is_floating(kind)):
        raise InputError(f"column {name} must hold numbers here, got {kind}.")
    return name


def _front(table: Any, pareto: Sequence[str], by: Sequence[str]) -> np.ndarray:
    """Rows that no other row of their group beats in one of these columns without losing in another."""
    pairs = [_directed("pareto", text, SENSES) for text in pareto]
    names, signs = [_numbers(table, name) for name, _ in pairs], [SENSES[sense] for _, sense in pairs]
    values = np.stack([s * table[n].to_numpy().astype(float) for s, n in zip(signs, names, strict=True)], axis=1)
    groups: dict[tuple, list[int]] = {}
    keys = zip(*(table[_column(table, name)].to_pylist() for name in by), strict=True) if by else [()] * len(values)
    for row, key in enumerate(keys):
        if np.isfinite(values[row]).all():
            groups.setdefault(key, []).append(row)
    kept = [np.asarray(rows)[unbeaten(values[rows])] for rows in groups.values()]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, int)


def _sorted(table: Any, sort: str):
    name, order = _directed("sort", sort, ORDERS)
    return table.sort_by([(_column(table, name), ORDERS[order])])


def _directed(field: str, text: str, allowed: Mapping[str, Any]) -> tuple[str, str]:
    """Of `column:word`, the word being the first of those allowed where it is left out."""
    name, _, word = text.partition(":")
    return name, one_of(f"{field} {text!r}: direction", word or next(iter(allowed)), allowed)
