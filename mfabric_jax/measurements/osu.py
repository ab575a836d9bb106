"""Reads osu_alltoall and osu_alltoallv (OSU micro-benchmarks 7.5; the NCCL and GPU variants print alike).

Columns: size [B] of one pair of ranks, average latency [us]; with -f also least, most, iterations; with -c a column
that says Pass or Fail. The output does not say how many ranks there were.
"""

import re

from mfabric_jax.checks import InputError
from mfabric_jax.measurements.times import Report, is_count, number_in, timed
from mfabric_jax.units import us

TOOL = "osu_alltoall"
TITLE = re.compile(r"^# OSU .*All-?to-?All(v)?\b", re.I | re.M)


def looks_like(text: str) -> bool:
    return TITLE.search(text) is not None


def read_text(text: str, file: str, ranks: int | None) -> Report:
    """The times of what osu_alltoall printed. `InputError` without `ranks`: a rank sends a size to each of them."""
    if ranks is None:
        raise InputError(f"{file} is of {TOOL}, which does not say how many ranks took part; give --ranks.")
    title = TITLE.search(text)
    kind, found = "alltoallv" if title and title[1] else "all-to-all", []
    for number, line in enumerate(text.splitlines(), 1):
        words, where = line.split(), f"{file}, line {number}"
        if not words or not is_count(words[0]):
            continue
        if len(words) < 2:
            raise InputError(f"{where}: a row must have a size and a latency, got {line.strip()!r:.80}.")
        if "Fail" in words:
            raise InputError(f"{where}: Validation must be Pass, got 'Fail'; data arrived damaged, measure again.")
        size = number_in(where, "size", words[0])
        found.append(timed(where, kind, size * ranks, us(number_in(where, "latency", words[1]))))
    return Report(file=file, tool=TOOL, times=tuple(found), ranks=ranks)
