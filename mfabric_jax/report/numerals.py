"""Numbers as people read them: significant digits, percent, millions."""

import math
from collections.abc import Sequence
from typing import Any

MISSING = "-"
LARGEST = 1e150  # differences and ratios of what lies below
SMALLEST = 1e-150  # and above are finite


def usable(value: Any) -> float | None:
    """A number, or None for what cannot be drawn or compared: text, infinities and what is as good as one."""
    if value is None or isinstance(value, str) or not abs(value) <= LARGEST:
        return None
    return float(value) if abs(value) >= SMALLEST else 0.0


def plain_scalar(value: Any) -> Any:
    """What a scalar of an array holds; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def many(count: int, singular: str, plural: str = "") -> str:
    """1 switch, 2 switches."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def millions(dollars: float) -> float:
    """Dollars -> millions of dollars."""
    return dollars / 1_000_000


def _unit(value: float, units: Sequence[str], least: float) -> tuple[str, float]:
    """The first unit, each a thousandth of the one before, in which a value is at least so large; and its factor."""
    for power, unit in enumerate(units):
        if value * 1000**power >= least or value == 0 or unit == units[-1]:
            return unit, 1000.0**power
    raise AssertionError(units)


def bytes_unit(gigabytes: float) -> tuple[str, float]:
    """The unit in which a size is read best, and what to multiply gigabytes by to have it: GB, or smaller if tiny."""
    return _unit(gigabytes, ("GB", "MB", "kB", "B"), 0.1)


def time_unit(seconds: float, least: float = 1.0) -> tuple[str, float]:
    """The unit in which times up to so many seconds are read best, and what to multiply seconds by to have it."""
    return _unit(seconds, ("s", "ms", "us", "ns"), least)


def decimals(value: float, digits: int) -> int:
    """How many decimal places show `digits` significant digits of a value; never negative."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def significant(value: float, digits: int = 4) -> str:
    """1234, 12.34, 0.01234; beyond that range with an exponent; whole parts are never rounded away."""
    if not math.isfinite(value) or value == 0:
        return str(float(value)) if not math.isfinite(value) else "0"
    if not -5 < math.log10(abs(value)) < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{decimals(value, digits)}f}"


def column(values: Sequence[Any], digits: int = 4, percent: bool = False, places: int | None = None) -> list[str]:
    """The cells of one column: so many decimal `places`, or the same for numbers of like size, else the same
    significant digits."""
    if percent:
        return [MISSING if value is None else value if isinstance(value, str) else _percent(value) for value in values]
    if places is not None:
        return [_cell(value, digits, places) for value in values]
    floats = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v) and v != 0]
    alike = bool(floats) and max(floats) < 100 * min(floats) and -4 < math.log10(min(floats)) < 9
    places = decimals(max(floats), digits) if alike else None
    return [_cell(value, digits, places) for value in values]


def _percent(value: float) -> str:
    return f"{value:.1%}".replace("-0.0%", "0.0%") if abs(value) < 0.01 else f"{value:.1%}"


def _cell(value: Any, digits: int, places: int | None) -> str:
    if value is None:
        return MISSING
    if isinstance(value, str | bool | int):
        return str(value)
    if places is None or not math.isfinite(value):
        return significant(value, digits)
    return f"{value:.{places}f}"
