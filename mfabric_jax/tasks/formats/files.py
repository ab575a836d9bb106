"""What every format of task graphs shares: files, packed or not, and sentences that name the place."""

import gzip
import lzma
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.tasks.graph import TaskGraph

LARGEST = 1 << 32  # bytes of a file, unpacked
LARGEST_WHOLE = 1 << 53  # whole numbers that a float64 holds
MOST_TASKS = 1 << 24
PACKED = re.compile(r"\.(gz|xz)$")


@dataclass(frozen=True)
class LeftOut:
    """What a file may leave out, said by its reader's caller; None: not said.

    - `ranks`: GPUs of the job. A Chakra file that stands alone is copied to all of them; of a set of several some may
      be missing.
    - `communicators`: JSON file of a Chakra set's communicators; else PREFIX.json, or METADATA nodes.
    - `tflops`, `memory_gigabytes_per_s`: of a GPU, for computations that say operations and bytes in place of a
      duration: operations / min(tflops, memory bandwidth x operations / bytes), the roofline of ASTRA-sim.
    - `unbounded_bytes`: of a flow that never ends.
    - `weights`: MixNet's matrix of weights, a .txt file, for the all-to-alls of its task graphs.
    """

    ranks: int | None = None
    communicators: str | Path | None = None
    tflops: float | None = None
    memory_gigabytes_per_s: float | None = None
    unbounded_bytes: float | None = None
    weights: str | Path | None = None


class Reading(NamedTuple):
    """A file's tasks, and in sentences what was dropped, assumed or not said by it."""

    graph: TaskGraph
    format: str
    remarks: tuple[str, ...] = ()


class Spot(NamedTuple):
    """Where something stands, such as "line 3 of 'a.cm'", for sentences about what is wrong with it."""

    where: str

    def refuse(self, why: str) -> NoReturn:
        """`InputError`: the place and why."""
        raise InputError(f"{self.where} {why}.")

    def whole(self, field: str, text: str | int, at_least: int = 0, most: int = LARGEST_WHOLE) -> int:
        """A whole number, from its digits."""
        if not re.fullmatch(r"-?[0-9]{1,20}", str(text)) or not at_least <= int(text) <= most:
            self.refuse(f"must have a whole number from {at_least} to {most} for {field}, got {str(text)[:40]!r}")
        return int(text)

    def rank(self, field: str, text: str | int, ranks: int = COUNTS["gpus"]) -> int:
        """One of so many ranks."""
        return self.whole(field, text, 0, ranks - 1)

    def number(self, field: str, text: str | float) -> float:
        """A finite number, 0 or more."""
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = -1.0
        if not 0 <= value <= LARGEST_WHOLE:
            self.refuse(f"must have a number from 0 to {LARGEST_WHOLE} for {field}, got {str(text)[:40]!r}")
        return value


def plain_name(path: Path) -> str:
    """A file's name without .gz or .xz."""
    return PACKED.sub("", path.name)


def unpacked(path: str | Path) -> bytes:
    """The bytes of a file, of a .gz or .xz those inside, told by how it begins. `InputError` if it cannot be read."""
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        elif data[:6] == b"\xfd7zXZ\x00":
            data = lzma.decompress(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or error or "it is cut off"
        raise InputError(f"cannot read {str(path)!r} ({reason}); give a file of tasks, plain, .gz or .xz.") from error
    if len(data) > LARGEST:
        raise InputError(f"{str(path)!r} must hold at most {LARGEST:,} bytes, got {len(data):,}.")
    return data


def lines_of(path: str | Path) -> list[str]:
    """The lines of a text. `InputError` for what is none."""
    try:
        text = unpacked(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} must be text in UTF-8, it is not from byte {error.start} on.") from error
    return text.splitlines()


def line(path: str | Path, number: int) -> Spot:
    """The place of a line, counted from 1."""
    return Spot(f"line {number} of {str(path)!r}")


def few_enough(path: str | Path, tasks: float) -> None:
    """`InputError` for more tasks than make sense."""
    if tasks > MOST_TASKS:
        raise InputError(f"{str(path)!r} must make at most {MOST_TASKS:,} tasks, got {tasks:,.0f}.")


def so_many(count: int, one: str, several: str | None = None) -> str:
    """A number with its noun."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


# Messages and collectives put together from what each rank says by itself.

ANY = -1  # a receive takes from any source, or with any tag


class Ends(NamedTuple):
    """The sends and receives of one source, destination and tag, in order."""

    sends: list[int]
    receives: list[int]


class Messages:
    """Sends and receives collected by (source, destination, tag): the first send goes with the first receive."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int, int], Ends] = defaultdict(lambda: Ends([], []))
        self._wild: list[tuple[int, int, int, int]] = []

    def send(self, task: int, source: int, destination: int, tag: int) -> None:
        """Task `task` sends."""
        self._ends[source, destination, tag].sends.append(task)

    def receive(self, task: int, source: int, destination: int, tag: int) -> None:
        """Task `task` receives; source and tag may be `ANY`."""
        if ANY in (source, tag):
            self._wild.append((task, source, destination, tag))
        else:
            self._ends[source, destination, tag].receives.append(task)

    @property
    def wild(self) -> int:
        """How many receives take what comes."""
        return len(self._wild)

    def matched(self) -> "Matched":
        """Every send with its receive; one from any source or with any tag takes the first send that is left."""
        found = Matched([], [], 0)
        left: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for (source, destination, tag), (sends, receives) in self._ends.items():
            found.pairs.extend((send, receive, source) for send, receive in zip(sends, receives, strict=False))
            left[destination] += [(send, source, tag) for send in sends[len(receives) :]]
            found.unsent.extend((receive, source) for receive in receives[len(sends) :])
        for sends in left.values():
            sends.sort()
        for receive, source, destination, tag in self._wild:
            fits = (one for one in left[destination] if source in (ANY, one[1]) and tag in (ANY, one[2]))
            taken = next(fits, None)
            if taken is None:
                found.unsent.append((receive, source))
            else:
                left[destination].remove(taken)
                found.pairs.append((taken[0], receive, taken[1]))
        return found._replace(unheard=sum(map(len, left.values())))


class Matched(NamedTuple):
    """`pairs`: (send, receive, source).  `unsent`: (receive, source) that no send is for.  `unheard`: sends left."""

    pairs: list[tuple[int, int, int]]
    unsent: list[tuple[int, int]]
    unheard: int
