"""Reads output of nccl-tests, as text or JSON (NVIDIA/nccl-tests, src/util.cu, JSON version 2 of July 2026).

Columns: size [B] count type redop root, then time [us] algbw busbw #wrong out of place, the same in place; with times
of iterations four more behind each. `size` is the whole buffer of a rank: of an all-gather or reduce-scatter the large
one. Both times of a row count. Rows without bytes are left out.
"""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.measurements.times import Report, Timed, count_in, is_count, number_in, timed
from mfabric_jax.text_files import mapping_in
from mfabric_jax.units import us

TOOL = "nccl-tests"
PROGRAMS = {
    **{"alltoallv": "alltoallv", "alltoall": "all-to-all", "all_reduce": "all-reduce", "all_gather": "all-gather"},
    **{"reduce_scatter": "reduce-scatter", "sendrecv": "send-receive"},
}
PROGRAM = re.compile(rf"({'|'.join(PROGRAMS)})_perf")
RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\b")
FIRST = 5  # columns before the first time
BODY = ("time", "algbw", "busbw", "#wrong")


def looks_like_text(text: str) -> bool:
    return "algbw" in text and "busbw" in text


def read_text(text: str, file: str) -> Report:
    """The times of what a program printed. Its ranks and servers are those of the lines `# Rank`, where there are."""
    kind, found, hosts = _kind(text, file), [], {}
    stride = len(BODY) * (2 if "i_min" in text else 1)
    for number, line in enumerate(text.splitlines(), 1):
        if rank := RANK.match(line):
            hosts[rank[1]] = rank[2]
        words = line.split()
        if words and is_count(words[0]):
            found += _row(f"{file}, line {number}", kind, words, stride)
    servers = len(set(hosts.values()))
    return Report(file=file, tool=TOOL, times=tuple(found), ranks=len(hosts) or None, servers=servers or None)


def _kind(text: str, file: str) -> str:
    """What was measured: as the output says, or else the name of the file."""
    named = PROGRAM.search(text) or re.search(f"({'|'.join(PROGRAMS)})", PurePath(file).name)
    if named is None:
        allowed = ", ".join(f"{name}_perf" for name in PROGRAMS)
        raise InputError(f"{file} does not say which program ran; name the file after it; allowed: {allowed}.")
    return PROGRAMS[named[1]]


def _row(where: str, kind: str, words: list[str], stride: int) -> Iterator[Timed]:
    """The times of one line."""
    if words[0].strip("0") == "":
        return
    size = number_in(where, "size", words[0])
    bodies = [words[at : at + len(BODY)] for at in (FIRST, FIRST + stride)]
    if len(bodies[0]) < len(BODY):
        raise InputError(f"{where}: a row must have {FIRST + len(BODY)} columns or more, got {len(words)}.")
    for body in bodies:
        if len(body) == len(BODY):
            _check_right(where, body[3])
            yield timed(where, kind, size, us(number_in(where, "time", body[0])))


def _check_right(where: str, wrong: str) -> None:
    if wrong != "N/A" and number_in(where, "#wrong", wrong) != 0:
        raise InputError(f"{where}: #wrong must be 0 or N/A, got {wrong!r:.80}; data arrived damaged, measure again.")


# ---------------------------------------------------------------------------------------------------------------- JSON
def read_json(text: str, file: str) -> Report:
    """The times of a file of `--json`. A process is a device there, which stands for its nthreads x ngpus ranks."""
    told = mapping_in(text, file, f"results of {TOOL}")
    results = _of(told, "results", list, file)
    kind = _kind(" ".join(str(word) for word in _of(told, "args", list, file)), file)
    found: list[Timed] = []
    for number, result in enumerate(results):
        found += _result(f"{file}, result {number}", kind, result)
    config = _of(told, "config", dict, file)
    devices = _of(config if "devices" in config else told, "devices", list, file)
    hosts = {str(_of(device, "hostname", str, f"{file}, device {at}")) for at, device in enumerate(devices)}
    each = _count(config, "nthreads", file) * _count(config, "ngpus", file)
    return Report(
        file=file, tool=TOOL, times=tuple(found), ranks=len(devices) * each or None, servers=len(hosts) or None
    )


def _result(where: str, kind: str, result: Any) -> Iterator[Timed]:
    size = _of(result, "size", int, where)
    for place in ("out_of_place", "in_place"):
        if size and result.get(place) is not None:
            body = _of(result, place, dict, where)
            took = _of(body, "cpu_time" if "cpu_time" in body else "time", (int, float), f"{where}, {place}")
            if (wrong := body.get("nwrong")) is not None:
                _check_right(where, str(wrong))
            yield timed(where, kind, size, us(took))


def _count(config: dict[str, Any], field: str, file: str) -> int:
    return count_in(f"{file}, config", field, str(_of(config, field, int, f"{file}, config")))


KINDS = {dict: "a mapping", list: "a list", str: "text", int: "a whole number", (int, float): "a number"}


def _of(value: Any, field: str, kind: Any, where: str) -> Any:
    """A field of a mapping, of the kind that it must be."""
    found = value.get(field) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise InputError(f"{where}: {field} must be {KINDS[kind]}, got {found!r:.80}.")
    return found
