"""Rows of results on disk: `.csv` with the configuration beside it, or `.parquet` with it in the footer.

Both hold one column per key, in order of first appearance; a missing key is None. The same rows give the same bytes. A
CSV column is read as numbers if all its cells look like numbers, else as True and False, else as text; an empty cell is
None. Parquet keeps the types. Whole numbers have 64 bits. Text in a column of numbers (`kinds.is_number`) is refused.

Text in a CSV gets an apostrophe in front if a spreadsheet would run it (=, +, @, or - before a non-number) or if it
begins with an apostrophe; reading removes it.
"""

import contextlib
import csv
import functools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

from mfabric_jax.checks import InputError, format_value
from mfabric_jax.report.kinds import check_schema, is_number, warn_unknown
from mfabric_jax.report.numerals import plain_scalar
from mfabric_jax.support.atomic import check_file, lock_file, remove_stale, replacing, suffix
from mfabric_jax.support.columns import Columns, without_details
from mfabric_jax.support.extras import load_extra
from mfabric_jax.support.parts import METADATA_KEY, read_verified
from mfabric_jax.support.text_files import mapping_in, parse_json, read_mapping

Row: TypeAlias = dict[str, Any]

EXTENSIONS = (".csv", ".parquet")
CONFIGURATION = "the configuration of rows"
_WHOLE = re.compile(r"[-+]?\d+")
_RUN = re.compile(r"[=+@\t\r']|-(?![\d.]|inf|nan)")  # text that a spreadsheet would run, or that begins with '
LARGEST_WHOLE = 2**63 - 1  # largest whole number in files of rows
_DIGITS = 25  # most digits of a whole number that is parsed
_LARGEST_CELL = 1 << 30  # characters
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*([eE][-+]?\d+)?|inf|nan)")


def write_rows(rows: Sequence[Mapping[str, Any]], path: str | Path, config: Mapping[str, Any]) -> Path:
    """Write rows and their effective configuration atomically, and return the path."""
    path = Path(path)
    kind = suffix("rows file", path, EXTENSIONS)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [_scalar(name, row.get(name)) for row in rows] for name in names}
    text = json.dumps(jsonable(config), indent=2)
    if kind == ".csv":
        with (
            replacing(path, sidecar(path)) as (part, config_part),
            part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
        ):
            config_part.write_text(text + "\n", encoding="utf-8")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([_cell(name) for name in columns])
            writer.writerows(zip(*([_cell(value) for value in column] for column in columns.values()), strict=True))
    else:
        parquet = load_extra("store", "writing .parquet", "mfabric_jax.report.parquet_rows")
        table = parquet.table_of(columns).replace_schema_metadata({METADATA_KEY: text.encode()})
        with replacing(path) as (part,):
            parquet.save_table(table, part)
    return path


def add_facts(path: str | Path, facts: Mapping[str, Any]) -> Path:
    """Add facts to the configuration of a rows file."""
    rows, config = read_rows(path)
    return write_rows(rows, path, config | dict(facts))


def jsonable(config: Mapping[str, Any]) -> dict[str, Any]:
    plain = lambda value: value.tolist() if hasattr(value, "tolist") else str(value)  # noqa: E731
    return json.loads(json.dumps(dict(config), default=plain))


def plain_row(row: Mapping[str, Any]) -> Row:
    """Return the row with plain scalars. Raise InputError for values that files of rows cannot hold."""
    return {name: _scalar(name, value) for name, value in row.items()}


def _scalar(name: str, value: Any) -> Any:
    value = plain_scalar(value)
    if value is not None and not isinstance(value, str | int | float | bool):
        raise InputError(f"column {name!r} holds {value!r}; allowed: a number, text, True, False or None.")
    if isinstance(value, int) and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        raise InputError(f"column {name!r} holds {format_value(value)}; allowed: whole numbers of 64 bits.")
    return value


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}" if _RUN.match(value) else value
    return "" if value is None else repr(value)


