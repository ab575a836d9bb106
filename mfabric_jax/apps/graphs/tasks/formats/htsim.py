"""Read connection matrices of htsim, `.cm`: a SEND for every connection, released at a time or by a trigger.

`start` is in picoseconds, as in htsim's loader (its saver prints microseconds). A connection fires both its send and
its receive trigger when its last byte has arrived. Source: connection_matrix.cpp and trigger.cpp of
github.com/Broadcom/csg-htsim.
"""

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.formats import files
from mfabric_jax.apps.graphs.tasks.formats.files import Reading, Spot, Supplied
from mfabric_jax.apps.graphs.tasks.graph import TaskKind, Tasks
from mfabric_jax.checks import COUNTS

COUNTED = {"Nodes": "nodes", "Connections": "connections", "Triggers": "triggers", "Failures": "failures"}
PAIR = re.compile(r"(\d+)->(\d+)")
NUMBERS = ("id", "trigger", "size", "prio", "send_done_trigger", "recv_done_trigger")
TRIGGERS = ("oneshot", "multishot", "barrier")


class _Trigger(NamedTuple):
    spot: Spot
    kind: str
    count: int | None


class _Matrix(NamedTuple):
    """The connections as tasks, the triggers, and the connections that fire each trigger or that it releases."""

    tasks: Tasks
    triggers: dict[int, _Trigger]
    fired_by: dict[int, list[tuple[int, Spot]]]
    releases: dict[int, list[tuple[int, Spot]]]


def tells(head: bytes) -> bool:
    return re.match(rb"\s*Nodes\s+\d", head) is not None


def read(path: Path, supplied: Supplied) -> Reading:
    """Return a SEND for every connection, in the order of the file."""
    stated: dict[str, int] = {}
    rows = dict.fromkeys(COUNTED, 0)
    matrix = _Matrix(Tasks(0), {}, defaultdict(list), defaultdict(list))
    counts = {"unbounded": 0, "prio": 0}
    for number, text in enumerate(files.lines_of(path), start=1):
        words, spot = text.split(), files.line(path, number)
        if not words:
            continue
        if words[0] in COUNTED and len(words) == 2:
            stated[words[0]] = spot.whole(words[0], words[1], most=COUNTS["gpus"])
        elif words[0] == "trigger":
            rows["Triggers"] += 1
            _trigger(spot, words[1:], matrix)
        elif words[0] == "failure":
            rows["Failures"] += 1
        elif match := PAIR.fullmatch(words[0]):
            rows["Connections"] += 1
            _connection(spot, match, words[1:], stated.get("Nodes", 0), matrix, supplied, counts)
        else:
            spot.refuse(f"must be a row of a connection matrix, got {text.strip()[:60]!r}")
    whole = Spot(repr(str(path)))
    for word in ("Nodes", "Connections"):
        if word not in stated:
            whole.refuse(f"must have the number of {COUNTED[word]}, {word} N")
    for word, count in rows.items():
        if word != "Nodes" and stated.get(word, 0) != count:
            whole.refuse(
                f"must have {stated.get(word, 0)} rows of {COUNTED[word]}, the number it declares, got {count}"
            )
    matrix.tasks.ranks = max(stated["Nodes"], 1)
    _release(matrix)
    return Reading(matrix.tasks.graph(), "htsim connection matrix", _remarks(matrix, counts, rows, supplied))


def _trigger(spot: Spot, words: list[str], matrix: _Matrix) -> None:
    if len(words) not in (3, 5) or words[0] != "id" or words[2] not in TRIGGERS or words[3:4] not in ([], ["count"]):
        spot.refuse(f"must be trigger id K {'|'.join(TRIGGERS)} [count C], got {' '.join(words)[:60]!r}")
    key = spot.whole("id", words[1], 1)
    if key in matrix.triggers:
        spot.refuse(f"declares trigger {key} a second time")
    count = spot.whole("count", words[4], 1) if len(words) == 5 else None
    if words[2] == "barrier" and count is None:
        spot.refuse("must have the count of its barrier")
    matrix.triggers[key] = _Trigger(spot, words[2], count)


