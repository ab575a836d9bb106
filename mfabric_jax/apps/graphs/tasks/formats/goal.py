"""Read GOAL, the text format of LogGOPSim, Schedgen and ATLAHS: sends, receives and calculations of each rank.

A `calc` is in nanoseconds, as Schedgen writes it; a `cpu` runs one at a time. Sends and receives take no processor time
(LogGOPSim's o and g belong to its own network model). A send ends when the message has arrived. "B irequires A" means
that B waits for everything that A waits for. Source: the grammar of github.com/spcl/LogGOPSim.
"""

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.formats import files
from mfabric_jax.apps.graphs.tasks.formats.files import Messages, Reading, Spot, Supplied
from mfabric_jax.apps.graphs.tasks.graph import TaskKind, Tasks
from mfabric_jax.checks import COUNTS

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
RANKS = re.compile(r"num_ranks\s+(\S+)")
BLOCK = re.compile(r"rank\s+(\S+)\s*\{")
LABEL = r"[a-zA-Z][a-zA-Z0-9_]*"
REQUIRES = re.compile(rf"({LABEL})\s+(i?requires)\s+({LABEL})")
TASK = re.compile(
    rf"(?:({LABEL})\s*:\s*)?(?:(send|recv)\s+(\S+?)b?\s+(?:to|from)\s+(\S+)|(calc)\s+(\S+))((?:\s+(?:tag|cpu|nic)\s+\S+)*)"
)


class _Rank(NamedTuple):
    number: int
    labels: dict[str, int]


class _Job(NamedTuple):
    """The statements of a file. `early`: (first, then) of each irequires; `receives`: position and bytes by task."""

    tasks: Tasks
    messages: Messages
    early: list[tuple[int, int]]
    receives: dict[int, tuple[Spot, int]]


def tells(head: bytes) -> bool:
    return COMMENT.sub("", head.decode("utf-8", "replace")).lstrip().startswith("num_ranks")


def read(path: Path, supplied: Supplied) -> Reading:
    """Return the tasks of all ranks.

    Raise `InputError` for a receive without a send of the same source, destination and tag.
    """
    source = "\n".join(files.lines_of(path))
    text = COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), source)
    job, rank, spot = _Job(Tasks(0), Messages(), [], {}), None, Spot(repr(str(path)))
    tasks = job.tasks
    for number, statement in enumerate(text.split("\n"), start=1):
        spot = files.line(path, number)
        for part in filter(None, map(str.strip, re.split(r"(?<=[{}])|(?=\})", statement))):
            if match := RANKS.fullmatch(part):
                tasks.ranks = spot.whole("num_ranks", match[1], 1, COUNTS["gpus"])
            elif tasks.ranks and not rank and (match := BLOCK.fullmatch(part)):
                rank = _Rank(spot.rank("rank", match[1], tasks.ranks), {})
            elif part == "}" and rank:
                rank = None
            elif rank and (match := REQUIRES.fullmatch(part)):
                _require(spot, job, rank, match)
            elif rank and (match := TASK.fullmatch(part)):
                _add(spot, job, rank, match)
            else:
                spot.refuse(f"must be a statement of GOAL, got {part[:60]!r}")
    if not tasks.ranks:
        Spot(repr(str(path))).refuse("must begin with num_ranks N")
    if rank:
        spot.refuse(f"ends rank {rank.number} without '}}'")
    return _match_messages(job)


def _require(spot: Spot, job: _Job, rank: _Rank, match: re.Match) -> None:
    for label in (match[1], match[3]):
        if label not in rank.labels:
            spot.refuse(f"names {label!r}, which rank {rank.number} has not defined yet")
    then, first = rank.labels[match[1]], rank.labels[match[3]]
    if match[2] == "requires":
        job.tasks.wait(then, first)
    else:
        job.early.append((first, then))


def _add(spot: Spot, job: _Job, rank: _Rank, match: re.Match) -> None:
    tasks = job.tasks
    label, verb, size, peer, _, units_of_calc, option_text = match.groups()
    options = dict(zip(*[iter(option_text.split())] * 2, strict=True))
    if 2 * len(options) < len(option_text.split()):
        spot.refuse(f"must have each of tag, cpu and nic at most once, got {option_text.strip()[:60]!r}")
    spot.whole("nic", options.get("nic", 0))
    lane, tag = spot.whole("cpu", options.get("cpu", 0)), spot.whole("tag", options.get("tag", 0), -1)
    if label in rank.labels:
        spot.refuse(f"defines {label!r} a second time")
    if verb is None:
        seconds = units.ns(spot.number("calc", units_of_calc))
        task = tasks.add(TaskKind.COMPUTE, rank.number, label or "", lane=lane, seconds=seconds)
    elif verb == "send":
        there, size = spot.rank("to", peer, tasks.ranks), spot.whole("send", size)
        task = tasks.add(TaskKind.SEND, rank.number, label or "", peer=there, bytes=size)
        job.messages.send(task, rank.number, there, tag)
    else:
        there = spot.whole("from", peer, -1, tasks.ranks - 1)
        task = tasks.add(TaskKind.RECV, rank.number, label or "", peer=max(there, 0))
        job.messages.receive(task, there, rank.number, tag)
        job.receives[task] = spot, spot.whole("recv", size)
    if label:
        rank.labels[label] = task


def _match_messages(job: _Job) -> Reading:
    tasks = job.tasks
    pairs, unsent, unreceived = job.messages.match()
    if unsent:
        first, _ = min(unsent)
        receives = files.count_phrase(len(unsent) + len(pairs), "receive")
        job.receives[first][0].refuse(
            f"receives on rank {tasks.column('rank')[first]}, but no send has this source, destination and tag; "
            f"{len(unsent)} of {receives} {'has' if len(unsent) == 1 else 'have'} no send"
        )
    for number, (send, receive, source) in enumerate(sorted(pairs)):
        tasks.column("match")[send] = tasks.column("match")[receive] = number
        tasks.column("peer")[receive] = source
    _wait_like(tasks, job.early)
    remarks = []
    if job.messages.wild:
        text = files.count_phrase(
            job.messages.wild, "receive takes any source or tag", "receives take any source or tag"
        )
        remarks.append(f"{text}: the remaining sends match in the order of the file.")
    if unreceived:
        remarks.append(
            f"{files.count_phrase(unreceived, 'send has', 'sends have')} no receive: no task waits for them."
        )
    other = sum(tasks.column("bytes")[send] != job.receives[receive][1] for send, receive, _ in pairs)
    if other:
        text = files.count_phrase(
            other, "receive differs in size from its send", "receives differ in size from their sends"
        )
        remarks.append(f"{text}: the sizes of sends count.")
    return Reading(tasks.graph(), "GOAL", tuple(remarks))


def _wait_like(tasks: Tasks, early: list[tuple[int, int]]) -> None:
    """Make the second task of each pair wait for everything that the first waits for, through any number of pairs."""
    before: dict[int, set[int]] = defaultdict(set)
    for first, then in tasks.after:
        before[then].add(first)
    grew = True
    while grew:
        grew = False
        for first, then in early:
            grew |= not before[first] <= before[then]
            before[then] |= before[first]
    for _, then in early:
        tasks.wait(then, before[then] - {then})
