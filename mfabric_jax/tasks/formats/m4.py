"""Flow sets of m4, m3 and HPCC's ns-3: `flows.txt`, a count, then rows `id src dst 3 port bytes start`, in seconds.

Every flow is a SEND; nothing waits for anything. Source: M4_INPUT_DATA_FORMAT.md of github.com/netiken/m4. Written
from that description: no published set could be had to try it on.
"""

import re
from pathlib import Path

from mfabric_jax.checks import COUNTS
from mfabric_jax.tasks.formats import files
from mfabric_jax.tasks.formats.files import LeftOut, Reading
from mfabric_jax.tasks.graph import TaskKind, Tasks

ROW = ("id", "src", "dst", "priority group", "port", "bytes", "start")


def tells(head: bytes) -> bool:
    """Whether a text is a count and then rows of seven numbers (or nothing)."""
    return re.match(rb"\s*\d+[ \t]*\r?\n\s*(\d+[ \t]+){6}[\d.eE+-]+[ \t]*(\r?\n|$)|\s*0\s*$", head) is not None


def read(path: Path, given: LeftOut) -> Reading:
    """A SEND for every flow; hosts are ranks, `given.ranks` of them or as many as the flows need."""
    lines = [(number, text.split()) for number, text in enumerate(files.lines_of(path), start=1) if text.strip()]
    (first, words), rows = (lines[0], lines[1:]) if lines else ((1, []), [])
    place = files.line(path, first)
    count = place.whole("the number of flows", " ".join(words), most=files.MOST_TASKS)
    if count != len(rows):
        place.refuse(f"says {count} flows, but {len(rows)} rows follow")
    tasks = Tasks(1)
    hosts = given.ranks or COUNTS["gpus"]
    for number, words in rows:
        place = files.line(path, number)
        if len(words) != len(ROW):
            place.refuse(f"must have {', '.join(ROW)}, got {' '.join(words)[:60]!r}")
        source, there = place.rank("src", words[1], hosts), place.rank("dst", words[2], hosts)
        size, start = place.whole("bytes", words[5]), place.number("start", words[6])
        tasks.add(TaskKind.SEND, source, f"flow {words[0]}", start=start, peer=there, bytes=size)
    used = max([0, *tasks.column("rank"), *tasks.column("peer")]) + 1
    tasks.ranks = given.ranks or used
    remarks = () if given.ranks else (f"as many hosts as the flows name: {used} (ranks).",)
    return Reading(tasks.graph(), "m4 flow set", remarks)
