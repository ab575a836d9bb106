"""From values to coordinates: linear and logarithmic scales, the range they span and where their ticks are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_NICE = (1, 2, 5, 10)
_FAR = 5  # from this ratio of largest to smallest on, a scale is logarithmic
_DECADES = 2000  # from this ratio on, only powers of ten are ticks
_MOST_VALUES = 10
_ROOM = 26.0  # between ticks


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` at coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values that the scale spans, about `count` of them."""
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high, count)


def spanning(values: Sequence[float], start: float, end: float, zero: bool = False, log: bool = False) -> Scale:
    """A scale with a little room around values; from 0 if asked, or if that costs little room.

    `log` allows a logarithmic scale, which is taken where values lie far apart.
    """
    low, high = min(values), max(values)
    if log and low > 0 and high >= _FAR * low:
        return Scale(low / 1.25, high * 1.25, start, end, log=True)
    room = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    bottom, top = low - room, high + room
    if zero or low == 0 or 0 < 2 * low <= high:
        bottom = bottom if low < 0 else 0.0
        top = top if high > 0 else 0.0 if low < 0 else 1.0
    return Scale(bottom, top, start, end)


def stepped(values: Sequence[float], start: float, end: float) -> tuple[Scale, Sequence[float]]:
    """A scale for a few values, with ticks at the values themselves where there is room."""
    values = sorted(set(values))
    scale = spanning(values, start, end, log=True)
    apart = [scale(after) - scale(before) for before, after in pairwise(values)]
    roomy = len(values) <= _MOST_VALUES and min(apart, default=_ROOM) >= _ROOM
    return scale, values if roomy else scale.ticks()


def _ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in _NICE if power * nice >= rough * 0.999)
    first = math.ceil(low / step - 0.001)
    return [step * at for at in range(first, math.floor(high / step + 0.001) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = (1,) if high > _DECADES * low else _NICE[:3]
    return [nice * 10.0**power for power in powers for nice in few if low <= nice * 10.0**power <= high]
