"""Scales of the page's charts: limits and ticks, as fractions of the axis."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_FAR = 5  # least ratio of largest to smallest value for a logarithmic scale
_MOST_TICKS, _APART = 6, 0.12  # ticks at the values themselves: most, and least distance [fraction of the axis]
_ROOM = 0.07  # free space beyond the values, as a fraction
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_ROUNDING = 0.000001  # relative
_INTERVALS = 4  # most intervals between ticks of a linear scale


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    logarithmic: bool
    ticks: Sequence[float]

    def share(self, value: float) -> float:
        """Return how far along the axis a value lies, 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def axis_of(values: Iterable[float], exact: bool = False) -> Axis:
    """Return the axis of some values; it is logarithmic if they lie far apart.

    `exact`: put ticks at the values if these are few, round and not too close.
    """
    every = sorted(set(values))
    low, high = every[0], every[-1]
    if low > 0 and high >= _FAR * low:
        room = (high / low) ** _ROOM
        axis = Axis(low / room, high * room, True, ())
        axis = Axis(axis.low, axis.high, True, _log_ticks(axis.low, axis.high))
    else:
        room = _ROOM * (high - low) or _ROOM * abs(high) or 1.0
        is_from_zero = low >= 0 and (low == 0 or (2 * low <= high and not exact))
        begin = 0.0 if is_from_zero else low - room
        axis = Axis(begin, high + room, False, tuple(_linear_ticks(begin, high + room)))
    return Axis(axis.low, axis.high, axis.logarithmic, every) if exact and _fit(every, axis) else axis


def _fit(values: Sequence[float], axis: Axis) -> bool:
    shares = [axis.share(value) for value in values]
    apart = all(after - before >= _APART for before, after in itertools.pairwise(shares))
    return len(values) <= _MOST_TICKS and apart and all(float(f"{value:.3g}") == value for value in values)


def _linear_ticks(low: float, high: float) -> Iterator[float]:
    span = (high - low) / _INTERVALS
    power = 10.0 ** math.floor(math.log10(span))
    step = next(power * step for step in _STEPS if power * step >= span * (1 - _ROUNDING))
    for count in range(math.ceil(low / step - _ROUNDING), math.floor(high / step + _ROUNDING) + 1):
        yield float(f"{count * step:.12g}")


def _log_ticks(low: float, high: float) -> Sequence[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1, 2, 5), (1,)):
        every = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in digits]
        ticks = [tick for tick in every if low <= tick <= high]
        if len(ticks) <= _MOST_TICKS:
            return ticks
    return ticks[:: -(-len(ticks) // _MOST_TICKS)]
