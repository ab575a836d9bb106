"""Read PARAM comms traces: the collectives, messages, waits and computations that a job's ranks really posted.

A folder has a JSON list of entries (`param_entries`) for each rank, RANK.json or any name that ends in its rank. One
file is the trace of all ranks, as for PARAM's replay: a rank skips entries of groups without it, and messages that it
does not send or receive.

A rank posts its entries in order. Collectives of one group follow one another, as on the stream of a communicator. A
later wait that names the `req` of an entry makes it asynchronous: the rank goes on until that wait. Every other entry
blocks. The nth collective of a group on one rank belongs to the nth on its other ranks; messages match by source,
destination and group, in order.

Times: what passes between two start times is computation of the rank, less the `latency_us` of entries that block; the
first entry of a rank starts at 0, since clocks of ranks are not compared. Computations between two times are part of
what passes. Others take their `latency_us`, or operations and bytes over the rates in `Supplied`.

An all-to-all with unequal splits becomes messages, and a BARRIER of the group for which they end.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.collectives.registry import ROOTED
from mfabric_jax.apps.graphs.tasks.formats import files
from mfabric_jax.apps.graphs.tasks.formats.files import ANY, CollectiveOrder, Messages, Reading, Spot, Supplied
from mfabric_jax.apps.graphs.tasks.formats.param_entries import (
    HARMLESS,
    READ,
    Action,
    Entry,
    RecordedTrace,
    TraceKind,
    entry_of,
)
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks, number_labels
from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.support.text_files import value_in
from mfabric_jax.support.unread import name_unread

FILE = re.compile(r".*\.json(\.(gz|xz))?")
NUMBER = re.compile(r"\d{1,8}")
BEGINS = re.compile(rb"\s*\[\s*(\{|\])")
KEYS = re.compile(rb'"(comms|compute|in_msg_size|startTime_ns|markers|global_ranks|in_split)"\s*:')
LEAST_S = units.ps(1.0)  # less is rounding of the difference of two times
MESSAGES = (Action.SEND, Action.RECV)
HEAD = 1 << 12  # first bytes of a file, by which it is recognized


def tells(head: bytes) -> bool:
    return bool(BEGINS.match(head) and KEYS.search(head))


def is_set(path: Path, kind: TraceKind) -> bool:
    """Return whether a path is a folder with traces of a kind."""
    return path.is_dir() and any(kind.tells(files.head_of(file, HEAD)) for file in _files_of(path))


def _files_of(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if FILE.fullmatch(file.name) and file.is_file()]


def read(path: Path, supplied: Supplied, kind: TraceKind) -> Reading:
    """Return the tasks of all ranks of a folder of traces of a kind, or of one trace that is copied to all ranks.

    `supplied.ranks`: GPUs of the job; for a folder, ranks without a file are then absent.
    """
    if not path.is_dir():
        return _read_single(path, supplied, kind)
    heads = {file: files.head_of(file, HEAD) for file in _files_of(path)}
    traces = [file for file, head in heads.items() if kind.tells(head) or re.fullmatch(rb"\s*\[\s*\]\s*", head)]
    name_unread(repr(str(path)), "files", [file.name for file in heads if file not in traces])
    if len(traces) == 1:
        return _read_single(traces[0], supplied, kind)
    read_files = {file: kind.read(file, rank) for file, rank in _named_ranks(traces)[0].items()}
    entries, remarks = _entries_by_rank(read_files)
    return _read_set(path, entries, read_files.values(), supplied, kind, remarks)


def _read_set(
    path: Path,
    entries: dict[int, list[Entry]],
    traces: Iterable[RecordedTrace],
    supplied: Supplied,
    kind: TraceKind,
    remarks: tuple[str, ...],
) -> Reading:
    """Return the tasks of ranks whose entries are known apart."""
    named = max(_largest_rank(listed) for listed in entries.values())
    stated = max(trace.ranks for trace in traces) - 1
    absent = files.absent_ranks(Spot(repr(str(path))), entries, max([*entries, named, stated]), supplied.ranks)
    if absent:
        some = f"files of {len(entries)} of {len(entries) + len(absent)} ranks"
        remarks = (f"{some}: the others are absent, which absent='assume' allows.", *remarks)
    lists = [entries.get(rank, []) for rank in range(len(entries) + len(absent))]
    return _put_together(lists, supplied, kind, remarks, frozenset(absent), alone=False)


def _named_ranks(traces: Iterable[Path]) -> tuple[dict[Path, int], bool]:
    """Return the rank of each file, and whether names state it as their last number; else names are in order."""
    ordered = list(traces)
    numbers = [NUMBER.findall(files.plain_name(file)) for file in ordered]
    ranks = [int(listed[-1]) for listed in numbers if listed]
    stated = len(set(ranks)) == len(ordered)
    return dict(zip(ordered, ranks if stated else range(len(ordered)), strict=True)), stated


def _entries_by_rank(traces: dict[Path, RecordedTrace]) -> tuple[dict[int, list[Entry]], tuple[str, ...]]:
    """Return the entries of each rank, and remarks: a file states its rank, or else its name does."""
    entries: dict[int, list[Entry]] = {}
    named, stated = _named_ranks(traces)
    for file, trace in traces.items():
        for rank, listed in trace.by_rank.items():
            number = named[file] if rank is None else rank
            if number in entries:
                Spot(repr(str(file))).refuse(f"is a trace of rank {number}, as is another file of its folder")
            entries[number] = listed
    first, trace = next(iter(traces.items()))
    remarks = tuple(f"{first.name}: {remark}" for remark in trace.remarks)
    if stated or not any(None in trace.by_rank for trace in traces.values()):
        return entries, remarks
    text = f"names of files have no rank of their own: they are ranks 0 to {len(traces) - 1} in order of their names."
    return entries, (text, *remarks)


def _read_single(path: Path, supplied: Supplied, kind: TraceKind) -> Reading:
    numbers, spot = NUMBER.findall(files.plain_name(path)), Spot(repr(str(path)))
    trace = kind.read(path, int(numbers[-1]) if numbers else None)
    if len(trace.by_rank) > 1:
        lists = {rank: listed for rank, listed in trace.by_rank.items() if rank is not None}
        return _read_set(path, lists, [trace], supplied, kind, trace.remarks)
    (entries,) = trace.by_rank.values()
    if not entries:
        spot.refuse(f"must have entries of a {kind.format}, got none")
    largest = _largest_rank(entries)
    stated = max([largest + 1, trace.ranks, *(max(entry.world_size or 0, len(entry.sent_to)) for entry in entries)])
    if not supplied.ranks and not stated:
        spot.refuse("names no ranks (global_ranks, world_size): set ranks to the number of GPUs of the job")
    ranks = spot.whole("ranks", supplied.ranks or stated, 1, COUNTS["gpus"])
    if ranks <= largest:
        spot.refuse(f"names rank {largest}, so ranks must be at least {largest + 1}, got {ranks}")
    files.few_enough(path, ranks * len(entries))
    text = f"one file for {files.count_phrase(ranks, 'rank')}, each of which runs the entries of its groups."
    return _put_together([entries] * ranks, supplied, kind, (text, *trace.remarks), frozenset(), alone=True)


def _trace_of(path: Path, rank: int | None) -> RecordedTrace:
    """Return the entries of a list; they say of which rank they are where it matters."""
    rows = value_in(files.read_unpacked(path), repr(str(path)), "collectives")
    if not isinstance(rows, list):
        raise InputError(f"{str(path)!r} must be a list of entries of a PARAM comms trace.")
    entries = [
        entry_of(row, Spot(f"entry {order} (counted from 0) of {str(path)!r}")) for order, row in enumerate(rows)
    ]
    left = dict.fromkeys(name for row in rows for name in row if name not in READ and not HARMLESS.fullmatch(name))
    name_unread(repr(str(path)), "fields of entries", left)
    return RecordedTrace({None: entries})


KIND = TraceKind("PARAM comms trace", tells, _trace_of)


def _largest_rank(entries: Iterable[Entry]) -> int:
    """Return the largest rank that entries name; -1 if there is none."""
    ranks = [max(entry.members or (), default=-1) for entry in entries]
    ends = [max(entry.own, entry.peer) for entry in entries if entry.own >= 0 and entry.peer is not None]
    return max([*ranks, *ends], default=-1)


# -- what the entries of one list mean: their groups, and what waits for what


class _Posted(NamedTuple):
    """The entries of one file.

    - `group`: by entry, the number of its group; -1: it has none.
    - `waits`: by index of a wait, the entries that it waits for. `awaited`: entries that a wait names.
    - `last_timed`: the last entry with a start time; -1: none has.
    """

    entries: list[Entry]
    group: list[int]
    waits: dict[int, list[int]]
    awaited: frozenset[int]
    last_timed: int


class _Groups:
    """The groups of all files. Equal names with equal members are one group."""

    def __init__(self, ranks: int):
        self.everyone = tuple(range(ranks))
        self.number: dict[tuple[str | None, tuple[int, ...]], int] = {}
        self.members: list[frozenset[int]] = []

    @property
    def tuples(self) -> tuple[tuple[int, ...], ...]:
        return tuple(members for _, members in self.number)

    def of(self, entries: list[Entry]) -> list[int]:
        """Return the group of each entry; -1 for those without a partner. `init` entries name the ranks of groups."""
        known: dict[str, tuple[int, ...]] = {}
        numbers = []
        for entry in entries:
            if entry.pg_id is not None and entry.members is not None:
                known[entry.pg_id] = entry.members or self.everyone
            alone = entry.action in (Action.COMPUTE, Action.WAIT, Action.INIT, Action.BATCH)
            numbers.append(-1 if alone else self._number_of(entry, known))
        return numbers

    def _number_of(self, entry: Entry, known: dict[str, tuple[int, ...]]) -> int:
        members = entry.members or known.get(entry.pg_id or "")
        every = len(self.everyone)
        if members is None and entry.pg_id is not None and entry.world_size != every and entry.members is None:
            entry.spot.refuse(f"belongs to pg_id {entry.pg_id}, for which neither it nor an init has global_ranks")
        members = members or self.everyone
        if entry.world_size not in (None, len(members)):
            group = "all ranks of the job (ranks)" if members == self.everyone else f"the ranks of pg_id {entry.pg_id}"
            entry.spot.refuse(
                f"must have a world_size of {len(members)}, the number of {group}, got {entry.world_size}"
            )
        key = entry.pg_id, members
        if key not in self.number:
            self.number[key] = len(self.number)
            self.members.append(frozenset(members))
        return self.number[key]


def _resolve(entries: list[Entry], groups: _Groups, noted: Counter) -> _Posted:
    """Resolve groups and waits. A wait without a req takes the first entry without one that no wait has taken yet."""
    by_req: dict[tuple, list[int]] = {}
    queue: deque[int] = deque()
    waits: dict[int, list[int]] = {}
    for index, entry in enumerate(entries):
        if entry.action in (Action.COMPUTE, Action.INIT):
            continue
        if entry.action == Action.WAIT:
            waits[index] = _awaited_entries(entry, entries, by_req.get(entry.req or (), []), queue)
        elif entry.req is None:
            queue.append(index)
        else:
            by_req.setdefault(entry.req, []).append(index)
    noted["waits for nothing"] += sum(not others for others in waits.values())
    timed = (index for index, entry in enumerate(entries) if entry.start_ns is not None)
    awaited = frozenset(other for others in waits.values() for other in others)
    return _Posted(entries, groups.of(entries), waits, awaited, max(timed, default=-1))


def _awaited_entries(wait: Entry, entries: list[Entry], same_req: list[int], queue: deque[int]) -> list[int]:
    """Return the entries that a wait names: the last one of its req, if possible of its group.

    Messages that PyTorch starts together share a req, so a wait for a message is for all that have it.
    """
    if wait.req is None:
        return [queue.popleft()] if queue else []
    of_group = [index for index in same_req if entries[index].pg_id == wait.pg_id]
    named = of_group or [index for index in same_req if None in (entries[index].pg_id, wait.pg_id)]
    if not named or entries[named[-1]].action not in MESSAGES:
        return named[-1:]
    return [index for index in named if entries[index].action in MESSAGES]


# -- tasks of all ranks


class _Job(NamedTuple):
    """The tasks so far. `uneven`: all-to-alls with unequal splits (group, number). `receives`: entries by task."""

    tasks: Tasks
    groups: _Groups
    supplied: Supplied
    noted: Counter
    order: CollectiveOrder
    messages: Messages
    receives: dict[int, Entry]
    uneven: frozenset[tuple[int, int]]


def _put_together(
    lists: list[list[Entry]],
    supplied: Supplied,
    kind: TraceKind,
    remarks: tuple[str, ...],
    absent: frozenset[int],
    alone: bool,
) -> Reading:
    """Return the tasks of all ranks; `alone`: whether they share one list, whose splits are of one rank."""
    groups, noted = _Groups(len(lists)), Counter()
    distinct = {id(entries): entries for entries in lists}
    resolved = {key: _resolve(entries, groups, noted) for key, entries in distinct.items()}
    posted = [resolved[id(entries)] for entries in lists]
    if not any(lists):
        raise InputError(f"a {kind.format} must have entries, got none.")
    all_to_alls = _all_to_alls(posted, groups)
    uneven = frozenset(key for key, sent in all_to_alls.items() if not all(entry.is_even() for entry in sent.values()))
    if not alone:
        for key in all_to_alls:
            _check_splits(all_to_alls[key], groups.tuples[key[0]])
    count = sum(map(len, lists)) + sum(len(groups.tuples[group]) ** 2 for group, _ in uneven)
    files.few_enough(f"a {kind.format}", 2 * count)
    order = CollectiveOrder()
    job = _Job(Tasks(len(lists)), groups, supplied, noted, order, Messages(), {}, uneven)
    for rank, of_rank in enumerate(posted):
        _Rank(job, rank, of_rank).post_all()
    order.check(job.tasks, groups.tuples, absent)
    label: dict[int, tuple] = {**order.label, **_match_messages(job, absent)}
    tasks = job.tasks
    tasks.column("match")[:] = number_labels([label.get(task) for task in range(len(tasks.column("kind")))])
    tasks.groups = groups.tuples
    noted["uneven"] = len(uneven)
    noted["no times"] = all(each.last_timed < 0 for each in posted)
    return Reading(tasks.graph(), kind.format, (*remarks, *_remarks(noted, tasks, kind)))


def _all_to_alls(posted: list[_Posted], groups: _Groups) -> dict[tuple[int, int], dict[int, Entry]]:
    """Return, by group and number, the entry of each rank of the all-to-alls that state splits."""
    splits: dict[tuple[int, int], dict[int, Entry]] = {}
    for rank, (entries, group_of, *_) in enumerate(posted):
        count: Counter[int] = Counter()
        for entry, group in zip(entries, group_of, strict=True):
            if entry.action != Action.COLLECTIVE or rank not in groups.members[group]:
                continue
            members = len(groups.members[group])
            for name, parts in (("in_split", entry.sent_to), ("out_split", entry.received_from)):
                if len(parts) not in (0, members):
                    entry.spot.refuse(f"must have {members} numbers for {name}, one of each rank, got {len(parts)}")
            if entry.sent_to or entry.received_from:
                splits.setdefault((group, count[group]), {})[rank] = entry
            count[group] += 1
    return splits


def _check_splits(sent: dict[int, Entry], members: tuple[int, ...]) -> None:
    """Raise `InputError` if a rank sends other bytes than the receiver's out_split says."""
    nothing = [-1] * len(members)
    rows = [sent.get(rank) for rank in members]
    sends = np.array([entry.sent_to if entry and entry.sent_to else nothing for entry in rows])
    receives = np.array([entry.received_from if entry and entry.received_from else nothing for entry in rows]).T
    wrong = np.argwhere((sends != receives) & (sends >= 0) & (receives >= 0))
    if len(wrong):
        source, target = wrong[0].tolist()
        sent[members[source]].spot.refuse(
            f"sends {sends[source, target]} bytes to rank {members[target]}, whose out_split expects "
            f"{receives[source, target]}"
        )


