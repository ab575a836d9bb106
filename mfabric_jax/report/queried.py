"""Answer `query` with pyarrow tables."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute, types

from mfabric_jax.case.policies import split_words
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.report.grid import SEED, USUAL, unbeaten
from mfabric_jax.report.kinds import column_named
from mfabric_jax.report.numerals import usable
from mfabric_jax.report.paired import OVER, partners, ratios, settings_that_differ
from mfabric_jax.report.query import COUNT, FILE, OF_A_RUN, RUNS, QueryOptions, sweep_of
from mfabric_jax.report.rows import read_rows, read_table
from mfabric_jax.support.extras import load_extra

OPERATORS = {"<=": "less_equal", ">=": "greater_equal", "!=": "not_equal", "<": "less", ">": "greater", "=": "equal"}
CONDITION = re.compile(r"\s*([\w.-]+)\s*(<=|>=|!=|<|>|==?)\s*([^<>=!\s].*?)\s*")
STD, CI95 = "std", "ci95"
MEASURES = ("mean", "min", "max", "median", STD, CI95, "sum")
_AGGREGATES = {"median": "list", STD: "stddev", CI95: "stddev"}  # pyarrow's other names
SENSES = {"min": 1.0, "max": -1.0}
ORDERS = {"up": "ascending", "down": "descending"}
TABLES = 5  # most files that a sentence names


def query(paths: Sequence[str | Path], options: QueryOptions) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """See `report.query.query`."""
    table, config, apart = _read_all(paths, options.where)
    columns, by = ([*names, *(set(apart) - set(names))] if names else [] for names in (options.columns, options.by))
    options = options._replace(columns=columns, by=by)
    if options.measures and not options.by:
        raise InputError(f"measures need groups; name columns to group by, got {', '.join(options.measures)} alone.")
    if options.over is not None:
        table, options = _with_ratios(table, options)
    if options.pareto:
        table = table.take(_front(table, options.pareto, options.by))
    if options.by and not (options.pareto and not options.measures):
        table = _group_table(table, options.by, options.measures)
        table = table.sort_by([(name, "ascending") for name in options.by])
    if options.sort is not None:
        name, order = _column_and_direction("sort", options.sort, ORDERS)
        table = table.sort_by([(_column(table, name), ORDERS[order])])
    if options.columns:
        table = table.select([_column(table, name) for name in options.columns])
    return table.slice(0, options.limit).to_pylist(), config


def without_values(paths: Sequence[str | Path], options: QueryOptions) -> str | None:
    """See `report.query.without_values`."""
    if not options.pareto:
        return None
    names = [text.partition(":")[0] for text in options.pareto]
    rows, _ = query(paths, QueryOptions(where=options.where, columns=names))
    empty = [name for name in names if any(usable(row[name]) is None for row in rows)]
    some = sum(any(usable(row[name]) is None for name in names) for row in rows)
    return f"{some:,} of {len(rows):,} rows have no {' or '.join(empty)} and are on no front." if some else None


def pairing(paths: Sequence[str | Path], options: QueryOptions) -> str | None:
    """See `report.query.pairing`."""
    if options.over is None:
        return None
    rows, baseline = _mark_rows(_read_all(paths, options.where)[0], options.over)
    names = ", ".join(settings_that_differ(rows, baseline))
    lone = sum(other is None for other in partners(rows, baseline, options.over))
    note = f" {lone:,} of {len(rows):,} rows have no such row, so they have no ratio." if lone else ""
    return f"ratios divide by the row with {options.over}{' and the same ' if names else ''}{names}.{note}"


def equal_over_seeds(paths: Sequence[str | Path], options: QueryOptions) -> str | None:
    """See `report.query.equal_over_seeds`."""
    spreads = [text for text in options.measures if text.partition(":")[2] in (STD, CI95)]
    if not spreads or not options.by or options.over is not None or SEED in options.by:
        return None
    table, _, apart = _read_all(paths, options.where)
    if SEED not in table.column_names:
        return None
    names = list(dict.fromkeys(text.partition(":")[0] for text in spreads))
    ends = [f"{name}:{end}" for name in (SEED, *names) for end in ("min", "max")]
    groups = _group_table(table, [*options.by, *(set(apart) - set(options.by))], ends).to_pylist()
    groups = [group for group in groups if group[f"{SEED}_min"] != group[f"{SEED}_max"]]
    alike = [
        name for name in names if all(group[f"{name}_min"] == group[f"{name}_max"] is not None for group in groups)
    ]
    if not groups or not alike:
        return None
    are = "is" if len(alike) == 1 else "are"
    return f"{' and '.join(alike)} {are} equal over {SEED}: this traffic does not vary with the seed."


def _read_all(paths: Sequence[str | Path], where: Sequence[str]) -> tuple[Any, dict[str, Any], list[str]]:
    """The rows that match all conditions, as a table, their configuration, and columns that tell files apart."""
    tables, configs, runs = [], [], []
    for file, sweep in _files(paths):
        if file.suffix == ".parquet" and file.exists():
            table, config = read_table(file, sweep)
        else:
            rows, config = read_rows(file)
            table = pyarrow.Table.from_pylist(rows)
        tables.append((str(file), table))
        configs.append(config)
        runs.append((sweep or _run_of(config)) if config else None)
    several, apart, every = len(set(filter(None, runs))) > 1, [FILE], [table for _, table in tables]
    config = next(filter(None, configs), {})
    if several:
        every, apart = _tell_apart(tables, configs, runs)
        config = _merge_configs([file for file, _ in tables], configs)
    table = _merge_tables(every)
    if not table.num_rows:
        raise InputError(f"{', '.join(map(str, paths))} holds no row; give files with rows.")
    for condition in where:
        table = table.filter(_mask(table, condition))
    return table, config, [name for name in apart if name in table.column_names]


def _merge_tables(tables: Sequence[Any]) -> Any:
    """Concatenate tables. An empty column takes the type of its namesakes; text and numbers become text, as in CSV."""
    held: dict[str, list[Any]] = {}
    for table in tables:
        for name in table.column_names:
            held.setdefault(name, []).append(table[name])
    several = [name for name, columns in held.items() if len({column.type for column in columns}) > 1]
    kinds = {name: {part.type for part in held[name] if part.null_count < len(part)} for name in several}
    fit = lambda name, column: _fitting(column, kinds[name]) if name in kinds else column  # noqa: E731
    each = [pyarrow.table({name: fit(name, table[name]) for name in table.column_names}) for table in tables]
    return pyarrow.concat_tables(each, promote_options="permissive")


def _fitting(column: Any, kinds: set[Any]) -> Any:
    if column.null_count == len(column):
        return pyarrow.nulls(len(column))
    if len(kinds) == 1 or all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds):
        return column
    if types.is_boolean(column.type):
        return compute.call_function("if_else", [column, pyarrow.scalar("True"), pyarrow.scalar("False")])
    return column.cast("string")


def _run_of(config: Mapping[str, Any]) -> str:
    if config.get("command") == "sweep" or "sweep" in config:
        return repr([config.get(part) for part in ("sweep", "stated", "varied")])
    settings = config.get("resolved", config)
    return repr(sorted((name, _value_text(value)) for name, value in settings.items() if name not in OF_A_RUN))


def _value_text(value: Any) -> str:
    """A value as text that is the same for equal values: 150 and 150.0."""
    if isinstance(value, list):
        return repr(list(map(_value_text, value)))
    return repr(float(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _tell_apart(
    tables: Sequence[tuple[str, Any]], configs: Sequence[Mapping[str, Any]], runs: Sequence[Any]
) -> tuple[list[Any], list[str]]:
    """Add columns of the stated settings in which runs differ; if these do not tell runs apart, a column of files.

    Return the tables and the names of these columns.
    """
    values = _settings_apart(configs, [table for _, table in tables])
    known = [set(table.column_names) for _, table in tables]
    varied = {path: own for path, own in _differences(configs).items() if any(path in names for names in known)}
    apart = len(set(zip(*(map(_value_text, own) for own in values.values()), strict=True))) == len(set(runs))
    named = [table for _, table in tables] if apart and None not in runs else [_with_file(*table) for table in tables]
    for path, column in {**varied, **values}.items():
        named = [
            table if path in names else table.append_column(path, pyarrow.array([value] * len(table)))
            for table, names, value in zip(named, known, column, strict=True)
        ]
    return named, list(values) if apart and None not in runs else [FILE, *values]


def _settings_apart(configs: Sequence[Mapping[str, Any]], tables: Sequence[Any]) -> dict[str, list[Any]]:
    """The values of stated settings that differ between runs, are one value in each, and have no column, by path."""
    return {
        path: own
        for path, own in _differences(configs).items()
        if not any(isinstance(value, list | dict) for value in own)
        and not any(path in table.column_names for table in tables)
    }


def _differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of stated settings that differ between runs, by path."""
    stated = dict.fromkeys(path for config in configs for path in config.get("stated", {}))
    values = {path: [config.get("resolved", {}).get(path) for config in configs] for path in stated}
    return {path: own for path, own in values.items() if len(set(map(_value_text, own))) > 1}


