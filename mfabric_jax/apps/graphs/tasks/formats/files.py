"""Shared parts of the formats of task graphs: reading (packed) files, errors with positions, matching of messages and
of collectives."""

import lzma
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskGraph, Tasks
from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.support import unpacking
from mfabric_jax.support.text_files import read_bytes

LARGEST = 1 << 32  # bytes of a file
LARGEST_WHOLE = 1 << 53  # float64 holds every whole number up to this one
MOST_TASKS = 1 << 24
PACKED = re.compile(r"\.(gz|xz)$")


@dataclass(frozen=True)
class Supplied:
    """Values that a file may leave out; None: not given.

    - `ranks`: GPUs of the job. A single file of Chakra, PARAM or PyTorch is copied to all of them; a set may
      lack some of them.
    - `communicators`: JSON file of a Chakra set's communicators; default: PREFIX.json, or METADATA nodes.
    - `tflops`, `memory_gigabytes_per_s`: speed and memory bandwidth of a GPU, for computations with operations and
      bytes but no duration. They take operations / min(tflops, memory bandwidth x operations / bytes), the roofline of
      ASTRA-sim.
    - `unbounded_bytes`: bytes that replace an htsim flow that never ends.
    - `weights`: MixNet's matrix of weights, a .txt file, for the all-to-alls of its task graphs.
    """

    ranks: int | None = None
    communicators: str | Path | None = None
    tflops: float | None = None
    memory_gigabytes_per_s: float | None = None
    unbounded_bytes: float | None = None
    weights: str | Path | None = None

    def computation_s(self, operations: float, moved: float) -> float:
        """Return the seconds of a computation by the roofline. `moved`: bytes of memory. Unknown rates take no time."""
        computes = operations / units.tflops(self.tflops) if self.tflops else 0.0
        moves = moved / units.gigabytes_per_s(self.memory_gigabytes_per_s) if self.memory_gigabytes_per_s else 0.0
        return max(computes, moves)


class Reading(NamedTuple):
    graph: TaskGraph
    format: str
    remarks: tuple[str, ...] = ()


class Spot(NamedTuple):
    """A position in a file, such as "line 3 of 'a.cm'", for error messages.

    `names`: what the file calls a field that the reason names, for readers that several formats share.
    """

    where: str
    names: tuple[tuple[str, str], ...] = ()

    def refuse(self, why: str) -> NoReturn:
        """Raise `InputError` with the position and the reason."""
        names = dict(self.names)
        if names:
            why = re.sub(rf"\b({'|'.join(names)})\b", lambda name: names[name[0]], why)
        raise InputError(f"{self.where} {why}.")

    def whole(self, field: str, text: str | int, at_least: int = 0, most: int = LARGEST_WHOLE) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", str(text)) or not at_least <= int(text) <= most:
            self.refuse(f"must have a whole number from {at_least} to {most} for {field}, got {str(text)[:40]!r}")
        return int(text)

    def rank(self, field: str, text: str | int, ranks: int = COUNTS["gpus"]) -> int:
        return self.whole(field, text, 0, ranks - 1)

    def number(self, field: str, text: str | float) -> float:
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = -1.0
        if not 0 <= value <= LARGEST_WHOLE:
            self.refuse(f"must have a number from 0 to {LARGEST_WHOLE} for {field}, got {str(text)[:40]!r}")
        return value


def plain_name(path: Path) -> str:
    return PACKED.sub("", path.name)


def read_unpacked(path: str | Path) -> bytes:
    """Return the bytes of a file, decompressed if its first bytes mark it as .gz or .xz.

    Raise `InputError` if it cannot be read.
    """
    give = "give a file of tasks, plain, .gz or .xz"
    data = read_bytes(path, give, LARGEST)
    try:
        return unpacking.unpack(path, data)
    except InputError:
        raise
    except unpacking.BROKEN as error:
        raise InputError(f"cannot read {str(path)!r} ({error or 'it is cut off'}); {give}.") from error