class _Rank:
    """Posts the entries of one rank.

    `before`: tasks that the next one waits for. `ends`: tasks of asynchronous entries. `last`: of each group, the tasks
    of its last collective. `batch`: messages that the next BATCH starts.
    """

    def __init__(self, job: _Job, rank: int, posted: _Posted):
        self.job, self.rank, self.posted = job, rank, posted
        self.before: list[int] = []
        self.ends: dict[int, list[int]] = {}
        self.last: dict[int, list[int]] = {}
        self.batch: list[int] = []
        self.count: Counter[int] = Counter()
        self.clock_ns: int | float | None = None
        self.blocked_s, self.unknown = 0.0, 0

    def post_all(self) -> None:
        for index, entry in enumerate(self.posted.entries):
            self._pass_time(entry)
            if entry.action == Action.COMPUTE:
                self._compute(index, entry)
            elif entry.action == Action.WAIT:
                ends = (self.ends.get(other, []) for other in self.posted.waits.get(index, []))
                self.before = [*self.before, *(task for tasks in ends for task in tasks)]
                self._block(entry)
            elif entry.action == Action.BATCH:
                self._finish(index, entry, [*self.before, *self.batch])
                self.batch = []
            elif entry.action == Action.COLLECTIVE:
                self._collective(index, entry, self.posted.group[index])
            elif entry.action != Action.INIT:
                self._message(index, entry, self.posted.group[index])

    def _pass_time(self, entry: Entry) -> None:
        """Compute for what passed since the last start time."""
        if entry.start_ns is None:
            return
        if self.clock_ns is not None:
            self.job.noted["time runs back"] += entry.start_ns < self.clock_ns
            seconds = float(units.ns(float(entry.start_ns - self.clock_ns))) - self.blocked_s
            if seconds > LEAST_S:
                self.job.noted["unknown latency"] += self.unknown
                self._add_computation(f"before {entry.name}", seconds)
        self.clock_ns, self.blocked_s, self.unknown = entry.start_ns, 0.0, 0

    def _add_computation(self, name: str, seconds: float) -> None:
        self.before = [self.job.tasks.add(TaskKind.COMPUTE, self.rank, name, self.before, seconds=seconds)]

    def _compute(self, index: int, entry: Entry) -> None:
        if self.clock_ns is not None and index < self.posted.last_timed:
            self.job.noted["within times"] += 1
            return
        seconds = entry.latency_s
        if seconds is None:
            if entry.operations is None:
                entry.spot.refuse(f"must have all sizes of its {entry.name}, or latency_us")
            seconds = self.job.supplied.computation_s(entry.operations, entry.moved)
            self.job.noted["no duration"] += not seconds
        self._add_computation(entry.name, seconds)

    def _block(self, entry: Entry) -> None:
        self.blocked_s += entry.latency_s or 0.0
        self.unknown += entry.latency_s is None

    def _finish(self, index: int, entry: Entry, tasks: list[int]) -> None:
        """Let the rank go on after `tasks`, which wait for all before, unless a wait names the entry."""
        if index in self.posted.awaited:
            self.ends[index] = tasks
        else:
            self.before = tasks
            self.job.noted["never awaited"] += entry.asynchronous
            self._block(entry)

    def _collective(self, index: int, entry: Entry, group: int) -> None:
        job, members = self.job, self.job.groups.tuples[group]
        if self.rank not in job.groups.members[group]:
            job.noted["other groups"] += 1
            return
        values = {"op": entry.op, "bytes": entry.bytes(len(members)), "group": group}
        job.noted["sizes"] += not entry.fits(len(members))
        after = [*self.before, *self.last.get(group, [])]
        if (group, self.count[group]) in job.uneven:
            after = [*after, *self._messages(entry, members, after)]
            values |= {"op": Op.BARRIER, "bytes": 0}
        elif entry.op in ROOTED:
            values["peer"] = self._root(entry, members)
        task = job.tasks.add(TaskKind.COLLECTIVE, self.rank, entry.name, after, **values)
        job.order.add(task, group, self.rank)
        self.count[group] += 1
        self.last[group] = [task]
        self._finish(index, entry, [task])

    def _root(self, entry: Entry, members: tuple[int, ...]) -> int:
        if entry.peer is None:
            self.job.noted["no root"] += 1
            return members[0]
        if entry.peer not in members:
            entry.spot.refuse(f"must have a root of its ranks {list(members)[:8]}, got {entry.peer}")
        return entry.peer

    def _messages(self, entry: Entry, members: tuple[int, ...], after: list[int]) -> list[int]:
        """Return the sends of an all-to-all with unequal splits."""
        sent = entry.sent_to or (entry.sent / len(members),) * len(members)
        return [
            self.job.tasks.add(TaskKind.SEND, self.rank, entry.name, after, peer=member, bytes=part)
            for member, part in zip(members, sent, strict=True)
            if part and member != self.rank
        ]

    def _message(self, index: int, entry: Entry, group: int) -> None:
        job = self.job
        if entry.own != self.rank:
            job.noted["other ranks"] += 1
            return
        for rank in (entry.own, entry.peer or 0):
            entry.spot.whole("src_rank and dst_rank", rank, ANY, job.tasks.ranks - 1)
        peer = entry.peer if entry.peer is not None else ANY
        kind, size = (TaskKind.SEND, entry.sent) if entry.action == Action.SEND else (TaskKind.RECV, entry.received)
        task = job.tasks.add(kind, self.rank, entry.name, self.before, peer=max(peer, 0), bytes=size)
        if kind == TaskKind.SEND:
            job.messages.send(task, self.rank, peer, group)
        else:
            job.messages.receive(task, peer, self.rank, group)
            job.receives[task] = entry
        if entry.batched:
            self.batch.append(task)
        else:
            self._finish(index, entry, [task])