def _merge_configs(files: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first configuration, with every value of the stated settings that differ, and these settings by file."""
    merged, apart = dict(next(filter(None, configs), {})), _differences(configs)
    if not apart:
        return merged
    every = {path: [part for value in own for part in _parts(value)] for path, own in apart.items()}
    every = {path: list({_value_text(value): value for value in own}.values()) for path, own in every.items()}
    for name in ("stated", "sources"):
        merged[name] = {path: value for config in reversed(configs) for path, value in config.get(name, {}).items()}
    merged["stated"] |= every
    merged["resolved"] = merged.get("resolved", {}) | every
    merged["varied"] = list(dict.fromkeys([*(path for own in configs for path in own.get("varied", ())), *apart]))
    return merged | {
        RUNS: {file: {path: own[index] for path, own in apart.items()} for index, file in enumerate(files)},
    }


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _with_file(file: str, table: Any) -> Any:
    if FILE in table.column_names:
        return table

    result = next((index for index, column in enumerate(table.column_names) if column in USUAL), table.num_columns)
    return table.add_column(result, FILE, pyarrow.array([file] * len(table)))


def _files(paths: Sequence[str | Path]) -> Iterator[tuple[Path, str | None]]:
    for path in map(Path, paths):
        folder = sweep_of(path)
        if folder and folder.parts:
            there = [(part, folder.digest) for part in map(folder.part, range(folder.parts)) if part.exists()]
        else:
            there = [(file, None) for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
        if not there:
            tables = sorted(file.name for file in path.glob("*.csv"))[:TABLES]
            advice = (
                f"give one of its files, {', '.join(tables)}."
                if tables
                else "give a folder that a sweep has written to."
            )
            raise InputError(f"{str(path)!r} holds no .parquet file of rows; {advice}")
        yield from there


def _column(table: Any, name: str) -> str:
    return one_of("column", name, table.column_names)


def _mask(table: Any, condition: str):
    match = CONDITION.fullmatch(condition)
    if not match:
        raise InputError(f"a condition is COLUMN OP VALUE with =, !=, <, <=, > or >=, got {condition!r}.")
    name, sign, text = _column(table, match[1]), match[2].replace("==", "="), match[3]
    column = table[name]
    if types.is_integer(column.type):
        column = column.cast(pyarrow.float64(), safe=False)
    values = [_value(name, word.strip(), column.type) for word in text.split("|")]
    if len(values) > 1 and sign not in ("=", "!="):
        raise InputError(f"several values need = or !=, got {condition!r}.")
    hits = [getattr(compute, OPERATORS[sign])(column, pyarrow.scalar(value)) for value in values]
    join = getattr(compute, "and_" if sign == "!=" else "or_")
    return functools.reduce(join, hits)


def _value(name: str, word: str, kind: Any) -> Any:
    if types.is_boolean(kind):
        return one_of(name, word.lower(), ("true", "false")) == "true"
    if types.is_floating(kind):
        try:
            return float(word)
        except ValueError:
            raise InputError(f"column {name} holds numbers, got {word!r}.") from None
    return word


def _column_measures(table: Any, measures: Sequence[str]) -> list[tuple[str, str]]:
    """The requested pairs (column, measure); by default the mean time."""
    usual = [f"{name}:mean" for name in USUAL if name in table.column_names]
    pairs = [text.partition(":")[::2] for text in measures or usual]
    return [(_numbers(table, name), one_of("measure", measure or "mean", MEASURES)) for name, measure in pairs]


def _with_ratios(table: Any, options: QueryOptions) -> tuple[Any, QueryOptions]:
    """The table with columns of ratios, and the options with measures of these."""
    if not options.by:
        raise InputError(f"over needs groups; name columns to group by, got over {options.over!r} alone.")
    measures = _column_measures(table, options.measures)
    rows, baseline = _mark_rows(table, str(options.over))
    others = partners(rows, baseline, str(options.over))
    for name in dict.fromkeys(name for name, _ in measures):
        column = pyarrow.array(ratios(rows, others, name), pyarrow.float64())
        table = table.append_column(OVER.format(name), column)
    return table, options._replace(measures=[f"{OVER.format(name)}:{measure}" for name, measure in measures])


def _mark_rows(table: Any, condition: str) -> tuple[list[dict[str, Any]], list[bool]]:
    """All rows, and whether each matches the condition, or all conditions of a list with commas."""
    masks = [_mask(table, part) for part in split_words(condition)]
    every = functools.reduce(lambda first, then: compute.call_function("and", [first, then]), masks)
    return table.to_pylist(), [bool(fulfils) for fulfils in every.to_pylist()]


def _group_table(table: Any, by: Sequence[str], measures: Sequence[str]):
    column_measures = _column_measures(table, measures)
    sample = compute.VarianceOptions(ddof=1)  # groups are samples
    functions = {(name, _AGGREGATES.get(measure, measure)): None for name, measure in column_measures}
    options = [(*function, sample) if function[1] == "stddev" else function for function in functions]
    counts = [(name, "count") for name in dict.fromkeys(name for name, _ in column_measures)]
    groups = table.group_by([_column(table, name) for name in by], use_threads=False)
    results = groups.aggregate([([], "count_all"), *counts, *options])
    columns = {name: results[name] for name in by} | {COUNT: results["count_all"]}
    for name, measure in column_measures:
        values: Any = results[f"{name}_{_AGGREGATES.get(measure, measure)}"]
        if measure == "median":
            lists = [[value for value in group if value is not None] for group in values.to_pylist()]
            values = [np.median(group) if group else None for group in lists]
        elif measure == CI95:
            pairs = zip(values.to_pylist(), results[f"{name}_count"].to_pylist(), strict=True)
            values = [half_width(*pair) for pair in pairs]
        columns[f"{name}_{measure}"] = values
    return pyarrow.table(columns)


def half_width(std: float | None, count: int) -> float | None:
    """Return half the 95 % interval of a mean of `count` values with sample standard deviation `std` (Student's t)."""
    special = load_extra("exact", "a 95 % interval", "scipy.special")
    return None if std is None else float(special.stdtrit(count - 1, 0.975)) * std / count**0.5


def _numbers(table: Any, name: str) -> str:
    kind = table[_column(table, name)].type
    if types.is_null(kind):
        raise InputError(f"column {name} is empty in all rows: no price, no power, or computation above a GPU's peak.")
    if not (types.is_integer(kind) or types.is_floating(kind)):
        raise InputError(f"column {name} must hold numbers here, got {kind}.")
    return name


def _front(table: Any, pareto: Sequence[str], by: Sequence[str]) -> np.ndarray:
    signs = {name: SENSES[sense] for name, sense in map(_column_and_sense, pareto)}
    values = np.stack([sign * table[_numbers(table, n)].to_numpy().astype(float) for n, sign in signs.items()], axis=1)
    groups: dict[tuple, list[int]] = {}
    keys = zip(*(table[_column(table, name)].to_pylist() for name in by), strict=True) if by else [()] * len(values)
    for row, key in enumerate(keys):
        if np.isfinite(values[row]).all():
            groups.setdefault(key, []).append(row)
    kept = [np.asarray(rows)[unbeaten(values[rows])] for rows in groups.values()]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, int)


def _column_and_sense(text: str) -> tuple[str, str]:
    """A column of a Pareto front, and whether it is minimised or maximised."""
    column = column_named(text)
    usual = "max" if column is not None and column.rises else "min"
    return _column_and_direction("pareto", text if ":" in text else f"{text}:{usual}", SENSES)


def _column_and_direction(field: str, text: str, allowed: Mapping[str, Any]) -> tuple[str, str]:
    name, _, word = text.partition(":")
    return name, one_of(f"{field} {text!r}: direction", word or next(iter(allowed)), allowed)
