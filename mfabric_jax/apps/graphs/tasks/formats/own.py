"""Read and write the project's own files of tasks: JSON, for files written by hand, and parquet, for large graphs.

JSON: `{"format": "mfabric tasks", "version": 1, "ranks": 2, "groups": [[0, 1]], "tasks": [{"kind": "send", "rank": 0,
"peer": 1, "bytes": 1e6, "after": [0]}, ...]}`. The fields are those of `TaskGraph`; `kind` and `op` are words. `after`
lists the numbers, from 0, of the tasks that a task waits for. Missing fields have defaults. Parquet has a column for
each field.
"""

import json
from pathlib import Path
from typing import Any

from mfabric_jax.apps.graphs.tasks.formats import files
from mfabric_jax.apps.graphs.tasks.formats.files import Reading, Spot, Supplied
from mfabric_jax.apps.graphs.tasks.graph import FIELDS, LARGEST, USUAL, Op, TaskGraph, TaskKind, Tasks
from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.support.atomic import replacing
from mfabric_jax.support.extras import PARQUET, load_extra
from mfabric_jax.support.text_files import mapping_in, parse_json

FORMAT, VERSION = "mfabric tasks", 1
META = b"mfabric-tasks"  # key in the parquet footer for format, version, ranks and groups
HEAD = ("format", "version", "ranks", "groups")
DEFAULT: dict[str, Any] = USUAL | {"op": "", "lane": -1, "name": "", "after": []}
COLUMNS = ("kind", "rank", *DEFAULT)
WORDS = {"kind": {kind.name.lower(): kind for kind in TaskKind}, "op": {"": -1} | {op.name.lower(): op for op in Op}}


def tells(head: bytes) -> bool:
    return FORMAT.encode() in head


def read_json(path: Path, supplied: Supplied) -> Reading:
    head = mapping_in(files.read_unpacked(path), repr(str(path)), "tasks")
    rows = head.pop("tasks", None)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{str(path)!r} must hold a list of tasks, each with its fields by name.")
    return _read(path, head, rows)


def read_parquet(path: Path, supplied: Supplied) -> Reading:
    parquet = load_extra("store", "reading .parquet", PARQUET)
    try:
        table = parquet.read_parquet(path, path)
        head = parse_json((table.schema.metadata or {}).get(META, b"null"))
        rows = table.to_pylist()
    except InputError:
        raise
    except Exception as error:  # damaged bytes raise errors of any type
        raise InputError(f"{str(path)!r} must be a readable .parquet file, got {type(error).__name__}.") from error
    if not isinstance(head, dict):
        raise InputError(f"{str(path)!r} must have {META.decode()} in its footer: it is not a table of tasks.")
    return _read(path, head, rows)


def _read(path: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> Reading:
    file = Spot(repr(str(path)))
    if head.get("format") != FORMAT or head.get("version") != VERSION or set(head) - set(HEAD):
        file.refuse(f"must have format {FORMAT!r}, version {VERSION}, ranks and groups, got {str(head)[:80]}")
    files.few_enough(path, len(rows))
    ranks = _value(file, "ranks", head.get("ranks"), 1, COUNTS["gpus"])
    groups = head.get("groups", [])
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        file.refuse(f"must have a list of ranks for each of groups, got {str(groups)[:60]}")
    members = tuple(tuple(_value(file, "groups", rank, 0) for rank in group) for group in groups)
    tasks = Tasks(ranks, members)
    for number, row in enumerate(rows):
        _add(Spot(f"task {number} of {str(path)!r}"), tasks, row, len(rows))
    return Reading(tasks.graph(), FORMAT)


def _add(spot: Spot, tasks: Tasks, row: dict[str, Any], count: int) -> None:
    if unknown := set(row) - set(COLUMNS):
        spot.refuse(f"must have only the fields {', '.join(COLUMNS)}, got {', '.join(map(str, unknown))[:60]}")
    row = DEFAULT | row
    for field, words in WORDS.items():
        if not isinstance(row.get(field), str) or row[field] not in words:
            spot.refuse(
                f"must have one of {', '.join(filter(None, words))} for {field}, got {str(row.get(field))[:40]!r}"
            )
        row[field] = words[row[field]]
    if not isinstance(row["name"], str):
        spot.refuse(f"must have text for name, got {str(row['name'])[:40]!r}")
    others = row.pop("after")
    after = [_value(spot, "after", other, 0, count - 1) for other in (others if isinstance(others, list) else [others])]
    for field in ("rank", "peer", "match", "group", "lane"):
        row[field] = _value(spot, field, row.get(field), -1)
    for field, most in LARGEST.items():
        number = isinstance(row[field], int | float) and not isinstance(row[field], bool)
        if not number or not 0 <= row[field] <= most:
            spot.refuse(f"must have a number from 0 to {most:g} for {field}, got {str(row[field])[:40]!r}")
    tasks.add(after=after, **row)


def _value(spot: Spot, field: str, value: Any, least: int, most: int = files.LARGEST_WHOLE) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        spot.refuse(f"must have a whole number from {least} to {most} for {field}, got {str(value)[:40]!r}")
    return value


def write_json(graph: TaskGraph, path: Path) -> tuple[str, ...]:
    rows = [json.dumps({key: value for key, value in row.items() if DEFAULT.get(key) != value}) for row in _rows(graph)]
    head = json.dumps(_head(graph))[:-1]
    with replacing(path) as (beside,):
        beside.write_text(f'{head}, "tasks": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")
    return ()


def write_parquet(graph: TaskGraph, path: Path) -> tuple[str, ...]:
    pyarrow, parquet = (load_extra("store", "writing .parquet", module) for module in ("pyarrow", PARQUET))
    rows = _rows(graph)
    kinds = {"kind": pyarrow.string(), "op": pyarrow.string(), "name": pyarrow.string()}
    kinds |= {"after": pyarrow.list_(pyarrow.int64())}
    kinds |= {name: pyarrow.from_numpy_dtype(FIELDS[name]) for name in COLUMNS if name not in kinds}
    columns = {name: pyarrow.array([row[name] for row in rows], kinds[name]) for name in COLUMNS}
    table = pyarrow.table(columns).replace_schema_metadata({META: json.dumps(_head(graph))})
    with replacing(path) as (beside,):
        parquet.save_table(table, beside)
    return ()


def _head(graph: TaskGraph) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "ranks": graph.ranks,
        "groups": [list(group) for group in graph.groups],
    }


def _rows(graph: TaskGraph) -> list[dict[str, Any]]:
    after: list[list[int]] = [[] for _ in range(graph.tasks)]
    for first, then in graph.after.tolist():
        after[then].append(first)
    words = {field: {int(value): word for word, value in names.items()} for field, names in WORDS.items()}
    columns = {name: getattr(graph, name).tolist() for name in FIELDS if name != "after"}
    columns |= {field: [names[value] for value in columns[field]] for field, names in words.items()}
    columns |= {"name": list(graph.name), "after": after}
    return [{name: columns[name][task] for name in COLUMNS} for task in range(graph.tasks)]