def head_of(path: Path, length: int) -> bytes:
    """Return the first bytes of a file, decompressed; of a large file no more is read.

    Raise `InputError` if it cannot be read.
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(length)
    except OSError:
        data = b""
    try:
        if data.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(wbits=31).decompress(data, length)
        if data.startswith(b"\xfd7zXZ\x00"):
            return lzma.LZMADecompressor().decompress(data, length)
    except (zlib.error, lzma.LZMAError):
        data = b""
    return data or read_unpacked(path)[:length]


def lines_of(path: str | Path) -> list[str]:
    try:
        text = read_unpacked(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} must be UTF-8 text, got other bytes from byte {error.start} on.") from error
    return text.splitlines()


def line(path: str | Path, number: int) -> Spot:
    return Spot(f"line {number} of {str(path)!r}")


def few_enough(path: str | Path, tasks: float) -> None:
    if tasks > MOST_TASKS:
        raise InputError(f"{str(path)!r} must make at most {MOST_TASKS:,} tasks, got {tasks:,.0f}.")


def count_phrase(count: int, singular: str, plural: str | None = None) -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def absent_ranks(spot: Spot, present: Collection[int], largest: int, ranks: int | None) -> list[int]:
    """Return the ranks of a job without a file. `largest`: the largest rank that any file names.

    Raise `InputError` if a file is missing and `ranks`, the number of all ranks, is not stated or too small.
    """
    every = spot.whole("ranks", ranks or len(present), 1, COUNTS["gpus"])
    absent = [rank for rank in range(every) if rank not in present]
    if largest >= every or (absent and not ranks):
        lost = absent[0] if absent else largest
        spot.refuse(
            f"must have a file for every rank, got {count_phrase(len(present), 'file')} without rank {lost}; to "
            f"read it without the other files, set ranks to the number of all ranks, at least {largest + 1}"
        )
    return absent


ANY = -1  # source or tag of a receive that accepts any


class MessageQueue(NamedTuple):
    """Sends and receives with one source, destination and tag, in order."""

    sends: list[int]
    receives: list[int]


class Messages:
    """Collects sends and receives by (source, destination, tag); the nth send goes with the nth receive."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int, int], MessageQueue] = defaultdict(lambda: MessageQueue([], []))
        self._wild: list[tuple[int, int, int, int]] = []

    def send(self, task: int, source: int, destination: int, tag: int) -> None:
        self._ends[source, destination, tag].sends.append(task)

    def receive(self, task: int, source: int, destination: int, tag: int) -> None:
        """Add a task that receives; `source` and `tag` may be `ANY`."""
        if ANY in (source, tag):
            self._wild.append((task, source, destination, tag))
        else:
            self._ends[source, destination, tag].receives.append(task)

    @property
    def wild(self) -> int:
        return len(self._wild)

    def match(self) -> "Matched":
        """Match every send with its receive; then receives of any source or tag take the first sends that remain."""
        matches = Matched([], [], 0)
        left: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for (source, destination, tag), (sends, receives) in self._ends.items():
            matches.pairs.extend((send, receive, source) for send, receive in zip(sends, receives, strict=False))
            left[destination] += [(send, source, tag) for send in sends[len(receives) :]]
            matches.unsent.extend((receive, source) for receive in receives[len(sends) :])
        for sends in left.values():
            sends.sort()
        for receive, source, destination, tag in self._wild:
            fits = (
                candidate
                for candidate in left[destination]
                if source in (ANY, candidate[1]) and tag in (ANY, candidate[2])
            )
            taken = next(fits, None)
            if taken is None:
                matches.unsent.append((receive, source))
            else:
                left[destination].remove(taken)
                matches.pairs.append((taken[0], receive, taken[1]))
        return matches._replace(unreceived=sum(map(len, left.values())))


class Matched(NamedTuple):
    """`pairs`: (send, receive, source). `unsent`: (receive, source) without a send. `unreceived`: number of sends
    without a receive.
    """

    pairs: list[tuple[int, int, int]]
    unsent: list[tuple[int, int]]
    unreceived: int


class CollectiveOrder:
    """Matches collectives: the nth of a communicator on one rank belongs to the nth on its other ranks.

    `label`: by task, its communicator and its number there.
    """

    def __init__(self) -> None:
        self.label: dict[int, tuple[int, int]] = {}
        self._count: Counter[tuple[int, int]] = Counter()

    def add(self, task: int, group: int, rank: int) -> None:
        self.label[task] = (group, self._count[group, rank])
        self._count[group, rank] += 1

    def check(self, tasks: Tasks, groups: Iterable[Sequence[int]], absent: Collection[int]) -> None:
        """Raise `InputError` for collectives that differ between ranks, or lack members that are not `absent`."""
        groups = list(groups)
        columns = {name: tasks.column(name) for name in ("op", "bytes", "peer", "rank", "name")}
        first: dict[tuple[int, int], int] = {}
        for task, label in self.label.items():
            lead = first.setdefault(label, task)
            alike = ("op", "peer") if columns["op"][task] == Op.ALL_TO_ALL else ("op", "bytes", "peer")
            if any(columns[name][lead] != columns[name][task] for name in alike):
                ranks = sorted(columns["rank"][each] for each in (lead, task))
                raise InputError(
                    f"collective {label[1]} of communicator {list(groups[label[0]])[:8]} must be the same on all "
                    f"ranks, but those of ranks {ranks[0]} and {ranks[1]} differ ({columns['name'][task]!r})."
                )
        for number, members in enumerate(groups):
            count = {rank: self._count[number, rank] for rank in members if rank not in absent}
            if len(set(count.values())) > 1:
                most, least = (pick(count, key=lambda rank: count[rank]) for pick in (max, min))
                raise InputError(
                    f"communicator {list(members)[:8]} must have equally many collectives on all its ranks, "
                    f"got {count[most]} on rank {most} and {count[least]} on rank {least}."
                )
