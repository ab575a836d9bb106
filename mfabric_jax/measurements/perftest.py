"""Reads perftest: ib_write_bw and its kin, and ib_write_lat and its kin (linux-rdma/perftest, as text).

Bandwidth: ` #bytes #iterations BW peak BW average MsgRate`, MiB/s of 2^20 B/s or, with --report_gbits, Gb/s. Many
messages are on the way at once, so bytes over average bandwidth is the time of one more. Latency: `t_typical` of one
message that is alone [us].
"""

import re

from mfabric_jax.checks import InputError
from mfabric_jax.measurements.times import Report, Timed, is_count, number_in, timed
from mfabric_jax.units import gbps, us

TOOL = "perftest"
HEADER = re.compile(r"^\s*#bytes\s+#iterations.*$", re.M)
UNITS = {"[Gb/sec]": gbps(1.0), "[MiB/sec]": float(2**20), "[MB/sec]": float(2**20)}  # older ones wrote MB for MiB
COLUMN = re.compile(r"BW peak\S*|BW average\S*|\S+")
BOTH_WAYS = "Bidirectional"


def looks_like(text: str) -> bool:
    return HEADER.search(text) is not None


def read_text(text: str, file: str) -> Report:
    """The times of what a program printed: two ranks, of which one sends."""
    columns: list[str] = []
    found: list[Timed] = []
    ways = 2 if BOTH_WAYS in text else 1
    for number, line in enumerate(text.splitlines(), 1):
        words, where = line.split(), f"{file}, line {number}"
        if HEADER.match(line):
            columns = COLUMN.findall(line.replace("BW peak ", "BW peak").replace("BW average ", "BW average"))
        elif columns and words and is_count(words[0]):
            if len(words) < len(columns):
                raise InputError(f"{where}: a row must have {len(columns)} columns, got {len(words)}.")
            row = dict(zip(columns, words, strict=False))
            found.append(_time(where, row, ways))
    return Report(file=file, tool=TOOL, times=tuple(found), ranks=2, nics=True)


def _time(where: str, row: dict[str, str], ways: int) -> Timed:
    size = number_in(where, "#bytes", row["#bytes"])
    for column, word in row.items():
        name, _, unit = column.partition("[")
        if name == "BW average":
            rate = number_in(where, "BW average", word) * _unit(where, "[" + unit) / ways
            if not rate > 0:
                raise InputError(f"{where}: BW average must be above 0, got {word!r:.80}.")
            return timed(where, "messages", size, size / rate)
        if name == "t_typical":
            return timed(where, "message", size, us(number_in(where, "t_typical", word)))
    raise InputError(f"{where}: the table must have a column BW average or t_typical, got {', '.join(row):.200}.")


def _unit(where: str, unit: str) -> float:
    if unit not in UNITS:
        raise InputError(f"{where}: BW average must be in one of {', '.join(UNITS)}, got {unit!r:.80}.")
    return UNITS[unit]
