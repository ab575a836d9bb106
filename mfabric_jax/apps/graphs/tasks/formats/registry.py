"""Read and write task graphs in all formats."""

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax import checks
from mfabric_jax.apps.graphs.tasks.formats import (
    chakra,
    chakra_write,
    execution_trace,
    files,
    flexflow,
    goal,
    htsim,
    kineto,
    own,
    param,
    simai,
)
from mfabric_jax.apps.graphs.tasks.formats.files import Reading, Supplied
from mfabric_jax.apps.graphs.tasks.graph import TaskGraph
from mfabric_jax.checks import InputError
from mfabric_jax.support.atomic import check_file

HEAD = 1 << 12  # first bytes of a file, from which its format is recognized


class _Format(NamedTuple):
    """A format: `suffix` or `tells` recognizes a file, `is_set` a folder or the prefix of files.

    `takes` lists the fields of `Supplied` that it uses.
    """

    suffix: str
    read: Callable[[Path, Supplied], Reading]
    tells: Callable[[bytes], bool] = lambda head: False
    takes: tuple[str, ...] = ()
    is_set: Callable[[Path], bool] = lambda path: False


COMPUTED = ("tflops", "memory_gigabytes_per_s")
RECORDED = {kineto.KIND: ("ranks",), execution_trace.KIND: ("ranks",), param.KIND: ("ranks", *COMPUTED)}
OWN_JSON = "mfabric tasks, JSON"
READERS = {
    "Chakra": _Format(".et", chakra.read, chakra.tells, ("ranks", "communicators", *COMPUTED), chakra.is_set),
    "FlexFlow task graph": _Format(".fbuf", flexflow.read, takes=("weights",)),
    "GOAL": _Format(".goal", goal.read, goal.tells),
    "htsim connection matrix": _Format(".cm", htsim.read, htsim.tells, ("unbounded_bytes",)),
    "SimAI workload": _Format("", simai.read, simai.tells, ("ranks",)),
    **{
        kind.format: _Format("", partial(param.read, kind=kind), kind.tells, takes, partial(param.is_set, kind=kind))
        for kind, takes in RECORDED.items()
    },
    OWN_JSON: _Format("", own.read_json, own.tells),
    "mfabric tasks, parquet": _Format(".parquet", own.read_parquet),
}
NO_TASKS = {  # files that lie beside task graphs but are none: pattern of the contents, description
    rb'\s*\{\s*("[^"]*"\s*:\s*\[[\d\s,]*\]\s*,?\s*)+\}?': "a list of communicators: give the .et files beside it",
    rb"(\[rank[^\n]*\n)?comm_type,comm_group": "AICB's log of a run, which lacks dependencies: give its .txt",
    rb"\s*\[\s*\[": "a matrix of weights, which is traffic: use it with --trace",
}
WRITERS: dict[str, Callable[[TaskGraph, Path], tuple[str, ...]]] = {
    ".et": chakra_write.write,
    ".json": own.write_json,
    ".parquet": own.write_parquet,
}


def read_tasks(path: str | Path, **left_out: Any) -> TaskGraph:
    """Return the tasks of a file; parameters as in `read_with_remarks`."""
    return read_with_remarks(path, **left_out).graph


def read_with_remarks(path: str | Path, **left_out: Any) -> Reading:
    """Return the tasks of a file, its format, and remarks on what was dropped or assumed.

    - `path`: plain, .gz or .xz; the extension, else the content, decides the format.
    - `left_out`: fields of `files.Supplied`, for values that the file leaves out.

    Raise `InputError` for an unreadable file, an unknown format, a broken file (the message names the line or node), a
    job that cannot run (such as a message without a sender), and a value in `left_out` that the format never leaves
    out.
    """
    path = Path(path)
    name = _format_of(path)
    chosen = READERS[name]
    if unknown := [field for field in left_out if field not in chosen.takes]:
        allowed = ", ".join(chosen.takes) or "nothing"
        raise InputError(f"{unknown[0]} cannot be given for {str(path)!r} ({name}); it leaves out: {allowed}.")
    for field, value in left_out.items():
        if field == "ranks" and value is not None:
            checks.whole("ranks", value)
        elif field not in ("communicators", "weights") and value is not None:
            checks.positive(field, value)
    try:
        reading = chosen.read(path, Supplied(**left_out))
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{str(path)!r}: {error}") from error
    return reading._replace(graph=dataclasses.replace(reading.graph, file=str(path)))


def _format_of(path: Path) -> str:
    plain = files.plain_name(path)
    for name, entry in READERS.items():
        if not path.is_file() and entry.is_set(path):
            return name
    if path.is_dir():
        raise InputError(
            f"{str(path)!r} must be a file of tasks, or a folder of one set: of Chakra, PREFIX.RANK.et, or of PARAM, "
            "RANK.json."
        )
    for name, entry in READERS.items():
        if entry.suffix and plain.lower().endswith(entry.suffix):
            return name
    head = files.read_unpacked(path)[:HEAD]
    for name, entry in READERS.items():
        if entry.tells(head):
            return name
    for pattern, what in NO_TASKS.items():
        if re.match(pattern, head, re.S):
            raise InputError(f"{str(path)!r} is not a file of tasks, but {what}.")
    if plain.lower().endswith(".json"):
        return OWN_JSON
    raise InputError(f"{str(path)!r} must be a file of tasks in one of the formats {', '.join(READERS)}.")


def write_tasks(graph: TaskGraph, path: str | Path) -> tuple[str, ...]:
    """Write the tasks in the format of the extension; return remarks on what that format cannot express."""
    path = Path(path)
    return WRITERS[check_file("path", path, tuple(WRITERS))](graph, path)
