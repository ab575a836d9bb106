"""Reader of DeepEP's tests: legacy ones (tests/legacy, both kinds of kernels) and tests/elastic/test_ep.py.

- low latency, `[rank 0] Dispatch bandwidth: 98.1 GB/s, avg_t=77.00 us | Combine bandwidth: ...`: bytes count all copies
  of tokens, including those that stay on the GPU.
- normal, `[tuning] Best dispatch (FP8): ...: 30 + 812 us, 57.10 GB/s (RDMA), 186.4 GB/s (NVL)`: bytes over RDMA count a
  token once per server, the sender's own included. The first time is the exchange of sizes between ranks, the second
  the transfer. Bandwidth is bytes over the second; the reader adds both times.
- elastic, `* EP:   3/16 | dispatch: 42 GB/s (SO), 118 GB/s (SU), 1834.120 us, 216000000 bytes | ...`: SO is over NICs,
  SU inside servers, both rounded to whole GB/s.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from mfabric_jax.apps.recordings.measurements.ports import LOW_LATENCY, NORMAL
from mfabric_jax.apps.recordings.measurements.times import MeasuredTime, Report, check_time, count_in, number_in
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.unread import name_unread
from mfabric_jax.units import gigabytes_per_s, us

TOOL = "DeepEP's tests"
NUMBER = r"([-+.\w]+)"
RATE_AND_TIME = re.compile(rf"(Dispatch|Combine) bandwidth: {NUMBER} GB/s, avg_t={NUMBER} us")
DIRECTION = re.compile(r"\b(?:Dispatch|Combine) bandwidth:")
RANK = re.compile(r"\[rank (\d+)\]")
BEST = re.compile(r"\[tuning\] Best (dispatch|combine)(?: \(\w+\))?")
OVER_RDMA = re.compile(rf"{NUMBER} GB/s \(RDMA\)")
MICROSECONDS = re.compile(r"\bus\b")
OVER_NVLINK = re.compile(rf"{NUMBER} GB/s \(NVL\)")
TOOK = (  # forms by version of the test: time of the exchange of sizes, and of the transfer
    re.compile(rf"{NUMBER} \+ {NUMBER} us"),
    re.compile(rf"notify: {NUMBER} us()"),
    re.compile(rf"()\bt: {NUMBER} us"),
    re.compile(rf"()transmit: {NUMBER} us"),
)
ELASTIC = re.compile(
    rf"EP:\s*(\S+?)/(\S+) \| ([\w ]+): {NUMBER} GB/s \(SO\), {NUMBER} GB/s \(SU\), {NUMBER} us, (\S+) bytes"
)
RESULT = re.compile(r"\d GB/s")
OPERATIONS = ("dispatch", "cached dispatch", "combine", "reduced combine")  # of the elastic test
LEFT_OUT = re.compile(r"Dispatch \+ combine bandwidth:|send/recv time:|\[tuning\] SMs ")  # not needed here
DOMAINS = re.compile(r"> Ranks: (\d+) x (\d+)")


def looks_like(text: str) -> bool:
    return any(mark.search(text) for mark in (RATE_AND_TIME, BEST, ELASTIC))


class DeepEpRun(NamedTuple):
    """What distinguishes runs: the test, its ranks and servers if stated, and the number of earlier runs."""

    program: str
    ranks: int | None = None
    servers: int | None = None
    before: int = 0


def read_text(text: str, file: str, ranks: int | None = None) -> list[Report]:
    """Return the runs in a text; only the elastic test states its ranks and servers."""
    runs: dict[DeepEpRun, list[MeasuredTime]] = {}
    label_counts: Counter[str] = Counter()
    domains, unread = None, []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{file}, line {number}"
        if rank_line := DOMAINS.search(line):
            domains = count_in(where, "Ranks", rank_line[1]), count_in(where, "Ranks", rank_line[2])
        if RATE_AND_TIME.search(line):
            rank = RANK.search(line)
            run = DeepEpRun("test_low_latency", before=_times_before(label_counts, rank and rank[0]))
            runs.setdefault(run, []).extend(_low_latency(where, line))
        elif best := BEST.search(line):
            run = DeepEpRun("test_internode") if OVER_RDMA.search(line) else DeepEpRun("test_intranode", servers=1)
            run = run._replace(before=_times_before(label_counts, best[0]))
            runs.setdefault(run, []).append(_normal(where, line))
        elif row := ELASTIC.search(line):
            run = _elastic_run(where, row, domains)
            runs.setdefault(run, []).append(_elastic(where, row, run.servers))
        elif RESULT.search(line) and not LEFT_OUT.search(line):
            unread.append(f"line {number} ({line.strip():.40})")
    name_unread(file, "lines", unread)
    if {"test_internode", "test_intranode"} <= {run.program for run in runs}:
        raise InputError(f"{file} has times inside a server and times between servers; give one file for each.")
    return [
        Report(file=file, tool=TOOL, program=run.program, times=tuple(times), ranks=run.ranks, servers=run.servers)
        for run, times in runs.items()
    ]


def _times_before(label_counts: Counter[str], label: str | None) -> int:
    """How often a label occurred before; a rank or the operation of a best result occurs once per run."""
    if label is None:
        return 0
    label_counts[label] += 1
    return label_counts[label] - 1


def _elastic_run(where: str, row: re.Match[str], domains: tuple[int, int] | None) -> DeepEpRun:
    ranks = count_in(where, "EP", row[2])
    if domains is not None and domains[0] * domains[1] != ranks:
        raise InputError(f"{where}: EP must have the {domains[0]} x {domains[1]} ranks stated above, got {ranks}.")
    return DeepEpRun("test_ep", ranks, domains and domains[0])


def _low_latency(where: str, line: str) -> Iterator[MeasuredTime]:
    results = RATE_AND_TIME.findall(line)
    if len(results) < len(DIRECTION.findall(line)) or len(results) < line.count("GB/s"):
        raise InputError(f"{where}: a direction must say its GB/s and avg_t, got {line.strip()!r:.80}.")
    for direction, rate, took in results:
        yield _of_rate(where, f"{LOW_LATENCY}-{direction.lower()}", rate, took)


def _of_rate(where: str, kind: str, rate: str, took: str, before: str = "") -> MeasuredTime:
    """A time whose bytes are rate x time; `before`: time ahead of the transfer [us]."""
    transfer = us(number_in(where, "time", took))
    size = gigabytes_per_s(number_in(where, "bandwidth", rate)) * transfer
    return check_time(where, kind, size, transfer + (us(number_in(where, "time", before)) if before else 0.0))


def _normal(where: str, line: str) -> MeasuredTime:
    rate = OVER_RDMA.search(line) or OVER_NVLINK.search(line)
    before, transfer = "", ""
    times = 0
    for form in TOOK:
        if timing := form.search(line):
            before, transfer, times = before or timing[1] or "", transfer or timing[2] or "", times + 1
    best = BEST.search(line)
    if best is None or rate is None or not transfer or times < len(MICROSECONDS.findall(line)):
        raise InputError(f"{where}: a best result must say GB/s and us, got {line.strip()!r:.80}.")
    return _of_rate(where, f"{NORMAL}-{best[1]}", rate[1], transfer, before)


def _elastic(where: str, row: re.Match[str], servers: int | None) -> MeasuredTime:
    operation, out, took, size = row[3], row[4], row[6], row[7]
    one_of(f"{where}: operation", operation.strip(), OPERATIONS)
    kind = f"{NORMAL}-{operation.strip().replace(' ', '-')}"
    if number_in(where, "SO", out) > 0:
        if servers == 1:
            raise InputError(f"{where}: SO must be 0 in one server, got {out!r:.80}.")
        return _of_rate(where, kind, out, took)
    return check_time(where, kind, number_in(where, "bytes", size), us(number_in(where, "time", took)))
