"""Reader of osu_alltoall and osu_alltoallv (OSU micro-benchmarks 7.5; NCCL and GPU variants have the same format).

A file may hold several runs, each below its title. Columns are size [B] per pair of ranks and average latency [us];
-f adds minimum, maximum and iterations, -c adds Pass or Fail. The output does not state the number of ranks.
"""

import re
from collections.abc import Iterator

from mfabric_jax.apps.recordings.measurements.times import TABLE, MeasuredTime, Report, check_time, is_count, number_in
from mfabric_jax.checks import InputError
from mfabric_jax.units import us

TOOL = "osu_alltoall"
TITLE = re.compile(r"^# OSU (.*\S)", re.M)
READ = re.compile(r"(\S+) All-?to-?All(v)?\b", re.I)
LATENCY = re.compile(r"#\s*Size\s+(Avg )?Latency\b", re.I)


def looks_like(text: str) -> bool:
    return TITLE.search(text) is not None


def read_text(text: str, file: str, ranks: int | None) -> list[Report]:
    """Return the runs of osu_alltoall in a text. Raise `InputError` without `ranks`: a rank sends the size to each."""
    runs: list[tuple[str, str, list[tuple[str, str]]]] = []
    table_rows: list[tuple[str, str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{file}, line {number}"
        if title := TITLE.match(line):
            table_rows = []
            runs.append((*_of_title(where, title[1]), table_rows))
        elif TABLE.search(line):
            table_rows = None  # a table of another tool
        elif LATENCY.match(line) and (table_rows is None or table_rows):
            raise InputError(f"{where}: the title of a test, # OSU ..., must stand above its table.")
        elif table_rows is not None and line.startswith("#") and "(us)" in line and not LATENCY.match(line):
            raise InputError(f"{where}: the column after Size must be Avg Latency(us), got {line!r:.80}.")
        elif table_rows is not None and is_count((line.split() or [""])[0]):
            table_rows.append((where, line))
    if ranks is None:
        raise InputError(f"{file} is output of {TOOL}, which does not state the number of ranks; give --ranks.")
    return [
        Report(file=file, tool=TOOL, program=program, times=tuple(_times(kind, rows, ranks)))
        for program, kind, rows in runs
    ]


def _of_title(where: str, title: str) -> tuple[str, str]:
    """Program and kind."""
    read = READ.match(title)
    if read is None:
        raise InputError(
            f"{where}: {title!r:.80} is not read; allowed: osu_alltoall and osu_alltoallv; remove the run."
        )
    return f"{TOOL}{read[2] or ''} {read[1]}", "alltoallv" if read[2] else "all-to-all"


def _times(kind: str, rows: list[tuple[str, str]], ranks: int) -> Iterator[MeasuredTime]:
    for where, line in rows:
        words = line.split()
        if len(words) < 2:
            raise InputError(f"{where}: a row must have a size and a latency, got {line.strip()!r:.80}.")
        if "Fail" in words:
            raise InputError(f"{where}: Validation must be Pass, got 'Fail'; data arrived corrupted, measure again.")
        size = number_in(where, "size", words[0])
        yield check_time(where, kind, size * ranks, us(number_in(where, "latency", words[1])))
