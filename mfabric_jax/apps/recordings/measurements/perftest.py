"""Reader of perftest's bandwidth and latency tests (ib_write_bw, ib_write_lat, ...; linux-rdma/perftest), text or JSON.

A text may hold several runs, each below the title of its test. Bandwidth tests print ` #bytes #iterations BW peak BW
average MsgRate`, in MiB/s of 2^20 B/s or, with --report_gbits, in Gb/s. Many messages are in flight at once, so bytes
over average bandwidth is the time of one more message. Latency tests print `t_typical` [us] of a single message. JSON
(--out_json) does not state the unit of bandwidth; it is the one in which the average equals size times message rate.
"""

import difflib
import re
from typing import Any

from mfabric_jax.apps.recordings.measurements.times import TABLE, MeasuredTime, Report, check_time, is_count, number_in
from mfabric_jax.checks import InputError, positive
from mfabric_jax.support.text_files import mapping_in
from mfabric_jax.units import gbps, us

TOOL = "perftest"
HEADER = re.compile(r"^\s*#bytes\s+#iterations.*$", re.M)
UNITS = {"[Gb/sec]": gbps(1.0), "[MiB/sec]": float(2**20), "[MB/sec]": float(2**20)}  # older ones wrote MB for MiB
COLUMN = re.compile(r"BW peak\S*|BW average\S*|\S+")
TITLE = re.compile(r"^\s*([^#\s].*\b(?:BW|Latency) Test)\b")
BOTH_WAYS = "Bidirectional"
SAME_RATE = 0.02  # tolerance when two printed rates are compared; MiB/s and Gb/s differ by a factor of 119


def looks_like(text: str) -> bool:
    return HEADER.search(text) is not None


def read_text(text: str, file: str, ranks: int | None = None) -> list[Report]:
    """Return the runs in a text. Each has two ranks, one of which sends."""
    columns: list[str] = []
    runs: list[tuple[str, list[MeasuredTime]]] = []
    test = ""
    for number, line in enumerate(text.splitlines(), 1):
        words, where = line.split(), f"{file}, line {number}"
        if title := TITLE.match(line):
            test = " ".join(title[1].split())
            _check_title(where, test)
        elif HEADER.match(line):
            columns = COLUMN.findall(line.replace("BW peak ", "BW peak").replace("BW average ", "BW average"))
            runs.append((test, []))
            test = ""
        elif TABLE.search(line) or (columns and line.startswith("----")):
            columns = []
        elif columns and words and is_count(words[0]):
            if len(words) < len(columns):
                raise InputError(f"{where}: a row must have {len(columns)} columns, got {len(words)}.")
            name, times = runs[-1]
            times.append(_time(where, dict(zip(columns, words, strict=False)), name))
    return [_report(file, name, tuple(times)) for name, times in runs]


def _report(file: str, test: str, times: tuple[MeasuredTime, ...]) -> Report:
    """The report of one run: two ranks, one of which sends."""
    program = test.replace("_", " ") or TOOL
    return Report(file=file, tool=TOOL, program=program, times=times, ranks=2, nics=True)


def _check_title(where: str, test: str) -> None:
    """Raise `InputError` for a title that misspells `BOTH_WAYS`, since such a test counts bytes twice."""
    for word in test.split():
        if word != BOTH_WAYS and difflib.get_close_matches(word.lower(), [BOTH_WAYS.lower()]):
            raise InputError(
                f"{where}: the title of a test that counts both directions must say {BOTH_WAYS}, got {word!r}."
            )


def _ways(test: str) -> int:
    return 2 if BOTH_WAYS in test else 1


def read_json(text: str, file: str) -> Report:
    """Return the time in a file of `--out_json`: two ranks, one of which sends, and one size."""
    document = mapping_in(text, file, f"results of {TOOL}")
    row = _mapping(document, "results", file)
    name = _mapping(document, "test_info", file).get("test")
    if not isinstance(name, str) or not name:
        raise InputError(f"{file}: test of test_info must be the name of the test, got {name!r:.80}.")
    _check_title(file, name.replace("_", " "))
    size = _number(row, "MsgSize", file)
    if "t_typical" in row:
        time = check_time(file, "message", size, us(_number(row, "t_typical", file)))
    else:
        average, messages = (_number(row, field, file) for field in ("BW_average", "MsgRate"))
        moved = positive(f"{file}: MsgRate", messages) / us(1.0) * size
        unit = min(UNITS.values(), key=lambda unit: abs(average * unit - moved))
        if not abs(average * unit - moved) <= SAME_RATE * moved:
            raise InputError(
                f"{file}: BW_average must be MsgSize times MsgRate ({moved:.4g} bytes/s) in MiB/s or Gb/s, got "
                f"{average:g}."
            )
        time = check_time(file, "messages", size, size * _ways(name) / (average * unit))
    return _report(file, name, (time,))


def _mapping(document: dict[str, Any], field: str, file: str) -> dict[str, Any]:
    if not isinstance(value := document.get(field), dict):
        raise InputError(f"{file}: {field} must be a mapping, got {value!r:.80}.")
    return value


def _number(row: dict[str, Any], field: str, file: str) -> float:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{file}: {field} must be a number, got {value!r:.80}.")
    return positive(f"{file}: {field}", float(value))


def _time(where: str, row: dict[str, str], test: str) -> MeasuredTime:
    size = number_in(where, "#bytes", row["#bytes"])
    for column, word in row.items():
        name, _, unit = column.partition("[")
        if name == "BW average":
            if not test:
                raise InputError(
                    f"{where}: the title of the test must stand above the table: it says if both directions count."
                )
            rate = number_in(where, "BW average", word) * _unit(where, "[" + unit) / _ways(test)
            if not rate > 0:
                raise InputError(f"{where}: BW average must be above 0, got {word!r:.80}.")
            return check_time(where, "messages", size, size / rate)
        if name == "t_typical":
            return check_time(where, "message", size, us(number_in(where, "t_typical", word)))
    raise InputError(f"{where}: the table must have a column BW average or t_typical, got {', '.join(row):.200}.")


def _unit(where: str, unit: str) -> float:
    if unit not in UNITS:
        raise InputError(f"{where}: BW average must be in one of {', '.join(UNITS)}, got {unit!r:.80}.")
    return UNITS[unit]
