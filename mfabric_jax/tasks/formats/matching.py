"""Messages and collectives put together from what each rank says by itself."""

from collections import defaultdict
from typing import NamedTuple

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
