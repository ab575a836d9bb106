"""Where the names of narrow things go: above them, on as few levels as keep names and leaders apart.

In a crowd every name begins at its own leader and runs to the right, the leftmost highest: then no leader crosses
a name. At the right edge it is the mirror image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

LEVELS = 6
_MARGIN = 0.05  # inches kept free around a name
_OVERHANG = 0.05  # inches by which a name reaches over its leader


@dataclass
class Level:
    """What is taken on one level: names as intervals, leaders that pass through as points."""

    names: list[tuple[float, float]] = field(default_factory=list)
    leaders: list[float] = field(default_factory=list)

    def holds(self, low: float, high: float, behind: bool) -> bool:
        """Whether an interval is free of names, and of leaders unless these may pass behind."""
        clear = all(high + _MARGIN <= a or b + _MARGIN <= low for a, b in self.names)
        return clear and (behind or all(x < low or x > high for x in self.leaders))

    def passes(self, x: float) -> bool:
        """Whether a leader may go through."""
        return all(x < a or x > b for a, b in self.names)


def place(anchors: Sequence[float], widths: Sequence[float], room: float) -> list[tuple[int, float] | None]:
    """For each name its level (0 lowest) and centre, None if no level is free.

    - `anchors`: what is named, as a distance from the left; `widths`: of the names; `room`: of the whole. All inches.
    """
    levels = [Level() for _ in range(LEVELS)]
    placed: list[tuple[int, float] | None] = [None] * len(anchors)
    edge, others = _split(anchors, widths, room)
    for index in (*edge, *others):
        anchor, width = anchors[index], widths[index]
        aside = (width / 2 - _OVERHANG) * (-1 if index in edge else 1)
        lonely = all(abs(a - anchor) > (w + width) / 2 for a, w in _but(index, anchors, widths))
        centre = anchor if lonely else anchor + aside
        centre = min(max(centre, width / 2), max(room - width / 2, width / 2))
        level = _level(levels, anchor, centre, width, behind=False)
        level = _level(levels, anchor, centre, width, behind=True) if level is None else level
        placed[index] = None if level is None else (level, centre)
    return placed


def _split(anchors: Sequence[float], widths: Sequence[float], room: float) -> tuple[list[int], list[int]]:
    """Names that must run to the left, from left to right, and the others, from right to left."""
    edge: list[int] = []
    others = sorted(range(len(anchors)), key=lambda i: -anchors[i])
    reach = room
    while others and (anchors[others[0]] + widths[others[0]] > room or anchors[others[0]] + _MARGIN > reach):
        edge.insert(0, others.pop(0))
        reach = min(reach, anchors[edge[0]] - widths[edge[0]])
    return edge, others


def _but(index: int, anchors: Sequence[float], widths: Sequence[float]) -> list[tuple[float, float]]:
    """Every other name: (anchor, width)."""
    return [pair for i, pair in enumerate(zip(anchors, widths, strict=True)) if i != index]


def _level(levels: list[Level], anchor: float, centre: float, width: float, behind: bool) -> int | None:
    """Take the lowest level where a name fits; `behind`: leaders may pass behind names."""
    low, high = centre - width / 2, centre + width / 2
    for number, level in enumerate(levels):
        if level.holds(low, high, behind):
            level.names.append((low, high))
            for below in levels[:number]:
                below.leaders.append(anchor)
            return number
        if not (behind or level.passes(anchor)):
            return None
    return None
