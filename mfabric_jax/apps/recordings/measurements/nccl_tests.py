"""Reader of nccl-tests output, as text or JSON (NVIDIA/nccl-tests, src/util.cu, JSON version 2 of July 2026).

A text may hold several runs. Each has a table whose header names the columns: size [B] count type redop root, then
time [us] algbw busbw #wrong out of place, then the same four in place. If times of iterations are printed, four more
columns follow each group. Versions before the one for NCCL 2.13 have no root column, a blank redop if nothing is
reduced, and the largest error instead of #wrong. `size` is the whole buffer of a rank: the larger of its two for
all-gather and reduce-scatter. Both times of a row count. Rows without bytes are left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from mfabric_jax.apps.recordings.measurements.times import (
    TABLE,
    MeasuredTime,
    Report,
    check_time,
    count_in,
    is_count,
    number_in,
)
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import mapping_in
from mfabric_jax.support.unread import name_unread
from mfabric_jax.units import to_gigabytes, us

TOOL = "nccl-tests"
PROGRAMS = {
    **{"alltoallv": "alltoallv", "alltoall": "all-to-all", "all_reduce": "all-reduce", "all_gather": "all-gather"},
    **{"reduce_scatter": "reduce-scatter", "sendrecv": "send-receive"},
}
NAMES = [*PROGRAMS, "broadcast", "reduce", "gather", "scatter", "hypercube"]  # all except PROGRAMS are refused
PROGRAM = re.compile(rf"(?<![a-z_])({'|'.join(NAMES)})_perf")
STARTING = "Collective test starting"
CONCLUDED = "Collective test concluded"
RANK = re.compile(r"^#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s)?.*?\bon\s+(\S+)\s+device\b")
ROW = re.compile(r"(?<![\w.])\d+\s+\d+\s+(u?int\d+|half|float|double|bfloat16|fp?8_?e\dm\d)\s")
CLOCK = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")  # time stamp at the end of a row, with -T
ROUNDED = 0.01, 0.05  # tolerance of a printed rate: GB/s, and relative
LARGEST_ERROR = 0.01  # largest error that older versions accept in half precision


@dataclass
class NcclRun:
    """One table, with what the text names after the previous table: programs, and ranks with group and server."""

    line: int = 0
    columns: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    starting: str = ""
    hosts: dict[int, tuple[str, str]] = field(default_factory=dict)
    rows: list[tuple[int, str]] = field(default_factory=list)


def looks_like(text: str) -> bool:
    return "algbw" in text and "busbw" in text


def read_text(text: str, file: str, ranks: int | None = None) -> list[Report]:
    """Return the runs in a text. Ranks and servers come from its `# Rank` lines, if there are any."""
    runs = _runs(text, file)
    if not any(run.rows for run in runs):
        raise InputError(f"{file} is output of {TOOL} but holds no measured time; give the complete output.")
    return [_report(run, _program(run, runs, file), file) for run in runs]


def _runs(text: str, file: str) -> list[NcclRun]:
    runs: list[NcclRun] = []
    run, reading = NcclRun(), False
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{file}, line {number}"
        reading = reading and not (line.startswith("#") and runs[-1].rows)  # a comment ends the rows
        if rank := RANK.match(line):
            _add_rank(where, run.hosts, rank)
        elif {"type", "algbw", "busbw"} <= set(line.split()):
            if reading and not runs[-1].rows:
                raise InputError(f"{where}: a second table begins before the first has a row; {MIXED}.")
            run.line, run.columns = number, _columns(where, line)
            runs.append(run)
            run, reading = NcclRun(), True
        elif TABLE.search(line):
            reading = False
        elif is_count((line.split() or [""])[0]) and (reading or ROW.search(line)):
            if not reading:
                raise InputError(f"{where}: a row must stand below the header of its table, got {line.strip()!r:.80}.")
            runs[-1].rows.append((number, line))
        elif ROW.search(line):
            raise InputError(
                f"{where}: a row must begin with its size, got {line.strip()!r:.80}; remove what stands before it."
            )
        elif CONCLUDED not in line:
            named = [name[1] for name in PROGRAM.finditer(line)]
            run.named += named
            if STARTING in line and named:
                run.starting = named[0]
    return runs


MIXED = "outputs of several processes are mixed; build nccl-tests with MPI, or give one file per process"


def _add_rank(where: str, hosts: dict[int, tuple[str, str]], rank: re.Match[str]) -> None:
    if int(rank[1]) in hosts:
        raise InputError(f"{where}: rank {rank[1]} occurs twice, on {hosts[int(rank[1])][1]} and {rank[3]}; {MIXED}.")
    hosts[int(rank[1])] = rank[2] or "0", rank[3]


def _columns(where: str, line: str) -> list[str]:
    """The columns of a header."""
    columns = line.strip().lstrip("# ").split()
    if columns[-1] == "timestamp":
        columns.pop()
    followed = [
        columns[index : index + 3] == ["time", "algbw", "busbw"] for index, name in enumerate(columns) if name == "time"
    ]
    if columns[0] != "size" or not followed or not all(followed) or len(followed) != columns.count("algbw"):
        raise InputError(
            f"{where}: the table must have the column size, and columns time, algbw, busbw side by side, got "
            f"{', '.join(columns):.80}; -C (CPU time) and versions of 2017 are not read."
        )
    return columns


def _program(run: NcclRun, runs: list[NcclRun], file: str) -> str:
    """The measured program: named above the table, else anywhere in the output, else in the file name."""
    named = {run.starting} if run.starting else set(run.named)
    if not named and any(each.starting for each in runs):
        raise InputError(f"{file}, line {run.line}: {STARTING!r} must stand above every table, or above none.")
    named = named or {name for each in runs for name in each.named}
    named = named or set(re.findall("|".join(NAMES), PurePath(file).name))
    if len(named) == 1:
        (name,) = named
        if name in PROGRAMS:
            return name
        raise InputError(f"{file}, line {run.line}: {name}_perf is not read; allowed: {ALLOWED}; remove the run.")
    if not named:
        raise InputError(f"{file} does not say which program ran; name the file after it; allowed: {ALLOWED}.")
    raise InputError(
        f"{file}, line {run.line}: the table may be of {' or '.join(sorted(named))}; give one file per program, named "
        "after it."
    )


ALLOWED = ", ".join(f"{name}_perf" for name in PROGRAMS)


def _report(run: NcclRun, program: str, file: str) -> Report:
    kind = PROGRAMS[program]
    times = (time for number, line in run.rows for time in _row(f"{file}, line {number}", kind, line, run))
    ranks, servers = _size(file, run)
    return Report(file=file, tool=TOOL, program=f"{program}_perf", times=tuple(times), ranks=ranks, servers=servers)


def _size(file: str, run: NcclRun) -> tuple[int | None, int | None]:
    """Ranks of a communicator, and servers that hold them; with NCCL_TESTS_SPLIT several equal communicators run."""
    if not run.hosts:
        return None, None
    if missing := set(range(len(run.hosts))) - set(run.hosts):
        raise InputError(
            f"{file}, line {run.line}: the rank lines must name all ranks; rank {min(missing)} is missing."
        )
    groups: dict[str, list[str]] = {}
    for group, host in run.hosts.values():
        groups.setdefault(group, []).append(host)
    (ranks, servers), *others = {(len(hosts), len(set(hosts))) for hosts in groups.values()}
    if others:
        raise InputError(f"{file}, line {run.line}: groups must have equal numbers of ranks, and of servers.")
    return ranks, servers


def _row(where: str, kind: str, line: str, run: NcclRun) -> Iterator[MeasuredTime]:
    """The times of one line: out of place and in place, or only one of them."""
    words = CLOCK.sub("", line).split()
    if words[0].strip("0") == "":
        return
    first, stride = _shape(run.columns)
    leads = (first,) if "root" in run.columns else (first, first - 1)  # redop may be blank
    bodies = [range(lead, len(words), stride) for lead in leads if len(words) - lead in (stride, 2 * stride)]
    if not bodies:
        raise InputError(f"{where}: a row must have the columns of line {run.line}, got {len(words)} words.")
    size, check = number_in(where, "size", words[0]), run.columns[first + 3 : first + 4]
    for column in bodies[0]:
        time = check_time(where, kind, size, us(number_in(where, "time", words[column])))
        _check_rate(where, time, words[column : column + 2])
        if check and not (check != ["#wrong"] and column > bodies[0][0] and kind in UNCHECKED):
            _check_right(where, check[0], words[column + 3])
        yield time


UNCHECKED = "all-to-all", "send-receive"  # in place, these are not verified: newer versions write N/A


def _shape(columns: list[str]) -> tuple[int, int]:
    """Number of columns before the first time, and from the first to the second."""
    first, *others = (index for index, name in enumerate(columns) if name == "time")
    return first, (others[0] if others else len(columns)) - first


def _check_rate(where: str, time: MeasuredTime, words: list[str]) -> None:
    """Check that the printed rate is size over time; if not, a word is damaged or the columns differ."""
    rate, printed = to_gigabytes(time.bytes / time.seconds), number_in(where, "algbw", words[1])
    if not abs(rate - printed) <= ROUNDED[0] + ROUNDED[1] * rate:
        raise InputError(f"{where}: algbw must be size over time, {rate:.4g} GB/s, got {words[1]!r:.80}.")


def _check_right(where: str, column: str, wrong: str) -> None:
    if wrong != "N/A" and not number_in(where, column, wrong) <= (0 if column == "#wrong" else LARGEST_ERROR):
        allowed = "0 or N/A" if column == "#wrong" else f"at most {LARGEST_ERROR}"
        raise InputError(
            f"{where}: {column} must be {allowed}, got {wrong!r:.80}; data arrived corrupted, measure again."
        )


# ---------------------------------------------------------------------------------------------------------------- JSON
def read_json(text: str, file: str) -> Report:
    """Return the times in a file of `--json`. Each of its devices is a process with nthreads x ngpus ranks."""
    document = mapping_in(text, file, f"results of {TOOL}")
    results = _of(document, "results", list, file)
    named = PROGRAM.findall(" ".join(str(word) for word in _of(document, "args", list, file)))
    config = _of(document, "config", dict, file)
    devices = _of(config if "devices" in config else document, "devices", list, file)
    run = NcclRun(
        line=1,
        named=named,
        hosts=dict(enumerate(_device(f"{file}, device {index}", device) for index, device in enumerate(devices))),
    )
    program = _program(run, [run], file)
    unread = [name for result in results if isinstance(result, dict) for name in result if name not in OF_RESULT]
    bodies = [result.get(variant) for result in results if isinstance(result, dict) for variant in PLACES]
    unread += [name for body in bodies if isinstance(body, dict) for name in body if name not in OF_BODY]
    name_unread(file, "fields of results", unread)
    times: list[MeasuredTime] = []
    for number, result in enumerate(results):
        times += _result(f"{file}, result {number}", PROGRAMS[program], result)
    each = _count(config, "nthreads", file) * _count(config, "ngpus", file)
    ranks, servers = _size(file, run)
    return Report(
        file=file,
        tool=TOOL,
        program=f"{program}_perf",
        times=tuple(times),
        ranks=None if ranks is None else ranks * each,
        servers=servers,
    )


PLACES = ("out_of_place", "in_place")
OF_RESULT = ("size", "count", "type", "redop", "root", *PLACES)
OF_BODY = ("time", "cpu_time", "alg_bw", "bus_bw", "nwrong")


def _device(where: str, device: Any) -> tuple[str, str]:
    """Group and server of a process."""
    host = _of(device, "hostname", str, where)
    return str(device.get("group", 0)), host


def _result(where: str, kind: str, result: Any) -> Iterator[MeasuredTime]:
    size = _of(result, "size", int, where)
    for variant in PLACES:
        if size and result.get(variant) is not None:
            body = _of(result, variant, dict, where)
            if "cpu_time" in body:
                raise InputError(f"{where}, {variant} must have time, got cpu_time; measure without -C.")
            took = _of(body, "time", (int, float), f"{where}, {variant}")
            if (wrong := body.get("nwrong")) is not None:
                _check_right(where, "#wrong", str(wrong))
            yield check_time(where, kind, size, us(took))


def _count(config: dict[str, Any], field: str, file: str) -> int:
    return count_in(f"{file}, config", field, str(_of(config, field, int, f"{file}, config")))


KINDS = {dict: "a mapping", list: "a list", str: "text", int: "a whole number", (int, float): "a number"}


def _of(value: Any, field: str, kind: Any, where: str) -> Any:
    """A field of a mapping. Raise `InputError` unless it has the expected kind."""
    entry = value.get(field) if isinstance(value, dict) else None
    if not isinstance(entry, kind) or isinstance(entry, bool):
        raise InputError(f"{where}: {field} must be {KINDS[kind]}, got {entry!r:.80}.")
    return entry
