"""Numbers as people read them: significant digits, percent, millions."""

import math
from collections.abc import Sequence
from typing import Any

MISSING = "-"
LARGEST = 1e150  # differences and ratios of what lies below
SMALLEST = 1e-150  # and above are finite


def usable(value: Any) -> float | None:
    """A number, or None for text, infinities and NaN."""
    if value is None or isinstance(value, str) or not abs(value) <= LARGEST:
        return None
    return float(value) if abs(value) >= SMALLEST else 0.0


def plain_scalar(value: Any) -> Any:
    return value.item() if getattr(value, "shape", None) == () else value


def many(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def millions(dollars: float) -> float:
    return dollars / 1_000_000


def _unit(value: float, units: Sequence[str], least: float) -> tuple[str, float]:
    for power, unit in enumerate(units):
        if value * 1000**power >= least or value == 0 or unit == units[-1]:
            return unit, 1000.0**power
    raise AssertionError(units)


def bytes_unit(gigabytes: float) -> tuple[str, float]:
    """The best unit of a size (GB, or smaller), and the factor from gigabytes."""
    return _unit(gigabytes, ("GB", "MB", "kB", "B"), 0.1)


def time_unit(seconds: float, least: float = 1.0) -> tuple[str, float]:
    """The best unit of times up to `seconds`, and the factor from seconds."""
    return _unit(seconds, ("s", "ms", "us", "ns"), least)


def decimals(value: float, digits: int) -> int:
    """Number of decimal places that show `digits` significant digits of a value; never negative."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def significant(value: float, digits: int = 4) -> str:
    """1234, 12.34, 0.01234; beyond that range with an exponent. Digits before the point are never rounded."""
    if not math.isfinite(value) or value == 0:
        return str(float(value)) if not math.isfinite(value) else "0"
    if not -5 < math.log10(abs(value)) < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{decimals(value, digits)}f}"


def column(values: Sequence[Any], digits: int = 4, percent: bool = False, places: int | None = None) -> list[str]:
    """Cells of one column: `places` decimals, or equal decimals for like sizes, else `digits` significant digits."""
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
