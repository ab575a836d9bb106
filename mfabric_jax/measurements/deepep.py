"""Reads what DeepEP's tests print: legacy ones (tests/legacy, both kinds of kernels) and tests/elastic/test_ep.py.

- low latency, `[rank 0] Dispatch bandwidth: 98.1 GB/s, avg_t=77.00 us | Combine bandwidth: ...`: bytes are all copies
  of tokens, those that stay included.
- normal, `[tuning] Best dispatch (FP8): ...: 30 + 812 us, 57.10 GB/s (RDMA), 186.4 GB/s (NVL)`: bytes over RDMA count a
  token once for every server, the sender's own included. Bandwidth is over the second time; the first is that in which
  ranks tell each other what comes, and counts here.
- elastic, `* EP:   3/16 | dispatch: 42 GB/s (SO), 118 GB/s (SU), 1834.120 us, 216000000 bytes | ...`: SO over NICs, SU
  inside of servers. Rounded to whole GB/s.
"""

import re
from collections.abc import Iterator

from mfabric_jax.checks import InputError
from mfabric_jax.measurements.times import Report, Timed, count_in, number_in, timed
from mfabric_jax.units import gigabytes_per_s, us

TOOL = "DeepEP's tests"
LOW, NORMAL = "deepep-low-latency", "deepep-normal"
NUMBER = r"([-+.\w]+)"
RATE_AND_TIME = re.compile(rf"(?:Dispatch|Combine) bandwidth: {NUMBER} GB/s, avg_t={NUMBER} us")
BEST = re.compile(r"\[tuning\] Best (?:dispatch|combine)")
OVER_RDMA = re.compile(rf"{NUMBER} GB/s \(RDMA\)")
OVER_NVLINK = re.compile(rf"{NUMBER} GB/s \(NVL\)")
TOOK = (  # as versions of the test write it: in which ranks tell each other, and the transfer
    re.compile(rf"{NUMBER} \+ {NUMBER} us"),
    re.compile(rf"notify: {NUMBER} us()"),
    re.compile(rf"()\bt: {NUMBER} us"),
    re.compile(rf"()transmit: {NUMBER} us"),
)
ELASTIC = re.compile(
    rf"EP:\s*(\S+?)/(\S+) \| [\w ]+: {NUMBER} GB/s \(SO\), {NUMBER} GB/s \(SU\), {NUMBER} us, (\S+) bytes"
)
DOMAINS = re.compile(r"> Ranks: (\d+) x (\d+)")


def looks_like(text: str) -> bool:
    return any(mark.search(text) for mark in (RATE_AND_TIME, BEST, ELASTIC))


def read_text(text: str, file: str) -> Report:
    """The times of one run of a test; the elastic one says how many ranks and servers there were."""
    found: list[Timed] = []
    ranks, servers, inside = None, None, set()
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{file}, line {number}"
        if domains := DOMAINS.search(line):
            servers, each = count_in(where, "Ranks", domains[1]), count_in(where, "Ranks", domains[2])
            ranks = servers * each
        if RATE_AND_TIME.search(line):
            found += _low_latency(where, line)
        elif BEST.search(line):
            found.append(_normal(where, line))
            inside.add(OVER_RDMA.search(line) is None)
        elif row := ELASTIC.search(line):
            found.append(_elastic(where, row, servers))
            if ranks is None:
                ranks = count_in(where, "EP", row[2])
    if len(inside) > 1:
        raise InputError(f"{file} has lines inside a server and lines between servers; give a file of each.")
    return Report(file=file, tool=TOOL, times=tuple(found), ranks=ranks, servers=1 if inside == {True} else servers)


def _low_latency(where: str, line: str) -> Iterator[Timed]:
    for rate, took in RATE_AND_TIME.findall(line):
        yield _of_rate(where, LOW, rate, took)


def _of_rate(where: str, kind: str, rate: str, took: str, before: str = "") -> Timed:
    """Bytes are rate times time; `before`: what passes ahead of the transfer [us]."""
    transfer = us(number_in(where, "time", took))
    size = gigabytes_per_s(number_in(where, "bandwidth", rate)) * transfer
    return timed(where, kind, size, transfer + (us(number_in(where, "time", before)) if before else 0.0))


def _normal(where: str, line: str) -> Timed:
    rate = OVER_RDMA.search(line) or OVER_NVLINK.search(line)
    before, transfer = "", ""
    for form in TOOK:
        if said := form.search(line):
            before, transfer = before or said[1] or "", transfer or said[2] or ""
    if rate is None or not transfer:
        raise InputError(f"{where}: a best result must say GB/s and us, got {line.strip()!r:.80}.")
    return _of_rate(where, NORMAL, rate[1], transfer, before)


def _elastic(where: str, row: re.Match[str], servers: int | None) -> Timed:
    out, took, size = (row[3], row[5], row[6])
    if number_in(where, "SO", out) > 0:
        if servers == 1:
            raise InputError(f"{where}: SO must be 0 in one server, got {out!r:.80}.")
        return _of_rate(where, NORMAL, out, took)
    return timed(where, NORMAL, number_in(where, "bytes", size), us(number_in(where, "time", took)))