def _match_messages(job: _Job, absent: frozenset[int]) -> dict[int, tuple]:
    """Return the label of each task that sends or receives a message of an entry."""
    matches, label = job.messages.match(), {}
    for receive, source in matches.unsent:
        if source not in absent:
            sender = "any rank" if source == ANY else f"rank {source}"
            job.receives[receive].spot.refuse(f"receives a message from {sender}, which does not send it")
    for send, receive, source in matches.pairs:
        label[send] = label[receive] = ("message", send)
        job.tasks.column("peer")[receive] = source
    job.noted["no receive"] += matches.unreceived
    job.noted["sizes of messages"] += sum(
        job.tasks.column("bytes")[send] != job.tasks.column("bytes")[receive] for send, receive, _ in matches.pairs
    )
    return label


REMARKS = {
    "other groups": (
        "collective of a group without the rank is skipped",
        "collectives of groups without the rank are skipped",
    ),
    "other ranks": (
        "message that the rank neither sends nor receives is skipped",
        "messages that the rank neither sends nor receives are skipped",
    ),
    "waits for nothing": ("wait names no entry before it", "waits name no entry before them"),
    "never awaited": (
        "asynchronous call has no wait that names it: the rank goes on at its end",
        "asynchronous calls have no wait that names them: the rank goes on at their ends",
    ),
    "no root": (
        "collective has no root: its first rank becomes the root",
        "collectives have no root: their first ranks become the roots",
    ),
    "sizes": (
        "collective has sizes of input and output that do not fit its ranks",
        "collectives have sizes of input and output that do not fit their ranks",
    ),
    "sizes of messages": (
        "receive differs in size from its send, whose size counts",
        "receives differ in size from their sends, whose sizes count",
    ),
    "uneven": (
        "all-to-all has unequal splits: it ends for its whole group when all of its messages have ended",
        "all-to-alls have unequal splits: each ends for its whole group when all of its messages have ended",
    ),
    "no receive": ("send has no receive: no task waits for it", "sends have no receive: no task waits for them"),
    "no duration": (
        "computation takes no time without tflops and memory_gigabytes_per_s",
        "computations take no time without tflops and memory_gigabytes_per_s",
    ),
    "within times": (
        "computation is part of the time between two entries",
        "computations are part of the time between two entries",
    ),
    "time runs back": (
        "entry starts before the one before it: no time passes between them",
        "entries start before those before them: no time passes between them",
    ),
    "unknown latency": (
        "entry that blocks has no latency_us: the computation after it includes its recorded time",
        "entries that block have no latency_us: the computations after them include their recorded times",
    ),
}


def _remarks(noted: Counter, tasks: Tasks, kind: TraceKind) -> tuple[str, ...]:
    if noted["no times"]:
        times = kind.no_times
    else:
        mean = sum(tasks.column("seconds")) / tasks.ranks
        times = f"what passes between start times is computation: with all others {mean:.3g} s on the mean rank."
    return (times, *(f"{files.count_phrase(noted[key], *words)}." for key, words in REMARKS.items() if noted[key]))