def _connection(
    spot: Spot,
    pair: re.Match,
    words: list[str],
    nodes: int,
    matrix: _Matrix,
    supplied: Supplied,
    counts: dict[str, int],
) -> None:
    source, destination = (spot.rank("nodes", text, nodes) for text in pair.groups())
    words = [word for word in words if word != "addon"]
    if len(words) % 2 or len(set(words[::2])) < len(words) // 2 or not set(words[::2]) <= {*NUMBERS, "start"}:
        spot.refuse(
            f"must have pairs NAME NUMBER with the names {', '.join(('start', *NUMBERS))}, got {' '.join(words)[:60]!r}"
        )
    fields = dict(zip(words[::2], words[1::2], strict=True))
    values = {
        word: spot.whole(word, fields[word], int(word in ("id", "trigger"))) for word in NUMBERS if word in fields
    }
    if ("start" in fields) == ("trigger" in fields):
        spot.refuse("must have either start or trigger")
    if "trigger" in values and "id" not in values:
        spot.refuse("must have an id, since it has a trigger")
    start, size = units.ps(spot.number("start", fields.get("start", 0))), values.get("size", 0)
    counts["unbounded"] += size == 0
    counts["prio"] += "prio" in values
    size = size or supplied.unbounded_bytes or 0
    task = matrix.tasks.add(TaskKind.SEND, source, pair[0], start=start, peer=destination, bytes=size)
    if "trigger" in values:
        matrix.releases[values["trigger"]].append((task, spot))
    for word in ("send_done_trigger", "recv_done_trigger"):
        if values.get(word):
            matrix.fired_by[values[word]].append((task, spot))


def _release(matrix: _Matrix) -> None:
    """Add waits by the rules of each trigger. Raise `InputError` if htsim would stop or a flow would never start."""
    for key in sorted({*matrix.fired_by, *matrix.releases}):
        fires, waiting = matrix.fired_by[key], matrix.releases[key]
        if key not in matrix.triggers:
            (waiting or fires)[0][1].refuse(f"names trigger {key}, which no row declares")
        spot, kind, count = matrix.triggers[key]
        needed = {"oneshot": 1, "multishot": len(waiting), "barrier": count}[kind]
        if len(fires) < needed:
            spot.refuse(f"declares a {kind} with too few firings: {needed} needed, got {len(fires)}")
        if len(fires) > needed and kind != "multishot":
            spot.refuse(
                f"declares a {kind} with too many firings: {needed} needed, got {len(fires)} (htsim would stop)"
            )
        for order, (task, _) in enumerate(waiting):
            others = fires[order : order + 1] if kind == "multishot" else fires
            matrix.tasks.wait(task, [other for other, _ in others])


def _remarks(matrix: _Matrix, counts: dict[str, int], rows: dict[str, int], supplied: Supplied) -> tuple[str, ...]:
    remarks = []
    if counts["unbounded"]:
        size = "nothing" if supplied.unbounded_bytes is None else f"{supplied.unbounded_bytes:g} bytes"
        text = files.count_phrase(counts["unbounded"], "connection has", "connections have")
        remarks.append(f"{text} size 0, which never ends in htsim: here it sends {size} (unbounded_bytes).")
    shots = [key for key, trigger in matrix.triggers.items() if trigger.kind == "multishot" and matrix.fired_by[key]]
    if any(len(matrix.fired_by[key]) > 1 for key in shots):
        remarks.append(
            f"{files.count_phrase(len(shots), 'multishot trigger')}: connections fire in the order of the "
            f"file; in htsim, "
            "in the order in which they end."
        )
    if counts["prio"]:
        remarks.append(
            f"{files.count_phrase(counts['prio'], 'connection has', 'connections have')} a priority: not used."
        )
    if rows["Failures"]:
        remarks.append(
            f"{files.count_phrase(rows['Failures'], 'failure')} of links not used: give failures to the fabric."
        )
    return tuple(remarks)
