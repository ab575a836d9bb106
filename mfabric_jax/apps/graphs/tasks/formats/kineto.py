"""Read the calls of torch.distributed in Kineto traces, which torch.profiler writes for each rank, with their times.

Events called record_param_comms are calls. Their `ts` and `dur`, in microseconds, are times of the CPU: when a call
began, and how long it held the thread. Other events are not read; kernels run behind the calls that launch them.

PARAM's unitrace lists such events of all ranks. Their `args` hold a rank and the fields of a PARAM trace.

Sources: torch/csrc/profiler/util.cpp, saveNcclMeta (names of `args`) and torch/profiler/profiler.py (distributedInfo)
of github.com/pytorch/pytorch; train/comms/pt/commsTraceParser.py, _parseKinetoUnitrace, of
github.com/facebookresearch/param.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.formats import files, param_entries, pytorch_calls
from mfabric_jax.apps.graphs.tasks.formats.files import Spot
from mfabric_jax.apps.graphs.tasks.formats.param_entries import Entry, RecordedTrace, TraceKind, entry_of
from mfabric_jax.apps.graphs.tasks.formats.pytorch_calls import NAMES, RECORDED, Call
from mfabric_jax.checks import COUNTS
from mfabric_jax.support.text_files import value_in
from mfabric_jax.support.unread import name_unread

NS_PER_US = round(units.us(1.0) / units.ns(1.0))
BEGINS = re.compile(
    rb'\s*(\{.*"(traceEvents|deviceProperties|distributedInfo|displayTimeUnit)"\s*:|\[\s*\{.*"ph"\s*:)', re.S
)
ARGS = {  # names of values of a call
    "Collective name": "collective_name",
    "dtype": "dtype",
    "In msg nelems": "in_msg_nelems",
    "Out msg nelems": "out_msg_nelems",
    "In split size": "in_split_size",
    "Out split size": "out_split_size",
    "Global rank start": "global_rank_start",
    "Global rank stride": "global_rank_stride",
    "Group size": "pg_size",
    "Process Group Name": "pg_name",
    "Is asynchronized op": "is_asynchronized_op",
}
TO_ARGS = {long: name for name, long in ARGS.items()} | {"startTime_ns": "ts", "latency_us": "dur"}
FIELDS = tuple({short: TO_ARGS.get(long, "Process Group Ranks") for short, long in NAMES.items()}.items())
FIELDS += tuple(TO_ARGS.items())
OWN = ("Process Group Ranks", "Process Group ID", "Rank", "Src Rank", "Dst Rank", "Seq")
HARMLESS = re.compile(
    r"External id|Ev Idx|Record function id|Fwd thread id|Sequence number|Process Group Description|Comms Id|Backend"
    r"|(Input|Output) (Dims|type|Strides|Tensors start)|Concrete Inputs|Trace iteration|Call stack|Call Stack"
)
OF_EVENTS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id")
PARTS = re.compile(r"traceEvents|distributedInfo|deviceProperties|INFO|WARNING|ERROR|VERBOSE|STAGE")
OF_JOB = re.compile(r"backend|rank|world_size|pg_count|pg_config|nccl_version|gloo_version")


class _Event(NamedTuple):
    spot: Spot
    ts: float
    dur: float
    thread: str
    args: dict[str, Any]


def tells(head: bytes) -> bool:
    return bool(BEGINS.match(head))


def read(path: Path, rank: int | None) -> RecordedTrace:
    """Return the entries of a file. `rank`: the rank that its name states, unless the file does."""
    top = value_in(files.read_unpacked(path), repr(str(path)), "events")
    spot = Spot(repr(str(path)))
    rows = top.get("traceEvents") if isinstance(top, dict) else top
    if not isinstance(rows, list):
        spot.refuse(f"must have a list of traceEvents, got {str(rows)[:40]!r}")
    events, others = _events(rows, path)
    if not events:
        spot.refuse(f"must have events called {RECORDED}, got none of {files.count_phrase(len(rows), 'event')}")
    if any("comms" in event.args for event in events):
        return _read_unitrace(path, events, others)
    job = top.get("distributedInfo") if isinstance(top, dict) else None
    job = {} if job is None else job
    if not isinstance(job, dict):
        spot.refuse(f"must have an object for distributedInfo, got {str(job)[:40]!r}")
    left = _unknown_parts(top) if isinstance(top, dict) else []
    left += [name for name in job if not OF_JOB.fullmatch(name)]
    left += [name for event in events for name in event.args if not _is_known(name)]
    name_unread(repr(str(path)), f"fields of {RECORDED} and of the job", left)
    stated = None if job.get("rank") is None else spot.rank("rank of distributedInfo", repr(job["rank"]))
    ranks = job.get("world_size")
    ranks = 0 if ranks is None else spot.whole("world_size of distributedInfo", repr(ranks), 1, COUNTS["gpus"])
    groups = pytorch_calls.groups_of(spot, job.get("pg_config") or [])
    noted: Counter[str] = Counter()
    calls = _match_waits([_call(event, events[0].ts) for event in events], events, noted)
    entries = pytorch_calls.entries_of(calls, groups, rank if stated is None else stated, noted)
    return RecordedTrace({stated: entries}, ranks, (*_others(others), *pytorch_calls.remarks_on(noted)))


def _unknown_parts(top: dict[str, Any]) -> list[str]:
    """Return the parts of a file that are not known; texts and numbers are notes on the job."""
    return [name for name, part in top.items() if isinstance(part, dict | list) and not PARTS.fullmatch(name)]


def _is_known(name: str) -> bool:
    return name in ARGS or name in OWN or bool(HARMLESS.fullmatch(name))


def _events(rows: Iterable[Any], path: Path) -> tuple[list[_Event], Counter]:
    """Return the recorded calls in the order of their times, and how many other events each category has."""
    events: list[_Event] = []
    others: Counter[str] = Counter()
    left: dict[str, None] = {}
    for order, row in enumerate(rows):
        spot = Spot(f"event {order} (counted from 0) of {str(path)!r}", FIELDS)
        if not isinstance(row, dict):
            spot.refuse(f"must be an object, got {str(row)[:60]}")
        if row.get("name") != RECORDED:
            others[str(row.get("cat", "no category"))] += row.get("ph") != "M"  # names of processes and threads
            continue
        if not isinstance(row.get("args"), dict):
            spot.refuse(f"must have an object for args, got {str(row.get('args'))[:40]!r}")
        left |= dict.fromkeys(name for name in row if name not in OF_EVENTS)
        ts, dur = (_number(spot, row, name) for name in ("ts", "dur"))
        events.append(_Event(spot, ts, dur, str(row.get("tid")), row["args"]))
    name_unread(repr(str(path)), f"fields of {RECORDED}", left)
    return sorted(events, key=lambda event: event.ts), others


def _number(spot: Spot, row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    return spot.number(name, value if isinstance(value, int | float) and not isinstance(value, bool) else repr(value))


def _others(others: Counter) -> tuple[str, ...]:
    if not (total := sum(others.values())):
        return ()
    most = ", ".join(f"{name} {count:,}" for name, count in others.most_common(4) if count)
    return (f"{files.count_phrase(total, 'event')} without communication not read ({most}): times are those of calls.",)


def _call(event: _Event, first_us: float) -> Call:
    """Return the call of an event. `first_us`: when the first call of the rank began."""
    spot, args = event.spot, event.args
    if "Collective name" not in args:
        spot.refuse("must have 'Collective name' in its args: older PyTorch does not record it")
    values = {long: args.get(name) for name, long in ARGS.items()}
    if values["pg_name"] is None and args.get("Process Group ID") is not None:
        values["pg_name"] = str(spot.whole("Process Group ID", repr(args["Process Group ID"])))
    rank, source, target = (
        None if args.get(name) is None else spot.whole(name, repr(args[name]), files.ANY)
        for name in ("Rank", "Src Rank", "Dst Rank")
    )
    members, times = _members(args, spot), (NS_PER_US * (event.ts - first_us), event.dur)
    return Call(spot, values, args.get("Seq"), rank, source, target, members, *times)


def _match_waits(calls: list[Call], events: list[_Event], noted: Counter) -> list[Call]:
    """Name what waits wait for, where no call is numbered: the first call of their thread that no wait has taken."""
    if any(call.req is not None for call in calls):
        return calls
    queues: defaultdict[str, deque[int]] = defaultdict(deque)
    numbered: list[Call] = []
    for order, (call, event) in enumerate(zip(calls, events, strict=True)):
        queue, name = queues[event.thread], call.values["collective_name"]
        if name == "wait":
            noted["unnumbered"] += 1
            numbered.append(call._replace(req=queue.popleft() if queue else None))
        else:
            queue.extend([order] * (name != "init"))
            numbered.append(call._replace(req=order))
    return numbered


def _members(args: dict[str, Any], spot: Spot) -> tuple[int, ...] | None:
    """Return the listed ranks of a group; None if there are none, or not all."""
    text = args.get("Process Group Ranks")
    if text is None:
        return None
    if isinstance(text, str):
        if pytorch_calls.TRUNCATED.match(text):
            return None
        text = pytorch_calls.parse_list(spot, "Process Group Ranks", text)
    if not isinstance(text, list):
        spot.refuse(f"must have a list for Process Group Ranks, got {str(text)[:40]!r}")
    return tuple(spot.rank("Process Group Ranks", repr(rank)) for rank in text) or None


def _read_unitrace(path: Path, events: list[_Event], others: Counter) -> RecordedTrace:
    """Return the entries of PARAM's unitrace by rank; its fields are those of a PARAM trace."""
    by_rank: dict[int | None, list[Entry]] = {}
    first: dict[int, float] = {}
    for event in events:
        spot = Spot(event.spot.where)
        rank = spot.rank("rank", repr(event.args.get("rank")))
        start = first.setdefault(rank, event.ts)
        fields = {name: value for name, value in event.args.items() if name in param_entries.READ}
        fields |= {"startTime_ns": NS_PER_US * (event.ts - start), "latency_us": event.dur}
        by_rank.setdefault(rank, []).append(entry_of(fields, spot))
    known = (*param_entries.READ, "rank")
    left = [name for event in events for name in event.args if name not in known and not _is_harmless(name)]
    name_unread(repr(str(path)), f"fields of {RECORDED}", left)
    return RecordedTrace(by_rank, max(first) + 1, _others(others))


def _is_harmless(name: str) -> bool:
    return bool(HARMLESS.fullmatch(name) or param_entries.HARMLESS.fullmatch(name))


KIND = TraceKind("Kineto trace", tells, read)