def _text(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and _RUN.match(cell[1:]) else cell


def check_destination(path: str | Path) -> None:
    """Raise InputError if rows could not be written to `path`; call it before a long run. It leaves no file."""
    if check_file("rows file", path, EXTENSIONS) == ".parquet":
        load_extra("store", "writing .parquet", "pyarrow")


def read_rows(path: str | Path) -> tuple[list[Row], dict[str, Any]]:
    """Return rows and configuration as `write_rows` stored them; without its sidecar, a CSV has an empty configuration.

    If a killed run left only a journal, return the rows finished so far. Raise InputError for rows of a later schema,
    and for rows of a 0.x command with an unknown column.
    """
    path = Path(path)
    kind = suffix("rows file", path, EXTENSIONS)
    if not path.exists() and journal_of(path).exists():
        where = journal_of(path)
        run, done, good = read_journal(where)
        if run is not None:
            rows, content = in_order(done), where.read_bytes()
            if b"\n" in content[good:].rstrip(b"\n"):  # more damage than a cut-off last line
                number = content[:good].count(b"\n") + 1
                raise InputError(
                    f"line {number} of {str(where)!r} is damaged; run the same command again, or delete it."
                )
            names = list(dict.fromkeys(name for row in rows for name in row))
            check_schema(path, names, run["config"])
            _check_columns(where, names, [[row.get(name) for row in rows] for name in names], run["config"])
            warn_unknown(path, names, run["config"])
            return rows, check_config(where, run["config"]) | {"complete": False}
    if kind == ".parquet":
        table, config = read_table(path)
        return table.to_pylist(), config
    with _readable(path):
        header, lines = _cells(path)
        columns = [
            _parse_column(name, cells) for name, cells in zip(header, zip(*lines, strict=True), strict=bool(lines))
        ]
        beside = sidecar(path)
        config = check_config(beside, read_mapping(beside, CONFIGURATION)) if beside.exists() else {}
    check_schema(path, header, config)
    _check_columns(path, header, columns, config)
    warn_unknown(path, header, config)
    return [dict(zip(header, values, strict=True)) for values in zip(*columns, strict=True)], config


_TABLES = "stated", "resolved", "sources", "random", "rules", "files"
_LISTS = "variants", "varied", "not_known", "headroom"


def check_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of rows; raise InputError unless its tables and lists have the right type."""
    for names, kind, words in ((_TABLES, dict, "a table"), (_LISTS, list, "a list")):
        for name in names:
            if not isinstance(config.get(name, kind()), kind):
                raise InputError(
                    f"{name} of the configuration in {str(path)!r} must be {words}, got {format_value(config[name])}."
                )
    return config


def read_texts(path: str | Path) -> list[dict[str, str | None]]:
    with _readable(Path(path)):
        header, lines = _cells(Path(path))
    return [{name: _text(cell) or None for name, cell in zip(header, line, strict=True)} for line in lines]


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    before = csv.field_size_limit(_LARGEST_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *lines = list(csv.reader(file)) or [[]]
    finally:
        csv.field_size_limit(before)
    if any(len(line) != len(header) for line in lines):
        raise ValueError("its lines have different numbers of cells")
    names = [_text(name) for name in header]
    _check_names(names)
    return names, lines


def _check_names(columns: Sequence[str]) -> None:
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise ValueError(f"two columns are called {twice[0]!r:.80}")


def _check_columns(
    path: Path, header: Sequence[str], columns: Sequence[Sequence[Any]], config: Mapping[str, Any]
) -> None:
    """Raise InputError for a value that no row can have, a column of mixed kinds, or text in a column of numbers.

    Only columns of this package's commands count as columns of numbers; one text would turn a whole column into text.
    """
    for name, values in zip(header, columns, strict=bool(columns)):
        field, kinds = f"column {name} of {str(path)!r}", {_kind_of(value) for value in values if value is not None}
        for value in values if None in kinds else ():
            if value is not None and _kind_of(value) is None:
                raise InputError(f"{field} must hold numbers, texts, true or false, got {value!r:.80}.")
        if len(kinds) > 1:
            raise InputError(f"{field} must hold values of one kind, got {' and '.join(sorted(map(str, kinds)))}.")
        cells = (value for value in values if isinstance(value, str) and not _NUMBER.fullmatch(value))
        if is_number(name, config) and (text := next(cells, None)) is not None:
            raise InputError(f"{field} must hold numbers, got {text!r:.80}.")


def _kind_of(value: Any) -> str | None:
    """The kind of a value of a row; None for a value that no row can have."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "numbers" if abs(value) <= LARGEST_WHOLE else None
    return "numbers" if isinstance(value, float) else "texts" if isinstance(value, str) else None


def read_table(path: Path, sweep: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the table of a parquet file and its configuration; `sweep`: required digest of its sweep, None: any."""
    parquet = load_extra("store", "reading .parquet", "mfabric_jax.report.parquet_rows")
    with _readable(path):
        table = parquet.read(path, read_verified(path, sweep))
        _check_names(table.column_names)
        parquet.check_kinds(table.schema)
        footer = (table.schema.metadata or {}).get(METADATA_KEY, b"{}")
        config = check_config(path, mapping_in(footer, f"the footer of {str(path)!r}", CONFIGURATION))
    check_schema(path, table.column_names, config)
    names = parquet.texts_in(table)
    _check_columns(path, names, [table.column(name).unique().to_pylist() for name in names], config)
    warn_unknown(path, table.column_names, config)
    return table.replace_schema_metadata(None), config


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise InputError(f"cannot read {str(path)!r} ({reason}); give a .csv or .parquet file of rows.") from error
    except (ValueError, NotImplementedError, csv.Error) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{str(path)!r} does not hold rows ({why}); give a file that `write_rows` made.") from error


def journal_of(path: Path) -> Path:
    """Return the path of the journal of a rows file (see `keeping`)."""
    return path.with_name(f"{path.name}.journal")


def read_journal(path: Path) -> tuple[dict[str, Any] | None, dict[int, list[Row]], int]:
    """Return the run, the rows of its finished work by number, and the number of valid bytes.

    The run is None if the first line is invalid.
    """
    run, done, good = None, {}, 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            held = parse_json(line)
            if not line.endswith(b"\n"):
                break
            if run is None:
                run = {"config": dict(held["config"]), "files": dict(held["files"])}
            else:
                done[int(held["number"])] = [dict(row) for row in held["rows"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        good += len(line)
    return run, done, good


def in_order(done: Mapping[int, list[Row]]) -> list[Row]:
    return [row for number in sorted(done) for row in done[number]]


def sidecar(path: str | Path) -> Path:
    path = Path(path)
    return path.with_name(f"{path.stem}.config.json")


def _parse_column(name: str, cells: Sequence[str]) -> list[Any]:
    filled = [cell for cell in cells if cell]
    read: Any = _text
    if all(_NUMBER.fullmatch(cell) for cell in filled):
        read = functools.partial(_number, name)
    elif all(cell in ("True", "False") for cell in filled):
        read = "True".__eq__
    return [read(cell) if cell else None for cell in cells]


def _number(name: str, cell: str) -> int | float:
    """Raise ValueError for a number that does not fit into 64 bits."""
    if _WHOLE.fullmatch(cell):
        value = int(cell) if len(cell) <= _DIGITS else LARGEST_WHOLE + 1
        there = abs(value) <= LARGEST_WHOLE
    else:
        value = float(cell)
        there = not math.isinf(value) or cell.endswith("inf")
    if not there:
        raise ValueError(f"column {name!r:.80} holds {cell:.40}, which does not fit into 64 bits")
    return value


# -- a journal puts rows of a long run on disk as they are finished: a kill loses only the work in progress, and the
# same run continues from it. `rows.csv.journal` exists until the run is over. Its first line identifies the run. Each
# further line holds the number of a piece of work and its rows, and is on disk before the next piece begins. A last
# line that is cut off is dropped.


class Kept:
    """The rows of a run so far. `done`: rows by number of the work; `earlier`: how many an earlier run finished."""

    def __init__(self, journal: FileIO | None, done: Mapping[int, list[Row]] | None = None):
        self._journal, self.done = journal, dict(done or {})
        self.earlier = len(self.done)

    @property
    def rows(self) -> list[Row]:
        return in_order(self.done)

    def add(self, rows: list[Row], number: int | None = None) -> None:
        """Add the rows of a piece of work (default: the next number); they are on disk on return."""
        number = len(self.done) if number is None else number
        rows = [plain_row(row) for row in rows]
        if self._journal is not None:
            try:
                _write(self._journal, {"number": number, "rows": rows})
            except OSError as error:
                raise _unwritable(Path(self._journal.name), error) from error
        self.done[number] = rows

    def show(self, rows: list[Row], number: int) -> None:
        """Add rows of unfinished work to the file but not to the journal, so that the same run repeats the work."""
        self.done[number] = [plain_row(row) for row in rows]


@contextlib.contextmanager
def keeping(path: str | Path | None, config: Mapping[str, Any], columns: Columns | None = None) -> Iterator[Kept]:
    """Keep rows while the block runs, and write them to the file at its end, even after an error.

    - `path`: None keeps rows in memory only. `config`: stored with the rows, together with `complete`.
    - `columns`: declares the details that the file leaves out; None: it has every column. The journal has them all.

    After an error or an interrupt the journal stays, and the same run continues from it. Raise InputError if the
    journal belongs to another run, is in use by another process, or cannot be written.
    """
    if path is None:
        yield Kept(None)
        return
    path = Path(path)
    with open_journal(path, jsonable(config)) as (journal, done):
        for left in (path, sidecar(path)):
            remove_stale(left, older_s=0)
        kept, complete, stored = Kept(journal, done), False, False
        try:
            yield kept
            complete = True
        finally:
            try:
                if kept.done:
                    rows = kept.rows if columns is None else without_details(kept.rows, columns)
                    write_rows(rows, path, dict(config) | {"complete": complete})
                stored = True
            finally:
                if stored and (complete or not kept.done):
                    journal_of(path).unlink(missing_ok=True)


@contextlib.contextmanager
def open_journal(path: Path, config: Mapping[str, Any]) -> Iterator[tuple[FileIO, dict[int, list[Row]]]]:
    """Open and lock the journal of the rows file `path`; yield it and its finished work."""
    where = journal_of(path)
    run = json.loads(json.dumps({"config": dict(config), "files": _files(config.values())}))
    try:
        journal = where.open("a+b", buffering=0)  # unbuffered: a full disk raises at the write, not at the close
    except OSError as error:
        raise _unwritable(where, error) from error
    with journal:
        try:
            if not lock_file(journal):
                raise InputError(f"another run writes {str(path)!r}; give another file, or wait for its end.")
            there, done, good = read_journal(where)
            if there is None or not done:
                journal.truncate(0)
                _write(journal, run)
            elif change := _change(there, run):
                advice = f"give another file for the rows, or delete {str(where)!r} to begin again"
                raise InputError(f"{str(path)!r} was begun by another run ({change}); {advice}.")
            else:
                journal.truncate(good)
        except OSError as error:
            raise _unwritable(where, error) from error
        yield journal, done


def _unwritable(where: Path, error: OSError) -> InputError:
    why = error.strerror or error
    return InputError(f"cannot write {str(where)!r} ({why}); give a file in a folder that can be written and has room.")


def _write(journal: FileIO, line: dict[str, Any]) -> None:
    left = memoryview(json.dumps(line).encode() + b"\n")
    while left:
        left = left[journal.write(left) :]
    os.fsync(journal.fileno())


def _change(there: dict[str, Any], now: dict[str, Any]) -> str | None:
    for name in {**there["config"], **now["config"]}:
        old, new = there["config"].get(name), now["config"].get(name)
        if json.dumps(old) != json.dumps(new):  # as text, so that NaN equals NaN
            return f"{name} was {old!r}, now {new!r}"
    for name in {**there["files"], **now["files"]}:
        if there["files"].get(name) != now["files"].get(name):
            return f"the file {name!r} has changed since"
    return None


def _files(values: Iterable[Any]) -> dict[str, list[int]]:
    stamps = {}
    for value in values:
        for name in value if isinstance(value, list | tuple) else (value,):
            for file in {name, name.rpartition(":")[0]} if isinstance(name, str) else ():
                if file and os.path.exists(file):
                    about = os.stat(file)
                    stamps[file] = [about.st_size, about.st_mtime_ns]
    return dict(sorted(stamps.items()))
